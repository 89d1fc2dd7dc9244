"""What a forked worker does, and what passes between it and the process that forked it."""

from __future__ import annotations

import mmap
import signal
import traceback
from collections import deque
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor

from fedlight._module.attributes import plain_attributes
from fedlight._module.moment import moment_of
from fedlight.executors._remote.failure import Failure
from fedlight.executors.base import ClientError, Job, Workplace
from fedlight.types import LocalResult, ServerState, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning import LightningModule

    from fedlight.executors.sequential import SequentialExecutor
    from fedlight.types import LoggedValue

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


class _NoLogger(DummyLogger):
    """Stands for the loggers in a worker: the threads that write for them are not there."""

    @property
    def experiment(self) -> Any:
        raise RuntimeError(
            "training_step uses self.logger, which only one process can write to: use self.log, or "
            "executor='sequential'"
        )


def serve(
    inner: SequentialExecutor, work: Workplace, board: Board, parents: Connection, pipe: Connection
) -> None:
    """What a worker does: one job after another, until the pipe ends because its parent has."""
    parents.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    try:
        pipe.send(_refusal(inner, work))
        while True:
            order: Order = pipe.recv()
            pipe.send(_report(inner, board, order))
    except (EOFError, BrokenPipeError, ConnectionResetError):
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
    """Try a step of one client; what the step does that only one process can do, "" for nothing."""
    module, name = work.module, type(work.module).__name__
    module.loggers[:] = [_NoLogger()] * len(module.loggers)
    moment = moment_of(module)
    moment.asked.clear()
    before = _kept(module)
    client = int(np.flatnonzero(work.partition.sizes)[0])
    task = Task(client, 0, 0.0, 1.0, num_steps=1, serial=0, visit=0)
    (outcome,) = inner.run([Job(task, work.state.read())])
    instead = "write executor='sequential'"
    if isinstance(outcome, ClientError):
        if "combination with fork" in outcome.reason:
            return (
                "ProcessExecutor forks this process, and where torch sees a GPU a forked process "
                "cannot compute gradients once this one has: set the environment variable "
                f"CUDA_VISIBLE_DEVICES='' before the script starts, or {instead}"
            )
        return outcome.reason if "self.logger" in outcome.reason else ""
    asked = moment.asked - _SAME_IN_ALL
    if asked:
        names = ", ".join(f"self.trainer.{each}" for each in sorted(asked))
        return (
            f"training_step of {name} reads {names}, which a worker process has from the start "
            f"of the fit: {instead}"
        )
    after = _kept(module)
    changed = sorted({key[1] for key in before | after if before.get(key) != after.get(key)})
    if changed:
        return (
            f"training_step of {name} changes {', '.join(f'self.{each}' for each in changed)}, "
            f"which each worker process would change for itself: {instead}"
        )
    return ""


def surroundings_of(work: Workplace) -> dict[tuple[Any, str], object]:
    """What a worker takes along when it is forked, as far as it can be compared."""
    frozen = {
        (work.module, name): (id(param), param._version)
        for name, param in work.module.named_parameters()
        if not param.requires_grad
    }
    numbers = {
        (work.optimizer, name): value
        for name, value in vars(work.optimizer).items()
        if isinstance(value, int | float | str)
    }
    return {**plain_attributes(work.module), **frozen, **numbers}


def _kept(module: LightningModule) -> dict[tuple[Any, str], object]:
    """Numbers, strings, and the lengths of lists, dicts and sets among the public attributes."""
    lengths = {
        (child, name): len(value)
        for child in module.modules()
        for name, value in vars(child).items()
        if not name.startswith("_") and isinstance(value, list | dict | set | deque)
    }
    return {**plain_attributes(module), **lengths}
