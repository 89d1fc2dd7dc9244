"""The local runs of a stack of clients, one batched local step after another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedlight._module.labels import hint_about
from fedlight._module.rng import seed_all
from fedlight._support.memory import sent
from fedlight._support.threads import products_on, threads_for_copies
from fedlight.executors._random.streams import FULL_GRADIENT, StackKeys, again
from fedlight.executors._stack.batches import StackedBatches, batch_rows
from fedlight.executors._stack.blocks import filled, joined, moved, pieces, results_of, stacked
from fedlight.executors._stack.log_recorder import StackedRecorder
from fedlight.executors._stack.stack_size import stack_size
from fedlight.executors._stack.start import local_run_of, states_left
from fedlight.executors._stack.step import StepInputs
from fedlight.executors._stack.unused_parameters import step_without
from fedlight.executors.base import ClientError, not_finite
from fedlight.local_optimizers.base import per_client
from fedlight.randomness import Concern, derived_seed

if TYPE_CHECKING:
    from fedlight.executors._stack.step import Step
    from fedlight.executors._stack.step_log import StackedLog
    from fedlight.executors.base import Job, Outcome, Workplace
    from fedlight.local_optimizers import LocalRun
    from fedlight.types import LoggedValue

Models: TypeAlias = tuple[list[Tensor], list[Tensor], list[Tensor]]


@torch.no_grad()
def run_stack(
    jobs: Sequence[Job],
    work: Workplace,
    step: Step,
    example_bytes: float,
    least: int = 1,
    threads: int = 1,
) -> list[Outcome]:
    """Compute the local runs of clients whose batches have one size.

    Args:
        jobs: The jobs, sorted by their number of steps, the largest first: at step k, only the
            first of them still work.
        work: The workplace of the local runs.
        step: Computes a local step.
        example_bytes: Size of one example.
        least: The stack is padded to this number of clients at least.
        threads: Threads of the products of matrices, if they are more than of other operators.
    """
    state, n, first = work.state, len(jobs), jobs[0].task
    seed_all(derived_seed(work.seed, Concern.TRAINING, first.client_id, first.visit))
    stack = _Stack.of(jobs, work, step, example_bytes, least, threads)
    run = stack.run
    try:
        if work.optimizer.needs_full_gradient:
            run.full_gradient = stack.full_gradients(work)
        losses, metrics = stack.train(work)
    except Exception as error:
        holder = jobs[0].work or work
        hint = hint_about(error, work.examples, holder.rows(first))
        raise ClientError.of(first, error, hint) from error
    clients = states_left(work.optimizer, run, state.param_layout)
    params, *others = stack.models
    deltas = moved(state.param_layout, params, stack.pulled)[:n]
    layouts = state.buffer_layout, state.counter_layout
    buffers, counters = [
        joined(layout, blocks, n, state.device)
        for layout, blocks in zip(layouts, others, strict=True)
    ]
    before = stacked([job.pulled.buffers for job in jobs])
    reasons, norms = not_finite(losses, deltas, buffers, before, clients)
    results = results_of(deltas, norms, buffers, counters, clients, metrics)
    return [
        ClientError(job.task, reason) if reason else result
        for job, reason, result in zip(jobs, reasons, results, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Stack:
    """The clients of a stack that still work, padded to a size for which steps are traced.

    Attributes:
        jobs: All jobs, and the last one again for the padding, whose results are not used.
        step: Computes a local step.
        models: Their parameters, which the local optimizer changes, their floating and their
            integer buffers, ``[width, *shape]`` each.
        pulled: The parameters that all started from, ``[n, P]``.
        run: The local runs that go on, without the padding.
        keys: The keys of the random numbers of all.
        batches: The batches of all.
        batch_size: Examples per client and step.
        least: The smallest number of clients that are computed together, with the padding.
        threads: Threads of products.
    """

    jobs: Sequence[Job]
    step: Step
    models: Models
    pulled: Tensor
    run: LocalRun
    keys: StackKeys
    batches: StackedBatches
    batch_size: int
    least: int
    threads: int

    @classmethod
    def of(
        cls,
        jobs: Sequence[Job],
        work: Workplace,
        step: Step,
        example_bytes: float,
        least: int,
        threads: int,
    ) -> _Stack:
        """The stack of the clients of these jobs."""
        state, layout, n = work.state, work.state.param_layout, len(jobs)
        # Padded, so that few sizes of stacks occur and are traced.
        jobs = [*jobs, *[jobs[-1]] * (stack_size(max(n, least)) - n)]
        # The seed of the fit; or one for each job, if they are of several fits.
        every = [(job.work or work).seed for job in jobs]
        seeds = every[0] if len(set(every)) == 1 else every
        pulled = stacked([job.pulled.params for job in jobs])
        params = filled(layout, pulled)
        # each buffer in a block of its own: under vmap BatchNorm cannot write to a view of another
        buffers = pieces(state.buffer_layout, [job.pulled.buffers for job in jobs])
        counters = pieces(state.counter_layout, [job.pulled.counters for job in jobs])
        # The local optimizer must not see the padding.
        own = params if n == len(jobs) else [param[:n] for param in params]
        run = local_run_of(jobs[:n], work, own, pulled[:n])
        rows = _rows(jobs, work, seeds)
        return cls(
            jobs,
            step,
            (params, buffers, counters),
            pulled,
            run,
            StackKeys(seeds, [job.task for job in jobs], jobs[0].task.num_steps, state.device),
            StackedBatches(work.examples, rows, example_bytes),
            rows.shape[-1],
            least,
            threads,
        )

    @property
    def width(self) -> int:
        """How many clients there are with the padding."""
        return len(self.models[0][0])

    def first(self, active: int) -> _Stack:
        """The first clients, which still work, as views."""
        width = stack_size(max(active, self.least))
        params, buffers, counters = [[each[:width] for each in part] for part in self.models]
        return replace(self, models=(params, buffers, counters), run=self.run.first(active))

    def train(self, work: Workplace) -> tuple[list[float], list[dict[str, LoggedValue]]]:
        """Make all local steps; return the losses and the logged values of each client."""
        steps = [task.num_steps for task in self.run.tasks]
        recorder = StackedRecorder(work.module, steps, self.batch_size)
        work.optimizer.begin(self.run, work.module)
        working, active = self, len(steps)
        for k in range(steps[0]):
            # The longest runs come first, so those that still work are a prefix: no copy is made.
            while steps[active - 1] <= k:
                active -= 1
            if active != len(working.run.tasks):
                working = working.first(active)  # not self.first: `working` has the newest memory
            run, inputs = working.run, working.inputs(k)
            unused = self.step.unused(inputs, partial(self.keys.step, k, 1))
            grads, logged = working.gradients(inputs, active)
            recorder.add(logged, active)
            run.begin_step(k)
            run.evaluate = partial(working.extra_gradients, k, count(1))
            step_without(work.optimizer, run, grads, unused)
            run.step, run.evaluate = -1, None
            del inputs, grads  # the next ones then use the same memory, which is in the cache
        return recorder.collect()

    def inputs(self, k: int) -> StepInputs:
        """The inputs of step k."""
        with threads_for_copies(self.threads):
            batch = self.batches.step(k, self.width)
        return StepInputs(*self.models, batch, k)

    def gradients(
        self, inputs: StepInputs, keep: int, times: int = 0
    ) -> tuple[list[Tensor], StackedLog]:
        """Compute the clients' gradients, ``[active, *shape]`` each, and what they logged.

        Args:
            inputs: The inputs of a step.
            keep: How many clients, from the first on, keep the buffers that the step leaves.
            times: How often gradients of this step were computed before.
        """
        width, k = self.width, inputs.number
        keys = partial(self.keys.step, k, width)
        if times:
            keys = partial(self.keys.one, again(k, times), range(width))
        if keep == width:
            with products_on(min(self.threads, width)):
                return self.step(inputs, keys)
        active = len(self.run.tasks)
        # A row of the padding may be a client's that has finished, and a step may set parameters.
        idle = [(block[active:], block[active:].clone()) for block in inputs.params]
        versions = [block._version for block in inputs.params]
        written = inputs._replace(
            buffers=[block.clone() for block in inputs.buffers],
            counters=[block.clone() for block in inputs.counters],
        )
        with products_on(min(self.threads, width)):
            grads, logged = self.step(written, keys)
        if versions != [block._version for block in inputs.params]:
            for rows, values in idle:
                rows.copy_(values)
        if keep:
            before = inputs.buffers + inputs.counters
            for old, new in zip(before, written.buffers + written.counters, strict=True):
                old[:keep] = new[:keep]
        if active < width:
            grads = [grad[:active] for grad in grads]
        return grads, logged

    def extra_gradients(self, k: int, times: Iterator[int]) -> list[Tensor]:
        """Compute the gradients at the present parameters again, without any other effect.

        Args:
            k: Number of the local step.
            times: Counts the calls for this step.
        """
        batch = self.batches.gathered(k, self.width)  # the step may have changed it in place
        inputs = StepInputs(*self.models, batch, k)
        return self.gradients(inputs, keep=0, times=next(times))[0]

    def full_gradients(self, work: Workplace) -> list[Tensor]:
        """Compute the gradient of each f_i at the pulled model over all the client's examples.

        The k-th batches of all clients that have one are computed together, one batch size at a
        time. Buffers do not change.
        """
        device, pulled = work.state.device, self.run.pulled
        jobs = self.jobs[: len(self.run.tasks)]
        parts = [(job.work or work).all_rows(job.task) for job in jobs]
        sizes = [sum(map(len, batches)) for batches in parts]
        total = [torch.zeros_like(tensor) for tensor in pulled]
        for k in range(max(map(len, parts))):
            groups: dict[int, list[int]] = defaultdict(list)
            for index, batches in enumerate(parts):
                if k < len(batches):
                    groups[len(batches[k])].append(index)
            for length, indices in groups.items():
                # padded as at a step; the last one is then written twice
                indices = [*indices, *indices[-1:] * (self.least - len(indices))]
                which = sent(indices, device)  # indexed, so the step writes to copies of buffers
                rows = np.stack([parts[index][k] for index in indices])
                batch = work.examples.gather(torch.from_numpy(rows).to(device, non_blocking=True))
                models = pulled, *self.models[1:]
                params, buffers, counters = [[each[which] for each in part] for part in models]
                inputs = StepInputs(params, buffers, counters, batch, 0)
                keys = partial(self.keys.one, FULL_GRADIENT + k, indices)
                with products_on(min(self.threads, len(indices))):
                    grads, _ = self.step(inputs, keys)
                share = sent([length / sizes[index] for index in indices], device, pulled[0].dtype)
                for gradient, term in zip(total, grads, strict=True):
                    gradient[which] += term * per_client(share, term)
        return total


def _rows(jobs: Sequence[Job], work: Workplace, seeds: int | Sequence[int]) -> Tensor:
    """Row numbers of the batches, ``[K, width, b]``; the jobs may be of fits with other data."""
    holders: dict[int, list[int]] = defaultdict(list)
    for index, job in enumerate(jobs):
        holders[id((job.work or work).partition)].append(index)
    parts = []
    for which in holders.values():
        partition = (jobs[which[0]].work or work).partition
        own = seeds if isinstance(seeds, int) else [seeds[index] for index in which]
        tasks = [jobs[index].task for index in which]
        parts.append(batch_rows(partition, tasks, work.batch_size, own))
    chosen = parts[0]
    if len(parts) > 1:  # the rows of steps after a client's last one are not used
        chosen = np.zeros((max(map(len, parts)), len(jobs), parts[0].shape[2]), dtype=np.int64)
        for which, part in zip(holders.values(), parts, strict=True):
            chosen[: len(part), which] = part
    return torch.from_numpy(chosen).to(work.state.device, non_blocking=True)
