"""Attributes of a module and of its layers, other than parameters, buffers and metric objects."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning import LightningModule
from torchmetrics import Metric, MetricCollection

if TYPE_CHECKING:
    from torch import nn

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
OF_LIGHTNING = frozenset(vars(LightningModule())) - {"training"} | {"log", "log_dict"}
"""Names that say nothing about a module: every one has them, or gets them for a fit."""


def own_layers(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The module and its layers with their paths; not metric objects, which each client resets."""
    return [
        (path, layer)
        for path, layer in module.named_modules()
        if not isinstance(layer, Metric | MetricCollection)
    ]


def own_attributes(layer: nn.Module) -> dict[str, Any]:
    """The attributes of a layer by name, without its parameters, buffers and layers."""
    return {name: value for name, value in vars(layer).items() if name not in OF_LIGHTNING}


def own_generators(module: nn.Module) -> dict[str, Any]:
    """The random generators among the attributes, by path."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, layer in own_layers(module)
        for name, value in own_attributes(layer).items()
        if isinstance(value, GENERATORS)
    }
