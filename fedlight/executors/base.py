"""What an executor is: a pure function from jobs to their results."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedlight.checks import rate_at
from fedlight.executors._batches import batch_rows

if TYPE_CHECKING:
    from lightning import LightningModule
    from numpy.typing import NDArray

    from data_partitioners import Partition
    from fedlight.local_optimizers import LocalOptimizer
    from fedlight.parameters import ModuleState
    from fedlight.types import LocalResult, ServerState, Task


class Job(NamedTuple):
    """All that a local run needs, known when its client is dispatched.

    Attributes:
        task: Who, from which version, for how many steps.
        pulled: The version of the server's model that was pulled.
        client_state: c_i as it was at the dispatch, shape ``[P]``, or None for zeros.
    """

    task: Task
    pulled: ServerState
    client_state: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Workplace:
    """What all local runs of a run share.

    Attributes:
        module: The module; executors may write to its parameters and buffers.
        state: Reads and writes it as flat vectors.
        optimizer: The local optimizer.
        partition: Which rows are whose.
        examples: The rows: ``gather(rows)`` gives a batch.
        batch_size: Examples per local step.
        seed: The run's seed.
        autocast: Makes the context in which steps run (mixed precision).
    """

    module: LightningModule
    state: ModuleState
    optimizer: LocalOptimizer
    partition: Partition
    examples: Any
    batch_size: int
    seed: int
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext

    def batch_rows(self, task: Task) -> NDArray[np.int64]:
        """Row numbers of a task's batches, shape ``[K, b]`` with b = min(batch_size, n_i)."""
        return batch_rows(self.partition, [task], self.batch_size, self.seed)[:, 0]

    def all_rows(self, client_id: int) -> list[NDArray[np.int64]]:
        """Row numbers of all of a client's examples, in batches of b = min(batch_size, n_i).

        The last batch takes the rest as well, and so has fewer than 2 b examples: none is smaller
        than a batch of the training.
        """
        rows = self.partition[client_id]
        batch = min(self.batch_size, len(rows))
        return np.split(rows, range(batch, len(rows) - batch + 1, batch))

    def lr(self, task: Task) -> float:
        """The local rate for a task; 0.0 where the optimizer has rates of its own."""
        rate = self.optimizer.lr
        if isinstance(rate, float | int):
            return float(rate)
        return 0.0 if rate is None else float(rate_at("lr", rate, task.pulled_version))


class Executor(ABC):
    """Computes local runs. The same jobs give the same results, bit by bit, whoever asks."""

    max_batch: int = 1
    """Preferred number of jobs per call."""

    independent: bool = False
    """Whether a job's result is the same bits whoever else is in the call."""

    @abstractmethod
    def setup(self, workplace: Workplace) -> None:
        """Get ready for a run.

        Raises:
            ValueError: The module, the data or the local optimizer cannot be run this way.
        """

    @abstractmethod
    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The results of jobs, in their order; in place of one that failed, its `ClientError`."""

    def teardown(self) -> None:
        """Let go of everything that `setup` made."""
        return


class ClientError(RuntimeError):
    """A client's local run failed; the cause is chained.

    Args:
        task: The task that failed.
        reason: Why, in words.
        cause: What ``training_step`` raised.
    """

    def __init__(self, task: Task, reason: str, cause: BaseException | None = None) -> None:
        super().__init__(
            f"client {task.client_id} failed in its local run from version {task.pulled_version} "
            f"(dispatched at virtual time {task.dispatched_at:g}, {task.num_steps} steps): {reason}"
        )
        self.task = task
        self.reason = reason
        self.__cause__ = cause

    @classmethod
    def of(cls, task: Task, cause: Exception) -> ClientError:
        """The error of a task in which `cause` was raised.

        Raises:
            Exception: `cause` itself, where it is the machine's fault and no client's.
        """
        if isinstance(cause, torch.OutOfMemoryError) or "CUDA error" in str(cause):
            raise cause
        return cls(task, f"{type(cause).__name__}: {cause}", cause)


Outcome: TypeAlias = "LocalResult | ClientError"
"""What is left of a job: its result, or why there is none."""


def not_finite(
    losses: Sequence[float],
    deltas: Tensor,
    buffers: Tensor,
    pulled: Tensor,
    states: Tensor | None = None,
) -> tuple[list[str], list[float]]:
    """For each of n local runs what in it is not finite, in words ("" where all is), and |delta|.

    Args:
        losses: Their losses, each summed over the steps.
        deltas: After minus before, shape ``[n, P]``.
        buffers: Floating buffers after the runs, shape ``[n, Q]``.
        pulled: Those before, shape ``[n, Q]``: what was infinite then (a mask) may stay so.
        states: The clients' new states, shape ``[n, P]``, or None.
    """
    # A norm or a sum is finite only where all its terms are, so nearly always one look is enough.
    norms = torch.linalg.vector_norm(deltas, dim=1).tolist()
    total = sum(losses) + sum(norms)
    if buffers.shape[1]:
        total += buffers.sum().item()
    if states is not None:
        total += states.sum().item()
    reasons = [""] * len(losses)
    if math.isfinite(total):
        return reasons, norms
    for index, loss in enumerate(losses):
        if not math.isfinite(loss):
            reasons[index] = f"the loss is not finite (its sum is {loss})"
        elif not torch.isfinite(deltas[index]).all():
            reasons[index] = "the update is not finite"
        elif not (torch.isfinite(buffers[index]) | ~torch.isfinite(pulled[index])).all():
            reasons[index] = "the buffers of the update are not finite"
        elif states is not None and not torch.isfinite(states[index]).all():
            reasons[index] = "the client's new state is not finite"
    return reasons, norms


def loss_of(module: LightningModule, output: Any) -> Tensor:
    """The loss in what ``training_step`` returned: a tensor, or a mapping with "loss".

    Raises:
        TypeError: It is neither.
    """
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"training_step of {type(module).__name__} returned {type(output).__name__}; "
            "return the loss as a tensor, or a dict with 'loss'"
        )
    if loss.numel() != 1:
        raise TypeError(
            f"training_step of {type(module).__name__} returned a loss of shape "
            f"{tuple(loss.shape)}; return one number, for example loss.mean()"
        )
    return loss
