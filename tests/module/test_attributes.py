"""Attributes of a module and of its layers."""

import random

import numpy as np
from lightning import LightningModule
from torchmetrics import MeanMetric

from fedlight._module.attributes import (
    own_attributes,
    own_generators,
    own_layers,
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


def test_the_generators_of_a_module_by_path() -> None:
    module = Boring()
    module.numbers, module.net.python = np.random.default_rng(0), random.Random(0)
    assert own_generators(module) == {"numbers": module.numbers, "net.python": module.net.python}
