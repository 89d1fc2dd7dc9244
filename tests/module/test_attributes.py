"""Attributes of a module and of its layers."""

import random

import numpy as np
import torch
from lightning import LightningModule
from torchmetrics import MeanMetric

from fedlight._module.attributes import (
    own_attributes,
    own_generators,
    own_layers,
    watched,
)
from tests.boring import Boring


def test_nothing_of_lightning_is_a_modules_own() -> None:
    assert own_attributes(LightningModule()).keys() == {"training"}


def test_metric_objects_are_no_layers() -> None:
    module = Boring()
    module.mean = MeanMetric()
    assert "mean" in dict(module.named_modules())
    assert "mean" not in dict(own_layers(module))
    assert "net" in dict(own_layers(module))


def test_what_is_watched() -> None:
    module = Boring()
    module.rate, module._private, module.net.name = 0.5, 1, "a"
    module.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    before = watched(module)
    assert watched(module) == before
    module._private = 2
    with torch.no_grad():
        module.net.weight.add_(1)
    assert watched(module) == before
    for change in (
        lambda: setattr(module, "rate", 0.25),
        lambda: setattr(module.net, "name", "b"),
        lambda: module.frozen.add_(1),
        lambda: module.eval(),
    ):
        before = watched(module)
        with torch.no_grad():
            change()
        assert watched(module) != before


def test_the_states_of_generators() -> None:
    module = Boring()
    module.numbers, module.net.python = np.random.default_rng(0), random.Random(0)
    before = own_generators(module)
    assert before.keys() == {"numbers", "net.python"}
    module.numbers.normal()
    after = own_generators(module)
    assert after["numbers"] != before["numbers"]
    assert after["net.python"] == before["net.python"]
