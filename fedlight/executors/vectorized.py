"""Many clients at once: their models are stacked, and one local step is one batched step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.memory import garbage_collection_cuda
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedlight._module.labels import hint_about
from fedlight._module.moment import local_runs, moment_of
from fedlight._module.rng import isolated_rng, seed_all
from fedlight._support.checks import positive_int
from fedlight._support.memory import copied, sent
from fedlight.executors._random.streams import FULL_GRADIENT, StackKeys, again
from fedlight.executors._stack.batches import StackedBatches, batch_rows
from fedlight.executors._stack.step import StackedLog, StackedRecorder, StackedStep
from fedlight.executors._stack.unused import step_without
from fedlight.executors._tracing import TracedStep
from fedlight.executors.base import (
    ClientError,
    Executor,
    Job,
    Outcome,
    Workplace,
    advised,
    not_finite,
    ran_out_of_memory,
)
from fedlight.local_optimizers import LocalRun
from fedlight.local_optimizers.base import per_client
from fedlight.parameters import FlatLayout
from fedlight.randomness import Concern, derived_seed
from fedlight.types import LocalResult, LoggedValue, Measured, Task

_SHARED_BYTES = 16 * 2**20
_CPU_BLOCK_BYTES = 4 * 2**20
_LONG = 500

if TYPE_CHECKING:
    from fedlight.parameters import FlatLayout


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

    A stack for which memory runs out is split in halves, with a warning, and the rest of the run
    keeps to the smaller size (a resumed run, too). Only a single client that does not fit ends the
    run. Results differ between sizes of a stack in their last bits; for the same bits wherever the
    run is repeated, give `max_batch` the size that the warning names.

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
        self._untraced = StackedStep(workplace)
        self._step = TracedStep(self._untraced)
        self._unused: dict[int, tuple[int, ...]] = {}
        parts = tree_leaves(workplace.examples.gather(torch.zeros(1, dtype=torch.int64)))
        self._example_bytes = sum(part.nbytes for part in parts)
        self.max_batch = self._most(max(part.nbytes for part in parts))
        self._reduced_to = None
        most = self.max_batch
        self._try()
        self._say_if_reduced(most)

    def teardown(self) -> None:
        """Release the module and the data."""
        del self._work, self._step, self._untraced, self._unused, self._moment, self._example_bytes

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Return the results of the jobs, in order; for a job that failed, its `ClientError`."""
        stacks: dict[int, list[int]] = defaultdict(list)
        for index, job in enumerate(jobs):
            offsets = (job.work or self._work).partition.offsets
            client = job.task.client_id
            size = int(offsets[client + 1] - offsets[client])
            stacks[min(self._work.batch_size, size)].append(index)
        results: dict[int, Outcome] = {}
        most = self.max_batch
        self._work.state.show()
        self._work.state.check_kept()  # a callback may have frozen a layer since
        with isolated_rng(), local_runs(self._work.module) as self._moment:
            for indices in stacks.values():
                indices.sort(key=lambda index: -jobs[index].task.num_steps)
                start = 0
                while start < len(indices):
                    chunk = indices[start : start + self.max_batch]
                    start += len(chunk)
                    stack = self._outcomes([jobs[index] for index in chunk])
                    results.update(zip(chunk, stack, strict=True))
        self._say_if_reduced(most)
        return [results[index] for index in range(len(jobs))]

    def _outcomes(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run a stack; if it raises, split it in halves until the failing clients are isolated."""
        try:
            outcomes = self._fitting(jobs)
            if outcomes is not None:
                return outcomes
        except ClientError as error:
            if len(jobs) == 1:
                return [error]
        half = len(jobs) // 2
        return [*self._outcomes(jobs[:half]), *self._outcomes(jobs[half:])]

    def _fitting(self, jobs: Sequence[Job]) -> list[Outcome] | None:
        """Run a stack; None if memory ran out for it, so that later ones hold half as many."""
        try:
            return self._stack(jobs)
        except Exception as error:
            if not ran_out_of_memory(error):
                raise
            if len(jobs) == 1:
                raise advised(error, self._work) from error.__cause__
        garbage_collection_cuda()  # not before: the error's traceback holds the stack's tensors
        self._reduce(len(jobs) - len(jobs) // 2)
        return None

    @torch.no_grad()
    def _stack(self, jobs: Sequence[Job]) -> list[Outcome]:
        work, state, n = self._work, self._work.state, len(jobs)
        self._moment.tasks = [job.task for job in jobs]
        layout, first = state.param_layout, jobs[0].task
        if self._step.begin():
            self._unused.clear()
        seed_all(derived_seed(work.seed, Concern.TRAINING, first.client_id, first.visit))
        steps = [job.task.num_steps for job in jobs]
        holder = jobs[0].work or work
        jobs = [*jobs, *[jobs[-1]] * (stack_size(n) - n)]  # results of the padding are not used
        seeds = self._seeds(jobs)
        pulled = _stacked([job.pulled.params for job in jobs])
        filled = _filled(layout, pulled)
        # each buffer in a block of its own: under vmap BatchNorm cannot write to a view of another
        buffers = _pieces(state.buffer_layout, [job.pulled.buffers for job in jobs])
        counters = _pieces(state.counter_layout, [job.pulled.counters for job in jobs])
        run = LocalRun(
            params=filled if n == len(jobs) else [param[:n] for param in filled],
            pulled=layout.views(pulled[:n]),
            lr=self._rates(jobs[:n]),
            num_steps=sent(steps, state.device),
            tasks=[job.task for job in jobs[:n]],
            seed=seeds if isinstance(seeds, int) else work.seed,
            seeds=() if isinstance(seeds, int) else seeds[:n],
        )

        def stored(states: Sequence[Tensor | None]) -> list[Tensor]:
            zeros = torch.zeros_like(pulled[0])
            return layout.views(_stacked([zeros if each is None else each for each in states]))

        if work.optimizer.client_state:
            run.client = stored([job.client_state for job in jobs[:n]])
            run.has_state = [job.client_state is not None for job in jobs[:n]]
        if work.optimizer.shared_state:
            run.shared = stored([job.pulled.shared for job in jobs[:n]])
        rows = self._rows(jobs, seeds)
        batches = StackedBatches(work.examples, rows, self._example_bytes)
        keys = StackKeys(seeds, [job.task for job in jobs], steps[0], state.device)
        recorder = StackedRecorder(work.module, steps, rows.shape[-1])
        part, active = run, -1
        try:
            if work.optimizer.needs_full_gradient:
                run.full_gradient = self._full_gradients(jobs[:n], run, buffers, counters, keys)
            work.optimizer.begin(run, work.module)
            for k in range(steps[0]):
                working = _working(steps, k, active)
                if working != active:
                    active, width = working, stack_size(working)
                    part = part.first(active)  # not run.first: `part` has the newest memory
                    stack = _Stack(
                        self._step,
                        keys,
                        active,
                        filled if width == len(jobs) else [param[:width] for param in filled],
                        [block[:width] for block in buffers],
                        [block[:width] for block in counters],
                    )
                batch = batches.step(k, width)
                unused = self._not_used(stack, batch, k)
                grads, logged = stack.gradients(batch, k, keep=active)
                recorder.add(logged, active)
                part.step = k
                part.evaluate = partial(stack.extra_gradients, batches, k, count(1))
                step_without(work.optimizer, part, grads, unused)
                part.step, part.evaluate = -1, None
                del batch, grads  # so that the next ones lie where these are in the cache
            losses, metrics = recorder.collect()
        except Exception as error:
            hint = hint_about(error, work.examples, holder.partition[first.client_id])
            raise ClientError.of(first, error, hint) from error
        states = work.optimizer.finish(run)
        clients = layout.flatten(states, leading=1) if states else None
        deltas = _block(layout, filled).sub_(pulled)[:n]
        floating = _joined(state.buffer_layout, buffers, n, state.device)
        before = _stacked([job.pulled.buffers for job in jobs[:n]])
        reasons, norms = not_finite(losses, deltas, floating, before, clients)
        results = _results(
            deltas,
            norms,
            floating,
            _joined(state.counter_layout, counters, n, state.device),
            clients,
            metrics,
        )
        return [
            ClientError(job.task, reason) if reason else result
            for job, reason, result in zip(jobs, reasons, results, strict=False)
        ]

    def _not_used(self, stack: _Stack, batch: Any, k: int) -> tuple[int, ...]:
        """The positions of the parameters that the loss of step k does not use."""
        key = k if self._step.reads_index else 0
        if key not in self._unused:
            tensors, keys = stack.tensors, partial(stack.keys.step, k, 1)
            self._unused[key] = self._untraced.unused(*tensors, batch, k, keys)
        return self._unused[key]

    def _full_gradients(
        self,
        jobs: Sequence[Job],
        run: LocalRun,
        buffers: Sequence[Tensor],
        counters: Sequence[Tensor],
        keys: StackKeys,
    ) -> list[Tensor]:
        """Compute the gradient of each f_i at the pulled model over all the client's examples.

        The k-th batches of all clients that have one are computed together, one batch size at a
        time. Buffers do not change.
        """
        work, state = self._work, self._work.state
        parts = [(job.work or work).all_rows(job.task.client_id) for job in jobs]
        sizes = [sum(map(len, batches)) for batches in parts]
        total = [torch.zeros_like(tensor) for tensor in run.pulled]
        for k in range(max(map(len, parts))):
            groups: dict[int, list[int]] = defaultdict(list)
            for index, batches in enumerate(parts):
                if k < len(batches):
                    groups[len(batches[k])].append(index)
            for length, indices in groups.items():
                which = sent(indices, state.device)
                rows = np.stack([parts[index][k] for index in indices])
                grads, _ = self._step(
                    [tensor[which] for tensor in run.pulled],
                    [block[which] for block in buffers],
                    [block[which] for block in counters],
                    work.examples.gather(
                        torch.from_numpy(rows).to(state.device, non_blocking=True)
                    ),
                    0,
                    partial(keys.one, FULL_GRADIENT + k, indices),
                )
                shares = [length / sizes[index] for index in indices]
                share = sent(shares, state.device, run.pulled[0].dtype)
                for gradient, term in zip(total, grads, strict=True):
                    gradient[which] += term * per_client(share, term)
        return total

    def _most(self, part_bytes: int) -> int:
        """How many clients a stack may hold.

        Args:
            part_bytes: Size of the largest tensor of one example.
        """
        work, fitting = self._work, self._asked
        layout = work.state.param_layout
        model = layout.numel * layout.dtype.itemsize
        batch = min(work.batch_size, int(work.partition.sizes.max()))
        if self.max_bytes is not None:
            fitting = min(fitting, self.max_bytes // (3 * model + batch * self._example_bytes))
        block = self.block_bytes
        if block is None and work.state.device.type == "cpu":
            block = _CPU_BLOCK_BYTES
        if block is not None:
            fitting = min(fitting, block // max(model, batch * part_bytes))
        while fitting > 1 and stack_size(fitting) > fitting:  # else padding would exceed the limit
            fitting -= 1
        return max(1, fitting)

    def _reduce(self, most: int) -> None:
        """Let no stack of this run hold more than `most` clients, padding included."""
        while most > 1 and stack_size(most) > most:
            most -= 1
        self._reduced_to = self.max_batch = min(self.max_batch, most)

    def _say_if_reduced(self, before: int) -> None:
        if self.max_batch < before:
            rank_zero_warn(
                f"VectorizedExecutor: the memory of {self._work.state.device} ran out for a stack "
                f"of clients; from now on a stack holds at most {self.max_batch}. Another size may "
                "change the last bits of results; for the same bits in every run write "
                f"executor=VectorizedExecutor(max_batch={self.max_batch})"
            )

    def state_dict(self) -> dict[str, Any]:
        """The size to which stacks were reduced because memory ran out, if it did."""
        return {} if self._reduced_to is None else {"max_batch": self._reduced_to}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep to the size to which stacks were reduced before a checkpoint."""
        if "max_batch" in state:
            self._reduce(state["max_batch"])

    def _rates(self, jobs: Sequence[Job]) -> float | Tensor:
        rates = [(job.work or self._work).lr(job.task) for job in jobs]
        if len(set(rates)) == 1:
            return rates[0]
        layout = self._work.state.param_layout
        return sent(rates, self._work.state.device, layout.dtype)

    def _rows(self, jobs: Sequence[Job], seeds: int | Sequence[int]) -> Tensor:
        work = self._work
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

    def _seeds(self, jobs: Sequence[Job]) -> int | list[int]:
        """The seed of the jobs, or one for each if they are of several fits."""
        seeds = [(job.work or self._work).seed for job in jobs]
        return seeds[0] if len(set(seeds)) == 1 else seeds

    def _try(self) -> None:
        """Try one step on the data of up to three clients; raise if it fails for all of them."""
        work = self._work
        holders = np.flatnonzero(work.partition.sizes)
        failures: list[ClientError] = []
        for client in dict.fromkeys(holders[[0, len(holders) // 2, -1]].tolist()):
            task = Task(client, 0, 0.0, 1.0, num_steps=1, serial=0, visit=0)
            try:
                with isolated_rng(), local_runs(work.module) as self._moment:
                    job = Job(task, work.state.read())
                    if self._fitting([job] * 2) is None:
                        self._fitting([job])
            except ClientError as error:
                failures.append(error)
            else:
                return
        cause = failures[0].__cause__
        words, hint = repr(failures[0]), ""
        if cause is not None and str(cause):
            words = str(cause).splitlines()[0]
            if len(words) > _LONG:  # torch lists all its backends
                words = words.partition(". ")[0]
            hint = hint_about(cause, work.examples, work.partition[int(holders[0])])
        raise ValueError(
            f"{type(work.module).__name__} cannot be vectorised ({words}{hint})"
        ) from cause

    def __repr__(self) -> str:
        bytes_ = "" if self.max_bytes is None else f", max_bytes={self.max_bytes}"
        block = "" if self.block_bytes is None else f", block_bytes={self.block_bytes}"
        return f"VectorizedExecutor(max_batch={self._asked}{bytes_}{block})"


@dataclass(slots=True)
class _Stack:
    """The clients of a stack that still work, padded to a size for which steps are traced.

    Attributes:
        step: Computes the gradients.
        keys: The keys of the clients' random numbers.
        active: How many clients work; the rest is padding.
        params: Their parameters, ``[width, *shape]`` each, which the local optimizer changes.
        buffers: Their floating buffers, ``[width, *shape]`` each.
        counters: Their integer buffers, ``[width, *shape]`` each.
    """

    step: TracedStep
    keys: StackKeys
    active: int
    params: list[Tensor]
    buffers: list[Tensor]
    counters: list[Tensor]

    @property
    def tensors(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """The parameters and the buffers."""
        return self.params, self.buffers, self.counters

    def gradients(
        self, batch: Any, k: int, keep: int, times: int = 0
    ) -> tuple[list[Tensor], StackedLog]:
        """Compute the clients' gradients, ``[active, *shape]`` each, and what they logged.

        Args:
            batch: The stacked batch, a tuple or a dict of tensors ``[width, b, ...]``.
            k: Number of the local step.
            keep: How many clients, from the first on, keep the buffers that the step leaves.
            times: How often gradients of this step were computed before.
        """
        width = len(self.params[0])
        keys = partial(self.keys.step, k, width)
        if times:
            keys = partial(self.keys.one, again(k, times), range(width))
        if keep == width:
            return self.step(self.params, self.buffers, self.counters, batch, k, keys)
        moved = [block.clone() for block in self.buffers]
        counted = [block.clone() for block in self.counters]
        grads, logged = self.step(self.params, moved, counted, batch, k, keys)
        if keep:
            for old, new in zip(self.buffers + self.counters, moved + counted, strict=True):
                old[:keep] = new[:keep]
        if self.active < width:
            grads = [grad[: self.active] for grad in grads]
        return grads, logged

    def extra_gradients(
        self, batches: StackedBatches, k: int, times: Iterator[int]
    ) -> list[Tensor]:
        """Compute the gradients at the present parameters again, without any other effect.

        Args:
            batches: Give the batch anew, as the step may have changed it in place.
            k: Number of the local step.
            times: Counts the calls for this step.
        """
        batch = batches.anew(k, len(self.params[0]))
        return self.gradients(batch, k, keep=0, times=next(times))[0]


def stack_size(n: int) -> int:
    """Return the size to which a stack of `n` clients is padded: five significant binary digits.

    So only few sizes occur (all up to 32, and 16 more for each doubling), each of which is traced
    once, and at most a sixteenth of the work is wasted.

    Example:
        >>> [stack_size(n) for n in (1, 15, 33, 100, 255)]
        [1, 15, 34, 100, 256]
    """
    unit: int = 1 << max(0, (n - 1).bit_length() - 5)
    return -(-n // unit) * unit


def _working(steps: Sequence[int], k: int, before: int) -> int:
    """Count the clients, sorted by their number of steps, that still work at step k."""
    active = len(steps) if before < 0 else before
    while steps[active - 1] <= k:
        active -= 1
    return active


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """Stack rows to a block; if all rows are one tensor, it is expanded, not copied."""
    if all(row is rows[0] for row in rows):
        return rows[0].expand(len(rows), -1)
    return torch.stack(list(rows))


def _filled(layout: FlatLayout, pulled: Tensor) -> list[Tensor]:
    """The parameters of a stack at its start, ``[n, *shape]`` each.

    On a CPU they are views of one block. The fused kernels of other devices, which change all
    parameters in one launch, take tensors without gaps only.
    """
    if pulled.device.type == "cpu":
        return layout.views(copied(pulled))
    return [view.clone(memory_format=torch.contiguous_format) for view in layout.views(pulled)]


def _block(layout: FlatLayout, params: list[Tensor]) -> Tensor:
    """The parameters of a stack as one block ``[n, P]``, to be changed in place."""
    base = params[0]._base
    return layout.flatten(params, leading=1) if base is None else base


def _pieces(layout: FlatLayout, flat: Sequence[Tensor]) -> list[Tensor]:
    """Split n flat vectors into one block ``[n, *shape]`` per tensor of the layout."""
    if not layout.names:
        return []
    return [view.contiguous() for view in layout.views(torch.stack(list(flat)))]


def _joined(layout: FlatLayout, blocks: list[Tensor], n: int, device: torch.device) -> Tensor:
    """Join the blocks of the first n clients to vectors again, ``[n, Q]``."""
    if not blocks:
        return torch.empty(n, 0, dtype=layout.dtype, device=device)
    return layout.flatten([block[:n] for block in blocks], leading=1)


def _results(
    deltas: Tensor,
    norms: Sequence[float],
    buffers: Tensor,
    counters: Tensor,
    clients: Tensor | None,
    metrics: Sequence[Mapping[str, LoggedValue]],
) -> list[LocalResult]:
    """Make a result of each row; of a large stack a copy, as a row keeps its whole block alive."""
    copied = len(deltas) > 1 and deltas.nbytes > _SHARED_BYTES
    states: Iterable[Tensor | None] = repeat(None)
    if clients is not None:
        states = (row.clone() for row in clients)
    return [
        LocalResult(
            delta=delta,
            buffers=own.clone() if copied else own,
            counters=counts,
            metrics=logged,
            client_state=client,
            measured=Measured(delta, delta._version, norm),
        )
        for delta, norm, own, counts, logged, client in zip(
            [row.clone() for row in deltas] if copied else deltas.unbind(),
            norms,
            buffers.unbind() if buffers.numel() else repeat(buffers[0]),
            counters.unbind() if counters.numel() else repeat(counters[0]),
            metrics,
            states,
            strict=False,
        )
    ]
