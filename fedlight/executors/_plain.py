"""What a module keeps beside its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchmetrics import Metric, MetricCollection

if TYPE_CHECKING:
    from torch import nn


def plain_attributes(module: nn.Module) -> dict[tuple[nn.Module, str], object]:
    """Numbers and strings among the public attributes of the module and its children."""
    return {
        (child, name): value
        for child in module.modules()
        if not isinstance(child, Metric | MetricCollection)  # updated for each client apart
        for name, value in vars(child).items()
        if not name.startswith("_") and isinstance(value, int | float | str)
    }
