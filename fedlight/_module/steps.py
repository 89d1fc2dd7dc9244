"""The steps of a module as functions with the same arguments, whichever their own are."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

if TYPE_CHECKING:
    from lightning import LightningModule


def step_function(module: LightningModule, name: str) -> Callable[[Any, int], Any]:
    """Return ``module.<name>`` as a function of (batch, batch_idx).

    As in Lightning, the step itself may leave out ``batch_idx``.
    """
    step = getattr(module, name)
    if is_param_in_hook_signature(step, "batch_idx", min_args=2):
        return step  # type: ignore[no-any-return]  # an attribute by name
    return lambda batch, batch_idx: step(batch)


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


def reads_index(module: LightningModule) -> bool:
    """Whether ``training_step`` may read ``batch_idx``.

    Its bytecode is searched for the argument's name. If there is no plain bytecode to search, the
    answer is yes, which costs traces but no correctness.
    """
    step = module.training_step
    parameters = inspect.signature(step).parameters
    names = list(parameters)[1:]
    code = getattr(step, "__code__", None)
    any_number = any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
    if code is None or hasattr(step, "__wrapped__") or any_number:
        return True
    for instruction in dis.get_instructions(code):
        read = instruction.argval
        if any(name in (read if isinstance(read, tuple) else (read,)) for name in names):
            return True
    return False
