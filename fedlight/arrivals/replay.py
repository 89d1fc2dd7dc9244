"""A written-down schedule, played again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, EndRound, Wake
from fedlight.arrivals.durations import FixedDurations
from fedlight.arrivals.table import ReplayEvent, ScheduleTable
from fedlight.events import to_ticks, to_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation, Task


class ReplayArrivals(ArrivalProcess):
    """Plays records of (client, pulled version, time, steps), whatever the aggregator.

    A record with its own `dispatched_at` is dispatched then. One without is dispatched as soon as
    its pulled version exists and the client's record before it has arrived. The version that it
    names is pulled even where a newer one exists; the server keeps it until then.

    Args:
        events: The records, a `ScheduleTable`, or the path of a file that one was saved to.
        durations: T_i of each client, virtual time, where a time-based aggregator needs it.
        round_ends: Virtual times at which rounds end, for aggregators without a buffer size.

    Raises:
        TypeError: A record is no `ReplayEvent`.
        ValueError: There is no record, or (during the run) a record's version cannot exist by its
            arrival.

    Example:
        >>> table = ScheduleTable([ReplayEvent(client=0, pulled_version=0, time=1.0, num_steps=2)])
        >>> ReplayArrivals(table)
        ReplayArrivals(1 events)
    """

    finite = True

    def __init__(
        self,
        events: Iterable[ReplayEvent] | ScheduleTable | str | Path,
        durations: Sequence[float] | FixedDurations | None = None,
        round_ends: Sequence[float] = (),
    ) -> None:
        if isinstance(events, str | Path):
            events = ScheduleTable.load(events)
        if isinstance(events, ScheduleTable):
            durations = durations if durations is not None else events.durations
            round_ends = round_ends or events.round_ends
            events = events.events
        self.events = list(events)
        for number, event in enumerate(self.events):
            if not isinstance(event, ReplayEvent):
                raise TypeError(f"events[{number}] must be a ReplayEvent, got {event!r}")
        if not self.events:
            raise ValueError("events must hold at least one ReplayEvent, got none")
        if durations is not None and not isinstance(durations, FixedDurations):
            durations = FixedDurations(durations)
        self.durations = durations
        self.round_ends = [float(end) for end in round_ends]
        self.by_rounds = bool(self.round_ends)

    def setup(self, federation: Federation) -> None:
        """Start at the first record.

        Raises:
            ValueError: A record names a client that does not exist.
        """
        for number, event in enumerate(self.events):
            if event.client >= federation.num_clients:
                raise ValueError(
                    f"events[{number}] names client {event.client}, but there are only "
                    f"{federation.num_clients} clients (0 to {federation.num_clients - 1})"
                )
        if self.durations is not None:
            self.durations.check(federation)
        self._version = 0
        self._started = False
        self._open = Counter(event.pulled_version for event in self.events)
        self._queues: dict[int, list[ReplayEvent]] = {}
        for event in sorted(self.events, key=lambda event: -event.time):
            if event.dispatched_at is None:
                self._queues.setdefault(event.client, []).append(event)
        self._waiting = set(self._queues)

    def on_wake(self, now: float) -> Iterator[Action]:
        """Everything with a time of its own at the start; later, a record that is overdue."""
        if not self._started:
            self._started = True
            yield from self._timed()
            for client in sorted(self._queues):
                yield from self._next(client, now)
            return
        for client in sorted(self._waiting):
            queue = self._queues[client]
            if queue and to_ticks(queue[-1].time) <= to_ticks(now):
                raise self._impossible(queue[-1])

    def on_version(
        self, version: int, clients: Collection[int], now: float
    ) -> Iterator[Action]:
        """Records that waited for this version."""
        self._version = version
        for client in sorted(self._waiting):
            yield from self._next(client, now)

    def on_arrival(self, task: Task, now: float) -> Iterator[Action]:
        """The client's next record."""
        if task.client_id in self._queues:
            self._waiting.add(task.client_id)
            yield from self._next(task.client_id, now)

    def needs_version(self, version: int) -> bool:
        """Whether a record not dispatched yet names the version."""
        return self._open[version] > 0

    def expected_durations(self) -> NDArray[np.float64] | None:
        """The durations given."""
        return None if self.durations is None else np.array(self.durations.durations)

    def _timed(self) -> Iterator[Action]:
        for event in self.events:
            if event.dispatched_at is None:
                yield Wake(event.time)
            else:
                self._open[event.pulled_version] -= 1
                yield self._dispatch(event, event.dispatched_at, delay=event.dispatched_at)
        for end in self.round_ends:
            yield EndRound(end)

    def _next(self, client: int, now: float) -> Iterator[Action]:
        queue = self._queues[client]
        if not queue:
            self._waiting.discard(client)
        elif client in self._waiting and queue[-1].pulled_version <= self._version:
            event = queue.pop()
            self._waiting.discard(client)
            if to_ticks(event.time) <= to_ticks(now):
                raise self._impossible(event)
            self._open[event.pulled_version] -= 1
            yield self._dispatch(event, now)

    def _dispatch(self, event: ReplayEvent, at: float, delay: float = 0.0) -> Dispatch:
        duration = to_time(to_ticks(event.time) - to_ticks(at))
        return Dispatch(event.client, duration, event.num_steps, delay, event.pulled_version)

    def _impossible(self, event: ReplayEvent) -> ValueError:
        return ValueError(
            f"{event} can never happen: version {event.pulled_version} does not exist, with the "
            f"client free, before its arrival at {event.time}; the server is at version "
            f"{self._version}"
        )

    def __repr__(self) -> str:
        return f"ReplayArrivals({len(self.events)} events)"
