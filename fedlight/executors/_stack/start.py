"""The state of local runs before their first step, as local optimizers see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight._support.memory import sent
from fedlight.executors._stack.blocks import stacked
from fedlight.local_optimizers import LocalRun

if TYPE_CHECKING:
    from fedlight.executors.base import Job, Workplace


def local_run_of(
    jobs: Sequence[Job], work: Workplace, params: list[Tensor], pulled: Tensor
) -> LocalRun:
    """The local runs of n jobs before their first step.

    Args:
        jobs: The jobs.
        work: The workplace of the local runs, except for seeds and rates of jobs of other fits.
        params: The parameters that the steps change, ``[n, *shape]`` each.
        pulled: The parameters that were pulled, flat, ``[n, P]``.
    """
    layout, device = work.state.param_layout, work.state.device
    rates = [(job.work or work).lr(job.task) for job in jobs]
    seeds = [(job.work or work).seed for job in jobs]
    one_seed = len(set(seeds)) == 1
    run = LocalRun(
        params=params,
        pulled=layout.views(pulled),
        # One number if it can be: operators with a number are cheaper than with a tensor.
        lr=rates[0] if len(set(rates)) == 1 else sent(rates, device, layout.dtype),
        num_steps=sent([job.task.num_steps for job in jobs], device),
        tasks=[job.task for job in jobs],
        seed=seeds[0] if one_seed else work.seed,
        seeds=() if one_seed else seeds,
    )

    def stored(states: Sequence[Tensor | None]) -> list[Tensor]:
        zeros = torch.zeros_like(pulled[0])
        return layout.views(stacked([zeros if each is None else each for each in states]))

    if work.optimizer.client_state:
        run.client = stored([job.client_state for job in jobs])
        run.has_state = [job.client_state is not None for job in jobs]
    if work.optimizer.shared_state:
        run.shared = stored([job.pulled.shared for job in jobs])
    return run
