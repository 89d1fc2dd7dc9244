"""The interface of executors: a pure function from jobs to their results."""

from __future__ import annotations

import math
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from lightning.pytorch.utilities.memory import is_oom_error
from torch import Tensor

from fedlight._support.checks import rate_at
from fedlight.executors._stack.batches import batch_rows, rows_for
from fedlight.local_optimizers.rates import ByStep, rate_in_step
from fedlight.types import Task

if TYPE_CHECKING:
    from lightning import LightningModule
    from numpy.typing import NDArray

    from data_partitioners import Partition
    from fedlight._module.settings import LiveSettings, Settings
    from fedlight.executors._remote.crew import Crew
    from fedlight.executors._remote.shared_crew import CrewShare
    from fedlight.local_optimizers import LocalOptimizer
    from fedlight.parameters import ModuleState
    from fedlight.types import LocalResult, ServerState


class Job(NamedTuple):
    """All that one local run needs. It is known when the client is dispatched.

    Attributes:
        task: The client, its number of local steps and the version that it pulled.
        pulled: The version of the server's model that was pulled.
        client_state: The client's own state (SCAFFOLD's c_i) at the dispatch, shape ``[P]`` for P
            parameters, or None for zeros.
        work: The workplace of its fit, if one call computes local runs of several fits; None for
            the workplace with which the executor was set up.
    """

    task: Task
    pulled: ServerState
    client_state: Tensor | None = None
    work: Workplace | None = None


def trial_task(client_id: int, num_steps: int = 1) -> Task:
    """A task of a step or more at version 0, with which the step of a module is tried."""
    return Task(client_id, 0, 0.0, 1.0, num_steps=num_steps, serial=0, visit=0)


def trial_tasks(workplace: Workplace, num_steps: int = 1) -> list[Task]:
    """Trial tasks of up to three clients with data, since a failure may be due to one's data."""
    holders = np.flatnonzero(workplace.partition.sizes)
    clients: list[int] = holders[[0, len(holders) // 2, -1]].tolist()
    return [trial_task(client, num_steps) for client in dict.fromkeys(clients)]


@dataclass(frozen=True, slots=True, eq=False)
class Workplace:
    """The objects and settings that all local runs of one fit share.

    Attributes:
        module: The module. Executors may write to its parameters and buffers.
        state: Reads and writes the module as flat vectors.
        optimizer: The local optimizer.
        partition: The row numbers of each client's examples.
        examples: The examples of all clients; ``gather(rows)`` returns a batch.
        batch_size: Examples per local step.
        seed: The seed of the fit.
        autocast: Returns the context manager in which steps run (mixed precision).
        settings: The settings that the module has; None if every local run has those.
        pooled: Whether a batch may hold examples of several parts of the data.
    """

    module: LightningModule
    state: ModuleState
    optimizer: LocalOptimizer
    partition: Partition
    examples: Any
    batch_size: int
    seed: int
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    settings: LiveSettings | None = None
    pooled: bool = False

    def settings_of(self, job: Job) -> Settings | None:
        """The settings under which a job runs; None for those that the module has.

        A job of another fit is here only as long as no hook has changed the module of either.
        """
        if job.work is None or job.work is self:
            settings: Settings | None = job.pulled.settings
            return settings
        return None if self.settings is None else self.settings.current

    def under(self, settings: Settings | None) -> AbstractContextManager[None]:
        """Within the context, the module has the settings of a version."""
        return nullcontext() if self.settings is None else self.settings.under(settings)

    def batch_rows(self, task: Task) -> NDArray[np.int64]:
        """Row numbers of the batches of a task, shape ``[K, b]``.

        K is the task's number of local steps, and b = min(batch_size, n_i) for a client (or a
        shard, or a stream) with n_i examples.
        """
        return batch_rows(self.partition, [task], self.batch_size, self.seed)[:, 0]

    def rows(self, task: Task) -> NDArray[np.int64]:
        """Row numbers of all examples from which a task's are taken."""
        return rows_for(self.partition, task)

    def all_rows(self, task: Task) -> list[NDArray[np.int64]]:
        """Row numbers of all examples of a client or a shard, in batches of b = min(batch_size, n).

        The last batch takes the remainder too, so it has fewer than 2 b examples and no batch is
        smaller than one of the training. For a stream, these are the batches of the task: all data
        are too many to be read for each task.
        """
        if task.chunk is not None and task.chunk.shard is None:
            return list(self.batch_rows(task))
        rows = self.rows(task)
        batch = min(self.batch_size, len(rows))
        return np.split(rows, range(batch, len(rows) - batch + 1, batch))

    def lr(self, task: Task) -> float:
        """The local learning rate of a task; 0.0 if the optimizer has rates of its own."""
        rate = self.optimizer.lr
        if isinstance(rate, float):  # the usual case, and each local run asks
            return rate
        if isinstance(rate, ByStep):
            return rate_in_step(rate, task, 0)
        return 0.0 if rate is None else float(rate_at("lr", rate, task.pulled_version))


class Executor(ABC):
    """Computes local runs. The same list of jobs always gives the same bits."""

    max_batch: int = 1
    """Preferred number of jobs per call; of one with workers, the most that are ahead."""

    max_ahead: int | None = None
    """If set, the most that are ahead of their arrival, where results are `independent`."""

    crew: Crew[Any] | CrewShare | None = None
    """The workers, after `setup`: they take jobs and give results as they come, so that local runs
    begin before the server needs them. None for an executor of this process, which has `run`."""

    parcel: int = 1
    """The most jobs that a worker gets at once."""

    few_at_once: bool = False
    """Whether, where results are `independent`, a worker gets only as many as a message is worth;
    else as many as there are, since it computes them together."""

    tries_itself: bool = False
    """Whether `setup` tries the module, so that it is not tried before."""

    kept: frozenset[tuple[str, str]] = frozenset()
    """What an executor that tries the module itself has found that steps change and none reads:
    paths of layers, and names of attributes."""

    independent: bool = False
    """Whether a job's result is the same bits whichever other jobs are in the call.

    True only if jobs share nothing: neither random generators nor a batched product, whose sums
    may be taken in another order for another number of clients. A ``training_step`` that keeps
    state of its own between calls (a counter) depends on the order of jobs under any executor.
    """

    @abstractmethod
    def setup(self, workplace: Workplace) -> None:
        """Prepare for a fit.

        Raises:
            ValueError: The module, the data or the local optimizer cannot be run this way.
        """

    @abstractmethod
    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Compute jobs.

        Returns:
            Their results in the same order, with a `ClientError` in place of each that failed.
        """

    def teardown(self) -> None:
        """Release everything that `setup` made."""
        return

    def state_dict(self) -> dict[str, Any]:
        """The state with which a resumed run computes the same clients together."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore, after `setup`, the state that `state_dict` of this or another executor gave."""
        return


class NoGradientError(ValueError):
    """The loss that ``training_step`` returned has no gradient."""


class ClientError(RuntimeError):
    """A client's local run failed. The cause is chained.

    Args:
        task: The task that failed.
        reason: The reason in words.
        cause: The exception raised by ``training_step``, if any.
    """

    def __init__(self, task: Task, reason: str, cause: BaseException | None = None) -> None:
        super().__init__(
            f"client {task.client_id} failed in its local run from version {task.pulled_version} "
            f"(dispatched at virtual time {task.dispatched_at:g}, {task.num_steps} steps): {reason}"
        )
        self.task = task
        self.reason = reason
        self.__cause__ = cause

    def __reduce__(self) -> tuple[Any, ...]:
        # The exceptions behind it may not pickle, so another process gets their traceback as text.
        cause = self.__cause__
        if cause is not None:
            trace = "".join(traceback.format_exception(cause))
            cause = RuntimeError(f"in another process:\n{trace}")
        return type(self), (self.task, self.reason, cause)

    @classmethod
    def of(cls, task: Task, cause: Exception, hint: str = "") -> ClientError:
        """Return the error of a task that raised `cause`.

        Args:
            task: The task.
            cause: The error. Its notes (which row of the data, for example) are reported.
            hint: A likely reason, or "".

        Raises:
            Exception: `cause` itself, if the machine failed and not the client.
        """
        # To drop clients because memory ran out would silently bias the run.
        if ran_out_of_memory(cause) or "CUDA error" in str(cause):
            raise cause
        notes = "".join(f" {note}" for note in getattr(cause, "__notes__", ()))
        return cls(
            task,
            f"{type(cause).__name__}: {str(cause).rstrip('.') if hint else cause}{notes}{hint}",
            cause,
        )


def results_within(
    max_bytes: int, state: ServerState, kept: int, most: int, num_workers: int
) -> int:
    """How many results may be ahead of their arrival.

    Args:
        max_bytes: The bytes that they may take; two for each worker do not count.
        state: A version of the model, which is as large as a result without what a client keeps.
        kept: How many numbers a client keeps between its tasks (`state_size`), which are part of
            its result.
        most: The largest number.
        num_workers: How many workers there are.
    """
    size = state.params.nbytes + state.buffers.nbytes + state.counters.nbytes
    size += kept * state.params.element_size()
    return min(most, max(2 * num_workers, max_bytes // max(1, size)))


def refuse_second_fit(executor: Executor) -> None:
    """Refuse to set up an executor whose workers compute for another fit.

    Raises:
        ValueError: They do.
    """
    if executor.crew is not None:
        raise ValueError(
            f"{executor!r} computes for another fit that is not over: give each fit an executor of "
            "its own, or write workers= in a study"
        )


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of a device or of this machine is full."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or is_oom_error(error)


def advised(error: BaseException, workplace: Workplace) -> BaseException:
    """Add advice to the error of a single client for which there is not enough memory.

    Args:
        error: The error, which is returned.
        workplace: The workplace of the client.
    """
    words = (
        f"fedlight: a single client does not fit in the memory of {workplace.state.device}; write "
        f"a smaller batch_size for the FederatedDataModule (now {workplace.batch_size}), "
        'precision="bf16-mixed" or a smaller model'
    )
    if words not in getattr(error, "__notes__", ()):
        error.add_note(words)
    return error


Outcome: TypeAlias = "LocalResult | ClientError"
"""The outcome of a job: its result, or the error that prevented one."""


def not_finite(
    losses: Sequence[float] | Tensor,
    deltas: Tensor,
    buffers: Tensor,
    pulled: Tensor,
    states: Tensor | None = None,
) -> tuple[list[str], list[float]]:
    """Find values that are not finite in n local runs.

    Args:
        losses: The loss of each run, summed over its steps; numbers, or a tensor ``[n]``.
        deltas: Parameters after minus before, shape ``[n, P]``.
        buffers: Floating buffers after the runs, shape ``[n, Q]``.
        pulled: Floating buffers before the runs, shape ``[n, Q]``. Entries that were infinite
            already (as in a mask) may stay infinite.
        states: The clients' new states, shape ``[n, P]``, or None.

    Returns:
        For each run, a reason in words ("" if all values are finite), and the norm of its delta.
    """
    # A sum is finite only if all its terms are, so the total alone is nearly always enough.
    n, figures = len(losses), [torch.linalg.vector_norm(deltas, dim=1)]
    if isinstance(losses, Tensor):
        figures.append(losses)
    blocks = (buffers, states)
    figures += [block.sum()[None] for block in blocks if block is not None and block.shape[1]]
    # All are read at once, so the host waits for the device once.
    read: list[float] = (figures[0] if len(figures) == 1 else torch.cat(figures)).tolist()
    norms = read[:n]
    if isinstance(losses, Tensor):
        losses = read[n : 2 * n]
        total = sum(read)
    else:
        total = sum(losses) + sum(read)
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
    """Return the loss from the output of ``training_step``: a tensor, or a dict with "loss".

    Raises:
        TypeError: The output is neither, or the loss is not a single number.
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
