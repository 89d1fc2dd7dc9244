"""Many clients at once: their models are stacked and one local step is one batched step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedlight.checks import positive_int
from fedlight.executors.base import ClientError, Executor, Job, Workplace
from fedlight.executors.rng import isolated_rng, seed_all
from fedlight.executors.stacked_step import StackedRecorder, StackedStep
from fedlight.local_optimizers import LocalRun
from fedlight.local_optimizers.base import per_client
from fedlight.randomness import Concern, derived_seed
from fedlight.types import LocalResult, Task


class VectorizedExecutor(Executor):
    """Stacks clients with ``torch.func``: the same weights as one by one, at batch speed.

    The clients of a batch are sorted by their number of steps, so that at step k only a prefix of
    the stack still works. Clients whose batches differ in size make stacks of their own.

    Args:
        max_batch: Largest number of clients in a stack.

    Example:
        >>> VectorizedExecutor(max_batch=64)
        VectorizedExecutor(max_batch=64)
    """

    def __init__(self, max_batch: int = 256) -> None:
        self.max_batch = positive_int("max_batch", max_batch)

    def setup(self, workplace: Workplace) -> None:
        """Get ready for a run, and try one stacked step on the first client's data.

        Raises:
            ValueError: The data cannot be stacked, the local optimizer works on one client only,
                or the module cannot be vectorised (the cause is chained).
        """
        if not workplace.optimizer.stackable:
            raise ValueError(f"{workplace.optimizer!r} works on one client at a time")
        if not workplace.examples.stackable:
            raise ValueError("the clients' data are no tensors of one shape")
        self._work = workplace
        self._step = StackedStep(workplace)
        self._try()

    def teardown(self) -> None:
        """Let go of the module and the data."""
        del self._work, self._step

    def run(self, jobs: Sequence[Job]) -> list[LocalResult]:
        """The results of jobs, in their order.

        Raises:
            ClientError: The stacked step raised; the first client of the stack is named.
        """
        stacks: dict[int, list[int]] = defaultdict(list)
        for index, job in enumerate(jobs):
            size = len(self._work.partition[job.task.client_id])
            stacks[min(self._work.batch_size, size)].append(index)
        results: dict[int, LocalResult] = {}
        module = self._work.module
        was_training = module.training
        module.train()
        try:
            with isolated_rng():
                for indices in stacks.values():
                    indices.sort(key=lambda index: -jobs[index].task.num_steps)
                    for start in range(0, len(indices), self.max_batch):
                        chunk = indices[start : start + self.max_batch]
                        stack = self._stack([jobs[index] for index in chunk])
                        results.update(zip(chunk, stack, strict=True))
        finally:
            module.train(was_training)
        return [results[index] for index in range(len(jobs))]

    def _stack(self, jobs: Sequence[Job]) -> list[LocalResult]:
        work, state, n = self._work, self._work.state, len(jobs)
        first = jobs[0].task
        seed_all(derived_seed(work.seed, Concern.TRAINING, first.client_id, first.visit))
        pulled = torch.stack([job.pulled.params for job in jobs])
        params = pulled.clone()
        buffers = torch.stack([job.pulled.buffers for job in jobs])
        counters = torch.stack([job.pulled.counters for job in jobs])
        run = LocalRun(
            params=state.param_layout.views(params),
            pulled=state.param_layout.views(pulled),
            lr=self._rates(jobs),
            num_steps=torch.tensor([job.task.num_steps for job in jobs], device=state.device),
        )
        if work.optimizer.client_state:
            zeros = torch.zeros_like(pulled[0])
            own = [zeros if job.client_state is None else job.client_state for job in jobs]
            shared = [zeros if job.pulled.shared is None else job.pulled.shared for job in jobs]
            run.client = state.param_layout.views(torch.stack(own))
            run.shared = state.param_layout.views(torch.stack(shared))
        steps = [job.task.num_steps for job in jobs]
        rows = self._rows(jobs)
        recorder = StackedRecorder(work.module, n, rows.shape[-1])
        active = n
        try:
            if work.optimizer.needs_full_gradient:
                run.full_gradient = self._full_gradients(jobs, run, buffers, counters)
            work.optimizer.begin(run, work.module)
            for k in range(steps[0]):
                while steps[active - 1] <= k:
                    active -= 1
                part = run.first(active)
                grads, logged = self._step(
                    part.params,
                    state.buffer_layout.views(buffers[:active]),
                    state.counter_layout.views(counters[:active]),
                    work.examples.gather(rows[:active, k]),
                    k,
                )
                recorder.add(active, logged)
                with torch.no_grad():
                    work.optimizer.step(part, grads)
        except Exception as error:
            raise ClientError(first, f"{type(error).__name__}: {error}") from error
        with torch.no_grad():
            states = work.optimizer.finish(run)
        deltas = params - pulled
        metrics = recorder.collect()
        clients = state.param_layout.flatten(states, leading=1) if states else None
        return [
            LocalResult(
                delta=deltas[i],
                buffers=buffers[i],
                counters=counters[i],
                metrics=metrics[i],
                client_state=None if clients is None else clients[i].clone(),
            )
            for i in range(n)
        ]

    def _full_gradients(
        self, jobs: Sequence[Job], run: LocalRun, buffers: Tensor, counters: Tensor
    ) -> list[Tensor]:
        """The gradient of each f_i at the pulled model over all the client's examples.

        The k-th batches of all clients that have one are computed together, those of one size at
        a time. Buffers are left as they are.
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
                    state.buffer_layout.views(buffers[which]),
                    state.counter_layout.views(counters[which]),
                    work.examples.gather(torch.from_numpy(rows).to(state.device)),
                    0,
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
        longest = jobs[0].task.num_steps
        each = [torch.from_numpy(self._work.batch_rows(job.task)) for job in jobs]
        rows = each[0].new_zeros(len(jobs), longest, each[0].shape[1])
        for index, batches in enumerate(each):
            rows[index, : len(batches)] = batches
        return rows.to(self._work.state.device)

    def _try(self) -> None:
        work = self._work
        job = Job(Task(0, 0, 0.0, 1.0, num_steps=1, serial=0, visit=0), work.state.read())
        try:
            self.run([job, job])
        except ClientError as error:
            raise ValueError(
                f"{type(work.module).__name__} cannot be vectorised "
                f"({str(error.__cause__).splitlines()[0] if str(error.__cause__) else error!r})"
            ) from error.__cause__

    def __repr__(self) -> str:
        return f"VectorizedExecutor(max_batch={self.max_batch})"
