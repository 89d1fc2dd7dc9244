"""The state of local runs before their first step, as local optimizers see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight._support.memory import sent
from fedlight.executors._stack.blocks import stacked
from fedlight.local_optimizers import LocalRun
from fedlight.local_optimizers.rates import ByStep

if TYPE_CHECKING:
    from fedlight._support.flat_layout import FlatLayout
    from fedlight.executors.base import Job, Workplace
    from fedlight.local_optimizers import LocalOptimizer


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
    own_rates = [(job.work or work).optimizer.lr for job in jobs]
    by_step = any(isinstance(rate, ByStep) for rate in own_rates)
    run = LocalRun(
        params=params,
        pulled=layout.views(pulled),
        # One number if it can be: operators with a number are cheaper than with a tensor.
        lr=rates[0] if len(set(rates)) == 1 else sent(rates, device, layout.dtype),
        num_steps=sent([job.task.num_steps for job in jobs], device),
        rates=[
            own if isinstance(own, ByStep) else rate
            for own, rate in zip(own_rates, rates, strict=True)
        ]
        if by_step
        else (),
        tasks=[job.task for job in jobs],
        seed=seeds[0] if one_seed else work.seed,
        seeds=() if one_seed else seeds,
    )

    def stored(states: Sequence[Tensor | None]) -> list[Tensor]:
        zeros = torch.zeros_like(pulled[0])
        return layout.views(stacked([zeros if each is None else each for each in states]))

    if work.optimizer.kept:
        _restore_kept(run, work.optimizer.kept, [job.client_state for job in jobs], layout)

    if work.optimizer.client_state:
        run.client = stored([job.client_state for job in jobs])
        run.has_state = [job.client_state is not None for job in jobs]
    if work.optimizer.shared_state:
        run.shared = stored([job.pulled.shared for job in jobs])
    return run


def _restore_kept(
    run: LocalRun, kept: Sequence[str], states: Sequence[Tensor | None], layout: FlatLayout
) -> None:
    """Give local runs what their clients have kept: a row of tensors, then the number of steps."""
    size, like = layout.numel, run.params[0]
    block = torch.zeros(len(states), size * len(kept) + 1, dtype=layout.dtype, device=like.device)
    for row, state in zip(block, states, strict=True):
        if state is not None:
            row.copy_(state)
    run.kept_steps = [round(number) for number in block[:, -1].tolist()]
    for place, name in enumerate(kept):
        part = block[:, place * size : (place + 1) * size]
        run.memory[name] = [each.clone() for each in layout.views(part)]


def states_left(optimizer: LocalOptimizer, run: LocalRun, layout: FlatLayout) -> Tensor | None:
    """What the clients keep after their last step, one row for each; None without a state.

    Args:
        optimizer: The local optimizer.
        run: The local runs after their last step.
        layout: That of the parameters.
    """
    states = optimizer.finish(run)
    if not optimizer.kept:
        return layout.flatten(states, leading=1) if states else None
    parts = [layout.flatten(run.memory[name], leading=1) for name in optimizer.kept]
    # A stack goes on after a client's last step, and steps skipped then are not that client's.
    steps = [
        before + task.num_steps - sum(step < task.num_steps for step in run.skipped_steps)
        for before, task in zip(run.kept_steps, run.tasks, strict=True)
    ]
    counted = sent(steps, parts[0].device, layout.dtype)
    return torch.cat([*parts, counted[:, None]], dim=-1)
