"""What the FedFix paper runs: the settings of its Figures 2 and 3; not a recipe.

Source: https://arxiv.org/abs/2206.10189, Section 5
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from data_partitioners import DirichletPartitioner, IidPartitioner, Partitioner
from fedlight.aggregators import Aggregator, AsyncFedAvg, FedAvg, FedBuff, FedFix
from fedlight.arrivals import ContinuousArrivals, SynchronousArrivals, UniformSpeeds
from fedlight.callbacks import ClientEvaluation


@dataclass(frozen=True)
class Setting:
    """What an experiment is made of.

    Attributes:
        rules: Aggregators by name; the others are compared with the first.
        parts: Partitioners by name.
        local_steps: Steps of a local run, K.
        lrs: Local learning rates.
        max_time: Virtual time of a run.
        num_clients: M.
    """

    rules: dict[str, Aggregator]
    parts: dict[str, Partitioner]
    local_steps: int
    lrs: list[float]
    max_time: float
    num_clients: int

    @property
    def first(self) -> str:
        """The name of the aggregator that the others are compared with."""
        return next(iter(self.rules))

    def data(self, split: Callable[..., Any], spread: float) -> dict[str, dict[str, Any]]:
        """Return the data of each way of dividing them; an impossible one raises now."""
        for part in self.parts.values():
            split(part)
        return {
            f"{name}, F{100 * spread:g}": {"datamodule": partial(split, part)}
            for name, part in self.parts.items()
        }

    def methods(
        self, spread: float, max_time: float, own: Aggregator | None
    ) -> dict[str, dict[str, Any]]:
        """Return aggregator, arrivals and evaluation (some forty in a run) of each method.

        Args:
            spread: Tasks take 1 - spread to 1, evenly spaced over the clients.
            max_time: Virtual time of a run.
            own: One more aggregator.

        Raises:
            ValueError: `max_time` is too short.
        """
        UniformSpeeds(spread)  # raises if it is out of range
        times = np.linspace(1 - spread, 1, self.num_clients)
        found = {}
        for name, rule in (self.rules | ({str(own): own} if own else {})).items():
            kind = SynchronousArrivals if rule.needs_rounds else ContinuousArrivals
            period = 1.0 if rule.needs_rounds else rule.interval
            period = period or rule.buffer_size / sum(1 / times)  # between two server updates
            least = 2 * max(1, period)
            if max_time < least:
                raise ValueError(
                    f"max_time must be at least {least:g} for {name}, got {max_time:g}"
                )
            every = max(1, round(max_time / period / 40))
            found[name] = {
                "aggregator": rule,
                "arrivals": kind(
                    durations=UniformSpeeds(1 - times[0]), local_steps=self.local_steps
                ),
                "callbacks": partial(_evaluation, every),
            }
        return found


def _evaluation(every: int) -> list[ClientEvaluation]:
    return [ClientEvaluation(every, max_clients=None)]


IDENTICAL, TIME_BASED = AsyncFedAvg("identical"), AsyncFedAvg("time_based")
WEIGHTS = Setting(
    rules={"identical": IDENTICAL, "time-based": TIME_BASED},
    parts={"iid": IidPartitioner(10), "non-iid": DirichletPartitioner(10, alpha=0.1)},
    local_steps=1,
    lrs=[0.003],
    max_time=200,
    num_clients=10,
)
METHODS = Setting(
    rules={
        "FedAvg": FedAvg(client_weights="uniform"),
        "AsyncFedAvg": TIME_BASED,
        "FedFix-0.5": FedFix(0.5),
        "FedBuff-10": FedBuff(10, staleness=None),
    },
    parts={"non-iid": DirichletPartitioner(20, alpha=0.1)},
    local_steps=10,
    lrs=[0.001, 0.01, 0.1],
    max_time=20,
    num_clients=20,
)
