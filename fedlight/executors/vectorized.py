"""Many clients at once: their models are stacked, and one local step is one batched step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils._pytree import tree_leaves

from fedlight._module.current_stage import at_stage, moment_of
from fedlight._module.labels import hint_about
from fedlight._module.rng import isolated_rng
from fedlight._support.checks import positive_int
from fedlight._support.products import dependent_products
from fedlight._support.threads import one_thread
from fedlight.executors._stack.independence import Operators
from fedlight.executors._stack.local_runs import run_stack
from fedlight.executors._stack.splitting import Splitting
from fedlight.executors._stack.stack_size import fewest_clients, most_clients, unpadded
from fedlight.executors._stack.step import StackedStep
from fedlight.executors._tracing import TracedStep
from fedlight.executors.base import (
    ClientError,
    Executor,
    Job,
    Outcome,
    Workplace,
    trial_tasks,
)

_LONG = 500


class VectorizedExecutor(Executor):
    """Stacks clients with ``torch.func``: the weights of the sequential executor, at batch speed.

    The clients of a stack are sorted by their number of steps, so that at step k only a prefix of
    the stack still works. Clients whose batches differ in size go into different stacks.

    Dropout and torch's other random functions give each client the numbers that it gets alone. A
    step whose random numbers the clients would share is refused: those of Python or NumPy, of a
    ``generator=`` of its own, and of functions such as ``torch.poisson``.

    Args:
        max_batch: Largest number of clients in a stack.
        max_bytes: Bytes that the models, gradients, pulled models and batches of a stack may take,
            or None for no limit. Activations kept for the backward pass are not counted.
        block_bytes: Bytes of the largest tensor of a stack: the models, or one tensor of the
            batches. By default 4 MiB on a CPU, since a larger one leaves the caches and costs up to
            three times as much per client; no limit on other devices.

    The limits in bytes hold from two clients on: a single client is computed whatever it takes.

    **Bits.** On a CPU, a client's result does not depend on the other clients of its stack, on
    their number or on the number of threads, if all operators of the step allow it: then
    `independent` is True for the run. Convolutions do not allow it; `dependence` lists what stands
    in the way, and `fedlight.check_independence` examines a module. For this, a stack is computed
    with one thread, except for products of matrices.

    A stack for which memory runs out is split in halves, with a warning, and the rest of the run
    keeps to the smaller size (a resumed run, too). Only a single client that does not fit ends the
    run. If results are not independent, they differ between sizes of a stack in their last bits;
    for the same bits wherever the run is repeated, give `max_batch` the size that the warning
    names.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: A limit is below 1.

    Example:
        >>> VectorizedExecutor(max_batch=64)
        VectorizedExecutor(max_batch=64)
    """

    def __init__(
        self,
        max_batch: int = 256,
        max_bytes: int | None = None,
        block_bytes: int | None = None,
    ) -> None:
        self._asked = self.max_batch = positive_int("max_batch", max_batch)
        self.max_bytes = None if max_bytes is None else positive_int("max_bytes", max_bytes)
        self.block_bytes = None if block_bytes is None else positive_int("block_bytes", block_bytes)
        self._reduced_to: int | None = None  # kept after the end: a checkpoint may be written
        self.dependence: tuple[str, ...] = ("a run that has not begun",)

    @property
    def independent(self) -> bool:  # type: ignore[override]
        """Whether a client's bits in this run do not depend on who is in its stack.

        They do not on a CPU, if `fedlight` was imported before the first product of matrices and
        all operators of the trial step are known to be independent. `dependence` lists what stands
        in the way.
        """
        return not self.dependence

    def setup(self, workplace: Workplace) -> None:
        """Prepare for a run, and try one stacked step.

        Raises:
            ValueError: The data cannot be stacked, the local optimizer works on one client only,
                or the module cannot be vectorised (the cause is chained).
        """
        if not workplace.optimizer.stackable:
            raise ValueError(f"{workplace.optimizer!r} works on one client at a time")
        if not workplace.examples.stackable:
            raise ValueError(
                f"the clients' data are no tensors of one shape: {workplace.examples.how_read}"
            )
        self._work, self._moment = workplace, moment_of(workplace.module)
        self._step = TracedStep(StackedStep(workplace))
        # A list, whose items are read faster than those of an array.
        self._batch_sizes = workplace.partition.sizes.clip(max=workplace.batch_size).tolist()
        parts = tree_leaves(workplace.examples.gather(torch.zeros(1, dtype=torch.int64)))
        sizes = [part.nbytes for part in parts]
        self._example_bytes = sum(sizes)
        self.max_batch = most_clients(
            workplace, self._asked, self.max_bytes, self.block_bytes, sizes
        )
        self._fewest = fewest_clients(workplace, self.max_batch, sizes)
        self._reduced_to = None
        self._splitting = Splitting(self._stack, self._reduce, workplace)
        most = self.max_batch
        self._threads = 1
        operators = self._try()
        self._one_thread = operators.one_thread
        self.dependence = _dependence(workplace, operators)
        if self.dependence:
            self._fewest = 1
        self._say_if_reduced(most)

    def teardown(self) -> None:
        """Release the module and the data."""
        del self._work, self._step, self._moment, self._example_bytes, self._splitting
        del self._fewest, self._batch_sizes

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Return the results of the jobs, in order; for a job that failed, its `ClientError`."""
        stacks: dict[tuple[int, int], list[int]] = defaultdict(list)
        work, sizes = self._work, self._batch_sizes
        for index, job in enumerate(jobs):
            if job.task.chunk is not None:
                size = min(work.batch_size, len((job.work or work).rows(job.task)))
                settings = work.settings_of(job)
            elif job.work is None:
                size, settings = sizes[job.task.client_id], job.pulled.settings
            else:
                size = min(work.batch_size, len(job.work.partition[job.task.client_id]))
                settings = work.settings_of(job)
            stacks[size, id(settings)].append(index)
        results: dict[int, Outcome] = {}
        most = self.max_batch
        self._work.state.show()
        self._work.state.check_kept()  # a callback may have frozen a layer since
        stage = at_stage(self._work.module, "train")
        # A model for which each stack holds one client keeps its threads: its operators are long.
        alone = one_thread() if self._fewest > 1 else nullcontext(1)
        with alone as threads, isolated_rng(), stage as self._moment:
            self._threads = 1 if self._one_thread else threads
            for indices in stacks.values():
                indices.sort(key=lambda index: -jobs[index].task.num_steps)
                settings = self._work.settings_of(jobs[indices[0]])
                with self._work.under(settings):
                    self._step.use(None if settings is None else settings.of_step)
                    while indices:
                        chunk = indices[: self.max_batch]  # which may shrink from stack to stack
                        del indices[: len(chunk)]
                        outcomes = self._splitting.outcomes([jobs[index] for index in chunk])
                        results.update(zip(chunk, outcomes, strict=True))
        self._say_if_reduced(most)
        self._say_if_dependent()
        return [results[index] for index in range(len(jobs))]

    def _stack(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Compute a stack: clients with batches of one size, those with most steps first."""
        self._moment.tasks = [job.task for job in jobs]
        self._step.begin()
        limits = self._fewest, self._threads
        return run_stack(jobs, self._work, self._step, self._example_bytes, *limits)

    def _reduce(self, most: int) -> None:
        """Let no stack of this run hold more than `most` clients, padding included."""
        self._reduced_to = self.max_batch = min(self.max_batch, unpadded(most))

    def _say_if_reduced(self, before: int) -> None:
        if self.max_batch < before:
            rank_zero_warn(
                f"VectorizedExecutor: the memory of {self._work.state.device} ran out for a stack "
                f"of clients; from now on a stack holds at most {self.max_batch}. Another size may "
                "change the last bits of results; for the same bits in every run write "
                f"executor=VectorizedExecutor(max_batch={self.max_batch})"
            )

    def _say_if_dependent(self) -> None:
        """Say so if steps had operators that the trial step has not."""
        operators = self._step.operators
        self._one_thread = self._one_thread or operators.one_thread
        if self.independent and operators.dependent:
            self.dependence = tuple(operators.dependent)
            rank_zero_warn(
                "VectorizedExecutor: from now on, last bits depend on who is stacked together, "
                f"because of {', '.join(self.dependence)}, which the first step of the run did not "
                "use. For bits that do not depend on it write executor='sequential'"
            )

    def state_dict(self) -> dict[str, Any]:
        """The size to which stacks were reduced because memory ran out, if it did."""
        return {} if self._reduced_to is None else {"max_batch": self._reduced_to}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep to the size to which stacks were reduced before a checkpoint."""
        if "max_batch" in state:
            self._reduce(state["max_batch"])

    def _try(self) -> Operators:
        """Try one step on the data of up to three clients; raise if it fails for all of them.

        Returns:
            The operators of the step.
        """
        work = self._work
        failures: list[ClientError] = []
        for task in trial_tasks(work):
            operators = Operators()
            try:
                with operators, isolated_rng(), at_stage(work.module, "train") as self._moment:
                    # Two clients: `vmap` leaves out operators for a single one.
                    job = Job(task, work.state.read())
                    if self._splitting.fitting([job] * 2) is None:
                        self._splitting.fitting([job])
            except ClientError as error:
                failures.append(error)
            else:
                return operators
        cause = failures[0].__cause__
        words, hint = repr(failures[0]), ""
        if cause is not None and str(cause):
            words = str(cause).splitlines()[0]
            if len(words) > _LONG:  # torch lists all its backends
                words = words.partition(". ")[0]
            hint = hint_about(cause, work.examples, work.partition[failures[0].task.client_id])
        raise ValueError(
            f"{type(work.module).__name__} cannot be vectorised ({words}{hint})"
        ) from cause

    def __repr__(self) -> str:
        bytes_ = "" if self.max_bytes is None else f", max_bytes={self.max_bytes}"
        block = "" if self.block_bytes is None else f", block_bytes={self.block_bytes}"
        return f"VectorizedExecutor(max_batch={self._asked}{bytes_}{block})"


def _dependence(workplace: Workplace, operators: Operators) -> tuple[str, ...]:
    """What makes the bits of a client depend on who is in its stack, in words."""
    if workplace.state.device.type != "cpu":
        return (f"the device {workplace.state.device}",)
    products = dependent_products(workplace.state.param_layout.dtype)
    return (*operators.dependent, products) if products else tuple(operators.dependent)
