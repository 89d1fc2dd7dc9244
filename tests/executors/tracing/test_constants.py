"""A step reads, logs and moves the same alone, stacked and traced, apart from its tensors."""

from copy import deepcopy
from functools import cache

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from fedlight import Callback
from fedlight.arrivals import UniformArrivals
from fedlight.executors._tracing import TracedStep
from fedlight.executors._tracing.constants import Constants
from tests.boring import classes, fitted

WEIGHTS = torch.tensor([1.0, 5.0, 0.1], dtype=torch.float64)
SIZES = (3, 8, 3, 4)
"""Batches of two sizes only, since each is traced for itself."""

ROUNDS = {"arrivals": UniformArrivals(per_round=3, local_steps=4), "max_rounds": 7}


@pytest.fixture(autouse=True)
def traces(monkeypatch):
    """All traces made; a shape is traced when it has come up four times."""
    made = []

    class Early(TracedStep):
        def __init__(self, step):
            super().__init__(step, after=4)

        def _trace(self, *args):
            made.append(super()._trace(*args))
            return made[-1]

    monkeypatch.setattr("fedlight.executors.vectorized.TracedStep", Early)
    return made


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.temperature = 1.0
        self.config = {"penalty": 0.0}
        self.weights = torch.ones(3, dtype=torch.float64)
        self.register_buffer("now", torch.zeros(4))
        self.register_buffer("before", torch.zeros(4))

    def loss(self, x, y):
        scores = self.linear(self.norm(x)) * self.temperature
        decay = self.config["penalty"] * self.linear.weight.square().sum()
        return functional.cross_entropy(scores, y, self.weights) + decay

    def training_step(self, batch):
        loss = self.loss(*batch)
        self.log("train_loss", loss)
        return loss


def both(module, **kwargs):
    """The runs of the same start one by one and stacked, which add up in different orders."""
    torch.manual_seed(0)
    module = module.double()
    runs = []
    for executor in ("sequential", "vectorized"):
        callbacks = [make() for make in kwargs.get("callbacks", [])]
        given = {**ROUNDS, **kwargs, "callbacks": callbacks}
        runs.append(fitted(deepcopy(module), classes(SIZES), executor=executor, **given))
    return runs


def assert_alike(one, two):
    for name in ("params", "buffers"):
        torch.testing.assert_close(
            getattr(one.state, name), getattr(two.state, name), rtol=1e-10, atol=1e-11
        )
    # Logged values are summed in float32, whatever the module's precision.
    for mine, other in zip(one.history, two.history, strict=True):
        assert mine.metrics == pytest.approx(other.metrics, rel=1e-5, abs=1e-5)


def at_round(number, change):
    class Change(Callback):
        def on_round_end(self, trainer, module):
            if trainer.version >= number:
                change(module, trainer.version)

    return Change


@cache
def unchanged():
    """The fingerprint of the stacked run in which no callback changes anything."""
    torch.manual_seed(0)
    return fitted(Net().double(), classes(SIZES), executor="vectorized", **ROUNDS).fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        lambda module, version: setattr(module, "temperature", 1 + 0.1 * version),
        lambda module, version: module.config.update(penalty=0.02 * version),
        lambda module, version: setattr(module, "weights", module.weights * WEIGHTS),
        lambda module, version: module.weights.copy_(WEIGHTS),
        lambda module, version: module.norm.eval(),
    ],
    ids=["attribute", "dict", "other tensor", "same tensor", "mode"],
)
def test_what_a_callback_changes_is_seen_after_the_traces_were_made(change, traces):
    made = []  # at each change; the stacked run is the second one

    def noted(module, version):
        made.append(sum(trace is not None for trace in traces))
        change(module, version)

    one, two = both(Net(), callbacks=[at_round(4, noted)])
    assert_alike(one, two)
    assert made[len(made) // 2] > 0
    assert unchanged() != two.fingerprint()


class Shifts(Net):
    """Its buffers take each other's places."""

    order = ("now", "before")

    def training_step(self, batch):
        x, y = batch
        loss = self.loss(x + getattr(self, self.order[1]), y)
        setattr(self, self.order[1], getattr(self, self.order[0]))
        setattr(self, self.order[0], x.mean(0))
        return loss


class ShiftsBack(Shifts):
    order = ("before", "now")


@pytest.mark.parametrize("kind", [Shifts, ShiftsBack])
def test_buffers_that_take_each_others_places(kind):
    assert_alike(*both(kind()))


class LogsWhatChanges(Net):
    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.7))

    def training_step(self, batch):
        x, y = batch
        self.log("alpha", self.alpha)
        self.log("bias", self.linear.bias[0])
        self.log("before", self.now[0])
        self.now.mul_(0.9).add_(x.mean(0))
        self.log("after", self.now[0])
        loss = self.loss(self.alpha * x, y)
        scratch = loss.detach().clone()
        self.log("scratch", scratch)
        scratch.mul_(100)
        return loss


def test_what_is_logged_is_as_it_was_when_it_was_logged():
    one, two = both(LogsWhatChanges())
    assert_alike(one, two)
    assert one.history[0].metrics["alpha"] != one.history[-1].metrics["alpha"]
    assert one.history[-1].metrics["scratch"] < 10


class Collects(Net):
    def __init__(self, call, groups):
        super().__init__()
        self.call = call
        self.mean = MeanMetric()
        metrics = {"acc": MulticlassAccuracy(3), "f1": MulticlassF1Score(3)}
        self.metrics = MetricCollection(metrics, compute_groups=groups)

    def training_step(self, batch):
        x, y = batch
        scores = self.linear(x)
        self.mean.update(self.linear.bias[1])
        self.log("mean", self.mean)
        (self.metrics if self.call else self.metrics.update)(scores, y)
        self.log_dict(self.metrics)
        return functional.cross_entropy(scores, y)

    def validation_step(self, batch):
        x, y = batch
        self.metrics.update(self.linear(x), y)
        self.log_dict({f"val_{name}": value for name, value in self.metrics.compute().items()})


@pytest.mark.parametrize(("call", "groups"), [(True, True), (True, False), (False, True)])
def test_a_collection_of_metrics_with_shared_states(call, groups):
    one, two = both(Collects(call, groups))
    assert_alike(one, two)
    assert two.history[-1].metrics["f1"] > 0
    assert two.history[-1].metrics["f1"] != two.history[-1].metrics["acc"]


class Args(Net):
    def training_step(self, *args):
        (x, y), index = args
        return self.loss(x, y) * (1 + index)


class Options(Net):
    def training_step(self, batch, **options):
        assert not options
        return self.loss(*batch)


@pytest.mark.parametrize("kind", [Args, Options])
def test_steps_get_what_lightning_gives_them(kind):
    assert_alike(*both(kind()))


def test_what_counts_as_changed():
    module = Net()
    module.table = np.arange(3)
    module.names = ["a", {"b": 1}]
    module.limit = float("nan")
    constants = Constants(module)
    before = constants.state()
    assert constants.state() == before
    for change, back in [
        (lambda: setattr(module, "temperature", 2.0), lambda: setattr(module, "temperature", 1.0)),
        (lambda: module.names[1].update(b=2), lambda: module.names[1].update(b=1)),
        (lambda: module.table.put(0, 7), lambda: module.table.put(0, 0)),
        (lambda: module.eval(), lambda: module.train()),
    ]:
        change()
        assert constants.state() != before
        back()
        assert constants.state() == before
    with torch.no_grad():
        module.linear.weight.zero_()
        module.now.add_(1)
    assert constants.state() == before
