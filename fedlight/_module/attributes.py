"""Attributes of a module and of its layers, other than parameters, buffers and metric objects."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from torch import nn
from torchmetrics import Metric, MetricCollection

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
OF_LIGHTNING = frozenset(vars(LightningModule())) - {"training"} | {"log", "log_dict"}
"""Names that say nothing about a module: every one has them, or gets them for a fit."""
_CLOSED = (torch.Tensor, np.ndarray, type, FunctionType, MethodType, ModuleType)
_FOREIGN = {"fedlight", "lightning", "numpy", "torch"}
_DEPTH, _MOST = 3, 100


def own_layers(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The module and its layers with their paths; not metric objects, which each client resets.

    Layers in containers and plain objects are included, which torch does not know as layers of the
    module (a teacher in a list).
    """
    found = set(module.modules())
    layers = list(module.named_modules())
    for path, layer in layers:  # which becomes longer
        for name, value in own_attributes(layer).items():
            for place, hidden in _found_in(value, f"{path}.{name}".lstrip("."), (nn.Module,)):
                if hidden not in found:
                    new = list(hidden.named_modules(prefix=place))
                    layers += [each for each in new if each[1] not in found]
                    found.update(each for _, each in new)
    return [each for each in layers if not isinstance(each[1], Metric | MetricCollection)]


def _found_in(
    value: Any, path: str, kinds: tuple[type, ...], depth: int = _DEPTH
) -> Iterator[tuple[str, Any]]:
    """The objects of some kinds in a value, with their paths."""
    items: Any = ()
    if isinstance(value, kinds):
        yield path, value
    elif isinstance(value, list | tuple | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        items = items if depth and len(value) <= _MOST else ()
    elif depth and not isinstance(value, (*_CLOSED, nn.Module)):
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict and type(value).__module__.split(".")[0] not in _FOREIGN:
            items = attributes.items()
    for key, item in items:
        yield from _found_in(item, f"{path}.{key}", kinds, depth - 1)


def own_attributes(layer: nn.Module) -> dict[str, Any]:
    """The attributes of a layer by name, without its parameters, buffers and layers."""
    return {name: value for name, value in vars(layer).items() if name not in OF_LIGHTNING}


def own_generators(module: nn.Module) -> dict[str, Any]:
    """The random generators in the attributes, by path."""
    return {
        place: generator
        for path, layer in own_layers(module)
        for name, value in own_attributes(layer).items()
        for place, generator in _found_in(value, f"{path}.{name}".lstrip("."), GENERATORS)
    }
