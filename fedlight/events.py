"""Virtual time, and the queue of events.

Times are kept as integer ticks of 1e-9 units of virtual time, so that 0.3 + 0.3 + 0.3 is 0.9 and
an arrival exactly at a deadline is recognised as such.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import IntEnum
from typing import Any, Generic, TypeVar

TICKS_PER_UNIT = 10**9
MAX_TICKS = 2**53
"""Largest time: up to here a float holds every tick exactly. Some nine million units."""
_FAST = 2.0**44

E = TypeVar("E")


def to_ticks(time: float) -> int:
    """Convert virtual time to whole ticks, by the decimal digits that the float prints.

    Raises:
        ValueError: `time` is not finite.

    Example:
        >>> to_ticks(0.3) * 3 == to_ticks(0.9)
        True
    """
    scaled = time * 1e9
    if -_FAST < scaled < _FAST:
        nearest = round(scaled)
        # The rounding errors of `scaled` add up to less than 0.01 here, so the exact decimal
        # conversion below, which is slow, would give the same tick.
        if -0.49 < scaled - nearest < 0.49:
            return nearest
    try:
        return int((Decimal(repr(float(time))) * TICKS_PER_UNIT).to_integral_value())
    except (OverflowError, ArithmeticError, ValueError):
        raise ValueError(f"a virtual time must be finite, got {time!r}") from None


def to_time(ticks: int) -> float:
    """Convert ticks to virtual time, the nearest float."""
    return ticks / TICKS_PER_UNIT


class Kind(IntEnum):
    """The kind of an event. At equal times the smaller kind comes first.

    An arrival at the time of a deadline or of the end of a round thus belongs to it, and clients
    that start at that time pull the version that was made there.
    """

    ARRIVAL = 0
    ROUND_END = 1
    DEADLINE = 2
    WAKE = 3
    DISPATCH = 4


class EventQueue(Generic[E]):
    """A heap of events ordered by (time, kind, client, serial); `now` never goes back.

    Example:
        >>> queue = EventQueue[str]()
        >>> late = queue.push(to_ticks(2.0), "late")
        >>> early = queue.push(to_ticks(0.5), "early")
        >>> queue.pop(), queue.now
        ('early', 0.5)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, int, E]] = []
        self._pushed = 0
        # Numbers of removed events that are still in the heap, never at its head: to take one out
        # of the middle would cost a pass over all of them.
        self._removed: set[int] = set()
        self.ticks = 0
        """Virtual time in ticks."""
        self.now = 0.0
        """Virtual time of the event popped last; 0.0 before the first."""

    def __len__(self) -> int:
        return len(self._heap) - len(self._removed)

    def push(self, ticks: int, event: E, *, kind: int = 0, client: int = -1) -> int:
        """Add an event at an absolute time.

        Args:
            ticks: The time.
            event: The event.
            kind: Its kind, which orders events at the same time.
            client: Its client, which orders events of the same time and kind.

        Returns:
            The number of the event, for `remove`.

        Raises:
            ValueError: The time is in the past, or too large to be kept exactly.
        """
        if ticks > MAX_TICKS:
            raise ValueError(
                f"virtual time would pass {MAX_TICKS // TICKS_PER_UNIT:,} units, beyond which it "
                "cannot be kept exactly; take a larger unit (hours in place of milliseconds)"
            )
        if ticks < self.ticks:
            raise ValueError(f"an event at {to_time(ticks)!r} is in the past: now is {self.now!r}")
        heapq.heappush(self._heap, (ticks, kind, client, self._pushed, event))
        self._pushed += 1
        return self._pushed - 1

    def remove(self, number: int) -> None:
        """Remove an event that is still to come, by the number that `push` returned."""
        self._removed.add(number)
        if len(self._removed) * 2 > len(self._heap):
            self._heap = list(self)
            heapq.heapify(self._heap)
            self._removed.clear()
        self._clear_head()

    def _clear_head(self) -> None:
        while self._heap and self._heap[0][3] in self._removed:
            self._removed.discard(heapq.heappop(self._heap)[3])

    def pop(self) -> E:
        """Remove and return the next event, and move `now` to its time.

        Raises:
            IndexError: The queue is empty.
        """
        self.ticks, _, _, _, event = heapq.heappop(self._heap)
        self.now = to_time(self.ticks)
        if self._removed:
            self._clear_head()
        return event

    def state_dict(self, encode: Callable[[E], Any]) -> dict[str, Any]:
        """Return the clock and all events as plain data; `encode` does it for one event."""
        heap = [[ticks, kind, client, pushed, encode(e)] for ticks, kind, client, pushed, e in self]
        return {"ticks": self.ticks, "pushed": self._pushed, "heap": heap}

    def load_state_dict(self, state: dict[str, Any], decode: Callable[[Any], E]) -> None:
        """Restore what `state_dict` returned; `decode` is the inverse of `encode`."""
        self.ticks, self._pushed = state["ticks"], state["pushed"]
        self.now = to_time(self.ticks)
        self._heap = [(*entry[:4], decode(entry[4])) for entry in state["heap"]]
        heapq.heapify(self._heap)  # removed events left gaps
        self._removed = set()

    def __iter__(self) -> Iterator[tuple[int, int, int, int, E]]:
        """Iterate over all entries (ticks, kind, client, number, event), in no special order."""
        if not self._removed:
            return iter(self._heap)
        return (entry for entry in self._heap if entry[3] not in self._removed)

    def peek_ticks(self) -> int | None:
        """Return the time of the next event in ticks, or None if there is none."""
        return self._heap[0][0] if self._heap else None
