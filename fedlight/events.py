"""Virtual time, and the queue of what happens next.

Times are kept as integer ticks of 1e-9 units of virtual time, so that 0.3 + 0.3 + 0.3 is 0.9 and
an arrival exactly on a deadline is recognised as such.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import IntEnum
from typing import Any, Generic, TypeVar

TICKS_PER_UNIT = 10**9
MAX_TICKS = 2**53
"""Up to here a float holds every tick exactly: some nine million units of virtual time."""
_FAST = 2.0**44

E = TypeVar("E")


def to_ticks(time: float) -> int:
    """Virtual time to whole ticks, by the decimal digits that the float shows.

    Raises:
        ValueError: `time` is not finite.

    Example:
        >>> to_ticks(0.3) * 3 == to_ticks(0.9)
        True
    """
    scaled = time * 1e9
    if -_FAST < scaled < _FAST:
        nearest = round(scaled)
        # Both roundings of `scaled` together stay below 0.01 here, so the digits say the same.
        if -0.49 < scaled - nearest < 0.49:
            return nearest
    try:
        return int((Decimal(repr(float(time))) * TICKS_PER_UNIT).to_integral_value())
    except (OverflowError, ArithmeticError, ValueError):
        raise ValueError(f"a virtual time must be finite, got {time!r}") from None


def to_time(ticks: int) -> float:
    """Ticks to virtual time: the nearest float."""
    return ticks / TICKS_PER_UNIT


class Kind(IntEnum):
    """What an event is; at equal times the smaller kind comes first."""

    ARRIVAL = 0
    ROUND_END = 1
    DEADLINE = 2
    WAKE = 3
    DISPATCH = 4


class EventQueue(Generic[E]):
    """A heap of events ordered by (time, kind, client, serial); `now` never goes back.

    Example:
        >>> queue = EventQueue[str]()
        >>> queue.push(to_ticks(2.0), "late")
        >>> queue.push(to_ticks(0.5), "early")
        >>> queue.pop(), queue.now
        ('early', 0.5)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, int, E]] = []
        self._pushed = 0
        self.ticks = 0
        """`now` in ticks."""
        self.now = 0.0
        """Virtual time of the event popped last; 0.0 before the first."""

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, ticks: int, event: E, *, kind: int = 0, client: int = -1) -> None:
        """Put an event at an absolute time.

        Raises:
            ValueError: The time lies in the past.
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

    def pop(self) -> E:
        """Take the next event and move `now` to it.

        Raises:
            IndexError: The queue is empty.
        """
        self.ticks, _, _, _, event = heapq.heappop(self._heap)
        self.now = to_time(self.ticks)
        return event

    def state_dict(self, encode: Callable[[E], Any]) -> dict[str, Any]:
        """The clock and all events as plain data; `encode` makes plain data of an event."""
        heap = [[ticks, kind, client, pushed, encode(e)] for ticks, kind, client, pushed, e in self]
        return {"ticks": self.ticks, "pushed": self._pushed, "heap": heap}

    def load_state_dict(self, state: dict[str, Any], decode: Callable[[Any], E]) -> None:
        """Take up what `state_dict` gave; `decode` undoes its `encode`."""
        self.ticks, self._pushed = state["ticks"], state["pushed"]
        self.now = to_time(self.ticks)
        self._heap = [(*entry[:4], decode(entry[4])) for entry in state["heap"]]

    def __iter__(self) -> Iterator[tuple[int, int, int, int, E]]:
        """What is in the queue, as (ticks, kind, client, number, event), in no special order."""
        return iter(self._heap)

    def peek_ticks(self) -> int | None:
        """Time of the next event in ticks, or None."""
        return self._heap[0][0] if self._heap else None
