"""What a forked worker does, and what passes between it and the process that forked it."""

from __future__ import annotations

import mmap
import signal
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor

from fedlight._module.attributes import watched
from fedlight._module.moment import moment_of
from fedlight._module.snapshot import Snapshot
from fedlight.executors._remote.failure import Failure
from fedlight.executors.base import ClientError, Job, Workplace, trial_task
from fedlight.types import LocalResult, ServerState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedlight.executors.sequential import SequentialExecutor
    from fedlight.types import LoggedValue, Task

_SAME_IN_ALL = {"version", "current_epoch", "global_step"}
"""What a step may ask of the trainer: it follows from the task alone."""


def _shared(like: Tensor) -> Tensor:
    """An empty tensor in memory that this process shares with those forked from it.

    The memory has no name, so nothing is left behind, and does not count against ``/dev/shm``,
    which is small in containers.
    """
    if not like.numel():
        return torch.empty_like(like)
    return torch.frombuffer(mmap.mmap(-1, like.nbytes), dtype=like.dtype).view(like.shape)


class Board(NamedTuple):
    """The tensors of one job and of its result, in shared memory."""

    pulled: ServerState
    own: Tensor
    result: LocalResult
    new_own: Tensor

    @classmethod
    def of(cls, state: ServerState) -> Board:
        pulled = ServerState(
            0,
            _shared(state.params),
            _shared(state.buffers),
            _shared(state.counters),
            _shared(state.params),
        )
        result = LocalResult(_shared(state.params), _shared(state.buffers), _shared(state.counters))
        return cls(pulled, _shared(state.params), result, _shared(state.params))


class Order(NamedTuple):
    """A job without its tensors: they are on the board."""

    task: Task
    shared: bool
    own: bool


class Report(NamedTuple):
    """A result without its tensors: they are on the board."""

    metrics: Mapping[str, LoggedValue]
    norm: float | None
    own: bool


class Broken(NamedTuple):
    """Something that is not a client's failure has gone wrong in a worker."""

    trace: str


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


def serve(pipe: Connection, inner: SequentialExecutor, work: Workplace, board: Board) -> None:
    """Do the work of a worker: one job after another, until the pipe ends with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        pipe.send(_refusal(inner, work))
        while True:
            order: Order = pipe.recv()
            pipe.send(_report(inner, board, order))
    except (EOFError, ConnectionError):
        return
    except Exception:
        pipe.send(Broken(traceback.format_exc()))


def _report(inner: SequentialExecutor, board: Board, order: Order) -> Report | Failure:
    at = board.pulled
    version = order.task.pulled_version
    shared = at.shared if order.shared else None
    pulled = ServerState(version, at.params, at.buffers, at.counters, shared)
    (outcome,) = inner.run([Job(order.task, pulled, board.own if order.own else None)])
    if isinstance(outcome, ClientError):
        return Failure.of(outcome)
    board.result.delta.copy_(outcome.delta)
    board.result.buffers.copy_(outcome.buffers)
    board.result.counters.copy_(outcome.counters)
    if outcome.client_state is not None:
        board.new_own.copy_(outcome.client_state)
    measured = outcome.measured
    norm = None if measured is None else measured.norm
    return Report(outcome.metrics, norm, outcome.client_state is not None)


def _refusal(inner: SequentialExecutor, work: Workplace) -> str:
    """Try a step of one client, and say if it does what only one process can do; else ""."""
    module, name = work.module, type(work.module).__name__
    module.loggers[:] = [_NoLogger()] * len(module.loggers)
    moment = moment_of(module)
    moment.asked.clear()
    before = Snapshot(module)
    client = int(np.flatnonzero(work.partition.sizes)[0])
    (outcome,) = inner.run([Job(trial_task(client), work.state.read())])
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
    # Tensors and private attributes may hold what no other step reads.
    changed = [
        f"self.{each.name}"
        for each in before.changes()
        if not (each.tensors or each.key.startswith("_"))
    ]
    if changed:
        return (
            f"training_step of {name} changes {', '.join(changed)}, "
            f"which each worker process would change for itself: {instead}"
        )
    return ""


def taken_along(work: Workplace) -> dict[tuple[Any, str], object]:
    """What a worker has from the time when it was forked, as far as it can be compared."""
    numbers = {
        (work.optimizer, name): value
        for name, value in vars(work.optimizer).items()
        if isinstance(value, int | float | str)
    }
    return {**watched(work.module), **numbers}
