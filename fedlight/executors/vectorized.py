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
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedlight._checks import positive_int
from fedlight._moment import local_runs, moment_of
from fedlight.executors._batches import StackedBatches, batch_rows
from fedlight.executors._labels import out_of_range
from fedlight.executors._rng import isolated_rng, seed_all
from fedlight.executors._stacked_step import StackedLog, StackedRecorder, StackedStep
from fedlight.executors._streams import FULL_GRADIENT, StackKeys, again
from fedlight.executors._tracing import TracedStep
from fedlight.executors._unused import step_without
from fedlight.executors.base import ClientError, Executor, Job, Outcome, Workplace, not_finite
from fedlight.local_optimizers import LocalRun
from fedlight.local_optimizers.base import per_client
from fedlight.parameters import FlatLayout
from fedlight.randomness import Concern, derived_seed
from fedlight.types import LocalResult, LoggedValue, Measured, Task

_SHARED_BYTES = 16 * 2**20

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

    Raises:
        ValueError: A limit is below 1.

    Example:
        >>> VectorizedExecutor(max_batch=64)
        VectorizedExecutor(max_batch=64)
    """

    def __init__(self, max_batch: int = 256, max_bytes: int | None = None) -> None:
        self._asked = self.max_batch = positive_int("max_batch", max_batch)
        self.max_bytes = None if max_bytes is None else positive_int("max_bytes", max_bytes)

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
        one = workplace.examples.gather(torch.zeros(1, dtype=torch.int64))
        self._example_bytes = sum(int(part.nbytes) for part in tree_leaves(one))
        if self.max_bytes is not None:
            fitting = self.max_bytes // _bytes_per_client(workplace, self._example_bytes)
            self.max_batch = max(1, min(self._asked, fitting))
        self._try()

    def teardown(self) -> None:
        """Release the module and the data."""
        del self._work, self._step, self._untraced, self._unused, self._moment, self._example_bytes

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Return the results of the jobs, in order; for a job that failed, its `ClientError`."""
        stacks: dict[int, list[int]] = defaultdict(list)
        offsets = self._work.partition.offsets
        for index, job in enumerate(jobs):
            client = job.task.client_id
            size = int(offsets[client + 1] - offsets[client])
            stacks[min(self._work.batch_size, size)].append(index)
        results: dict[int, Outcome] = {}
        with isolated_rng(), local_runs(self._work.module) as self._moment:
            for indices in stacks.values():
                indices.sort(key=lambda index: -jobs[index].task.num_steps)
                for start in range(0, len(indices), self.max_batch):
                    chunk = indices[start : start + self.max_batch]
                    stack = self._outcomes([jobs[index] for index in chunk])
                    results.update(zip(chunk, stack, strict=True))
        return [results[index] for index in range(len(jobs))]

    def _outcomes(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run a stack; if it raises, split it in halves until the failing clients are isolated."""
        try:
            return self._stack(jobs)
        except ClientError as error:
            if len(jobs) == 1:
                return [error]
        half = len(jobs) // 2
        return [*self._outcomes(jobs[:half]), *self._outcomes(jobs[half:])]

    @torch.no_grad()
    def _stack(self, jobs: Sequence[Job]) -> list[Outcome]:
        work, state, n = self._work, self._work.state, len(jobs)
        self._moment.tasks = [job.task for job in jobs]
        layout, first = state.param_layout, jobs[0].task
        if self._step.begin():
            self._unused.clear()
        seed_all(derived_seed(work.seed, Concern.TRAINING, first.client_id, first.visit))
        steps = [job.task.num_steps for job in jobs]
        jobs = [*jobs, *[jobs[-1]] * (stack_size(n) - n)]  # results of the padding are not used
        pulled = _stacked([job.pulled.params for job in jobs])
        params = pulled.clone(memory_format=torch.contiguous_format)
        # each buffer in a block of its own: under vmap BatchNorm cannot write to a view of another
        buffers = _pieces(state.buffer_layout, [job.pulled.buffers for job in jobs])
        counters = _pieces(state.counter_layout, [job.pulled.counters for job in jobs])
        filled = layout.views(params)
        run = LocalRun(
            params=filled if n == len(jobs) else layout.views(params[:n]),
            pulled=layout.views(pulled[:n]),
            lr=self._rates(jobs[:n]),
            num_steps=torch.tensor(steps, device=state.device),
            tasks=[job.task for job in jobs[:n]],
            seed=work.seed,
        )

        def stored(states: Sequence[Tensor | None]) -> list[Tensor]:
            zeros = torch.zeros_like(pulled[0])
            return layout.views(_stacked([zeros if each is None else each for each in states]))

        if work.optimizer.client_state:
            run.client = stored([job.client_state for job in jobs[:n]])
        if work.optimizer.shared_state:
            run.shared = stored([job.pulled.shared for job in jobs[:n]])
        rows = self._rows(jobs)
        batches = StackedBatches(work.examples, rows, self._example_bytes)
        keys = StackKeys(work.seed, [job.task for job in jobs], steps[0], state.device)
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
                        filled if width == len(jobs) else layout.views(params[:width]),
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
            hint = out_of_range(error, work.examples, work.partition[first.client_id])
            raise ClientError.of(first, error, hint) from error
        states = work.optimizer.finish(run)
        clients = layout.flatten(states, leading=1) if states else None
        deltas = params.sub_(pulled)[:n]
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
        parts = [work.all_rows(job.task.client_id) for job in jobs]
        sizes = [len(work.partition[job.task.client_id]) for job in jobs]
        total = [torch.zeros_like(tensor) for tensor in run.pulled]
        for k in range(max(map(len, parts))):
            groups: dict[int, list[int]] = defaultdict(list)
            for index, batches in enumerate(parts):
                if k < len(batches):
                    groups[len(batches[k])].append(index)
            for length, indices in groups.items():
                which = torch.tensor(indices, device=state.device)
                rows = np.stack([parts[index][k] for index in indices])
                grads, _ = self._step(
                    [tensor[which] for tensor in run.pulled],
                    [block[which] for block in buffers],
                    [block[which] for block in counters],
                    work.examples.gather(torch.from_numpy(rows).to(state.device)),
                    0,
                    partial(keys.one, FULL_GRADIENT + k, indices),
                )
                share = run.pulled[0].new_tensor([length / sizes[index] for index in indices])
                for gradient, term in zip(total, grads, strict=True):
                    gradient[which] += term * per_client(share, term)
        return total

    def _rates(self, jobs: Sequence[Job]) -> float | Tensor:
        rates = [self._work.lr(job.task) for job in jobs]
        if len(set(rates)) == 1:
            return rates[0]
        layout = self._work.state.param_layout
        return torch.tensor(rates, dtype=layout.dtype, device=self._work.state.device)

    def _rows(self, jobs: Sequence[Job]) -> Tensor:
        work = self._work
        tasks = [job.task for job in jobs]
        rows = torch.from_numpy(batch_rows(work.partition, tasks, work.batch_size, work.seed))
        return rows.to(work.state.device, non_blocking=True)

    def _try(self) -> None:
        """Try one step on the data of up to three clients; raise if it fails for all of them."""
        work = self._work
        holders = np.flatnonzero(work.partition.sizes)
        failures: list[ClientError] = []
        for client in dict.fromkeys(holders[[0, len(holders) // 2, -1]].tolist()):
            task = Task(client, 0, 0.0, 1.0, num_steps=1, serial=0, visit=0)
            try:
                with isolated_rng(), local_runs(work.module) as self._moment:
                    self._stack([Job(task, work.state.read())] * 2)
            except ClientError as error:
                failures.append(error)
            else:
                return
        cause = failures[0].__cause__
        words, hint = repr(failures[0]), ""
        if cause is not None and str(cause):
            words = str(cause).splitlines()[0]
            hint = out_of_range(cause, work.examples, work.partition[int(holders[0])])
        raise ValueError(
            f"{type(work.module).__name__} cannot be vectorised ({words}{hint})"
        ) from cause

    def __repr__(self) -> str:
        bytes_ = "" if self.max_bytes is None else f", max_bytes={self.max_bytes}"
        return f"VectorizedExecutor(max_batch={self._asked}{bytes_})"


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


def _bytes_per_client(workplace: Workplace, example: int) -> int:
    layout = workplace.state.param_layout
    batch = min(workplace.batch_size, int(workplace.partition.sizes.max()))
    return 3 * layout.numel * int(layout.dtype.itemsize) + batch * example


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
    copied = deltas.nbytes > _SHARED_BYTES
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
