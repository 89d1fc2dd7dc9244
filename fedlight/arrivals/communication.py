"""Arbitrary communication patterns: a common clock, and clients that communicate occasionally."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fedlight._support.strategy import Strategy
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, Wake
from fedlight.arrivals.tick_patterns import (
    ImbalancedTicks,
    PeriodicTicks,
    RandomTicks,
    TableTicks,
    TickPattern,
)
from fedlight.events import TICKS_PER_UNIT, to_ticks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.types import Federation


class CommunicationPattern(ArrivalProcess):
    """Each client makes one local step per tick of a common clock, and communicates occasionally.

    ``K = b - a`` local steps and duration ``T = b - a`` for the task of a client that communicates
    at the ticks a and b, and not in between: it pulls the version of tick a and arrives at tick b.

    A tick of this clock is one unit of virtual time. The aggregator must step at each tick, as
    ``AsyncCommSGD(interval=1.0)`` does, so that the version equals the number of the tick.

    Args:
        pattern: When each client communicates. `periodic`, `random`, `imbalanced` and `from_table`
            are shortcuts.

    Raises:
        TypeError: `pattern` is not a `TickPattern`.

    Source: Avdiukhin and Kasiviswanathan, [Federated Learning under Arbitrary Communication
    Patterns](https://proceedings.mlr.press/v139/avdiukhin21a.html), Algorithm 1. The paper's only
    assumption is that each client communicates at least once in every `max_gap` ticks (Delta).

    Example:
        >>> arrivals = CommunicationPattern.from_table([[0], [], [0, 1]])
        >>> table = arrivals.simulate(num_clients=2, interval=1.0)
        >>> [(e.client, e.pulled_version, e.time, e.num_steps) for e in table.events]
        [(0, 0, 1.0, 1), (0, 1, 3.0, 2), (1, 0, 3.0, 3)]
    """

    _saved_attributes = ("_calendar",)

    def __init__(self, pattern: TickPattern) -> None:
        if not isinstance(pattern, TickPattern):
            raise TypeError(
                f"pattern must be a TickPattern, got {pattern!r}; "
                "for example CommunicationPattern.random(0.1, max_gap=20)"
            )
        self.pattern = pattern
        self.finite = pattern.last is not None

    @classmethod
    def periodic(
        cls, period: int | Sequence[int], offsets: Sequence[int] | None = None
    ) -> CommunicationPattern:
        """Each client communicates every `period` ticks; see `PeriodicTicks`.

        Args:
            period: Ticks between two communications, one number for all clients or one for each.
            offsets: First tick of each client, from 1 to its period; None for its period, so that
                clients of the same period communicate together.
        """
        return cls(PeriodicTicks(period, offsets))

    @classmethod
    def random(
        cls, probability: float | Sequence[float], max_gap: int | None = None
    ) -> CommunicationPattern:
        """At each tick a client communicates with a given probability; see `RandomTicks`.

        Args:
            probability: One number for all clients or one for each, from 0 to 1.
            max_gap: Largest number of ticks between two communications; None for no limit.
        """
        return cls(RandomTicks(probability, max_gap))

    @classmethod
    def imbalanced(
        cls, rare_share: float, often: float, rarely: float, max_gap: int | None = None
    ) -> CommunicationPattern:
        """Some clients communicate rarely, the others often; see `ImbalancedTicks`.

        Args:
            rare_share: Share of the clients that communicate rarely; these are the last ones.
            often: Probability per tick for the others.
            rarely: Probability per tick for the rare ones.
            max_gap: Largest number of ticks between two communications; None for no limit.
        """
        return cls(ImbalancedTicks(rare_share, often, rarely, max_gap))

    @classmethod
    def from_table(cls, communicates: Sequence[Sequence[int]]) -> CommunicationPattern:
        """At tick t the clients in ``communicates[t - 1]`` communicate; see `TableTicks`.

        Args:
            communicates: For each tick from 1 on, a list of clients, possibly empty.
        """
        return cls(TableTicks(communicates))

    def setup(self, federation: Federation) -> None:
        """Start at tick 0, at which all clients pull version 0.

        Raises:
            ValueError: The pattern does not fit the federation.
        """
        self.pattern.setup(federation)
        self._calendar: dict[int, list[int]] = {0: list(range(federation.num_clients))}

    def on_wake(self, now: float) -> Iterator[Action]:
        """Let the clients that communicate now pull and work until they communicate again."""
        # Exact: this process is woken at whole units of virtual time only.
        tick = to_ticks(now) // TICKS_PER_UNIT
        for client in sorted(self._calendar.pop(tick, ())):
            following = self.pattern.next(client, tick)
            if following is not None:
                self._calendar.setdefault(following, []).append(client)
                yield Dispatch(client, float(following - tick), following - tick)
        # A table's last ticks count even if they are empty, since the server also steps then.
        upcoming = min(self._calendar, default=self.pattern.last)
        if upcoming is not None and upcoming > tick:
            yield Wake(float(upcoming - tick))

    def on_unavailable(self, dispatch: Dispatch, until: float | None, now: float) -> tuple[()]:
        """Return none: the client is silent until its next tick and does not work."""
        return ()

    def expected_durations(self) -> NDArray[np.float64] | None:
        """Mean number of ticks between two communications, shape ``[M]``, or None if unknown."""
        return self.pattern.expected_gaps()

    def __repr__(self) -> str:
        method = _MADE_BY.get(type(self.pattern))
        if method is None:  # a pattern of the user
            return super().__repr__()
        return Strategy.repr_as_call(self.pattern, f"CommunicationPattern.{method}")


# The class methods that make processes with the library's own patterns.
_MADE_BY = {
    PeriodicTicks: "periodic",
    RandomTicks: "random",
    ImbalancedTicks: "imbalanced",
    TableTicks: "from_table",
}
