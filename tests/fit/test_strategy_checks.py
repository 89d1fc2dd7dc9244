"""Strategies that belong together are refused if their numbers contradict each other."""

import pytest

from fedlight import FedTrainer
from fedlight.aggregators import DCASGD, FedBuff, FedDynServer, FedNova, QuAFL
from fedlight.arrivals import (
    ContinuousArrivals,
    DropOut,
    ExponentialDurations,
    PolledArrivals,
    UniformArrivals,
)
from fedlight.local_optimizers import FedDyn, FedProx, LocalSGD, OwnModel

ROUNDS = UniformArrivals(2)


def polls(number):
    return PolledArrivals(number, interval=1.0, step_durations=[0.5] * 4, max_steps=3)


def made(aggregator, optimizer, arrivals=ROUNDS) -> FedTrainer:
    return FedTrainer(
        aggregator=aggregator, local_optimizer=optimizer, arrivals=arrivals, max_rounds=1
    )


WRONG = {
    "alpha": (FedDynServer(0.1), FedDyn(0.1, alpha=0.2), ROUNDS, "alpha=0.1.*alpha=0.2"),
    "mu": (FedNova(mu=0.5, local_lr=0.1), LocalSGD(0.1), ROUNDS, "mu=0.5.*mu=0.0"),
    "rate of mu": (FedNova(mu=1, local_lr=0.1), FedProx(0.2, mu=1), ROUNDS, "lr=0.1.*lr=0.2"),
    "momentum": (FedNova(momentum=0.5), LocalSGD(0.1), ROUNDS, "momentum=0.5.*momentum=0.0"),
    "rate": (DCASGD(1.0, local_lr=0.1), LocalSGD(0.5), ROUNDS, "local_lr=0.1.*lr=0.5"),
    "polls": (QuAFL(), OwnModel(LocalSGD(0.1), per_poll=3), polls(2), "per_poll=3.*per_poll=2"),
    "polls in a wrapper": (
        *(QuAFL(), OwnModel(LocalSGD(0.1), per_poll=3), DropOut(polls(2), 0.1)),
        "per_poll=3.*per_poll=2",
    ),
}


@pytest.mark.parametrize(
    ("aggregator", "optimizer", "arrivals", "words"), WRONG.values(), ids=WRONG
)
def test_numbers_of_one_method_must_be_equal(aggregator, optimizer, arrivals, words) -> None:
    with pytest.raises(ValueError, match=f"{words}: the two must be equal"):
        made(aggregator, optimizer, arrivals)


RIGHT = {
    "alpha": (FedDynServer(0.1), FedDyn(0.1, alpha=0.1), ROUNDS),
    "mu": (FedNova(mu=0.5, local_lr=0.1), FedProx(0.1, mu=0.5), ROUNDS),
    "momentum": (FedNova(momentum=0.9), LocalSGD(0.1, momentum=0.9), ROUNDS),
    "a function": (DCASGD(1.0, local_lr=lambda version: 0.1), LocalSGD(0.5), ROUNDS),
    "lam acts on delta": (DCASGD(1.0), LocalSGD(0.5), ROUNDS),
    "polls": (QuAFL(), OwnModel(LocalSGD(0.1), per_poll=2), polls(2)),
    "no mixing": (QuAFL(), OwnModel(LocalSGD(0.1)), polls(2)),
}


@pytest.mark.parametrize(("aggregator", "optimizer", "arrivals"), RIGHT.values(), ids=RIGHT)
def test_numbers_that_agree_are_taken(aggregator, optimizer, arrivals) -> None:
    assert made(aggregator, optimizer, arrivals).aggregator is aggregator


@pytest.mark.parametrize(
    ("aggregator", "partner"),
    [(FedDynServer(0.1), r"FedDyn\(…, alpha=0.1\)"), (QuAFL(), r"OwnModel\(…, per_poll=s\)")],
)
def test_half_of_a_method_is_told(aggregator, partner) -> None:
    with pytest.warns(UserWarning, match=f"complete with local_optimizer={partner}"):
        made(aggregator, LocalSGD(0.1))


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [(LocalSGD(0.1, momentum=0.9), "momentum=0.9"), (FedProx(0.1, mu=0.5), "mu=0.5")],
)
def test_fednova_says_what_it_was_not_told_of(optimizer, told) -> None:
    with pytest.warns(UserWarning, match=rf"not told of .*: FedNova\(…, {told}\)"):
        made(FedNova(), optimizer)


def test_an_aggregator_that_waits_for_rounds_needs_some() -> None:
    clock = ContinuousArrivals(ExponentialDurations(1.0))
    with pytest.raises(ValueError, match="steps at the end of rounds, but ContinuousArrivals"):
        made(FedNova(), LocalSGD(0.1), clock)
    assert made(FedBuff(2), LocalSGD(0.1), clock).version == 0
