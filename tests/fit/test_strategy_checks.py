"""Strategies that belong together are refused if their numbers contradict each other."""

import pytest
import torch
from lightning import LightningModule
from torch import nn

from fedlight import FedTrainer
from fedlight.aggregators import (
    DCASGD,
    FedASMU,
    FedAT,
    FedBuff,
    FedCompass,
    FedDynServer,
    FedNova,
    MindFlayer,
    QuAFL,
)
from fedlight.arrivals import (
    ContinuousArrivals,
    DropOut,
    ExponentialDurations,
    PolledArrivals,
    RefreshedTasks,
    ReplayArrivals,
    TrialRounds,
    UniformArrivals,
)
from fedlight.local_optimizers import FedDyn, FedProx, FreshModel, LocalSGD, OwnModel
from tests.boring import Point, fitted, points

ROUNDS = UniformArrivals(2)


def polls(number):
    return PolledArrivals(number, interval=1.0, step_durations=[0.5] * 4, max_steps=3)


def trials(number):
    return TrialRounds(ExponentialDurations(1.0), allotted=1.0, trials=number)


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
    "trials": (MindFlayer(3, 0.5), LocalSGD(0.1), trials(2), "trials=3.*trials=2"),
    "trials of one client": (
        *(MindFlayer([2, 3], 0.5), LocalSGD(0.1), DropOut(trials([2, 2]), 0.1)),
        r"trials=\(2, 3\).*trials=\[2, 2\]",
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
    "trials": (MindFlayer([2, 2], 0.5), LocalSGD(0.1), trials(2)),
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


@pytest.mark.parametrize(
    ("aggregator", "partner"),
    [
        (FedAT(), r"Tiers\(\{name: process, …\}\) \(a process"),
        (FedCompass(), r"CompassArrivals\(StepDurations\(…\), min_steps=…, max_steps=…\)"),
        (MindFlayer(2, 0.5), r"TrialRounds\(durations, allotted=…, trials=…\)"),
    ],
)
def test_rounds_of_a_method_are_those_of_its_process(aggregator, partner) -> None:
    clock = ContinuousArrivals(ExponentialDurations(1.0))
    with pytest.raises(ValueError, match=f"has none: write arrivals={partner}"):
        made(aggregator, LocalSGD(0.1), clock)


def test_fresh_model_needs_tasks_that_are_refreshed() -> None:
    clock = ContinuousArrivals(ExponentialDurations(1.0), local_steps=2)
    with pytest.warns(UserWarning, match=r"arrivals=RefreshedTasks\(ContinuousArrivals\(…\)\)"):
        made(FedASMU(), FreshModel(LocalSGD(0.1)), DropOut(clock, 0.1))
    # Warnings are errors, so nothing is said here, nor of the record of such a run.
    made(FedASMU(), FreshModel(LocalSGD(0.1)), DropOut(RefreshedTasks(clock), 0.1))
    record = RefreshedTasks(clock).simulate(num_clients=2, buffer_size=1, max_rounds=2)
    made(FedASMU(), FreshModel(LocalSGD(0.1)), ReplayArrivals(record))


# --- warnings at the start of a fit ---


class TwoLayers(LightningModule):
    """Its optimizers hold the parameters of the layers named in each of the lists given."""

    def __init__(self, *trained) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(1, 2), nn.Linear(2, 1)
        self.trained, self.calls = trained, 0

    def training_step(self, batch, batch_idx):
        return self.head(self.body(batch[0])).mean()

    def configure_optimizers(self):
        self.calls += 1
        layers = [[getattr(self, name) for name in names] for names in self.trained]
        return [
            torch.optim.SGD([p for layer in each for p in layer.parameters()], lr=0.1)
            for each in layers
        ]


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        ([["head"]], "LocalSGD also trains body.weight, body.bias, which the optimizer of TwoL"),
        ([["head"], ["body"]], "LocalSGD trains all .*, in place of the 2 optimizers"),
    ],
)
def test_a_local_optimizer_that_trains_more_than_the_modules_own_is_named(trained, words) -> None:
    module = TwoLayers(*trained)
    with pytest.warns(UserWarning, match=words):
        fitted(module, points([1.0], [2.0], val=None), max_rounds=1)
    assert module.calls == 0  # what the look has changed is undone


@pytest.mark.parametrize("freezes", [False, True])
def test_there_is_nothing_to_say_of_the_same_parameters(freezes) -> None:
    module = TwoLayers(["head"] if freezes else ["head", "body"])
    module.body.requires_grad_(not freezes)
    fitted(module, points([1.0], [2.0], val=None), max_rounds=1)  # warnings are errors


class Normed(Point):
    """A point with batch normalisation."""

    def __init__(self, norm) -> None:
        super().__init__()
        self.norm = norm

    def training_step(self, batch, batch_idx):
        return ((self.w - self.norm(batch[0])) ** 2).mean()


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_clients_of_one_example_are_named_before_the_first_round(executor) -> None:
    data = points([1.0, 2.0], [3.0], [4.0, 5.0], [6.0], val=None)
    rounds = UniformArrivals([[0, 2]], local_steps=1)
    with pytest.warns(UserWarning, match="2 of 4 clients hold one example: client 1, 3. Their"):
        fitted(Normed(nn.BatchNorm1d(1)), data, executor=executor, arrivals=rounds)
    fitted(Normed(nn.LayerNorm(1)), data, executor=executor, arrivals=rounds)
    several = points([1.0, 2.0], [3.0, 3.0], [4.0, 5.0], val=None)
    fitted(Normed(nn.BatchNorm1d(1)), several, executor=executor, arrivals=rounds)
