"""The ticks of a common clock at which each client communicates."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlight._support.checks import fraction, non_negative_int, optional, positive_int
from fedlight._support.strategy import Strategy, Summary, digest
from fedlight.arrivals._per_client import (
    check_length,
    no_client,
    of_client,
    one_for_all_or_each,
    spread_out,
)
from fedlight.events import MAX_TICKS, TICKS_PER_UNIT
from fedlight.randomness import Concern, Streams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation

# A tick of the common clock is a unit of virtual time, not a tick of the event queue.
LAST_TICK = MAX_TICKS // TICKS_PER_UNIT


class TickPattern(Strategy, ABC):
    """The ticks 1, 2, ... of the common clock at which each client communicates.

    A pattern keeps no state between calls: `next` is a function of the client and the tick, and
    random patterns draw from the stream (seed, concern, client, tick). A resumed run then needs no
    saved state.
    """

    _repr_positional, _repr_short = 1, True
    last: int | None = None
    """The last tick of the pattern, or None if it has no end."""

    @abstractmethod
    def next(self, client: int, tick: int) -> int | None:
        """Return the client's first tick after `tick`, or None if there is none."""

    @abstractmethod
    def setup(self, federation: Federation) -> None:
        """Prepare for a run.

        Raises:
            ValueError: The pattern does not fit the federation.
        """

    def expected_gaps(self) -> NDArray[np.float64] | None:
        """Mean number of ticks between two communications of each client, shape ``[M]``."""
        return None


class PeriodicTicks(TickPattern):
    """Client i communicates at regular ticks.

    ``t = offset_i + n * period_i`` for n = 0, 1, ...

    Args:
        period: Ticks between two communications, one number for all clients or one for each.
        offsets: First tick of each client, from 1 to its period; None for its period.

    Raises:
        TypeError: An argument is neither an integer nor a list of integers.
        ValueError: A number is below 1 or above 9 million; or (at set-up) an offset is larger than
            its period.

    Source: Avdiukhin and Kasiviswanathan, [Federated Learning under Arbitrary Communication
    Patterns](https://proceedings.mlr.press/v139/avdiukhin21a.html).
    """

    def __init__(self, period: int | Sequence[int], offsets: Sequence[int] | None = None) -> None:
        self.period = one_for_all_or_each("period", period, _tick)
        first = self.period if offsets is None else offsets
        self.offsets = one_for_all_or_each("offsets", first, _tick)

    def setup(self, federation: Federation) -> None:
        """Check the numbers of clients, and that no offset is larger than its period.

        Raises:
            ValueError: They do not fit.
        """
        check_length("period", self.period, federation)
        check_length("offsets", self.offsets, federation)
        self._periods = spread_out(self.period, federation)
        late = np.flatnonzero(spread_out(self.offsets, federation) > self._periods)
        if len(late):
            client = int(late[0])
            raise ValueError(
                f"offsets[{client}] must be at most the period {of_client(self.period, client)}, "
                f"got {of_client(self.offsets, client)}"
            )

    def next(self, client: int, tick: int) -> int:
        """The next multiple of the period, shifted by the offset."""
        period, offset = of_client(self.period, client), of_client(self.offsets, client)
        return offset + max(0, (tick - offset) // period + 1) * period

    def expected_gaps(self) -> NDArray[np.float64]:
        """The periods."""
        return self._periods


class RandomPattern(TickPattern):
    """Geometric numbers of ticks until a client communicates again, with a largest number.

    A subclass checks its probabilities with `_probability` and defines `probabilities`.
    """

    def __init__(self, max_gap: int | None) -> None:
        self.max_gap = optional(positive_int, "max_gap", max_gap)

    @abstractmethod
    def _tick_probabilities(self, federation: Federation) -> NDArray[np.float64]:
        """Return the probability per tick of each client, shape ``[M]``."""

    def setup(self, federation: Federation) -> None:
        """Give each client its probability.

        Raises:
            ValueError: The probabilities do not fit the federation.
        """
        self._probabilities = self._tick_probabilities(federation)
        self._streams = Streams(federation.seed, Concern.COMMUNICATION)

    def next(self, client: int, tick: int) -> int:
        """A geometric number of ticks later, at most `max_gap`."""
        probability, largest = self._probabilities[client], self.max_gap
        if probability == 0:
            assert largest is not None
            return tick + largest  # NumPy's geometric distribution refuses a probability of 0
        # Named by client and tick, so that a resumed run needs no saved state.
        gap = int(self._streams.at(client, tick).geometric(probability))
        return tick + (gap if largest is None else min(gap, largest))

    def expected_gaps(self) -> NDArray[np.float64]:
        """``1 / p``, or ``(1 - (1 - p)**max_gap) / p`` with a largest gap."""
        p = self._probabilities
        if self.max_gap is None:
            return 1 / p
        # By log1p and expm1, since (1 - p)**max_gap loses all digits of a small p.
        some = np.clip(p, 1e-300, 1 - 1e-16)
        gaps = -np.expm1(np.log1p(-some) * self.max_gap) / some
        return np.asarray(np.where(p > 0, gaps, float(self.max_gap)))

    def _probability(self, name: str, value: object) -> float:
        """Return a probability with which a client communicates within virtual time."""
        probability = fraction(name, value)
        if probability < 1 / LAST_TICK and (self.max_gap is None or self.max_gap > LAST_TICK):
            often = "never" if probability == 0 else "almost never"
            raise ValueError(
                f"{name} is {probability:g}, so the client would {often} communicate; give "
                "max_gap, the largest number of ticks between two communications"
            )
        return probability


class RandomTicks(RandomPattern):
    """At each tick client i communicates with probability p_i, and after at most `max_gap` ticks.

    ``gap ~ min(Geometric(p_i), max_gap)``; the mean is ``(1 - (1 - p_i)**max_gap) / p_i``.

    Args:
        probability: p_i, one number for all clients or one for each, from 0 to 1.
        max_gap: Largest number of ticks between two communications of a client; None for no limit.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range, or without `max_gap` a client would hardly
            ever communicate.

    Source: Avdiukhin and Kasiviswanathan, [Federated Learning under Arbitrary Communication
    Patterns](https://proceedings.mlr.press/v139/avdiukhin21a.html); `max_gap` is its Delta.
    """

    def __init__(self, probability: float | Sequence[float], max_gap: int | None = None) -> None:
        super().__init__(max_gap)
        self.probability = one_for_all_or_each("probability", probability, self._probability)

    def _tick_probabilities(self, federation: Federation) -> NDArray[np.float64]:
        """Raise a ValueError unless there is one probability for all or one for each client."""
        check_length("probability", self.probability, federation)
        return spread_out(self.probability, federation)


class ImbalancedTicks(RandomPattern):
    """A share of the clients communicates rarely, the others often, at random ticks.

    ``p_i = rarely`` for the last ``ceil(rare_share * M)`` of the M clients, ``p_i = often`` for the
    others; gaps are drawn as in `RandomTicks`.

    Args:
        rare_share: Share of the clients that communicate rarely; these are the last ones.
        often: Probability per tick for the others.
        rarely: Probability per tick for the rare ones; at most `often`.
        max_gap: Largest number of ticks between two communications of a client; None for no limit.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range, or without `max_gap` a client would hardly
            ever communicate.

    Source: Avdiukhin and Kasiviswanathan, [Federated Learning under Arbitrary Communication
    Patterns](https://proceedings.mlr.press/v139/avdiukhin21a.html); `max_gap` is its Delta.
    """

    def __init__(
        self, rare_share: float, often: float, rarely: float, max_gap: int | None = None
    ) -> None:
        super().__init__(max_gap)
        self.rare_share = fraction("rare_share", rare_share)
        self.often = self._probability("often", often)
        self.rarely = self._probability("rarely", rarely)
        if self.rarely > self.often:
            raise ValueError(f"rarely must be at most often={often!r}, got {rarely!r}")

    def _tick_probabilities(self, federation: Federation) -> NDArray[np.float64]:
        """`often`, and `rarely` for the last clients."""
        num_rare = math.ceil(self.rare_share * federation.num_clients)
        values = np.full(federation.num_clients, self.often)
        values[federation.num_clients - num_rare :] = self.rarely
        return values


class TableTicks(TickPattern):
    """A table lists the clients that communicate at each tick; the run ends with the table.

    ``communicates[t - 1]`` are the clients that communicate at tick t.

    Args:
        communicates: For each tick from 1 on, a list of clients, which may be empty.

    Raises:
        TypeError: `communicates` is not a list of lists of integers.
        ValueError: A client is named twice at a tick, or no client is named at all.

    Source: Avdiukhin and Kasiviswanathan, [Federated Learning under Arbitrary Communication
    Patterns](https://proceedings.mlr.press/v139/avdiukhin21a.html), whose patterns are arbitrary.
    """

    last: int

    def __init__(self, communicates: Sequence[Sequence[int]]) -> None:
        rows = _rows("communicates", communicates)
        self._ticks: dict[int, list[int]] = {}
        for tick, row in enumerate(rows, start=1):
            name = f"communicates[{tick - 1}]"
            for client in _rows(name, row):
                if isinstance(client, bool | np.bool_):
                    raise TypeError(
                        f"{name} must be a list of clients, got {client!r}; for a table of "
                        "booleans write [np.flatnonzero(row) for row in table]"
                    )
                ticks = self._ticks.setdefault(non_negative_int(name, client), [])
                if ticks and ticks[-1] == tick:
                    raise ValueError(f"{name} names client {client} twice")
                ticks.append(tick)
        if not self._ticks:
            raise ValueError("communicates must name a client at some tick, got none")
        self.last = len(rows)

    def setup(self, federation: Federation) -> None:
        """Check the clients.

        Raises:
            ValueError: The table names a client that does not exist.
        """
        largest = max(self._ticks)
        if largest >= federation.num_clients:
            source = f"communicates[{self._ticks[largest][0] - 1}]"
            raise no_client(source, largest, federation)

    def next(self, client: int, tick: int) -> int | None:
        """The client's next tick in the table."""
        ticks = self._ticks.get(client, [])
        place = bisect_right(ticks, tick)
        return ticks[place] if place < len(ticks) else None

    def _kept_otherwise(self) -> dict[str, Any]:
        ticks = digest(sorted(self._ticks.items()))
        return {"communicates": Summary(f"{self.last} ticks, {ticks}")}


def _tick(name: str, value: object) -> int:
    tick = positive_int(name, value)
    if tick > LAST_TICK:
        raise ValueError(f"{name} must be at most {LAST_TICK:,} ticks, got {tick}")
    return tick


def _rows(name: str, value: object) -> list[Any]:
    alone = isinstance(value, str | bytes | Mapping) or not getattr(value, "shape", (1,))
    if alone or not isinstance(value, Iterable):
        raise TypeError(
            f"{name} must be a list, got {value!r}; communicates has one list of clients for each "
            "tick, such as [[0, 2], [], [1]]"
        )
    return list(value)
