"""Workers that are forked from this process: both sides, and the messages between them."""

from __future__ import annotations

import signal
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from lightning.pytorch.loggers.logger import DummyLogger

from fedlight.executors._choice.trial import try_step
from fedlight.executors._remote.crew import Crew, Traffic, Worker
from fedlight.executors._remote.fork import Forked, end_with_parent
from fedlight.executors._remote.tensor_block import Marks, SharedBlocks, write
from fedlight.executors.base import ClientError, Job, Outcome, Workplace
from fedlight.types import LocalResult, LoggedValue, Measured, ServerState, Task

if TYPE_CHECKING:
    from fedlight._module.settings import Settings
    from fedlight.executors.sequential import SequentialExecutor

_SAME_IN_ALL = {"version", "current_epoch", "global_step"}
"""Attributes of the trainer that a step may read: they follow from the task alone."""

_VERSION_BYTES = 2**28  # of versions that are kept for tasks that pull them later
_MOST_RESULTS = 1024  # each has a memory map of its own, of which a process has some ten thousand
_RESULT_BYTES = 2**30  # of results that the server has not released
_SETTINGS = 16  # earlier settings of the module that new workers have


class JobParts(NamedTuple):
    """A job without its tensors, which lie in shared blocks.

    Attributes:
        task: The task.
        version: The block of the version that was pulled.
        has_shared: Whether the version has a shared state.
        settings: The number of its settings among those that the worker has; None for those that
            its module has.
        own: The block of the client's own state, or None.
        result: The block for the result.
    """

    task: Task
    version: int
    has_shared: bool
    settings: int | None
    own: int | None
    result: int


ResultParts: TypeAlias = tuple[Mapping[str, LoggedValue], float | None, bool]
"""A result without its tensors: metrics, norm, and whether there is a new client state."""


class SharedTensors:
    """The tensors of jobs and results, in memory that this process shares with its workers.

    A version is written once, whichever tasks and workers read it, as long as there is room. A
    result stays where its worker has written it until the server no longer needs it.

    Args:
        state: A version, for types and shapes.
        num_jobs: How many jobs are with workers at most.
        num_results: How many results there may be besides, without a copy.
        num_fits: How many fits have such memory at once.
        state_size: How many numbers a client keeps between its tasks; those of the model if None.

    Attributes:
        traffic: Counts what crosses.
    """

    def __init__(
        self,
        state: ServerState,
        num_jobs: int,
        num_results: int,
        num_fits: int = 1,
        state_size: int | None = None,
    ) -> None:
        tensors = (state.params, state.buffers, state.counters, state.params)
        size = num_fits * max(1, sum(each.nbytes for each in tensors))
        self.versions = SharedBlocks(tensors, max(num_jobs, min(64, _VERSION_BYTES // size)))
        own = state.params if state_size is None else state.params.new_empty(state_size)
        self.states = SharedBlocks((own,), num_jobs)
        tensors = (state.params, state.buffers, state.counters, own)
        size = num_fits * max(1, sum(each.nbytes for each in tensors))
        extra = max(num_jobs, min(num_results, _MOST_RESULTS, _RESULT_BYTES // size))
        self.results = SharedBlocks(tensors, num_jobs + extra)
        self.traffic = Traffic()
        self._num_jobs = num_jobs
        self._written: OrderedDict[tuple[int, ...], _Written] = OrderedDict()  # by the last use
        self._by_block: dict[int, _Written] = {}

    def put_job(self, job: Job, settings: int | None) -> JobParts:
        """Write the tensors of a job; return everything else."""
        state, own = job.pulled, job.client_state
        place = None
        if own is not None:
            place = self.states.take()
            self.traffic.sent += write(self.states.tensors(place), (own,))
        self.traffic.tasks += 1
        version, shared = self._put_version(state), state.shared is not None
        return JobParts(job.task, version, shared, settings, place, self.results.take())

    def _put_version(self, state: ServerState) -> int:
        """The block of a version, in which it is written if it is not there."""
        tensors = (state.params, state.buffers, state.counters, state.shared)
        key = tuple(map(id, tensors))
        found = self._written.get(key)
        if found is not None and not found.marks.hold(tensors):
            self._forget(key)
            found = None
        if found is None:
            if not self.versions.num_free:
                self._make_room()
            found = _Written(self.versions.take(), Marks(tensors))
            self._written[key] = self._by_block[found.block] = found
            self.traffic.sent += write(self.versions.tensors(found.block), tensors)
            self.traffic.versions += 1
        self._written.move_to_end(key)
        found.users += 1
        return found.block

    def _make_room(self) -> None:
        """Forget a version that no worker reads: one that is gone, or else the least used."""
        unused = [key for key, each in self._written.items() if not each.users]
        gone = (key for key in unused if self._written[key].marks.is_gone)
        self._forget(next(gone, unused[0]))

    def _forget(self, key: tuple[int, ...]) -> None:
        """Find a version no longer; its block is free as soon as no worker reads it."""
        found = self._written.pop(key)
        found.forgotten = True
        if not found.users:
            self.versions.give_back(found.block)

    def release(self, parts: JobParts) -> None:
        """Note that a worker no longer reads the tensors of a job."""
        if parts.own is not None:
            self.states.give_back(parts.own)
        version = self._by_block[parts.version]
        version.users -= 1
        if version.forgotten and not version.users:
            self.versions.give_back(version.block)

    def job(self, parts: JobParts, settings: Sequence[Settings]) -> Job:
        """The job that was written; called by its worker."""
        params, buffers, counters, shared = self.versions.tensors(parts.version)
        number = parts.settings
        state = ServerState(
            parts.task.pulled_version,
            params,
            buffers,
            counters,
            shared if parts.has_shared else None,
            settings=None if number is None else settings[number],
        )
        own = None if parts.own is None else self.states.tensors(parts.own)[0]
        return Job(parts.task, state, own)

    def put_result(self, result: LocalResult, parts: JobParts) -> ResultParts:
        """Write the tensors of a result; return everything else. Called by the worker."""
        own, measured = result.client_state, result.measured
        tensors = (result.delta, result.buffers, result.counters, own)
        write(self.results.tensors(parts.result), tensors)
        return result.metrics, None if measured is None else measured.norm, own is not None

    def result(self, parts: JobParts, answer: ResultParts) -> LocalResult:
        """The result that was written, without a copy as long as there are blocks for others."""
        metrics, norm, has_own = answer
        if self.results.num_free > self._num_jobs:
            tensors = self.results.lent(parts.result)
        else:
            tensors = tuple(each.clone() for each in self.results.tensors(parts.result))
            self.results.give_back(parts.result)
        delta, buffers, counters, own = tensors
        kept = tensors if has_own else tensors[:3]
        self.traffic.received += sum(each.nbytes for each in kept)
        measured = None if norm is None else Measured(delta, delta._version, norm)
        client_state = own if has_own else None
        return LocalResult(delta, buffers, counters, metrics, client_state, measured=measured)


class _Written:
    """A version that lies in a block.

    Args:
        block: The number of the block.
        marks: Tells its tensors from others.

    Attributes:
        users: How many jobs of workers read it.
        forgotten: Whether the block is free once there are none.
    """

    __slots__ = ("block", "forgotten", "marks", "users")

    def __init__(self, block: int, marks: Marks) -> None:
        self.block, self.marks = block, marks
        self.users, self.forgotten = 0, False


@dataclass(frozen=True, slots=True, eq=False)
class KnownFit:
    """What a worker has of a fit, since it was there when the worker was forked.

    Attributes:
        number: Names the fit in messages.
        work: What its local runs share.
        inner: Computes them.
        tensors: Where tensors of jobs and results lie.
        settings: The settings that the worker has.
        current: Those that its module has; None for those of the start of the fit, which has not
            begun when its first workers are forked.
    """

    number: int
    work: Workplace
    inner: SequentialExecutor
    tensors: SharedTensors
    settings: Sequence[Settings]
    current: Settings | None

    def has(self, settings: Settings | None) -> bool:
        """Whether the worker has some settings."""
        return self._is_current(settings) or any(each is settings for each in self.settings)

    def _is_current(self, settings: Settings | None) -> bool:
        current = self.current
        if current is None and self.work.settings is not None:
            current = self.work.settings.start
        return settings is None or settings is current

    def put(self, job: Job) -> JobParts:
        """Write a job; see `SharedTensors.put_job`."""
        used = job.pulled.settings
        number = None
        if not self._is_current(used):
            number = next(n for n, each in enumerate(self.settings) if each is used)
        return self.tensors.put_job(job, number)


class ForkedFit:
    """A fit for which workers compute, as this process sees it.

    Args:
        number: Names the fit in messages.
        work: What its local runs share.
        inner: Computes them; it is set up.
        tensors: Where tensors of jobs and results lie.
    """

    def __init__(
        self, number: int, work: Workplace, inner: SequentialExecutor, tensors: SharedTensors
    ) -> None:
        self._number, self._work, self._inner, self._tensors = number, work, inner, tensors
        self._settings: deque[Settings] = deque(maxlen=_SETTINGS)

    def note(self, settings: Settings | None) -> None:
        """Let workers that are forked from now on have some settings."""
        if settings is not None and not any(each is settings for each in self._settings):
            self._settings.append(settings)

    def known(self) -> KnownFit:
        """What a worker has that is forked now."""
        live = self._work.settings
        # So that the worker's copy knows which settings its module has.
        now = None if live is None else live.look()
        parts = self._number, self._work, self._inner, self._tensors
        return KnownFit(*parts, list(self._settings), now)


class ForkedWorker(Worker):
    """A forked worker, as this process sees it.

    Args:
        forked: The process.
        fits: What it has of each fit, by the workplaces that jobs name.
    """

    def __init__(self, forked: Forked, fits: Mapping[Workplace | None, KnownFit]) -> None:
        self.forked = forked
        self._fits = dict(fits)
        self._parcels: deque[tuple[SharedTensors, list[JobParts]]] = deque()

    @property
    def name(self) -> str:
        """Its name and process."""
        return str(self.forked)

    def fits(self, jobs: Sequence[Job]) -> bool:
        """Whether it was forked after the fits and the settings of all jobs were there."""
        return all(
            job.work in self._fits and self._fits[job.work].has(job.pulled.settings) for job in jobs
        )

    def forget(self, work: Workplace) -> None:
        """Release what this process has for the worker of a fit."""
        self._fits.pop(work, None)

    def send(self, jobs: Sequence[Job]) -> None:
        """Write the tensors of jobs to shared memory, and send everything else."""
        fit = self._fits[jobs[0].work]
        parcel = [fit.put(job) for job in jobs]
        self._parcels.append((fit.tensors, parcel))
        self.forked.send((fit.number, parcel))

    def receive(self) -> list[Outcome]:
        """The outcomes of the earliest parcel."""
        answers = self.forked.receive()
        tensors, parcel = self._parcels.popleft()
        outcomes: list[Outcome] = []
        for parts, answer in zip(parcel, answers, strict=True):
            tensors.release(parts)
            if isinstance(answer, ClientError):
                tensors.results.give_back(parts.result)
                outcomes.append(answer)
            else:
                outcomes.append(tensors.result(parts, answer))
        return outcomes

    def stop(self) -> None:
        """End the process."""
        self.forked.stop()
        for tensors, parcel in self._parcels:
            for parts in parcel:
                tensors.release(parts)
                tensors.results.give_back(parts.result)
        self._parcels.clear()


def with_news(workers: Sequence[ForkedWorker], timeout: float) -> list[ForkedWorker]:
    """The workers that have sent something or have died, after `timeout` seconds at the latest."""
    found: dict[Any, ForkedWorker] = {}
    for each in workers:
        found[each.forked.pipe] = found[each.forked.ended] = each
    return list(dict.fromkeys(found[ready] for ready in wait([*found], timeout=timeout)))


class _LoggerError(RuntimeError):
    """A step uses a logger, which a worker does not have."""


class _NoLogger(DummyLogger):
    """Replaces the loggers in a worker: the threads that write for them are not there."""

    @property
    def experiment(self) -> Any:
        raise self._error

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        raise self._error

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        raise self._error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copies and pickles look for these
            raise AttributeError(name)
        raise self._error

    @property
    def _error(self) -> _LoggerError:
        return _LoggerError(
            "training_step uses self.logger, which only one process can write to: use self.log, or "
            "executor='sequential'"
        )


def serve(pipe: Connection, fits: Sequence[KnownFit], tries: bool) -> None:
    """Compute one parcel after another, until the pipe ends because the parent has.

    Args:
        pipe: To the parent. If modules are tried, the first message is the reason why one cannot
            run, or "".
        fits: The fits of which parcels may be.
        tries: Whether their modules are tried first.
    """
    end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for each in fits:
        loggers = each.work.module.loggers
        loggers[:] = [_NoLogger()] * len(loggers)
    if tries:
        pipe.send(next(filter(None, (_refusal(each.work) for each in fits)), ""))
    known = {each.number: each for each in fits}
    while True:
        number, parcel = cast(tuple[int, list[JobParts]], pipe.recv())
        fit = known[number]
        outcomes = fit.inner.run([fit.tensors.job(parts, fit.settings) for parts in parcel])
        pipe.send(
            [
                each if isinstance(each, ClientError) else fit.tensors.put_result(each, parts)
                for parts, each in zip(parcel, outcomes, strict=True)
            ]
        )


class ForkedTeam:
    """Forked workers and the fits for which they compute.

    Args:
        num_workers: How many workers.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._numbers = count()
        self._fits: dict[Workplace | None, ForkedFit] = {}
        self._crew: Crew[ForkedWorker] | None = None
        self._tries = False

    def add(
        self,
        named: Workplace | None,
        work: Workplace,
        inner: SequentialExecutor,
        tensors: SharedTensors,
    ) -> None:
        """Let workers that are forked from now on compute for a fit.

        Args:
            named: How its jobs name it (`Job.work`).
            work: What its local runs share.
            inner: Computes them; it is set up.
            tensors: Where tensors of jobs and results lie.
        """
        self._fits[named] = ForkedFit(next(self._numbers), work, inner, tensors)

    @property
    def crew(self) -> Crew[ForkedWorker]:
        """The workers, forked when they are first asked for."""
        return self._crew or self.start()

    def start(self, tries: bool = False) -> Crew[ForkedWorker]:
        """Fork the workers.

        Args:
            tries: Whether each of them tries the modules, and sends a reason against them, or "".
        """
        self._tries = tries
        self._crew = Crew(self._fork, with_news, self._num_workers)
        self._tries = False
        return self._crew

    def _fork(self, place: int, jobs: Sequence[Job]) -> ForkedWorker:
        """Fork the worker of a place; it has the settings of some jobs."""
        for job in jobs:
            self._fits[job.work].note(job.pulled.settings)
        known = {named: fit.known() for named, fit in self._fits.items()}
        name = f"worker {place} of ProcessExecutor"
        forked = Forked.start(serve, [*known.values()], self._tries, name=name, daemon=True)
        return ForkedWorker(forked, known)

    def drop(self, work: Workplace) -> None:
        """Release a fit; workers have their copies of it until they are forked anew."""
        self._fits.pop(work, None)
        if self._crew is not None:
            for worker in self._crew.workers:
                worker.forget(work)

    def close(self) -> None:
        """End all workers."""
        if self._crew is not None:
            self._crew.stop()
        self._crew = None


def _refusal(work: Workplace) -> str:
    """Try the step. Return the reason why workers cannot run it, or ""."""
    name = type(work.module).__name__
    trial = try_step(work)
    instead = "write executor='sequential'"
    if trial.failure is not None:
        cause = trial.failure.__cause__
        if "combination with fork" in str(cause):  # torch has no class for it
            return (
                "ProcessExecutor forks this process, and where torch sees a GPU a forked process "
                "cannot compute gradients once this one has: set the environment variable "
                f"CUDA_VISIBLE_DEVICES='' before the script starts, or {instead}"
            )
        if "daemonic processes are not allowed to have children" in str(cause):
            return (
                f"training_step of {name} starts processes, such as those of a DataLoader with "
                f"num_workers, which a worker of ProcessExecutor may not do: {instead}"
            )
        return str(cause) if isinstance(cause, _LoggerError) else ""
    asked = set(trial.asks) - _SAME_IN_ALL
    if asked:
        names = ", ".join(f"self.trainer.{each}" for each in sorted(asked))
        return (
            f"training_step of {name} reads {names}, which a worker process has from the start "
            f"of the fit: {instead}"
        )
    return trial.refusal()
