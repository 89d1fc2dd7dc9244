"""A checkpoint knows private attributes of own strategies, and the module's own optimizer."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedlight._runs.own_settings import own_settings
from fedlight.aggregators import FedBuff
from fedlight.aggregators.staleness import Discount
from fedlight.arrivals import (
    Availability,
    ContinuousArrivals,
    DropOut,
    DurationModel,
    FixedDurations,
    Tiers,
    UniformArrivals,
)
from fedlight.callbacks import FedCheckpoint
from fedlight.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from fedlight.local_optimizers import LocalSGD
from tests.boring import Point, points, trainer


class Rate(LocalSGD):
    """A local optimizer of one's own, with a private attribute."""

    def __init__(self, lr, secret=1.0):
        super().__init__(lr)
        self._factor = secret


class Slow(DurationModel):
    """A duration model of one's own, with a private attribute."""

    def __init__(self, secret):
        self._table = np.array([1.0, secret])

    def draw(self, rng, client_id, num_steps, federation, starts_at):
        return float(self._table[client_id % 2])


class Alternating(ContinuousArrivals):
    """An arrival process of one's own, with a private attribute that is an object."""

    def __init__(self, secret):
        super().__init__(FixedDurations([1.0] * 4))
        self._plan = Plan(secret)


class Plan:
    def __init__(self, secret):
        self.secret = secret


class Chosen(Discount):
    """A discount of staleness of one's own, within an aggregator of the library."""

    def __init__(self, secret):
        self._power = secret

    def __call__(self, staleness):
        return 1.0 / (1.0 + staleness) ** self._power


class Called:
    """An object that is called as a function is."""

    def __init__(self, secret):
        self._power = secret

    def __call__(self, staleness):
        return 1.0 / (1.0 + staleness) ** self._power


def made(plan, table):
    """A function that has an object and a dict from its definition."""
    return lambda staleness: plan.secret * table["of"][0] / (1.0 + staleness)


def long(secret):
    """Numbers whose words have an ellipsis in the place of the one that differs."""
    numbers = np.zeros(5000)
    numbers[2500] = secret
    return numbers


class Silent(Plan):
    """Its words do not tell its attribute."""

    def __repr__(self):
        return "Silent()"


class Trained(Point):
    """A module with an optimizer of one's own."""

    def __init__(self, kind=torch.optim.SGD, lr=0.5, gamma=None, every=1, **more):
        super().__init__()
        self.make, self.gamma, self.every = lambda params: kind(params, lr=lr, **more), gamma, every

    def configure_optimizers(self):
        optimizer = self.make(self.parameters())
        if self.gamma is None:
            return optimizer
        steps = torch.optim.lr_scheduler.StepLR(optimizer, self.trainer.max_epochs, self.gamma)
        kept = {"scheduler": steps, "interval": "step", "frequency": self.every}
        return {"optimizer": optimizer, "lr_scheduler": kept}


TWO = {"aggregator": FedBuff(1), "max_rounds": 3, "check_val_every_n_rounds": None}


def resumed(tmp_path, before, now, modules=(Point, Point)):
    """Fit, then fit again from its checkpoint, with other arguments."""
    for number, (given, module) in enumerate(zip((before, now), modules, strict=True)):
        keeper = FedCheckpoint(tmp_path / "kept")
        data = points([1.0], [2.0], [3.0], [4.0])
        run = trainer(callbacks=keeper, **{**TWO, **given})
        run.fit(module(), data, ckpt_path="last" if number else None)


def by(durations):
    return ContinuousArrivals(durations)


def test_strategies_in_a_dict_have_places_by_key():
    tiers = Tiers({"a": Alternating(1.5), "b": Alternating(2.5)})
    found = own_settings({"arrivals": tiers})
    assert list(found) == ["arrivals.processes['a']", "arrivals.processes['b']"]
    assert [each["_plan"] for each in found.values()] == [
        "Plan({'secret': 1.5})",
        "Plan({'secret': 2.5})",
    ]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda secret: {"local_optimizer": Rate(0.1, secret), "arrivals": UniformArrivals(2)},
            "_factor of local_optimizer was 1.5, is 2.5",
        ),
        (
            lambda secret: {"arrivals": by(Slow(secret)), "local_optimizer": LocalSGD(0.1)},
            "_table of arrivals.durations was ndarray .*, is ndarray",
        ),
        (
            lambda secret: {
                "arrivals": Availability(DropOut(by(Slow(secret)), 0.1), [(0, 1e6)]),
                "local_optimizer": LocalSGD(0.1),
            },
            "_table of arrivals.arrivals.arrivals.durations was",
        ),
        (
            lambda secret: {"arrivals": Alternating(secret)},
            r"_plan of arrivals was Plan\({'secret': 1.5}\), is Plan\({'secret': 2.5}\)",
        ),
        (
            lambda secret: {
                "aggregator": FedBuff(1, staleness=Chosen(secret)),
                "arrivals": by(Slow(1)),
            },
            "_power of aggregator.staleness was 1.5, is 2.5",
        ),
        (
            lambda secret: {
                "aggregator": FedBuff(1, staleness=Called(secret)),
                "arrivals": by(Slow(1)),
            },
            "_power of aggregator.staleness was 1.5, is 2.5",
        ),
        (
            lambda secret: {
                "aggregator": FedBuff(1, staleness=Called(secret).__call__),
                "arrivals": by(Slow(1)),
            },
            "_power of aggregator.staleness was 1.5, is 2.5",
        ),
        (
            lambda secret: {
                "aggregator": FedBuff(1, staleness=made(Plan(secret), {"of": [secret]})),
                "arrivals": by(Slow(1)),
            },
            r"plan of aggregator.staleness was Plan\({'secret': 1.5}\), .*"
            r"table of aggregator.staleness was {'of': \[1.5\]}, is {'of': \[2.5\]}",
        ),
        (
            lambda secret: {"arrivals": Alternating(SimpleNamespace(long=long(secret)))},
            "_plan of arrivals was Plan",
        ),
        (
            lambda secret: {"arrivals": Alternating(Silent(secret))},
            "_plan of arrivals was Plan",
        ),
    ],
    ids=[
        *("local optimizer", "durations", "wrapped", "arrivals", "discount", "object", "method"),
        *("closure", "namespace", "own words"),
    ],
)
def test_private_attributes_of_own_strategies_count(tmp_path, make, words):
    resumed(tmp_path, make(1.5), {**make(1.5), "max_rounds": 4})
    with pytest.raises(CheckpointError, match=f"is of another federation: .*{words}"):
        resumed(tmp_path / "other", make(1.5), make(2.5))


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({}, {"lr": 0.25}, r"the module's lr of SGD\[0\] was 0.5, is 0.25"),
        ({}, {"momentum": 0.9}, r"the module's momentum of SGD\[0\] was 0, is 0.9"),
        ({}, {"kind": torch.optim.Adam}, r"the module's optimizer was SGD\[0\], is Adam\[0\]"),
        ({}, {"gamma": 0.5}, r"the module's scheduler was none, is StepLR\[0\]"),
        ({"gamma": 0.9}, {"gamma": 0.5}, r"the module's gamma of StepLR\[0\] was 0.9, is 0.5"),
        (
            {"gamma": 0.9},
            {"gamma": 0.9, "every": 2},
            r"the module's frequency of StepLR\[0\] was 1, is 2",
        ),
    ],
    ids=["rate", "momentum", "class", "scheduler", "gamma", "frequency"],
)
def test_the_optimizer_of_the_module_counts(tmp_path, one, other, words):
    given = {"arrivals": UniformArrivals(2), "local_optimizer": None}
    modules = partial(Trained, **one), partial(Trained, **other)
    with pytest.raises(CheckpointError, match=f"is of another federation: .*{words}"):
        resumed(tmp_path, given, given, modules)
    # With a local optimizer, it is not used.
    given["local_optimizer"] = LocalSGD(0.1)
    resumed(tmp_path / "sgd", given, given, modules)


def test_a_run_with_a_scheduler_over_all_rounds_may_be_extended(tmp_path):
    given = {"arrivals": UniformArrivals(2), "local_optimizer": None}
    module = partial(Trained, gamma=0.9)
    resumed(tmp_path, given, {**given, "max_rounds": 5}, (module, module))


def test_the_precision_counts(tmp_path):
    given = {"arrivals": UniformArrivals(2), "local_optimizer": LocalSGD(0.1)}
    resumed(tmp_path, {**given, "precision": 32}, {**given, "precision": "32-true"})
    with pytest.raises(CheckpointError, match="precision was '32-true', is 'bf16-mixed'"):
        resumed(tmp_path / "other", given, {**given, "precision": "bf16-mixed"})


def test_a_strategy_that_has_run_is_the_same(tmp_path):
    """One object in both fits: an arrival process begins anew in `setup`."""
    given = {"arrivals": Alternating(1.5), "local_optimizer": Rate(0.1)}
    resumed(tmp_path, given, {**given, "max_rounds": 5})


def test_a_checkpoint_without_these_names_is_read(tmp_path):
    """One of 0.2, written by a run with another private attribute: nothing proves that it was."""
    given = {"arrivals": Alternating(1.5), "callbacks": FedCheckpoint(tmp_path)}
    run = trainer(**{**TWO, **given})
    run.fit(Point(), points([1.0], [2.0], [3.0], [4.0]))
    content = read_checkpoint(tmp_path / "last.ckpt")
    federation = content["fedlight"]["federation"]
    for name in ("attributes of own strategies", "optimizer of the module", "precision"):
        del federation[name]
    write_checkpoint(tmp_path / "last.ckpt", content)
    again = trainer(**{**TWO, "arrivals": Alternating(2.5), "max_rounds": 4})
    again.fit(Point(), points([1.0], [2.0], [3.0], [4.0]), ckpt_path=tmp_path / "last.ckpt")
    assert again.version == 4
