"""The side of a forked worker, and the messages between it and the process that forked it."""

from __future__ import annotations

import mmap
import signal
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor

from fedlight.executors._choice.trial import try_step
from fedlight.executors.base import ClientError, Job, Workplace
from fedlight.types import LocalResult, Measured, ServerState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from fedlight._module.settings import Settings
    from fedlight.executors.sequential import SequentialExecutor
    from fedlight.types import LoggedValue, Task

    # A task, the number of its settings, and whether there is shared, and own, state.
    JobParts: TypeAlias = tuple[Task, int | None, bool, bool]
    ResultParts: TypeAlias = tuple[Mapping[str, LoggedValue], float | None, bool]

_SAME_IN_ALL = {"version", "current_epoch", "global_step"}
"""Attributes of the trainer that a step may read: they follow from the task alone."""


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
        settings: The settings of the module under which jobs run; the worker has them already.
        pulled: Parameters, buffers, counters and the server's shared state that were pulled.
        own: The client's own state.
        results: Delta, buffers, counters, and the client's new state.
    """

    settings: Sequence[Settings]
    pulled: tuple[Tensor, ...]
    own: Tensor
    results: tuple[Tensor, ...]

    @classmethod
    def of(cls, state: ServerState, settings: Sequence[Settings]) -> SharedTensors:
        """Memory for jobs of a module with this state, under one of these settings."""
        tensors = (state.params, state.buffers, state.counters, state.params)
        pulled, results = (tuple(map(_shared, tensors)) for _ in range(2))
        return cls(settings, pulled, _shared(state.params), results)

    def put_job(self, job: Job) -> JobParts:
        """Write the tensors of a job; return everything else."""
        state, own = job.pulled, job.client_state
        _write(self.pulled, (state.params, state.buffers, state.counters, state.shared))
        _write((self.own,), (own,))
        number = None if state.settings is None else self.settings.index(state.settings)
        return job.task, number, state.shared is not None, own is not None

    def job(self, parts: JobParts) -> Job:
        """The job that was written."""
        task, number, has_shared, has_own = parts
        params, buffers, counters, shared = self.pulled
        settings = None if number is None else self.settings[number]
        pulled = params, buffers, counters, shared if has_shared else None
        state = ServerState(task.pulled_version, *pulled, settings=settings)
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
    pipe: Connection,
    inner: SequentialExecutor,
    work: Workplace,
    tensors: SharedTensors,
    tries: bool,
) -> None:
    """Compute one job after another, until the pipe ends because the parent has.

    Args:
        pipe: To the parent. The first message is the reason why the module cannot run, or "".
        inner: Computes the jobs.
        work: What they share.
        tensors: Those of the jobs and results.
        tries: Whether the module is tried first.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    work.module.loggers[:] = [_NoLogger()] * len(work.module.loggers)
    pipe.send(_refusal(work) if tries else "")
    while True:
        (outcome,) = inner.run([tensors.job(pipe.recv())])
        pipe.send(outcome if isinstance(outcome, ClientError) else tensors.put_result(outcome))


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
        return str(cause) if isinstance(cause, _LoggerError) else ""
    asked = set(trial.asks) - _SAME_IN_ALL
    if asked:
        names = ", ".join(f"self.trainer.{each}" for each in sorted(asked))
        return (
            f"training_step of {name} reads {names}, which a worker process has from the start "
            f"of the fit: {instead}"
        )
    return trial.refusal()


def values_at_fork(work: Workplace) -> dict[str, object]:
    """Values of the local optimizer, which a worker has from the fork on."""
    return {
        name: value
        for name, value in vars(work.optimizer).items()
        if isinstance(value, int | float | str)
    }
