"""Drop-outs: clients that start a task but never deliver its result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fedlight._support.checks import fraction
from fedlight.arrivals._task_draws import Visits
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch
from fedlight.arrivals.wrapper import Wrapper
from fedlight.randomness import Concern, Streams

if TYPE_CHECKING:
    from fedlight.types import Federation


class DropOut(Wrapper):
    """Each task is lost with some probability: its result never arrives.

    ``lost = u < probability``, u uniform in [0, 1), for each task.

    The client is free again at the time when it would have arrived.

    Args:
        arrivals: Any arrival process.
        probability: Probability that a task is lost, from 0 to below 1.

    Raises:
        TypeError: `arrivals` is not an arrival process, or `probability` not a number.
        ValueError: `probability` is not in [0, 1).

    Source: Yang et al., [Anarchic Federated Learning](https://arxiv.org/abs/2108.09875), Section
    4.1: the server waits for any m updates, whichever workers send them.

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals, UniformSpeeds
        >>> arrivals = DropOut(ContinuousArrivals(UniformSpeeds(0)), probability=0.25)
        >>> table = arrivals.simulate(num_clients=1000, interval=1.0, max_rounds=4)
        >>> 2900 < len(table) < 3100
        True
    """

    _repr_positional = 1
    _saved_attributes = ("_visits",)

    def __init__(self, arrivals: ArrivalProcess, probability: float) -> None:
        super().__init__(arrivals)
        self.probability = fraction("probability", probability)
        if self.probability == 1:
            raise ValueError("probability must be below 1, got 1: no client would ever arrive")

    def setup(self, federation: Federation) -> None:
        """Set up the wrapped process, and start with the first task of each client."""
        super().setup(federation)
        self._streams = Streams(federation.seed, Concern.DROPOUT)
        self._visits = Visits()

    def change(self, actions: Iterable[Action], now: float) -> Iterator[Action]:
        """Lose some of the tasks."""
        for action in actions:
            if isinstance(action, Dispatch) and self.probability:
                # A stream for each client and task: the order of the clients does not matter.
                rng = self._streams.at(action.client_id, self._visits.next(action.client_id))
                if rng.random() < self.probability:
                    action = action._replace(lost=True)
            yield action
