"""Settings that differ have different words in a checkpoint."""

from functools import partial

import pytest
import torch

from fedlight._runs.identity import in_words
from fedlight.aggregators import AFACD, FedAsync, FedAvg, FedBuff, FedFix
from fedlight.aggregators.staleness import Polynomial
from fedlight.arrivals import (
    Availability,
    BiasedArrivals,
    CommunicationPattern,
    ContinuousArrivals,
    DiurnalWindows,
    DropOut,
    ExponentialDurations,
    FixedDurations,
    IntervalWindows,
    LeastVisitedShards,
    LocalEpochs,
    LogNormalDurations,
    PartialWork,
    PerClientSteps,
    PoissonArrivals,
    SharedStream,
    StepsBySpeed,
    SynchronousArrivals,
    UniformArrivals,
    UniformSpeeds,
)
from fedlight.arrivals.durations import HalfNormalDurations, StepDurations
from fedlight.callbacks import FedCheckpoint
from fedlight.checkpoint import CheckpointError
from fedlight.local_optimizers import FedProx, LocalAdam, LocalSGD, Scaffold
from tests.boring import Point, fitted, points, replay, trainer

TINY = 1e-9
SYNC = SynchronousArrivals()


def middle(other, least=1.0):
    """A hundred numbers, one in the middle of which is another one or is not."""
    return [least + k + (other if k == 50 else 0) for k in range(100)]


class Decays:
    """A rate without a repr."""

    def __init__(self, start):
        self.start = start

    def __call__(self, version):
        return self.start


def closed(number):
    return lambda version: number


# Each makes the same strategy for 0, and one with another setting for 1.
PAIRS = {
    "FixedDurations": lambda k: FixedDurations(middle(k)),
    "UniformSpeeds": lambda k: UniformSpeeds(0.5 + k * TINY),
    "UniformSpeeds slowest": lambda k: UniformSpeeds(0.5, slowest=1 + k * TINY),
    "ExponentialDurations": lambda k: ExponentialDurations(middle(k)),
    "HalfNormalDurations": lambda k: HalfNormalDurations(middle(k)),
    "LogNormalDurations": lambda k: LogNormalDurations(middle(k), 0.5),
    "LogNormalDurations sigma": lambda k: LogNormalDurations(1.0, 0.5 + k * TINY),
    "StepDurations": lambda k: StepDurations(middle(k)),
    "StepDurations overhead": lambda k: StepDurations(1.0, overhead=1 + k * TINY),
    "PerClientSteps": lambda k: PerClientSteps(middle(k, 1)),
    "StepsBySpeed": lambda k: StepsBySpeed(9, middle(k)),
    "LocalEpochs": lambda k: LocalEpochs(1 + k * TINY),
    "BiasedArrivals": lambda k: BiasedArrivals(2, [x / (5050 + k) for x in middle(k)]),
    "UniformArrivals": lambda k: UniformArrivals(2, local_steps=PerClientSteps(middle(k, 1))),
    "SynchronousArrivals": lambda k: SynchronousArrivals(2, FixedDurations(middle(k))),
    "ContinuousArrivals": lambda k: ContinuousArrivals(ExponentialDurations(1), idle=1 + k * TINY),
    "PoissonArrivals": lambda k: PoissonArrivals(1 + k * TINY, ExponentialDurations(1)),
    "DropOut": lambda k: DropOut(SYNC, 0.1 + k * TINY),
    "PartialWork": lambda k: PartialWork(SYNC, 0.1 + k * TINY),
    "SharedStream": lambda k: SharedStream(SYNC, 3 + k),
    "SharedStream shuffle": lambda k: SharedStream(SYNC, shuffle=bool(k)),
    "LeastVisitedShards": lambda k: LeastVisitedShards(SYNC, by=("visits", "examples")[k]),
    "PartialWork least": lambda k: PartialWork(SYNC, 0.1, least=0.1 + k * TINY),
    "Availability": lambda k: Availability(SYNC, [(0, 2), (3, 4 + k)]),
    "IntervalWindows": lambda k: IntervalWindows({0: [(0, 1 + k)]}),
    "DiurnalWindows": lambda k: DiurnalWindows(24, 0.5 + k * TINY),
    "periodic": lambda k: CommunicationPattern.periodic(middle(k, 1)),
    "random": lambda k: CommunicationPattern.random([0.5 + k * TINY] * 30),
    "imbalanced": lambda k: CommunicationPattern.imbalanced(0.5, 0.5, 0.1 + k * TINY),
    "from_table": lambda k: CommunicationPattern.from_table([[0], [k]]),
    "replay": lambda k: replay((0, 0, 1.0, 1), (1, 0, 2.0 + k, 1)),
    "replay durations": lambda k: replay((0, 0, 1.0, 1), (1, 0, 2.0, 1), durations=[1.0, 2.0 + k]),
    "replay rounds": lambda k: replay((0, 0, 1.0, 1), round_ends=[1.0 + k]),
    "LocalSGD": lambda k: LocalSGD(0.1, max_grad_norm=1 + k * TINY),
    "FedProx": lambda k: FedProx(0.1, mu=0.1 + k * TINY),
    "Scaffold": lambda k: Scaffold(0.1, option=1 + k),
    "LocalAdam weight_decay": lambda k: LocalAdam(0.1, weight_decay=k * 0.1),
    "LocalAdam eps": lambda k: LocalAdam(0.1, eps=1e-8 + k * TINY),
    "LocalAdam max_grad_norm": lambda k: LocalAdam(0.1, max_grad_norm=1 + k),
    "FedAvg": lambda k: FedAvg(3 + k),
    "AFACD": lambda k: AFACD(server_lr=1 + k * TINY),
    "FedAsync": lambda k: FedAsync(0.5 + k * TINY),
    "FedBuff": lambda k: FedBuff(2, Polynomial(0.5 + k * TINY)),
    "FedFix": lambda k: FedFix(1 + k * TINY),
    "a closure": lambda k: LocalSGD(closed(0.1 + k)),
    "a default": lambda k: LocalSGD(lambda version, rate=0.1 + k: rate),
    "a keyword's default": lambda k: LocalSGD(lambda version, *, rate=0.1 + k: rate),
    "a partial function": lambda k: LocalSGD(partial(max, 0.1 + k)),
    "an object without words": lambda k: LocalSGD(Decays(0.1 + k)),
    "a server optimizer": lambda k: FedAvg(
        server_optimizer=lambda params, lr=0.1 + k: torch.optim.SGD(params, lr=lr)
    ),
}


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS.keys())
def test_other_settings_have_other_words(make):
    assert in_words(make(0)) == in_words(make(0))
    assert in_words(make(0)) != in_words(make(1))
    assert " at 0x" not in in_words(make(0))


@pytest.mark.parametrize("name", ["replay", "LocalAdam weight_decay", "a closure"])
def test_a_run_does_not_go_on_under_other_settings(name, tmp_path):
    data = points([0.0, 1.0], [2.0])
    argument = "arrivals" if name == "replay" else "local_optimizer"
    first, other = ({argument: PAIRS[name](k), "aggregator": FedAvg(1)} for k in (0, 1))
    fitted(Point(), data, max_rounds=1, callbacks=[FedCheckpoint(tmp_path)], **first)
    with pytest.raises(CheckpointError, match=f"{argument} was '"):
        trainer(max_rounds=2, **other).fit(Point(), data, tmp_path / "last.ckpt")
    trainer(max_rounds=2, **first).fit(Point(), data, tmp_path / "last.ckpt")


class Own(LocalSGD):
    """A local optimizer of the user, with a setting of its own."""

    def __init__(self, lr, boost):
        super().__init__(lr)
        self._boost = boost


def test_a_private_setting_of_a_class_of_the_user_is_checked(tmp_path) -> None:
    data = points([0.0, 1.0], [2.0])
    given = {"aggregator": FedAvg(1), "callbacks": [FedCheckpoint(tmp_path)]}
    fitted(Point(), data, max_rounds=1, local_optimizer=Own(0.1, 1.0), **given)
    with pytest.raises(CheckpointError, match=r"local_optimizer was 'Own\(lr=0.1, boost=1.0\)'"):
        trainer(max_rounds=2, local_optimizer=Own(0.1, 2.0), aggregator=FedAvg(1)).fit(
            Point(), data, tmp_path / "last.ckpt"
        )


def test_words_are_those_of_earlier_checkpoints() -> None:
    """As version 0.2 wrote them: a checkpoint of it goes on only under the same words."""
    clock = UniformSpeeds(0.8)
    known = {
        FedProx(0.1, momentum=0.9): "FedProx(mu=0.1, LocalSGD(lr=0.1, momentum=0.9))",
        LocalAdam(0.1): "LocalAdam(lr=0.1, betas=(0.9, 0.999))",
        FedBuff(2): "FedBuff(buffer_size=2, staleness=Polynomial(a=0.5), normalize='buffer')",
        SynchronousArrivals(2, clock, timeout=2): (
            "SynchronousArrivals(per_round=2, durations=UniformSpeeds(0.8, slowest=1), "
            "local_steps=LocalEpochs(1), timeout=2.0, late='cancel')"
        ),
        ContinuousArrivals(clock, 3): (
            "ContinuousArrivals(UniformSpeeds(0.8, slowest=1), concurrency=3, idle=0, "
            "resume='on_aggregation', local_steps=LocalEpochs(1))"
        ),
        Availability(UniformArrivals(2), [(0, 1)]): (
            "Availability(UniformArrivals(per_round=2, max_staleness=0, "
            "local_steps=LocalEpochs(1)), IntervalWindows(1 intervals, 7428529c), "
            "unfinished='finish')"
        ),
        CommunicationPattern.random([0.5] * 30): (
            "CommunicationPattern.random([0.5, 0.5, 0.5, ... 30 in all, e7346411], max_gap=None)"
        ),
    }
    assert list(map(in_words, known)) == list(known.values())
