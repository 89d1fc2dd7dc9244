"""A module's ``validation_step`` or ``test_step`` over one data set or several."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from fedlight._module.log import step_function

if TYPE_CHECKING:
    from lightning import LightningModule


def evaluation_step(
    module: LightningModule, stage: str, number: int
) -> Callable[[Any, int, int], Any]:
    """Return ``<stage>_step`` as a function of (batch, batch_idx, dataloader_idx).

    Args:
        module: The module.
        stage: "validation" or "test".
        number: How many data sets there are; with one, the step gets no ``dataloader_idx``.

    Raises:
        ValueError: The step does not take ``dataloader_idx``, or needs it though there is one set.
    """
    name = f"{stage}_step"
    step = getattr(module, name)
    takes = is_param_in_hook_signature(step, "dataloader_idx")
    if number > 1 and not takes:
        raise ValueError(
            f"there are {number} {stage} data sets, but {type(module).__name__}.{name} does not "
            "take dataloader_idx; write dataloader_idx=0 as its last argument"
        )
    argument = inspect.signature(step).parameters.get("dataloader_idx")
    if number == 1 and argument is not None and argument.default is inspect.Parameter.empty:
        raise ValueError(
            f"there is one {stage} data set, but {type(module).__name__}.{name} needs a "
            "dataloader_idx; give it a default: dataloader_idx=0"
        )
    if number == 1:
        plain = step_function(module, name)
        return lambda batch, batch_idx, dataloader_idx: plain(batch, batch_idx)
    if is_param_in_hook_signature(step, "batch_idx", min_args=2):
        return step  # type: ignore[no-any-return]  # an attribute by name
    return lambda batch, batch_idx, dataloader_idx: step(batch, dataloader_idx)
