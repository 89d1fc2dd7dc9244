"""One client after another: any module, any data, any local optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedlight._module.attributes import own_generators
from fedlight._module.batch_hooks import batch_hooks
from fedlight._module.current_stage import at_stage, moment_of
from fedlight._module.labels import hint_about
from fedlight._module.log_recorder import LogRecorder
from fedlight._module.rng import (
    drawn_from,
    has_moved,
    isolated_rng,
    seed_all,
    torch_position,
)
from fedlight._module.settings import kept_by, kept_by_optimizer, settings_of
from fedlight._module.snapshot import Snapshot
from fedlight._module.steps import step_function
from fedlight.executors._random.streams import FULL_GRADIENT, Streams, again, step_keys
from fedlight.executors._stack.batches import StackedBatches, rows_in_turn
from fedlight.executors._stack.start import local_run_of, states_left
from fedlight.executors._stack.unused_parameters import step_without, warn_of_skipped
from fedlight.executors.base import (
    ClientError,
    Executor,
    Job,
    NoGradientError,
    Outcome,
    Workplace,
    advised,
    loss_of,
    not_finite,
    ran_out_of_memory,
    trial_task,
)
from fedlight.randomness import Concern, derived_seed
from fedlight.types import LocalResult, Measured

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.local_optimizers import LocalRun
    from fedlight.parameters import ModuleState
    from fedlight.types import Task


class SequentialExecutor(Executor):
    """Runs clients one after another in the module itself, without a copy or a data loader.

    Example:
        >>> SequentialExecutor()
        SequentialExecutor()
    """

    independent = True
    changes_found: Callable[[], None] | None = None
    """Called once, with the module as before, if the first local run has changed it."""

    def setup(self, workplace: Workplace) -> None:
        """Prepare for a run; an optimizer that works on one client is tried before the first round.

        Raises:
            ValueError: The local optimizer cannot work on the module.
        """
        self._work = workplace
        self._recorder = LogRecorder(workplace.module, training=True)
        self._step = step_function(workplace.module, "training_step")
        self._prepared = batch_hooks(workplace.module)
        self._moment = moment_of(workplace.module)
        self._streams = Streams(stacked=False)
        self._generators = own_generators(workplace.module)
        self._draws: bool | None = None
        self._example_bytes = math.inf
        if not workplace.optimizer.stackable:
            task = trial_task(0)
            run = self._local_run(Job(task, workplace.state.read()))
            with at_stage(workplace.module, "train") as moment:
                # A schedule may be longer than one step (`trainer.estimated_stepping_batches`).
                moment.tasks = (task._replace(num_steps=100),)
                workplace.optimizer.begin(run, workplace.module)

    def teardown(self) -> None:
        """Release the module and the data."""
        vars(self).clear()  # `setup` makes all of it

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Return the results of the jobs, in order; for a job that failed, its `ClientError`."""
        try:
            with self._computing():
                return list(map(self._outcome, jobs, self._rows(jobs)))
        except Exception as error:
            if ran_out_of_memory(error):
                advised(error, self._work)
            raise

    def watch(
        self, job: Job, before_step: Callable[[], None] | None = None
    ) -> tuple[Outcome, list[str]]:
        """Return the result of a job, and from which global random generators it drew.

        Numbers from the streams of its steps do not count.

        Args:
            job: The job.
            before_step: Called before each of its steps.
        """
        step = self._step

        def prepared(batch: Any, number: int) -> Any:
            if before_step is not None:
                before_step()
            return step(batch, number)

        self._step = prepared
        try:
            with self._computing():
                outcome = self._outcome(job, next(self._rows([job])))
                return outcome, drawn_from(self._seed(job.task), self._generators)
        finally:
            self._step = step

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Compute within; afterwards the module and the random generators are as before."""
        work = self._work
        before = work.state.present()
        try:
            with (
                isolated_rng(self._generators.values()),
                self._recorder.recording(),
                at_stage(work.module, "train") as self._moment,
            ):
                yield
        finally:
            work.state.write(before)

    def _local_run(self, job: Job) -> LocalRun:
        params = [param.detach().unsqueeze(0) for param in self._work.state.params]
        return local_run_of([job], self._work, params, job.pulled.params.unsqueeze(0))

    def _rows(self, jobs: Sequence[Job]) -> Iterator[Tensor]:
        """The row numbers of the batches of one job after another, ``[K, b]`` each."""
        work, tasks = self._work, [job.task for job in jobs]
        for rows in rows_in_turn(work.partition, tasks, work.batch_size, work.seed):
            yield torch.from_numpy(rows).to(work.state.device, non_blocking=True)

    def _seed(self, task: Task) -> int:
        """The seed of the generators that the streams do not replace."""
        return derived_seed(self._work.seed, Concern.TRAINING, task.client_id, task.visit)

    def _outcome(self, job: Job, rows: Tensor) -> Outcome:
        """Run a job under the settings of the version that was pulled."""
        with self._work.under(self._work.settings_of(job)):
            return self._tried(job, rows)

    def _tried(self, job: Job, rows: Tensor) -> Outcome:
        """Run a job; if it is the first that draws random numbers, run it again with the streams.

        Streams watch all calls of torch, which costs a step of a small module up to a fifth of its
        time, and most modules draw nothing. So jobs run without streams until torch's generator has
        moved.
        """
        if self._draws:
            self._example_bytes = math.inf
            return self._one(job, rows)
        work = self._work
        # A step may count its calls or keep a state on the module. A snapshot for each job would
        # cost too much: a later job that is the first to draw leaves the state of two runs.
        before = Snapshot(work.module) if self._draws is None else None
        start = None if before is None else settings_of(work.module, work.optimizer)
        outcome = self._one(job, rows)
        self._draws = has_moved(self._seeded)
        found = None if isinstance(outcome, ClientError) else self.changes_found
        if before is not None and start is not None and found is not None:
            if work.settings is not None:  # what a step leaves on the optimizer is no setting
                work.settings.ignore(kept_by_optimizer(start))
            if before.changes() or kept_by(work.module, start):
                before.restore()
                self._recorder.clear()
                found()
                outcome = self._one(job, rows)
        if self._draws:
            if before is not None:
                before.restore()
            self._recorder.clear()
            return self._one(job, rows)
        measured = self._example_bytes < math.inf or not work.examples.stackable
        if not measured and len(rows) and isinstance(outcome, LocalResult):
            # Small batches of later runs are gathered at once. This excludes tables whose examples
            # draw random numbers, since each batch must draw them in its own step.
            example = tree_leaves(work.examples.gather(rows[0, :1]))
            self._example_bytes = sum(part.nbytes for part in example)
        return outcome

    def _one(self, job: Job, rows: Tensor) -> Outcome:
        work, task = self._work, job.task
        self._moment.tasks = (task,)
        seed_all(self._seed(task), self._generators.values())
        # Taken after the seeding: if the generator is elsewhere afterwards, the step has drawn.
        if not self._draws:
            self._seeded = torch_position()
        self._keys: dict[int, int] = {}
        work.state.write(job.pulled)
        run = self._local_run(job)
        self._recorder.batch_size = rows.shape[1]
        losses: list[Tensor] = []
        try:
            if work.optimizer.needs_full_gradient:
                run.full_gradient = self._full_gradient(task)
                work.state.write(job.pulled)  # the pass over the data has moved the buffers
            self._moment.native = None
            work.optimizer.begin(run, work.module)
            self._moment.native = run.native
            batches = StackedBatches(work.examples, rows, self._example_bytes)
            for k in range(task.num_steps):
                loss, grads, unused = self._gradient(batches.step(k), k, task)
                if loss is not None:
                    losses.append(loss)
                run.begin_step(k)
                run.evaluate = partial(self._extra_gradient, batches, k, task, count(1))
                with torch.no_grad():
                    step_without(work.optimizer, run, grads, unused)
                del grads  # the next ones then use the same memory, which is in the cache
            work.state.check_kept()
            if work.optimizer.stackable:
                _check_place(work.module, work.state, run)
            run.step, run.evaluate = -1, None
            metrics = self._recorder.collect(rows.numel())
        except Exception as error:
            self._recorder.clear()
            cause = self._cause(error)
            hint = hint_about(cause, work.examples, work.rows(task))
            return ClientError.of(task, cause, hint)
        # The norm and all checks are read from the device together, not after each step.
        with torch.no_grad():
            delta = work.state.moved(job.pulled.params)
            buffers, counters = work.state.read_buffers(), work.state.read_counters()
            kept = states_left(work.optimizer, run, work.state.param_layout)
        client = None if kept is None else kept[0]
        (reason,), (norm,) = not_finite(
            torch.stack([loss.reshape(()) for loss in losses]).sum()[None] if losses else [0.0],
            delta[None],
            buffers[None],
            job.pulled.buffers[None],
            None if client is None else client[None],
        )
        if reason:
            return ClientError(task, reason)
        measured = Measured(delta, delta._version, norm)
        return LocalResult(delta, buffers, counters, metrics, client, measured=measured)

    def _cause(self, error: Exception) -> Exception:
        """The cause of a failure; a changed set of parameters comes first, as errors follow."""
        try:
            self._work.state.check_kept()
        except ValueError as changed:
            return changed
        return error

    def _full_gradient(self, task: Task) -> list[Tensor]:
        """Compute the gradient of f_i at the module's parameters over all the client's examples."""
        work = self._work
        total = [torch.zeros_like(param).unsqueeze(0) for param in work.state.params]
        parts = work.all_rows(task)
        size = sum(map(len, parts))
        for number, part in enumerate(parts, FULL_GRADIENT):
            share = len(part) / size
            rows = torch.from_numpy(part).to(work.state.device, non_blocking=True)
            _, grads, _ = self._gradient(work.examples.gather(rows), 0, task, number)
            for gradient, term in zip(total, grads, strict=True):
                gradient.add_(term, alpha=share)
        self._recorder.clear()  # the values that the pass logged are no part of the training
        return total

    def _extra_gradient(
        self, batches: StackedBatches, step: int, task: Task, times: Iterator[int]
    ) -> list[Tensor]:
        """Compute the gradient at the module's parameters again, without any other effect.

        Buffers are put back because the extra pass sees the same examples: BatchNorm's statistics
        would otherwise count each batch twice, and once at a point that is not on the path.
        """
        state = self._work.state
        before = state.read()
        number = again(step, next(times))
        with torch.enable_grad(), self._recorder.paused():
            _, grads, _ = self._gradient(batches.gathered(step), step, task, number)
        state.write(before)
        return grads

    def _stream(self, task: Task, number: int) -> AbstractContextManager[object]:
        """The stream of random numbers of a task's step."""
        if not self._draws:
            return nullcontext()
        if number not in self._keys:
            # Those of all local steps at once: a call costs more than its numbers.
            numbers = range(task.num_steps) if number < task.num_steps else [number]
            keys = step_keys(self._work.seed, [task], numbers)[:, 0].tolist()
            self._keys.update(zip(numbers, keys, strict=True))
        return self._streams.at(self._keys[number])

    def _gradient(
        self, batch: Any, step: int, task: Task, number: int | None = None
    ) -> tuple[Tensor | None, list[Tensor], tuple[int, ...]]:
        """Compute the loss on a batch and its gradient.

        Args:
            batch: The batch.
            step: The argument ``batch_idx`` of the step.
            task: The task.
            number: The number of the step's random numbers, if it is another one.

        Returns:
            The loss, or None if the step skips the batch; the gradient, ``[1, *shape]`` per
            parameter; the positions of the parameters that the loss does not use.
        """
        work = self._work
        params = work.state.params
        loss: Tensor | None = None
        grads: Sequence[Tensor | None] = (None,) * len(params)
        # The backward pass too: activation checkpointing computes parts of the step again there.
        with self._stream(task, step if number is None else number):
            if self._prepared is not None:
                batch = self._prepared(batch)
            with work.autocast():
                output = self._step(batch, step)
            if output is None:
                warn_of_skipped(work.module)
            else:
                loss = loss_of(work.module, output)
                grads = _gradients(work.module, work.state, loss)
        unused = tuple([index for index, grad in enumerate(grads) if grad is None])
        pairs = zip(params, grads, strict=True)
        full = [torch.zeros_like(param) if grad is None else grad for param, grad in pairs]
        if work.optimizer.stackable:  # torch's own optimizers raise errors of their own
            full = [grad if grad.layout is torch.strided else grad.to_dense() for grad in full]
        return None if loss is None else loss.detach(), [g.unsqueeze(0) for g in full], unused

    def __repr__(self) -> str:
        return "SequentialExecutor()"


def _gradients(
    module: LightningModule, state: ModuleState, loss: Tensor
) -> Sequence[Tensor | None]:
    """The gradient of a loss by parameter; None for a parameter that it does not use.

    Raises:
        NoGradientError: It has none at all.
        ValueError: A parameter was frozen in the step.
    """
    try:
        return torch.autograd.grad(loss, state.params, allow_unused=True)
    except RuntimeError as error:
        if "does not require grad" not in str(error):
            raise
        state.check_kept()
        raise NoGradientError(
            f"the loss of {type(module).__name__} has no gradient ({error}); return it from "
            "training_step without detach(), no_grad() or inference_mode()"
        ) from error


def _check_place(module: LightningModule, state: ModuleState, run: LocalRun) -> None:
    """Check that the steps of a local optimizer have moved the numbers that the module has.

    Raises:
        ValueError: The module has given a parameter another place in memory.
    """
    pairs = zip(state.param_layout.names, state.params, run.params, strict=True)
    moved = [name for name, param, own in pairs if param.data_ptr() != own.data_ptr()]
    if moved:
        raise ValueError(
            f"training_step of {type(module).__name__} gives the parameters {', '.join(moved)} "
            "another place in memory (param.data = …), which the local optimizer does not reach; "
            "change their numbers in place, within torch.no_grad(): param.copy_(…)"
        )
