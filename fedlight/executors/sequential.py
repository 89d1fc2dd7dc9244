"""One client after the other: any module, any data, any local optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedlight.executors.base import ClientError, Executor, Job, Workplace, loss_of
from fedlight.executors.capture import LogRecorder, step_function
from fedlight.executors.rng import isolated_rng, seed_all
from fedlight.local_optimizers import LocalRun
from fedlight.randomness import Concern, derived_seed
from fedlight.types import LocalResult


class SequentialExecutor(Executor):
    """Runs clients one by one in the module itself: no copy of it, no data loader.

    Example:
        >>> SequentialExecutor()
        SequentialExecutor()
    """

    def setup(self, workplace: Workplace) -> None:
        """Get ready for a run."""
        self._work = workplace
        self._recorder = LogRecorder(workplace.module)
        self._step = step_function(workplace.module, "training_step")

    def teardown(self) -> None:
        """Let go of the module and the data."""
        del self._work, self._recorder, self._step

    def run(self, jobs: Sequence[Job]) -> list[LocalResult]:
        """The results of jobs, in their order.

        Raises:
            ClientError: A client's ``training_step`` raised.
        """
        module = self._work.module
        was_training = module.training
        module.train()
        try:
            with isolated_rng(), self._recorder.recording():
                return [self._one(job) for job in jobs]
        finally:
            module.train(was_training)

    def _one(self, job: Job) -> LocalResult:
        work, task = self._work, job.task
        seed_all(derived_seed(work.seed, Concern.TRAINING, task.client_id, task.visit))
        work.state.write(job.pulled)
        layout, params = work.state.param_layout, work.state.params
        run = LocalRun(
            params=[param.detach().unsqueeze(0) for param in params],
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
        rows = torch.from_numpy(work.batch_rows(task)).to(work.state.device)
        self._recorder.batch_size = rows.shape[1]
        work.optimizer.begin(run, work.module)
        try:
            for k in range(task.num_steps):
                grads = self._gradient(rows[k], k)
                with torch.no_grad():
                    work.optimizer.step(run, [grad.unsqueeze(0) for grad in grads])
        except Exception as error:
            self._recorder.collect(0)
            raise ClientError(task, f"{type(error).__name__}: {error}") from error
        after = work.state.read()
        with torch.no_grad():
            states = work.optimizer.finish(run)
        return LocalResult(
            delta=after.params - job.pulled.params,
            buffers=after.buffers,
            counters=after.counters,
            metrics=self._recorder.collect(rows.numel()),
            client_state=layout.flatten([state[0] for state in states]) if states else None,
        )

    def _gradient(self, rows: Tensor, step: int) -> Sequence[Tensor]:
        work = self._work
        batch = work.examples.gather(rows)
        with work.autocast():
            loss = loss_of(work.module, self._step(batch, step))
        return torch.autograd.grad(
            loss, work.state.params, allow_unused=True, materialize_grads=True
        )

    def __repr__(self) -> str:
        return "SequentialExecutor()"
