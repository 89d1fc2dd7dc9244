"""Local runs on the cores of one machine: copies of this process, each with one thread."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence

from fedlight._support.checks import positive_int
from fedlight.executors._remote.crew import AT_ONCE, Traffic, run_in_parcels
from fedlight.executors._remote.fork import number_of_workers
from fedlight.executors._remote.forked import ForkedTeam, ForkedWorker, SharedTensors, with_news
from fedlight.executors._remote.shared_crew import SharedCrew
from fedlight.executors.base import (
    Executor,
    Job,
    Outcome,
    Workplace,
    refuse_second_fit,
    results_within,
)
from fedlight.executors.sequential import SequentialExecutor
from fedlight.local_optimizers.base import state_size

_PATIENCE = 300.0  # seconds for the first step of a worker
_PER_WORKER = 8  # results ahead of their arrival


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

    The workers are fed ahead: a local run begins as soon as a worker is free and the version that
    it pulls is there, those that arrive next first, and the server waits only for what it uses. A
    version is written once for all workers, and a result is read where its worker has written it.

    A worker computes with one thread. It has the module as it was when it was forked; if a callback
    changes the module, workers are forked anew, each when it has no work. What a step leaves on the
    module (a counter, its last loss) stays in the worker. A worker that dies costs its own local
    runs, which another one computes again; one that is silent for long is named in a warning.

    Args:
        workers: Number of processes; None for one per core that this process may use
            (``len(os.sched_getaffinity(0))``).
        max_batch: Largest number of local runs that are computed, or with workers, ahead of their
            arrival; None for eight per worker.
        max_bytes: Bytes that their results may take, but at least two per worker are ahead.

    Attributes:
        traffic: What has crossed between the processes since the last `setup`: the number of
            ``tasks``, the bytes of tensors ``sent`` and ``received``, and how many ``versions``.
        num_replaced: How many workers have died in the last fit.

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
    shared: SharedCrew[ForkedTeam] | None = None
    """Workers that other fits use, too; None for workers of its own."""

    def __init__(
        self,
        workers: int | None = None,
        max_batch: int | None = None,
        max_bytes: int = 2**30,
    ) -> None:
        instead = "executor='sequential', or RayExecutor(num_actors=…)"
        self.workers = number_of_workers(workers, "ProcessExecutor", instead)
        if max_batch is None:
            max_batch = _PER_WORKER * self.workers
        self.max_batch = positive_int("max_batch", max_batch)
        self.max_bytes = positive_int("max_bytes", max_bytes)
        self.traffic, self.num_replaced = Traffic(), 0

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
        refuse_second_fit(self)
        shared = self.shared
        fits = 1 if shared is None else shared.most_fits
        self._inner = inner = SequentialExecutor()
        inner.setup(workplace)  # here, so that its errors are raised once
        state = workplace.state.read()
        most = self.max_bytes // fits
        own = state_size(workplace.optimizer, state.params.numel())
        self.max_ahead = results_within(most, state, own, self.max_batch, self.workers)
        # What the server holds is not ahead: twice as many find room without a copy.
        tensors = SharedTensors(state, AT_ONCE * self.workers, 2 * self.max_ahead, fits, own)
        self.traffic = tensors.traffic
        # Workers that others use have work to do: another one tries the module.
        team = ForkedTeam(self.workers if shared is None else 1)
        team.add(None, workplace, inner, tensors)
        try:
            _wait_for_trials(team.start(tries=True).workers)
        except BaseException:
            team.close()
            raise
        if shared is None:
            self.crew = team.crew
        else:
            team.close()
            shared.team.add(workplace, workplace, inner, tensors)
            self.crew = shared.join(workplace)

    def team(self, most_fits: int) -> SharedCrew[ForkedTeam]:
        """Workers that several fits have in common: each by an executor with them as `shared`.

        Args:
            most_fits: How many fits are under way at once at most.
        """
        return SharedCrew(ForkedTeam(self.workers), self.workers, most_fits)

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Compute jobs, those with most steps first.

        Returns:
            Their results in the same order, with a `ClientError` in place of each that failed.

        Raises:
            RuntimeError: Workers died several times over the same job, or one failed for a reason
                that is not the client's.
        """
        assert self.crew is not None
        return run_in_parcels(self.crew, jobs, 1)

    def teardown(self) -> None:
        """End the workers, even in the middle of a job, or leave those that others use."""
        if self.crew is not None:
            self.num_replaced = self.crew.num_replaced
            self.crew.stop()
        self.crew = None

    def __repr__(self) -> str:
        return f"ProcessExecutor(workers={self.workers})"


def _wait_for_trials(workers: Sequence[ForkedWorker]) -> None:
    """Wait until workers have tried their module.

    Raises:
        ValueError: The module cannot be run this way.
        RuntimeError: A worker dies, or does not answer.
    """
    waiting = list(workers)
    while waiting:
        ready = with_news(waiting, _PATIENCE)
        if not ready:
            raise RuntimeError(
                f"{len(waiting)} of {len(workers)} workers have not finished their first "
                f"step after {_PATIENCE:g} s; they may wait for a lock that a thread of "
                "this process held when they were forked: write executor='sequential'"
            )
        for worker in ready:
            waiting.remove(worker)
            if refusal := worker.forked.receive():
                raise ValueError(refusal)
