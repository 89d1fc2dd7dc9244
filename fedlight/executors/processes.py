"""Local runs on the cores of one machine: copies of this process, each with one thread."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, cast

from fedlight._support.checks import positive_int
from fedlight.executors._remote.fork import Forked, number_of_workers
from fedlight.executors._remote.forked import SharedTensors, serve, values_at_fork
from fedlight.executors.base import ClientError, Executor, Job, Outcome, Workplace
from fedlight.executors.sequential import SequentialExecutor

if TYPE_CHECKING:
    from fedlight._module.settings import Settings

_NAME = "a worker of ProcessExecutor"
_PATIENCE = 300.0  # seconds for the first step of a worker
_SETTINGS = 16  # earlier settings of the module that new workers keep
_PER_WORKER = 8  # jobs of a call: the last ones to finish leave few cores idle


class ProcessExecutor(Executor):
    """Spreads clients over the cores of this machine, one client after another in each process.

    For modules that do not stack (convolutions, recurrent layers on a CPU). The results are those
    of `SequentialExecutor` with ``torch.set_num_threads(1)``, to the bit, for any number of
    workers. With several threads torch adds up in another order, and the last bits may differ.

    The workers are forked when a fit begins. So nothing is pickled and a script needs no
    ``if __name__ == "__main__"``; notebooks, and modules with locks or lambdas, work; the data are
    in memory once, but for the values that an `ExampleTable` keeps converted; a start takes
    milliseconds, where a new interpreter would import torch for seconds. Parameters travel through
    memory that all share. Threads would share torch's random generators, so that dropout would
    depend on which clients run at the same time.

    A worker computes with one thread. It has the module and the local optimizer as they were when
    it was forked. If a callback changes the module, or a number of the optimizer, new workers are
    forked before the next local runs. What a step leaves on the module (a counter, its last loss)
    stays in the worker.

    Args:
        workers: Number of processes; None for one per core that this process may use
            (``len(os.sched_getaffinity(0))``).
        max_batch: Largest number of clients in flight at once; None for eight per worker.

    Raises:
        RuntimeError: The system is not Linux.
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range.

    Example:
        >>> ProcessExecutor(2)
        ProcessExecutor(workers=2)
    """

    independent = True
    tries_itself = True

    def __init__(self, workers: int | None = None, max_batch: int | None = None) -> None:
        instead = "executor='sequential', or RayExecutor(num_actors=…)"
        self.workers = number_of_workers(workers, "ProcessExecutor", instead)
        if max_batch is None:
            max_batch = _PER_WORKER * self.workers
        self.max_batch = positive_int("max_batch", max_batch)
        self._processes: list[tuple[Forked, SharedTensors]] = []

    def setup(self, workplace: Workplace) -> None:
        """Fork the workers; each tries one step.

        Raises:
            ValueError: The run is not on the CPU, or in a process that may not start others; the
                local optimizer cannot work on the module; or the module's step does what only one
                process can do.
            RuntimeError: A worker dies, or does not answer.
        """
        if workplace.state.device.type != "cpu":
            raise ValueError(
                f"ProcessExecutor computes on the CPU, and the run is on {workplace.state.device}; "
                "write accelerator='cpu', or executor='auto'"
            )
        if multiprocessing.current_process().daemon:
            raise ValueError(
                "ProcessExecutor starts processes, which this one may not do, as it is a daemon of "
                "multiprocessing itself (a worker of a Pool); write executor='sequential'"
            )
        self._work, self._inner = workplace, SequentialExecutor()
        self._inner.setup(workplace)  # here, so that its errors are raised once
        self._settings: list[Settings] = []
        self._at_start = True  # the workers' module has the settings of the start
        self._fork(tries=True)

    def _fork(self, tries: bool = False) -> None:
        """Fork new workers, and wait until each is ready.

        Args:
            tries: Whether each tries the module first.
        """
        self._end()
        self._forked_with = values_at_fork(self._work)
        try:
            for _ in range(self.workers):
                tensors = SharedTensors.of(self._work.state.read(), self._settings)
                given = self._inner, self._work, tensors, tries
                forked = Forked.start(serve, *given, name=_NAME, daemon=True)
                self._processes.append((forked, tensors))
            waiting = {forked.pipe: forked for forked, _ in self._processes}
            while waiting:
                ready = wait([*waiting], timeout=_PATIENCE)
                if not ready:
                    raise RuntimeError(
                        f"{len(waiting)} of {self.workers} workers have not finished their first "
                        f"step after {_PATIENCE:g} s; they may wait for a lock that a thread of "
                        "this process held when they were forked: write executor='sequential'"
                    )
                for pipe in ready:
                    refusal = waiting.pop(cast(Connection, pipe)).receive()
                    if refusal:
                        raise ValueError(refusal)
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        """End the workers, even in the middle of a job."""
        for forked, _ in self._processes:
            forked.stop()
        self._processes = []

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Compute jobs, those with most steps first.

        Returns:
            Their results in the same order, with a `ClientError` in place of each that failed.

        Raises:
            RuntimeError: A worker died, or failed for a reason that is not the client's.
        """
        jobs = self._for_workers(jobs)
        outcomes: dict[int, Outcome] = {}
        # The longest first: a long run that starts last would leave the other cores idle.
        waiting = deque(sorted(range(len(jobs)), key=lambda index: -jobs[index].task.num_steps))
        free = self._processes[::-1]
        busy: dict[Connection, tuple[Forked, SharedTensors, int]] = {}
        while waiting or busy:
            while waiting and free:
                (forked, tensors), index = free.pop(), waiting.popleft()
                forked.send(tensors.put_job(jobs[index]))
                busy[forked.pipe] = forked, tensors, index
            for pipe in wait([*busy]):
                forked, tensors, index = busy.pop(cast(Connection, pipe))
                answer = forked.receive()
                failed = isinstance(answer, ClientError)
                outcomes[index] = answer if failed else tensors.result(answer)
                free.append((forked, tensors))
        return [outcomes[index] for index in range(len(jobs))]

    def _for_workers(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """The jobs with settings that the workers know; new workers are forked if they must be."""
        live = self._work.settings
        if live is None:
            start = None
        else:
            live.look()  # so that new workers know which settings their module has
            start = live.start
        used = {id(each): each for job in jobs if (each := job.pulled.settings) is not None}
        same = values_at_fork(self._work) == self._forked_with
        if same and self._at_start and all(each is start for each in used.values()):
            return [
                job._replace(pulled=replace(job.pulled, settings=None)) if used else job
                for job in jobs
            ]
        known = {id(each) for each in self._settings}
        new = [each for number, each in used.items() if number not in known]
        if new or not same:
            self._settings = [*self._settings, *new][-_SETTINGS - len(new) :]
            self._at_start = False
            self._fork()
        return jobs

    def teardown(self) -> None:
        """End the workers."""
        self._end()
        self._inner.teardown()
        del self._work, self._inner, self._forked_with, self._settings

    def __repr__(self) -> str:
        return f"ProcessExecutor(workers={self.workers})"
