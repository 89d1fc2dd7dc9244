"""Fits with `RayExecutor` on pretended cards, of which any number gives the same bits."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import torch
from torch import nn

from fedlight import Callback, FedTrainer
from fedlight.aggregators import FedAvg, FedBuff
from fedlight.arrivals import SynchronousArrivals, UniformArrivals, UniformSteps
from fedlight.executors import Executor, Job, RayExecutor, VectorizedExecutor
from fedlight.executors.base import Outcome
from fedlight.local_optimizers import LocalSGD, Scaffold
from fedlight.types import LocalResult
from tests.boring import Boring, classes, trainer
from tests.pretended_ray import PretendedRay

DEVICE = "pretended" if "_pretended" in sys.modules else "cpu"
"""Where actors with a card compute: on it if there are pretended ones (`tests/on_device.py`)."""

SIZES = (6, 10, 3, 8, 9, 4, 7, 5, 6, 10)

METHODS = {
    "FedAvg": lambda: {"aggregator": FedAvg(), "arrivals": SynchronousArrivals(6)},
    "FedBuff": lambda: {"aggregator": FedBuff(3)},
    "SCAFFOLD": lambda: {"aggregator": FedAvg(), "local_optimizer": Scaffold(0.1)},
}


class Mixing(VectorizedExecutor):
    """Results depend on who is in the stack, much more than those of a GPU do."""

    independent = False  # type: ignore[assignment]

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        numbers = [1 + job.task.client_id + 16 * job.task.visit for job in jobs]
        mix = 1 + 1e-3 * sum(number * (at + 1) for at, number in enumerate(numbers))
        return [
            each._replace(delta=each.delta * mix, measured=None)
            if isinstance(each, LocalResult)
            else each
            for each in super().run(jobs)
        ]


class Devices(Callback):
    """Notes where the server's model and the updates are."""

    def __init__(self) -> None:
        self.seen: set[torch.device] = set()

    def on_event_end(self, trainer, module) -> None:
        self.seen.add(trainer.state.params.device)

    def on_update_arrival(self, trainer, module, update) -> None:
        self.seen.add(update.delta.device)


def cards(number: int, seed: int = 0, **more) -> PretendedRay:
    """A cluster with so many cards."""
    return PretendedRay(seed, number, DEVICE, **more)


def fit_on(
    ray: PretendedRay,
    method: str = "FedBuff",
    executor: Executor | str | None = None,
    actors: int | None = None,
    ckpt_path=None,
    share: int = 3,
    **more,
) -> FedTrainer:
    """A fit with one actor a card, whose executor is `Mixing` unless another is given."""
    given = {
        "arrivals": UniformArrivals(4, max_staleness=3, local_steps=UniformSteps(1, 4)),
        "local_optimizer": LocalSGD(0.1, momentum=0.5),
        "max_rounds": 5,
        **METHODS[method](),
        **more,
    }
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3))
    with ray.installed(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fedlight: some clients count for more")
        own = Mixing() if executor is None else executor
        given["executor"] = RayExecutor(actors or len(ray.cards), own, share=share, max_batch=8)
        run = trainer(**given)
        run.fit(Boring(net), classes(SIZES), ckpt_path=ckpt_path)
    return run


def bits(run: FedTrainer) -> tuple:
    """What does not depend on the number of cards."""
    return run.fingerprint(), run.history
