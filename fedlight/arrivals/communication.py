"""Arbitrary communication patterns: a common clock, and clients that speak up now and then."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, Wake
from fedlight.arrivals.durations import brief
from fedlight.checks import fraction, non_negative_int, positive_int
from fedlight.events import TICKS_PER_UNIT, to_ticks
from fedlight.randomness import Concern, Streams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation


class TickPattern(ABC):
    """At which ticks 1, 2, … of the common clock each client communicates."""

    last: int | None = None
    """The last tick of the pattern, or None for a pattern without an end."""

    @abstractmethod
    def next(self, client: int, tick: int) -> int | None:
        """The client's first tick after `tick`, or None if there is no other."""

    @abstractmethod
    def setup(self, federation: Federation) -> None:
        """Get ready for a run.

        Raises:
            ValueError: The pattern does not fit the federation.
        """

    def expected_gaps(self) -> NDArray[np.float64] | None:
        """Mean number of ticks between two communications of each client, shape ``[M]``."""
        return None


class PeriodicTicks(TickPattern):
    """Client i communicates at the ticks offset_i, offset_i + period_i, ….

    Args:
        period: Ticks between two communications, one number for all clients or one for each.
        offsets: First tick of each client, from 1 to its period; None for its period.
    """

    def __init__(self, period: int | Sequence[int], offsets: Sequence[int] | None = None) -> None:
        self.periods = _ints("period", period)
        self.offsets = self.periods if offsets is None else _ints("offsets", offsets)

    def setup(self, federation: Federation) -> None:
        """Spread the numbers over the clients."""
        self._periods = _for_each("period", self.periods, federation)
        self._offsets = _for_each("offsets", self.offsets, federation)
        late = np.flatnonzero(self._offsets > self._periods)
        if len(late):
            client = int(late[0])
            raise ValueError(
                f"offsets[{client}] must be at most the period {self._periods[client]}, "
                f"got {self._offsets[client]}"
            )

    def next(self, client: int, tick: int) -> int:
        """The next multiple of the period, shifted."""
        period, offset = int(self._periods[client]), int(self._offsets[client])
        return offset + max(0, (tick - offset) // period + 1) * period

    def expected_gaps(self) -> NDArray[np.float64]:
        """The periods."""
        return self._periods.astype(np.float64)

    def __repr__(self) -> str:
        period, offsets = brief(self.periods.tolist()), brief(self.offsets.tolist())
        return f"CommunicationPattern.periodic({period}, offsets={offsets})"


class RandomTicks(TickPattern):
    """At each tick client i communicates with probability p_i, and for sure after `max_gap` ticks.

    Args:
        probability: p_i, one number for all clients or one for each.
        max_gap: Largest number of ticks between two communications of a client; None for no limit.
    """

    def __init__(self, probability: float | Sequence[float], max_gap: int | None = None) -> None:
        self._gaps = _RandomGaps(max_gap)
        self.probability: float | list[float]
        if isinstance(probability, Sequence | np.ndarray) and not isinstance(probability, str):
            self.probability = [
                self._gaps.check(f"probability[{client}]", value)
                for client, value in enumerate(probability)
            ]
            if not self.probability:
                raise ValueError("probability must hold one number for each client, got none")
        else:
            self.probability = self._gaps.check("probability", probability)

    def setup(self, federation: Federation) -> None:
        """Spread the numbers over the clients."""
        values = np.asarray(self.probability)
        self._gaps.setup(federation, _for_each("probability", values, federation))

    def next(self, client: int, tick: int) -> int:
        """A geometric number of ticks later, at most `max_gap`."""
        return tick + self._gaps.draw(client, tick)

    def expected_gaps(self) -> NDArray[np.float64]:
        """``1 / p``, or ``(1 - (1 - p)**max_gap) / p`` with a largest gap."""
        return self._gaps.expected()

    def __repr__(self) -> str:
        return (
            f"CommunicationPattern.random({brief(self.probability)}, max_gap={self._gaps.max_gap})"
        )


class ImbalancedTicks(TickPattern):
    """A share of the clients communicates rarely, the others often, at random ticks.

    Args:
        rare_share: Share of the clients that communicate rarely: the last ones.
        often: Probability, at each tick, of the others.
        rarely: Probability, at each tick, of the rare ones.
        max_gap: Largest number of ticks between two communications of a client; None for no limit.
    """

    def __init__(
        self, rare_share: float, often: float, rarely: float, max_gap: int | None = None
    ) -> None:
        self._gaps = _RandomGaps(max_gap)
        self.rare_share = fraction("rare_share", rare_share)
        self.often = self._gaps.check("often", often)
        self.rarely = self._gaps.check("rarely", rarely)
        if self.rarely > self.often:
            raise ValueError(f"rarely must be at most often={often!r}, got {rarely!r}")

    def setup(self, federation: Federation) -> None:
        """Give each client its probability."""
        values = np.full(federation.num_clients, self.often)
        values[federation.num_clients - math.ceil(self.rare_share * federation.num_clients) :] = (
            self.rarely
        )
        self._gaps.setup(federation, values)

    def next(self, client: int, tick: int) -> int:
        """A geometric number of ticks later, at most `max_gap`."""
        return tick + self._gaps.draw(client, tick)

    def expected_gaps(self) -> NDArray[np.float64]:
        """``1 / p``, or ``(1 - (1 - p)**max_gap) / p`` with a largest gap."""
        return self._gaps.expected()

    def __repr__(self) -> str:
        return (
            f"CommunicationPattern.imbalanced({self.rare_share:g}, often={self.often:g}, "
            f"rarely={self.rarely:g}, max_gap={self._gaps.max_gap})"
        )


class TableTicks(TickPattern):
    """A table: at tick t the clients in ``communicates[t - 1]`` communicate.

    Args:
        communicates: For each tick from 1 on, a list of clients, possibly empty.
    """

    last: int

    def __init__(self, communicates: Sequence[Sequence[int]]) -> None:
        self._ticks: dict[int, list[int]] = {}
        for tick, clients in enumerate(communicates, start=1):
            for client in clients:
                ticks = self._ticks.setdefault(
                    non_negative_int(f"communicates[{tick - 1}]", client), []
                )
                if ticks and ticks[-1] == tick:
                    raise ValueError(f"communicates[{tick - 1}] names client {client} twice")
                ticks.append(tick)
        if not self._ticks:
            raise ValueError("communicates must name a client at some tick, got none")
        self.last = len(communicates)

    def setup(self, federation: Federation) -> None:
        """Start at the beginning.

        Raises:
            ValueError: The table names a client that does not exist.
        """
        largest = max(self._ticks)
        if largest >= federation.num_clients:
            raise ValueError(
                f"communicates[{self._ticks[largest][0] - 1}] names client {largest}, but there "
                f"are only {federation.num_clients} clients (0 to {federation.num_clients - 1})"
            )

    def next(self, client: int, tick: int) -> int | None:
        """The client's next tick in the table."""
        ticks = self._ticks.get(client, [])
        place = bisect_right(ticks, tick)
        return ticks[place] if place < len(ticks) else None

    def __repr__(self) -> str:
        return f"CommunicationPattern.from_table({self.last} ticks)"


class CommunicationPattern(ArrivalProcess):
    """Every client makes one local step per tick of a common clock, and communicates now and then.

    A tick is one unit of virtual time. A client that communicates at the ticks a < b has one task
    between them: it pulls the version of tick a, makes b - a steps, and arrives at tick b. The
    aggregator steps at each tick: ``AsyncCommSGD(interval=1.0)``, so that the version is the tick.

    Args:
        pattern: When each client communicates. There are shortcuts for it: `periodic`, `random`,
            `imbalanced` and `from_table`.

    Raises:
        TypeError: `pattern` is no `TickPattern`.

    Source: Federated Learning under Arbitrary Communication Patterns (Avdiukhin and
    Kasiviswanathan), Algorithm 1. It asks of a pattern only that each client communicates at least
    once in every `max_gap` ticks (its Delta).

    Example:
        >>> arrivals = CommunicationPattern.from_table([[0], [], [0, 1]])
        >>> table = arrivals.simulate(num_clients=2, interval=1.0)
        >>> [(e.client, e.pulled_version, e.time, e.num_steps) for e in table.events]
        [(0, 0, 1.0, 1), (0, 1, 3.0, 2), (1, 0, 3.0, 3)]
    """

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
        """Each client communicates every `period` ticks.

        Args:
            period: Ticks between two communications, one number for all clients or one for each.
            offsets: First tick of each client, from 1 to its period; None for its period, so that
                clients of one period come together.
        """
        return cls(PeriodicTicks(period, offsets))

    @classmethod
    def random(
        cls, probability: float | Sequence[float], max_gap: int | None = None
    ) -> CommunicationPattern:
        """At each tick a client communicates with a given probability.

        Args:
            probability: One number for all clients or one for each, from 0 to 1.
            max_gap: A client that was silent for so many ticks less one communicates for sure.
        """
        return cls(RandomTicks(probability, max_gap))

    @classmethod
    def imbalanced(
        cls, rare_share: float, often: float, rarely: float, max_gap: int | None = None
    ) -> CommunicationPattern:
        """Some clients communicate rarely, the others often, at random ticks.

        Args:
            rare_share: Share of the clients that communicate rarely: the last ones.
            often: Probability, at each tick, of the others.
            rarely: Probability, at each tick, of the rare ones.
            max_gap: A client that was silent for so many ticks less one communicates for sure.
        """
        return cls(ImbalancedTicks(rare_share, often, rarely, max_gap))

    @classmethod
    def from_table(cls, communicates: Sequence[Sequence[int]]) -> CommunicationPattern:
        """At tick t the clients in ``communicates[t - 1]`` communicate; the run ends with them.

        Args:
            communicates: For each tick from 1 on, a list of clients, possibly empty.
        """
        return cls(TableTicks(communicates))

    def setup(self, federation: Federation) -> None:
        """Start at tick 0, at which all clients have version 0.

        Raises:
            ValueError: The pattern does not fit the federation.
        """
        self.pattern.setup(federation)
        self._calendar: dict[int, list[int]] = {0: list(range(federation.num_clients))}

    def on_wake(self, now: float) -> Iterator[Action]:
        """Those that communicate at this tick pull, and work until they communicate again."""
        tick = to_ticks(now) // TICKS_PER_UNIT
        for client in sorted(self._calendar.pop(tick, ())):
            following = self.pattern.next(client, tick)
            if following is not None:
                self._calendar.setdefault(following, []).append(client)
                yield Dispatch(client, float(following - tick), following - tick)
        upcoming = min(self._calendar, default=self.pattern.last)
        if upcoming is not None and upcoming > tick:
            yield Wake(float(upcoming - tick))

    def on_unavailable(self, dispatch: Dispatch, until: float | None, now: float) -> tuple[()]:
        """The client is silent until its next tick; what it would have done is missing."""
        return ()

    def expected_durations(self) -> NDArray[np.float64] | None:
        """Mean number of ticks between two communications, where it is known."""
        return self.pattern.expected_gaps()

    def state_dict(self) -> dict[str, Any]:
        """Who communicates next at which tick."""
        calendar = [[tick, list(clients)] for tick, clients in self._calendar.items()]
        return {"calendar": calendar}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._calendar = {tick: list(clients) for tick, clients in state["calendar"]}

    def __repr__(self) -> str:
        return repr(self.pattern)


class _RandomGaps:
    """Ticks until a client communicates: geometric, with a largest number."""

    def __init__(self, max_gap: int | None) -> None:
        self.max_gap = None if max_gap is None else positive_int("max_gap", max_gap)

    def check(self, name: str, probability: float) -> float:
        """A probability with which a client communicates some time."""
        value = fraction(name, probability)
        if value == 0 and self.max_gap is None:
            raise ValueError(
                f"{name} is 0, so the client would never communicate: give max_gap, "
                "the largest number of ticks between two communications"
            )
        return value

    def setup(self, federation: Federation, probabilities: NDArray[np.float64]) -> None:
        self._probabilities = probabilities
        self._streams = Streams(federation.seed, Concern.COMMUNICATION)

    def draw(self, client: int, tick: int) -> int:
        """From a stream of this client and tick alone."""
        probability, largest = self._probabilities[client], self.max_gap
        if probability == 0:
            assert largest is not None
            return largest
        gap = int(self._streams.at(client, tick).geometric(probability))
        return gap if largest is None else min(gap, largest)

    def expected(self) -> NDArray[np.float64]:
        p = np.asarray(self._probabilities, dtype=np.float64)
        if self.max_gap is None:
            return 1 / p
        some = np.clip(p, 1e-300, 1 - 1e-16)
        gaps = -np.expm1(np.log1p(-some) * self.max_gap) / some
        return np.asarray(np.where(p > 0, gaps, float(self.max_gap)))


def _ints(name: str, value: int | Sequence[int]) -> NDArray[np.int64]:
    """A number of at least 1 (shape ``[]``) or one for each client (shape ``[M]``)."""
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
        if not len(value):
            raise ValueError(f"{name} must hold one number for each client, got none")
        return np.array([positive_int(f"{name}[{i}]", each) for i, each in enumerate(value)])
    return np.array(positive_int(name, value))


def _for_each(name: str, values: NDArray[Any], federation: Federation) -> NDArray[Any]:
    """One number for each client, shape ``[M]``."""
    if values.ndim and len(values) != federation.num_clients:
        raise ValueError(
            f"{name} has {len(values)} numbers, "
            f"but there are {federation.num_clients} clients; give one for each"
        )
    return np.broadcast_to(values, (federation.num_clients,))
