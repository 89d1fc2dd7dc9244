"""Record runs whose clients are chosen by what they log, and replay them without choosing.

Each random federation has clients of random sizes, one of the rules that choose clients, perhaps
within wrappers or tiers, an aggregator, a local optimizer, perhaps a channel, and an executor. The
replay of its record knows nothing of losses. Model and history have to be the same to the bit, and
the record without a model has to be the schedule that was recorded.

    python tests/feedback_replays.py --runs 200

With ``--plain`` the processes have no feedback, and all runs have stacks whose members matter.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import warnings
from collections import Counter
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import CA2FL, AsyncFedAvg, FedAsync, FedAvg, FedBuff, FedVARP
from fedlight.arrivals import (
    ArrivalProcess,
    Availability,
    ClientSelection,
    ContinuousArrivals,
    DiurnalWindows,
    DropOut,
    ExponentialDurations,
    FixedDurations,
    Oort,
    PartialWork,
    Pisces,
    PoissonArrivals,
    PowerOfChoice,
    Recording,
    ReplayArrivals,
    SynchronousArrivals,
    Tiers,
    UniformSteps,
)
from fedlight.channel import QSGD, ErrorFeedback, TopK
from fedlight.executors import VectorizedExecutor
from fedlight.local_optimizers import LocalSGD, Scaffold

CLOCK, STEPS = ExponentialDurations(1.0), UniformSteps(1, 4)


class Net(LightningModule):
    """Two layers; a convolution keeps local runs from being independent of their stack."""

    def __init__(self, convolution: bool) -> None:
        torch.manual_seed(1)
        super().__init__()
        first: list[nn.Module] = [nn.Linear(6, 4)]
        if convolution:
            first = [nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4)]
        self.net = nn.Sequential(*first, nn.Tanh(), nn.Linear(4, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss


class LargestNorm(ClientSelection):
    """A rule of one's own: the clients whose last update was the longest; unknown ones first."""

    _saved_attributes = ("_norms",)

    def setup(self, federation: Any) -> None:
        super().setup(federation)
        self._norms: dict[int, float] = {}

    def on_feedback(self, task: Any, seen: Any, now: float) -> None:
        self._norms[task.client_id] = seen.norm

    def choose(self, clients: Any, count: int, rng: Any, now: float) -> Any:
        return sorted(clients, key=lambda client: -self._norms.get(client, 1e9))[:count]


def clients(dice: random.Random, number: int) -> FederatedDataModule:
    """Clients of random sizes."""
    rng = torch.Generator().manual_seed(dice.randrange(1 << 30))

    def table(size: int) -> TensorDataset:
        x = torch.randn(size, 6, generator=rng)
        return TensorDataset(x, (2 * x[:, 0] + x[:, 1]).round().long().remainder(3))

    sizes = [dice.randint(1, 12) for _ in range(number)]
    return FederatedDataModule.from_client_datasets([table(n) for n in sizes], batch_size=4)


def rounds(dice: random.Random, number: int) -> ArrivalProcess:
    """Rounds whose clients a rule chooses."""
    size = dice.randint(1, number - 1)
    late = dice.choice(
        [
            {},
            {"over_select": 1},
            {"timeout": 0.9},
            {"timeout": 0.9, "late": "cut"},
            {"quorum": 1, "late": "continue"},
        ]
    )
    inner: ArrivalProcess = SynchronousArrivals(size, CLOCK, STEPS, **late)
    if dice.random() < 0.2:
        inner = PartialWork(inner, 0.5)
    return dice.choice(
        [
            lambda: PowerOfChoice(inner, number),
            lambda: Oort(
                inner, exploration=dice.random(), pacer_window=2, preferred=50, most_tasks=3
            ),
            lambda: Oort(inner, reading="paper", pacer_step=0.5, pacer_window=1),
            lambda: LargestNorm(inner),
        ]
    )()


def clock(dice: random.Random, number: int) -> ArrivalProcess:
    """Places, or starts at random times, whose clients a rule chooses."""
    inner: ArrivalProcess = PoissonArrivals(3.0, CLOCK, STEPS)
    if dice.random() < 0.8:
        inner = ContinuousArrivals(
            CLOCK,
            concurrency=dice.randint(1, number - 1),
            idle=dice.choice([0.0, 0.3]),
            resume=dice.choice(["on_arrival", "on_aggregation"]),
            local_steps=STEPS,
            restart_after=dice.choice([None, None, 2]),
        )
    return dice.choice(
        [
            lambda: PowerOfChoice(inner, dice.randint(1, number)),
            lambda: Pisces(inner),
            lambda: LargestNorm(inner),
        ]
    )()


def wrapped(dice: random.Random, arrivals: ArrivalProcess) -> ArrivalProcess:
    """Perhaps with results that are lost, or clients that sleep."""
    if dice.random() < 0.3:
        arrivals = DropOut(arrivals, 0.2)
    if dice.random() < 0.2:
        arrivals = Availability(arrivals, DiurnalWindows(5.0, 0.7))
    return arrivals


def setting(dice: random.Random) -> tuple[dict[str, Any], int]:
    """The strategies of a run, and the number of its clients."""
    number = dice.randint(3, 9)
    kind = dice.choice(["rounds", "clock", "clock", "pace", "tiers"])
    if kind == "rounds":
        arrivals = wrapped(dice, rounds(dice, number))
        aggregator = dice.choice([FedAvg, FedVARP, lambda: FedAvg(2)])()
    elif kind == "tiers":
        names = {"fast": list(range(0, number - 1)), "slow": [number - 1]}
        inner = {"fast": clock(dice, number - 1), "slow": SynchronousArrivals(1, CLOCK, STEPS)}
        arrivals, aggregator = Tiers(inner, names), FedBuff(2)
    elif kind == "pace":
        places = dice.randint(1, number - 1)
        inner_clock = ContinuousArrivals(CLOCK, places, resume="on_arrival", local_steps=STEPS)
        arrivals = wrapped(dice, Pisces(inner_clock, staleness_bound=dice.choice([1, 2, 5])))
        aggregator = FedAvg()
    else:
        arrivals = wrapped(dice, clock(dice, number))
        aggregator = dice.choice(
            [
                lambda: FedBuff(dice.randint(1, 2)),
                lambda: FedAsync(0.5, max_staleness=2),
                AsyncFedAvg,
                lambda: CA2FL(2),
            ]
        )()
    given = {
        "arrivals": arrivals,
        "aggregator": aggregator,
        "local_optimizer": dice.choice(
            [lambda: LocalSGD(0.1, momentum=0.5), lambda: Scaffold(0.1)]
        )(),
        "channel": dice.choice([None, None, QSGD(4), ErrorFeedback(TopK(0.3))]),
        "executor": dice.choice(["sequential", "vectorized", VectorizedExecutor(max_batch=3)]),
        "seed": dice.randrange(1000),
    }
    return given, number


def plain_setting(dice: random.Random) -> tuple[dict[str, Any], int]:
    """The strategies of a run whose clients are drawn, and the number of its clients."""
    number = dice.randint(3, 9)
    # Of the durations some are equal, so that events coincide.
    equal = FixedDurations([dice.choice([0.5, 1.0, 1.5, 2.0]) for _ in range(number)])
    times = dice.choice([CLOCK, CLOCK, equal])
    clock = ContinuousArrivals(
        times,
        concurrency=dice.randint(1, number - 1),
        idle=dice.choice([0.0, 0.3]),
        resume=dice.choice(["on_arrival", "on_aggregation"]),
        local_steps=STEPS,
        restart_after=dice.choice([None, None, 2]),
    )
    late = dice.choice([{}, {"over_select": 1}, {"timeout": 0.9}])
    rounds = SynchronousArrivals(dice.randint(1, number - 1), times, STEPS, **late)
    by_clock = dice.random() < 0.7
    arrivals = wrapped(dice, clock if by_clock else rounds)
    rules = [lambda: FedBuff(2), lambda: FedAsync(0.5, max_staleness=2), AsyncFedAvg]
    given = {
        "arrivals": arrivals,
        "aggregator": dice.choice(rules)() if by_clock else FedAvg(),
        "local_optimizer": dice.choice([LocalSGD(0.1, momentum=0.5), Scaffold(0.1)]),
        "executor": dice.choice(["vectorized", VectorizedExecutor(max_batch=3)]),
        "seed": dice.randrange(1000),
    }
    return given, number


def fitted(given: dict[str, Any], module: Net, data: FederatedDataModule) -> FedTrainer:
    """A run that is over."""
    trainer = FedTrainer(
        **given,
        max_updates=30,
        max_time=30.0,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, data)
    return trainer


def outcome(trainer: FedTrainer) -> list[Any]:
    """All that has to be the same."""
    history = [
        (each.version, each.now, each.updates, each.dropped, each.metrics.get("train_loss"))
        for each in trainer.history
    ]
    return [
        trainer.fingerprint(),
        # Without the serial number: a replay may have another order of the pulls of one time.
        repr([[u._replace(serial=0) for u in updates] for _, _, updates, _, _ in history]),
        repr([(version, now, loss) for version, now, _, _, loss in history]),
    ]


def same(number: int, plain: bool = False) -> tuple[bool, str]:
    """Whether the replay of one random run is that run, and what was tried."""
    dice = random.Random(number)
    given, size = (plain_setting if plain else setting)(dice)
    convolution = plain or dice.random() < 0.5
    data = clients(dice, size)
    recording = Recording(given["arrivals"])
    first = fitted({**given, "arrivals": recording}, Net(convolution), data)
    table = recording.table()
    if not table.events:
        return True, "nobody arrived"
    replay = ReplayArrivals(table)
    assert not replay.needs_feedback
    again = fitted({**given, "arrivals": replay}, Net(convolution), data)
    words = f"{given['arrivals']!r}, {given['aggregator']!r}, {given.get('channel')!r}, "
    words += f"{type(first.executor).__name__}, convolution={convolution}"
    return outcome(first) == outcome(again), words


def main(arguments: list[str] | None = None) -> int:
    """Record and replay; the exit status is the number of runs that differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the next has 1 more")
    parser.add_argument("--plain", action="store_true", help="processes without feedback")
    options = parser.parse_args(arguments)
    different, tried = 0, Counter[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.INFO)
        for number in range(options.seed, options.seed + options.runs):
            equal, words = same(number, options.plain)
            tried[words.split("(", 1)[0]] += 1
            different += not equal
            if not equal:
                print(f"{number}: DIFFERENT {words}", flush=True)
    logging.disable(logging.NOTSET)
    print(f"{options.runs} runs {dict(tried)}: {options.runs - different} identical")
    return different


if __name__ == "__main__":
    sys.exit(main())
