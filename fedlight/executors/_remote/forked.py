"""The side of a forked worker, and the messages between it and the process that forked it."""

from __future__ import annotations

import mmap
import signal
from collections import deque
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor

from fedlight._module.attributes import watched
from fedlight._module.current_stage import moment_of
from fedlight._module.snapshot import Snapshot
from fedlight.executors.base import ClientError, Job, Workplace, trial_tasks
from fedlight.types import LocalResult, Measured, ServerState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from fedlight.executors.sequential import SequentialExecutor
    from fedlight.types import LoggedValue, Task

    JobParts: TypeAlias = tuple[Task, bool, bool]  # whether there is shared, and own, state
    ResultParts: TypeAlias = tuple[Mapping[str, LoggedValue], float | None, bool]

_SAME_IN_ALL = {"version", "current_epoch", "global_step"}
"""Attributes of the trainer that a step may read: they follow from the task alone."""
_STATE = (int, float, str, list, dict, set, deque)
"""Attributes by which one step influences the next."""


def _shared(like: Tensor) -> Tensor:
    """An empty tensor in memory that this process shares with those forked from it.

    The memory has no name, so nothing is left behind, and does not count against ``/dev/shm``,
    which is small in containers.
    """
    if not like.numel():
        return torch.empty_like(like)
    return torch.frombuffer(mmap.mmap(-1, like.nbytes), dtype=like.dtype).view(like.shape)


class SharedTensors(NamedTuple):
    """The tensors of one job and of its result, in memory that two processes share.

    Everything else about a job or a result is small and goes through the pipe.

    Attributes:
        pulled: Parameters, buffers, counters and the server's shared state that were pulled.
        own: The client's own state.
        results: Delta, buffers, counters, and the client's new state.
    """

    pulled: tuple[Tensor, ...]
    own: Tensor
    results: tuple[Tensor, ...]

    @classmethod
    def of(cls, state: ServerState) -> SharedTensors:
        """Memory for jobs of a module with this state."""
        tensors = (state.params, state.buffers, state.counters, state.params)
        pulled, results = (tuple(map(_shared, tensors)) for _ in range(2))
        return cls(pulled, _shared(state.params), results)

    def put_job(self, job: Job) -> JobParts:
        """Write the tensors of a job; return everything else."""
        state, own = job.pulled, job.client_state
        _write(self.pulled, (state.params, state.buffers, state.counters, state.shared))
        _write((self.own,), (own,))
        return job.task, state.shared is not None, own is not None

    def job(self, parts: JobParts) -> Job:
        """The job that was written."""
        task, has_shared, has_own = parts
        params, buffers, counters, shared = self.pulled
        version = task.pulled_version
        state = ServerState(version, params, buffers, counters, shared if has_shared else None)
        return Job(task, state, self.own if has_own else None)

    def put_result(self, result: LocalResult) -> ResultParts:
        """Write the tensors of a result; return everything else."""
        own, measured = result.client_state, result.measured
        _write(self.results, (result.delta, result.buffers, result.counters, own))
        return result.metrics, None if measured is None else measured.norm, own is not None

    def result(self, parts: ResultParts) -> LocalResult:
        """A copy of the result that was written: the memory is used again for the next one."""
        metrics, norm, has_own = parts
        delta, buffers, counters = (tensor.clone() for tensor in self.results[:3])
        own = self.results[3].clone() if has_own else None
        measured = None if norm is None else Measured(delta, delta._version, norm)
        return LocalResult(delta, buffers, counters, metrics, own, measured=measured)


def _write(places: Sequence[Tensor], tensors: Sequence[Tensor | None]) -> None:
    for place, tensor in zip(places, tensors, strict=True):
        if tensor is not None:
            place.copy_(tensor)


class _LoggerError(RuntimeError):
    """A step uses a logger, which a worker does not have."""


class _NoLogger(DummyLogger):
    """Replaces the loggers in a worker: the threads that write for them are not there."""

    @property
    def experiment(self) -> Any:
        raise _LoggerError(
            "training_step uses self.logger, which only one process can write to: use self.log, or "
            "executor='sequential'"
        )


def serve(
    pipe: Connection, inner: SequentialExecutor, work: Workplace, tensors: SharedTensors
) -> None:
    """Compute one job after another, until the pipe ends because the parent has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pipe.send(_refusal(inner, work))
    while True:
        (outcome,) = inner.run([tensors.job(pipe.recv())])
        pipe.send(outcome if isinstance(outcome, ClientError) else tensors.put_result(outcome))


def _refusal(inner: SequentialExecutor, work: Workplace) -> str:
    """Try a step of one client. Return the reason why workers cannot run it, or ""."""
    module, name = work.module, type(work.module).__name__
    module.loggers[:] = [_NoLogger()] * len(module.loggers)
    moment = moment_of(module)
    moment.asked.clear()
    before = Snapshot(module)
    (outcome,) = inner.run([Job(trial_tasks(work)[0], work.state.read())])
    instead = "write executor='sequential'"
    if isinstance(outcome, ClientError):
        if "combination with fork" in str(outcome.__cause__):  # torch has no class for it
            return (
                "ProcessExecutor forks this process, and where torch sees a GPU a forked process "
                "cannot compute gradients once this one has: set the environment variable "
                f"CUDA_VISIBLE_DEVICES='' before the script starts, or {instead}"
            )
        return str(outcome.__cause__) if isinstance(outcome.__cause__, _LoggerError) else ""
    asked = moment.asked - _SAME_IN_ALL
    if asked:
        names = ", ".join(f"self.trainer.{each}" for each in sorted(asked))
        return (
            f"training_step of {name} reads {names}, which a worker process has from the start "
            f"of the fit: {instead}"
        )
    # A tensor, an object or a private attribute may be there to be looked at, and read by no step.
    changed = [
        f"self.{each.name}"
        for each in before.changes()
        if not each.key.startswith("_") and isinstance(each.owner.get(each.key, 0), _STATE)
    ]
    if changed:
        return (
            f"training_step of {name} changes {', '.join(changed)}, "
            f"which each worker process would change for itself: {instead}"
        )
    return ""


def values_at_fork(work: Workplace) -> dict[tuple[Any, str], object]:
    """The values that a worker has from the fork on, as far as they can be compared."""
    numbers = {
        (work.optimizer, name): value
        for name, value in vars(work.optimizer).items()
        if isinstance(value, int | float | str)
    }
    return {**watched(work.module), **numbers}
