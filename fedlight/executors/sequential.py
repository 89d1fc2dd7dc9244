"""One client after the other: any module, any data, any local optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedlight.executors._capture import LogRecorder, step_function
from fedlight.executors._rng import isolated_rng, rng_states, seed_all
from fedlight.executors.base import (
    ClientError,
    Executor,
    Job,
    Outcome,
    Workplace,
    loss_of,
    not_finite,
)
from fedlight.local_optimizers import LocalRun
from fedlight.randomness import Concern, derived_seed
from fedlight.types import LocalResult, Measured, Task


class SequentialExecutor(Executor):
    """Runs clients one by one in the module itself: no copy of it, no data loader.

    Example:
        >>> SequentialExecutor()
        SequentialExecutor()
    """

    independent = True

    def setup(self, workplace: Workplace) -> None:
        """Get ready for a run, and let the module's own optimizer be seen before the first round.

        Raises:
            ValueError: The local optimizer cannot work on the module.
        """
        self._work = workplace
        self._recorder = LogRecorder(workplace.module)
        self._step = step_function(workplace.module, "training_step")
        if not workplace.optimizer.stackable:
            nothing = Task(0, 0, 0.0, 1.0, num_steps=1, serial=0, visit=0)
            run = self._local_run(Job(nothing, workplace.state.read()))
            workplace.optimizer.begin(run, workplace.module)

    def teardown(self) -> None:
        """Let go of the module and the data."""
        del self._work, self._recorder, self._step

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The results of jobs, in their order; in place of one that failed, its `ClientError`."""
        state = self._work.state
        before = state.read()
        try:
            with isolated_rng(), self._recorder.recording():
                return [self._one(job) for job in jobs]
        finally:
            state.write(before)

    def watch(self, job: Job) -> tuple[Outcome, bool]:
        """The result of a job, and whether it drew from a global random generator."""
        work, task = self._work, job.task
        before = work.state.read()
        try:
            with isolated_rng(), self._recorder.recording():
                outcome = self._one(job)
                after = rng_states()
                seed_all(derived_seed(work.seed, Concern.TRAINING, task.client_id, task.visit))
                return outcome, rng_states() != after
        finally:
            work.state.write(before)

    def _local_run(self, job: Job) -> LocalRun:
        work, task, layout = self._work, job.task, self._work.state.param_layout
        run = LocalRun(
            params=[param.detach().unsqueeze(0) for param in work.state.params],
            pulled=layout.views(job.pulled.params.unsqueeze(0)),
            lr=work.lr(task),
            num_steps=torch.tensor([task.num_steps], device=work.state.device),
        )
        if work.optimizer.client_state:
            zeros = torch.zeros_like(job.pulled.params)
            own = zeros if job.client_state is None else job.client_state
            shared = zeros if job.pulled.shared is None else job.pulled.shared
            run.client = layout.views(own.unsqueeze(0))
            run.shared = layout.views(shared.unsqueeze(0))
        return run

    def _one(self, job: Job) -> Outcome:
        work, task, layout = self._work, job.task, self._work.state.param_layout
        seed_all(derived_seed(work.seed, Concern.TRAINING, task.client_id, task.visit))
        work.state.write(job.pulled)
        run = self._local_run(job)
        rows = torch.from_numpy(work.batch_rows(task)).to(work.state.device)
        self._recorder.batch_size = rows.shape[1]
        self._losses: list[Tensor] = []
        try:
            if work.optimizer.needs_full_gradient:
                run.full_gradient = self._full_gradient(task.client_id)
                work.state.write(job.pulled)  # the pass over the data has moved the buffers
                self._losses.clear()
            work.optimizer.begin(run, work.module)
            for k in range(task.num_steps):
                grads = self._gradient(rows[k], k)
                with torch.no_grad():
                    work.optimizer.step(run, [grad.unsqueeze(0) for grad in grads])
            metrics = self._recorder.collect(rows.numel())
        except Exception as error:
            self._recorder.clear()
            return ClientError.of(task, error)
        after = work.state.read()
        with torch.no_grad():
            states = work.optimizer.finish(run)
        delta = after.params - job.pulled.params
        client = layout.flatten([state[0] for state in states]) if states else None
        (reason,), (norm,) = not_finite(
            [float(torch.stack([loss.reshape(()) for loss in self._losses]).sum())],
            delta[None],
            after.buffers[None],
            job.pulled.buffers[None],
            None if client is None else client[None],
        )
        if reason:
            return ClientError(task, reason)
        measured = Measured(delta, delta._version, norm)
        return LocalResult(delta, after.buffers, after.counters, metrics, client, measured=measured)

    def _full_gradient(self, client_id: int) -> list[Tensor]:
        """The gradient of f_i at the module's parameters over all the client's examples."""
        work = self._work
        total = [torch.zeros_like(param).unsqueeze(0) for param in work.state.params]
        for part in work.all_rows(client_id):
            share = len(part) / len(work.partition[client_id])
            rows = torch.from_numpy(part).to(work.state.device)
            for gradient, term in zip(total, self._gradient(rows, 0), strict=True):
                gradient.add_(term, alpha=share)
        self._recorder.clear()  # what the pass logged is no part of the training
        return total

    def _gradient(self, rows: Tensor, step: int) -> Sequence[Tensor]:
        work = self._work
        batch = work.examples.gather(rows)
        with work.autocast():
            loss = loss_of(work.module, self._step(batch, step))
        self._losses.append(loss.detach())
        grads = torch.autograd.grad(loss, work.state.params, allow_unused=True)
        if any(grad is None for grad in grads):
            pairs = zip(work.state.params, grads, strict=True)
            return [torch.zeros_like(p) if grad is None else grad for p, grad in pairs]
        return grads

    def __repr__(self) -> str:
        return "SequentialExecutor()"
