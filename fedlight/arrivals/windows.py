"""The availability of clients: windows of virtual time."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedlight._support.checks import (
    fraction,
    non_negative,
    non_negative_int,
    number,
    positive,
    shown,
)
from fedlight._support.files import existing_file
from fedlight._support.strategy import Strategy, Summary, digest
from fedlight.arrivals._per_client import check_length, no_client, of_client, one_for_all_or_each
from fedlight.events import MAX_TICKS, TICKS_PER_UNIT, to_ticks
from fedlight.randomness import Concern, Streams

if TYPE_CHECKING:
    from fedlight.types import Federation

Intervals = Sequence[tuple[float, float]]


class Window(NamedTuple):
    """From `start` to just before `end`, in ticks of 1e-9 units of virtual time."""

    start: int
    end: int


class Windows(Strategy, ABC):
    """Half-open windows ``[start, end)`` of virtual time in which each client can pull the model.

    A subclass defines `find`. Times are in ticks of 1e-9 units of virtual time, so that a pull at
    the very end of a window is recognised.
    """

    _repr_short = True

    def setup(self, federation: Federation) -> None:
        """Prepare for a run.

        Raises:
            ValueError: The windows do not fit the federation.
        """
        return

    @abstractmethod
    def find(self, client: int, ticks: int) -> Window | None:
        """Return the client's window that contains `ticks`, else its next one, or None."""

    def over(self, ticks: int) -> bool:
        """Return whether all windows of all clients have ended by `ticks`."""
        return False


def first_after(windows: Sequence[Window], ticks: int) -> Window | None:
    """Return the first of the windows in ascending order that ends after `ticks`, or None."""
    place = bisect_right(windows, ticks, key=lambda window: window.end)
    return windows[place] if place < len(windows) else None


def united(windows: Iterable[Window]) -> list[Window]:
    """Return windows in ascending order, those that overlap or lie within another one as one.

    Windows that only touch stay two: a client that leaves and comes back at the same time does not
    continue a task that is lost at the end of its window.

    Example:
        >>> united([Window(20, 28), Window(38, 41), Window(19, 33), Window(33, 35)])
        [Window(start=19, end=33), Window(start=33, end=35), Window(start=38, end=41)]
    """
    found: list[Window] = []
    for window in sorted(windows):
        if found and window.start < found[-1].end:
            found[-1] = Window(found[-1].start, max(found[-1].end, window.end))
        else:
            found.append(window)
    return found


class IntervalWindows(Windows):
    """Given intervals of virtual time, the same for all clients or a list for each client.

    Client i can pull the model at times t with ``start <= t < end``. Intervals that overlap are
    one.

    Args:
        intervals: ``[(start, end), …]`` for all clients, or a mapping from client to such a list. A
            client that is not in the mapping is never available.

    Raises:
        TypeError: `intervals` has another form.
        ValueError: There is no interval, or one ends before it starts.

    Source: Yang et al., [Anarchic Federated Learning](https://arxiv.org/abs/2108.09875), Algorithm
    1, in which workers choose when they take part.

    Example:
        >>> windows = IntervalWindows({0: [(0, 2), (5, 8)], 1: [(1, 3)]})
        >>> windows.find(0, to_ticks(2.0)) == Window(to_ticks(5), to_ticks(8))
        True
    """

    def __init__(self, intervals: Intervals | Mapping[int, Intervals]) -> None:
        intervals = checked_intervals("intervals", intervals)
        self._windows: dict[int | None, list[Window]] = {}
        given = intervals if isinstance(intervals, Mapping) else {None: intervals}
        for client, pairs in given.items():
            name = "intervals"
            if client is not None:
                name = f"intervals[{non_negative_int('a client of intervals', client)}]"
            if isinstance(pairs, str | bytes | Mapping) or not isinstance(pairs, Iterable):
                raise TypeError(f"{name} must be a list of (start, end), got {pairs!r}")
            self._windows[client] = united(_window(name, pair) for pair in pairs)
        if not any(self._windows.values()):
            raise ValueError(f"intervals must hold at least one (start, end), got {intervals!r}")
        self._end = max(windows[-1].end for windows in self._windows.values() if windows)

    @classmethod
    def from_file(cls, path: str | Path) -> IntervalWindows:
        """Read the intervals of each client from a CSV file with the columns client, start, end.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: A column is missing, or a line does not hold numbers.
        """
        return intervals_of_file("path", path)

    def setup(self, federation: Federation) -> None:
        """Check the clients.

        Raises:
            ValueError: An interval is given for a client that does not exist.
        """
        largest = max((client for client in self._windows if client is not None), default=0)
        if largest >= federation.num_clients:
            raise no_client("intervals", largest, federation)

    def find(self, client: int, ticks: int) -> Window | None:
        """The first window that ends after `ticks`, or None."""
        return first_after(self._windows.get(client) or self._windows.get(None, []), ticks)

    def over(self, ticks: int) -> bool:
        """Whether the last window has ended."""
        return ticks >= self._end

    def _kept_otherwise(self) -> dict[str, Any]:
        windows: Sequence[Any] = self._windows.get(None) or sorted(self._windows.items())
        unit = "intervals" if None in self._windows else "clients"
        return {"intervals": Summary(f"{len(windows)} {unit}, {digest(windows)}")}


class DiurnalWindows(Windows):
    """Each client is available for the same share of every day, starting at its own time of day.

    ``phase_i + n * period <= t < phase_i + n * period + share * period`` for any integer n: client
    i can pull the model at these times t.

    Args:
        period: Length of a day, in virtual time.
        share: Share of the day during which a client is available, above 0, at most 1.
        phases: The time at which each client's day begins, in virtual time; one number for all
            clients or one for each. None draws them uniformly over the day, as for people in all
            time zones.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range.

    Source: Bonawitz et al., [Towards Federated Learning at Scale: System
    Design](https://arxiv.org/abs/1902.01046), Section 9, where the number of devices follows the
    time of day.
    """

    _repr_optional = ("phases",)

    def __init__(
        self,
        period: float = 24.0,
        share: float = 0.5,
        phases: float | Sequence[float] | None = None,
    ) -> None:
        self.period = positive("period", period)
        self.share = fraction("share", share)
        self._period = to_ticks(self.period)
        if self._period > MAX_TICKS:
            raise ValueError(
                f"period must be at most {MAX_TICKS // TICKS_PER_UNIT:,} units of virtual time, "
                f"got {period!r}; choose a larger unit, such as hours instead of milliseconds"
            )
        self._length = to_ticks(self.period * self.share)
        if self._length < 1:
            raise ValueError(
                "share of the period must last at least 1e-9, got "
                f"share={share!r} and period={period!r}"
            )
        self.phases = None if phases is None else one_for_all_or_each("phases", phases, _phase)

    def setup(self, federation: Federation) -> None:
        """Prepare the streams from which phases are drawn.

        Raises:
            ValueError: There is not one phase for each client.
        """
        check_length("phases", self.phases, federation)
        self._streams = Streams(federation.seed, Concern.AVAILABILITY)
        self._drawn: dict[int, int] = {}

    def find(self, client: int, ticks: int) -> Window:
        """The window of this day, or else of the next one."""
        start = ticks - (ticks - self._phase(client)) % self._period
        if self._length < self._period and ticks >= start + self._length:
            start += self._period
        return Window(start, start + self._length)

    def _phase(self, client: int) -> int:
        if self.phases is not None:
            return to_ticks(of_client(self.phases, client))
        # Drawn when first needed, from a stream of the client: of a million only a few may work.
        if client not in self._drawn:
            self._drawn[client] = int(self._streams.at(client).integers(self._period))
        return self._drawn[client]


def _phase(name: str, value: object) -> float:
    phase = number(name, value)
    to_ticks(phase)  # a time that is too large raises an error now
    return phase


def _window(name: str, pair: tuple[float, float]) -> Window:
    try:
        start, end = pair
    except (TypeError, ValueError):
        raise TypeError(f"{name} must hold pairs (start, end), got {pair!r}") from None
    window = Window(to_ticks(non_negative(name, start)), to_ticks(positive(name, end)))
    if window.start >= window.end:
        raise ValueError(f"{name} must hold pairs with start < end, got {pair!r}")
    return window


def intervals_of_file(name: str, path: str | Path) -> IntervalWindows:
    """See `IntervalWindows.from_file`; `name` is that of the argument."""
    path = existing_file(name, path, "file of intervals")
    intervals: dict[int, list[tuple[float, float]]] = {}
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if not {"client", "start", "end"} <= set(rows.fieldnames or ()):
            raise ValueError(
                f"{str(path)!r} must have the columns client,start,end in its first line, "
                f"got {rows.fieldnames}"
            )
        for row in rows:
            try:
                pair = float(row["start"]), float(row["end"])
                intervals.setdefault(int(row["client"]), []).append(pair)
            except (TypeError, ValueError):
                raise ValueError(
                    f"line {rows.line_num} of {str(path)!r} must hold numbers, "
                    f"got {list(row.values())}"
                ) from None
    return IntervalWindows(intervals)


def checked_intervals(name: str, intervals: Any) -> Any:
    """Return `intervals` if they are a list or a mapping that is not empty; `name` is the argument.

    Raises:
        TypeError: They are something else.
        ValueError: They are empty.
    """
    if isinstance(intervals, np.ndarray):
        intervals = intervals.tolist()
    if isinstance(intervals, str | bytes) or not isinstance(intervals, Sequence | Mapping):
        raise TypeError(
            f"{name} must be a list of (start, end) or a mapping to such lists, got "
            f"{shown(intervals)}; for example [(0, 8), (24, 32)]"
        )
    if not intervals:
        raise ValueError(f"{name} must hold at least one (start, end), got {intervals!r}")
    return intervals
