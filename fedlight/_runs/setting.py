"""The setting of a run: the options that its result depends on, in one record."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedlight._support.strategy import Strategy
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess
from fedlight.channel import Channel
from fedlight.clients.large_updates import NormLimit
from fedlight.executors import Executor
from fedlight.local_optimizers import LocalOptimizer
from fedlight.loop import Limits


@dataclass(frozen=True, eq=False)
class Setting:
    """Strategies, limits and seed of a run, checked. `FedTrainer` makes it; other parts read it.

    The record is frozen; the strategies in it have a state, which belongs to the newest run.

    Attributes:
        arrivals: Who arrives when.
        aggregator: How the server makes a new version.
        local_optimizer: The arithmetic of a local run.
        executor: How local runs are computed: an executor, or the name of one.
        limits: When the run stops.
        seed: All randomness follows from it.
        on_client_failure: "raise", "drop" or "retry".
        max_update_norm: The largest norm that an update may have; None for any.
        on_large_update: The treatment of a larger one, "clip" or "drop".
        channel: Changes updates on their way to the server, or None.
        precision: The floating-point types of local runs, as Lightning calls them.
    """

    arrivals: ArrivalProcess
    aggregator: Aggregator
    local_optimizer: LocalOptimizer
    executor: Executor | str = "auto"
    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    on_client_failure: str = "raise"
    max_update_norm: float | None = None
    on_large_update: str = "clip"
    channel: Channel | None = None
    precision: str = "32-true"

    @property
    def strategies(self) -> dict[str, Strategy]:
        """The strategies by the names of the trainer's arguments; the channel if there is one."""
        given = {
            "arrivals": self.arrivals,
            "aggregator": self.aggregator,
            "local_optimizer": self.local_optimizer,
            "channel": self.channel,
        }
        return {name: each for name, each in given.items() if each is not None}

    @property
    def norm_limit(self) -> NormLimit | None:
        """The treatment of large updates; None if no update is too large."""
        return NormLimit.of(self.max_update_norm, self.on_large_update)
