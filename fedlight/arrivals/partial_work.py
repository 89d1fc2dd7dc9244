"""Partial work: clients that stop early and send the result of the steps made so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fedlight._support.checks import fraction
from fedlight.arrivals._task_draws import Visits
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch
from fedlight.arrivals.durations import SHORTEST
from fedlight.arrivals.wrapper import Wrapper
from fedlight.randomness import Concern, Streams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.types import Federation


class PartialWork(Wrapper):
    """With some probability a client stops early; its result is that of the steps made so far.

    ``K' ~ Uniform{max(1, ceil(least * K)), ..., K - 1}`` and ``T' = T * K' / K`` for a task of K
    local steps and duration T that stops early.

    Durations do not change if the process works by rounds, since its results are due at the end of
    a round; those of `Regions` do, whose clients work by the clock. There T has the transfers
    within the region, too: wrap the process of each region to leave them whole. A task of one step
    cannot stop early.

    Args:
        arrivals: Any arrival process.
        probability: Probability that a task stops early.
        least: Smallest share of its local steps that a client makes.

    Raises:
        TypeError: `arrivals` is not an arrival process, or another argument is not a number.
        ValueError: `probability` or `least` is not in [0, 1].

    Source: Li et al., [Federated Optimization in Heterogeneous
    Networks](https://arxiv.org/abs/1812.06127) (FedProx), Section 5.2, where stragglers make a
    random number of epochs; Yang et al., [Anarchic Federated
    Learning](https://arxiv.org/abs/2108.09875), Algorithm 2, where workers choose their number of
    steps.
    """

    _repr_positional = 1
    _saved_attributes = ("_visits",)

    def __init__(
        self, arrivals: ArrivalProcess, probability: float = 1.0, least: float = 0.0
    ) -> None:
        super().__init__(arrivals)
        self.probability = fraction("probability", probability)
        self.least = fraction("least", least)
        # The rounds of regions are transfers between servers.
        self._due_at_round_ends = self.by_rounds and self.arrivals_per_send is None

    def setup(self, federation: Federation) -> None:
        """Set up the wrapped process, and start with the first task of each client."""
        super().setup(federation)
        self._streams = Streams(federation.seed, Concern.PARTIAL_WORK)
        self._visits = Visits()

    def change(self, actions: Iterable[Action], now: float) -> Iterator[Action]:
        """Shorten some of the tasks."""
        for action in actions:
            yield self._shortened(action) if isinstance(action, Dispatch) else action

    def _shortened(self, action: Dispatch) -> Dispatch:
        # A stream for each client and task: the order of the clients does not matter.
        rng = self._streams.at(action.client_id, self._visits.next(action.client_id))
        fewest = max(1, math.ceil(self.least * action.num_steps))
        if rng.random() >= self.probability or fewest >= action.num_steps:
            return action
        num_steps = int(rng.integers(fewest, action.num_steps))
        duration = action.duration
        if not self._due_at_round_ends:
            duration = max(SHORTEST, duration * num_steps / action.num_steps)
        return action._replace(num_steps=num_steps, duration=duration)

    def expected_durations(self) -> NDArray[np.float64] | None:
        """T_i of the wrapped process, or None if tasks are shortened."""
        if self.probability == 0 or self._due_at_round_ends:
            return self.arrivals.expected_durations()
        return None
