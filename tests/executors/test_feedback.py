"""Processes that choose by what clients log have the same bits under every executor."""

import sys
import warnings

import pytest
import torch
from torch import nn

from fedlight.aggregators import FedAvg, FedBuff
from fedlight.arrivals import (
    ContinuousArrivals,
    ExponentialDurations,
    Oort,
    Pisces,
    PowerOfChoice,
    Recording,
    ReplayArrivals,
    SynchronousArrivals,
    UniformSteps,
)
from fedlight.callbacks import FedCheckpoint
from fedlight.executors import ProcessExecutor, RayExecutor, VectorizedExecutor
from fedlight.local_optimizers import LocalSGD, Scaffold
from tests.boring import Boring, classes, trainer
from tests.fits_on_cards import SIZES, Mixing, bits, cards

CLOCK, STEPS = ExponentialDurations(1.0), UniformSteps(1, 4)
PLACES = {"concurrency": 4, "local_steps": STEPS}

RULES = {
    "Oort": lambda: {
        "arrivals": Oort(SynchronousArrivals(3, CLOCK, STEPS, 1), exploration=0.5, preferred=50),
        "aggregator": FedAvg(),
        "local_optimizer": LocalSGD(0.1, momentum=0.9),
    },
    "Pisces": lambda: {
        "arrivals": Pisces(
            ContinuousArrivals(CLOCK, resume="on_arrival", **PLACES), staleness_bound=2
        ),
        "aggregator": FedAvg(),
        "local_optimizer": LocalSGD(0.1),
    },
    "PowerOfChoice": lambda: {
        "arrivals": PowerOfChoice(ContinuousArrivals(CLOCK, **PLACES), candidates=5),
        "aggregator": FedBuff(2),
        "local_optimizer": Scaffold(0.1),
    },
}
NETS = {
    "linear": lambda: nn.Linear(4, 3),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(-1, (1, 4)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 3)
    ),
}

pytestmark = pytest.mark.usefixtures("one_thread")
forked = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")


def fit(rule, executor, net="linear", ckpt_path=None, **more):
    torch.manual_seed(0)
    module = Boring(NETS[net]())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fedlight: some clients count for more")
        run = trainer(**{**RULES[rule](), "executor": executor, "max_updates": 16, **more})
        run.fit(module, classes(SIZES), ckpt_path=ckpt_path)
    return run


def fit_on_ray(ray, rule, inner, net="linear", **more):
    with ray.installed():
        executor = RayExecutor(len(ray.cards) or 2, inner, share=3, max_batch=8)
        return fit(rule, executor, net, **more)


def who(run):
    """The clients of each version, and when it was made."""
    return [(each.now, [update.client_id for update in each.updates]) for each in run.history]


@forked
@pytest.mark.parametrize(
    ("rule", "net"), [*((each, "linear") for each in RULES), ("Pisces", "convolution")]
)
def test_one_by_one_in_workers_and_in_actors(rule, net):
    alone = fit(rule, "sequential", net)
    assert alone.version > 4
    assert bits(fit(rule, ProcessExecutor(2), net)) == bits(alone)
    assert bits(fit_on_ray(cards(0, seed=1), rule, "sequential", net)) == bits(alone)


@pytest.mark.parametrize("rule", RULES)
def test_in_stacks_of_any_size_and_in_actors_with_cards(rule):
    stacked = fit(rule, "vectorized")
    assert bits(fit(rule, VectorizedExecutor(max_batch=3))) == bits(stacked)
    on_cards = fit_on_ray(cards(2, seed=2), rule, VectorizedExecutor())
    assert on_cards.fingerprint() == stacked.fingerprint()
    assert who(on_cards) == who(stacked)


@pytest.mark.parametrize(
    ("rule", "net"), [*((each, "linear") for each in RULES), ("PowerOfChoice", "convolution")]
)
def test_one_by_one_or_stacked_the_same_clients_are_chosen(rule, net):
    """In double precision, where the losses of no two clients are nearly equal."""
    one = fit(rule, "sequential", net, precision="64-true")
    two = fit(rule, "vectorized", net, precision="64-true")
    assert who(one) == who(two)
    assert torch.dist(one.state.params, two.state.params) <= 1e-11 * one.state.params.norm()


@pytest.mark.parametrize("rule", RULES)
def test_stacks_whose_members_matter(rule):
    """On any number of cards, with an actor that is lost, and in the replay of the record."""
    recording = Recording(RULES[rule]()["arrivals"])
    one = fit_on_ray(cards(1), rule, Mixing(), arrivals=recording)
    assert not one.executor.independent
    assert bits(fit_on_ray(cards(2, seed=3, deaths=1), rule, Mixing())) == bits(one)
    again = fit_on_ray(cards(2), rule, Mixing(), arrivals=ReplayArrivals(recording.table()))
    assert again.fingerprint() == one.fingerprint()


@forked
@pytest.mark.parametrize(
    ("rule", "kind"),
    [("Oort", "ray"), ("Pisces", "ray"), ("PowerOfChoice", "ray"), ("PowerOfChoice", "forked")],
)
def test_a_run_resumed_at_any_update(rule, kind, tmp_path):
    def made(**more):
        if kind == "forked":
            return fit(rule, ProcessExecutor(2), "convolution", **more)
        return fit_on_ray(cards(2), rule, Mixing(), **more)

    saved = FedCheckpoint(tmp_path, every_n_updates=6, save_top_k=-1)
    whole = bits(made(callbacks=saved))
    found = [path for path in tmp_path.glob("*.ckpt") if path.name != "last.ckpt"]
    assert len(found) == 2
    for path in found:
        assert bits(made(ckpt_path=path)) == whole
