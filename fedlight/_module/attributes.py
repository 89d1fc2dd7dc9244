"""Attributes of a module that a step may change beside its parameters and buffers."""

from __future__ import annotations

import pickle
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torchmetrics import Metric, MetricCollection

if TYPE_CHECKING:
    from lightning import LightningModule


class Attributes:
    """All attributes of the module and its children as they are now, to be put back.

    One that is assigned anew comes back, whatever it is; what is changed within one does not.

    Args:
        module: The module.
    """

    def __init__(self, module: LightningModule) -> None:
        self._before = [(vars(child), dict(vars(child))) for child in module.modules()]

    def put_back(self) -> None:
        """Put them back."""
        for attributes, before in self._before:
            attributes.clear()
            attributes.update(before)


def plain_attributes(module: nn.Module) -> dict[tuple[nn.Module, str], object]:
    """Numbers and strings among the public attributes of the module and its children."""
    return {
        (child, name): value
        for child in module.modules()
        if not isinstance(child, Metric | MetricCollection)  # updated for each client apart
        for name, value in vars(child).items()
        if not name.startswith("_") and isinstance(value, int | float | str)
    }


def own_generators(module: LightningModule) -> dict[str, Any]:
    """The states of the random generators among the attributes of the module and its children."""
    states = {}
    for path, child in module.named_modules():
        for name, value in vars(child).items():
            state: Any = None
            if isinstance(value, np.random.Generator):
                state = value.bit_generator.state
            elif isinstance(value, random.Random):
                state = value.getstate()
            elif isinstance(value, np.random.RandomState | torch.Generator):
                state = value.get_state()
            if state is not None:
                states[f"{path}.{name}".lstrip(".")] = str(pickle.dumps(state))
    return states
