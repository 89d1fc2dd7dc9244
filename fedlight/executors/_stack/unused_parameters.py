"""Steps in which the loss does not use all parameters, as `torch.optim` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightning_utilities.core.rank_zero import WarningCache

if TYPE_CHECKING:
    from lightning import LightningModule
    from torch import Tensor

    from fedlight.local_optimizers import LocalOptimizer, LocalRun

_warnings = WarningCache()


def step_without(
    optimizer: LocalOptimizer, run: LocalRun, grads: Sequence[Tensor], unused: Sequence[int]
) -> None:
    """Make a local step that leaves parameters without a gradient, and their memory, alone.

    torch's optimizers skip a parameter whose gradient is None: neither weight decay nor momentum
    moves it. Local optimizers get zeros for it, and their changes to it are undone here.

    Args:
        optimizer: Makes the step.
        run: The runs.
        grads: Their gradients, zeros for unused parameters.
        unused: The positions of the parameters that the loss does not use.
    """
    if not unused:
        optimizer.step(run, grads)
        return
    number = len(run.params)
    remembered = [
        (kept[index], kept[index].clone())
        for kept in run.memory.values()
        if len(kept) == number
        for index in unused
    ]
    params = [(run.params[index], run.params[index].clone()) for index in unused]
    known = set(run.memory)
    run.unused = tuple(unused)
    if len(unused) == number:
        run.skipped_steps.append(run.step)
    try:
        optimizer.step(run, grads)
    finally:
        run.unused = ()
    for tensor, before in params + remembered:
        tensor.copy_(before)
    for name in run.memory.keys() - known:  # made in this step
        if len(run.memory[name]) == number:
            for index in unused:
                run.memory[name][index].zero_()


def warn_of_skipped(module: LightningModule) -> None:
    """Warn once that ``training_step`` has returned None."""
    _warnings.warn(
        f"fedlight: training_step of {type(module).__name__} returned None; as in Lightning, the "
        "batch is skipped: the client makes one local step fewer"
    )
