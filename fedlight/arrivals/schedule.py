"""From an arrival process to a stream of events: the clock, the numbers of tasks, the deadlines."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, EndRound
from fedlight.checks import non_negative_int, positive, positive_int
from fedlight.events import EventQueue, Kind, to_ticks
from fedlight.types import Federation, Task

if TYPE_CHECKING:
    import pyarrow as pa


class Event(NamedTuple):
    """What the server has to handle: an arrival with its task, the end of a round, a deadline."""

    kind: Kind
    task: Task | None = None


class Schedule:
    """The events of a run, in the order of (time, kind, client, serial).

    ``for event in schedule.events(): …; schedule.send_on(event, version, released)``: the server
    handles each event wholly, then the clients are sent on.

    Args:
        arrivals: The arrival process; it is set up anew.
        federation: Who takes part.
        interval: Virtual time between deadlines, or None. Deadlines come at its multiples for as
            long as anything is in flight or still to come.
        max_time: Events later than this are not handled.
        on_dispatch: Called with each task when its client pulls the model.
    """

    def __init__(
        self,
        arrivals: ArrivalProcess,
        federation: Federation,
        *,
        interval: float | None = None,
        max_time: float | None = None,
        on_dispatch: Callable[[Task], None] = lambda task: None,
    ) -> None:
        arrivals.setup(federation)
        self.arrivals = arrivals
        self.version = 0
        self._queue: EventQueue[Event | Dispatch] = EventQueue()
        self._interval = None if interval is None else to_ticks(interval)
        self._max_ticks = None if max_time is None else to_ticks(max_time)
        self._on_dispatch = on_dispatch
        self._started = False
        self._serial = 0
        self._visits: dict[int, int] = {}
        self._named: Counter[int] = Counter()

    @property
    def now(self) -> float:
        """Virtual time of the event handled last."""
        return self._queue.now

    def events(self) -> Iterator[Event]:
        """The events that the server has to handle."""
        if not self._started:
            self._started = True
            self._act(self.arrivals.on_wake(0.0))
            self._push_deadline()
        while (ticks := self._queue.peek_ticks()) is not None:
            if self._max_ticks is not None and ticks > self._max_ticks:
                return
            event = self._queue.pop()
            if isinstance(event, Dispatch):
                self._dispatch(event)
                if event.pulled_version is not None:
                    self._named[event.pulled_version] -= 1
            elif event.kind is Kind.WAKE:
                self._act(self.arrivals.on_wake(self.now))
            elif event.task is not None and event.task.lost:
                self._act(self.arrivals.on_arrival(event.task, self.now))
            else:
                yield event

    def send_on(self, event: Event, version: int, released: Collection[int]) -> None:
        """Let the clients go on once the server has handled an event.

        Args:
            event: The event handled.
            version: The server's version now.
            released: Clients whose updates were used or dropped.
        """
        if version != self.version or released:
            self.version = version
            self._act(self.arrivals.on_version(version, released, self.now))
        if event.task is not None:
            self._act(self.arrivals.on_arrival(event.task, self.now))
        if event.kind is Kind.DEADLINE:
            self._push_deadline()

    def needs_version(self, version: int) -> bool:
        """Whether a task that is not dispatched yet names the version."""
        return self._named[version] > 0 or self.arrivals.needs_version(version)

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                if action.delay > 0:
                    if action.pulled_version is not None:
                        self._named[action.pulled_version] += 1
                    self._queue.push(
                        self._after(action.delay),
                        action,
                        kind=Kind.DISPATCH,
                        client=action.client_id,
                    )
                else:
                    self._dispatch(action)
            elif isinstance(action, EndRound):
                self._queue.push(
                    self._after(action.delay), Event(Kind.ROUND_END), kind=Kind.ROUND_END
                )
            else:
                self._queue.push(self._after(action.delay), Event(Kind.WAKE), kind=Kind.WAKE)

    def _after(self, delay: float) -> int:
        ticks = to_ticks(delay)
        if ticks <= 0:
            raise ValueError(
                f"{self.arrivals!r} gave a duration or delay of {delay!r}; "
                "virtual time has to go on, by at least 1e-9"
            )
        return self._queue.ticks + ticks

    def _dispatch(self, action: Dispatch) -> None:
        version = self.version if action.pulled_version is None else action.pulled_version
        if version > self.version:
            raise ValueError(
                f"client {action.client_id} is to pull version {version} at {self.now}, "
                f"but the server is only at version {self.version}"
            )
        arrival = self._after(action.duration)
        visit = self._visits.get(action.client_id, 0)
        task = Task(
            client_id=action.client_id,
            pulled_version=version,
            dispatched_at=self.now,
            arrives_at=arrival / to_ticks(1.0),
            num_steps=action.num_steps,
            serial=self._serial,
            visit=visit,
            lost=action.lost,
        )
        self._serial += 1
        self._visits[action.client_id] = visit + 1
        self._queue.push(
            arrival, Event(Kind.ARRIVAL, task), kind=Kind.ARRIVAL, client=task.client_id
        )
        self._on_dispatch(task)

    def _push_deadline(self) -> None:
        if self._interval is not None and len(self._queue):
            number = self._queue.ticks // self._interval + 1
            self._queue.push(
                number * self._interval, Event(Kind.DEADLINE), kind=Kind.DEADLINE
            )


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run stops.

    Attributes:
        max_rounds: After this many server updates.
        max_time: Before the first event later than this virtual time.
        max_updates: After this many arrivals.
    """

    max_rounds: int | None = None
    max_time: float | None = None
    max_updates: int | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be meant.

        Raises:
            ValueError: A limit is not above 0.
        """
        for name in ("max_rounds", "max_updates"):
            if getattr(self, name) is not None:
                positive_int(name, getattr(self, name))
        if self.max_time is not None:
            positive("max_time", self.max_time)

    def check(self, arrivals: ArrivalProcess) -> None:
        """Refuse a run that nothing would stop.

        Raises:
            ValueError: No limit is given and the process does not end by itself.
        """
        if self == Limits() and not arrivals.finite:
            raise ValueError(
                f"nothing would stop a run over {arrivals!r}: "
                "give max_rounds, max_updates or max_time"
            )

    def reached(self, rounds: int, updates: int) -> bool:
        """Whether the run is over after so many server updates and arrivals."""
        return (self.max_rounds is not None and rounds >= self.max_rounds) or (
            self.max_updates is not None and updates >= self.max_updates
        )


@dataclass(frozen=True, slots=True)
class ReplayEvent:
    """One arrival of a written-down schedule.

    Attributes:
        client: Who arrives.
        pulled_version: The version that it started from.
        time: Virtual time of the arrival.
        num_steps: Local steps that it made.
        dispatched_at: Virtual time of its pull; None for "as soon as its version exists and the
            client's record before it has arrived".
    """

    client: int
    pulled_version: int
    time: float
    num_steps: int
    dispatched_at: float | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be meant.

        Raises:
            TypeError: A number of the wrong kind.
            ValueError: A number outside its range.
        """
        non_negative_int("ReplayEvent.client", self.client)
        non_negative_int("ReplayEvent.pulled_version", self.pulled_version)
        positive("ReplayEvent.time", self.time)
        positive_int("ReplayEvent.num_steps", self.num_steps)
        if self.dispatched_at is not None and not 0 <= self.dispatched_at < self.time:
            raise ValueError(
                "ReplayEvent.dispatched_at must lie between 0 and the arrival at "
                f"time={self.time!r}, got {self.dispatched_at!r}"
            )


@dataclass(frozen=True, slots=True)
class ScheduleTable:
    """A schedule written down: what `ReplayArrivals` plays.

    Attributes:
        events: The arrivals, in their order.
        round_ends: Virtual times at which the process's rounds end; empty on the clock.
        num_clients: M.
        durations: T_i of each client where the process knows it.
    """

    events: list[ReplayEvent]
    round_ends: list[float] = field(default_factory=list)
    num_clients: int | None = None
    durations: list[float] | None = None

    def to_arrow(self) -> pa.Table:
        """The events as an Arrow table, one row each; all else in the schema's metadata."""
        import pyarrow as pa

        rest = {
            "round_ends": self.round_ends,
            "num_clients": self.num_clients,
            "durations": self.durations,
        }
        schema = pa.schema(
            [
                ("client", pa.int64()),
                ("pulled_version", pa.int64()),
                ("time", pa.float64()),
                ("num_steps", pa.int64()),
                ("dispatched_at", pa.float64()),
            ],
            metadata={"fedlight.schedule": json.dumps(rest)},
        )
        columns = {name: [getattr(event, name) for event in self.events] for name in schema.names}
        return pa.table(columns, schema=schema)

    def save(self, path: str | Path) -> None:
        """Write the schedule to a parquet file; a file that is there is replaced only when whole."""
        import pyarrow.parquet as pq

        path = Path(path)
        beside = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            pq.write_table(self.to_arrow(), beside)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> ScheduleTable:
        """Read a schedule that `save` wrote.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is none of ours.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no schedule file {str(path)!r}")
        try:
            table = pq.read_table(path)
            rest = json.loads(table.schema.metadata[b"fedlight.schedule"])
            events = [ReplayEvent(**row) for row in table.to_pylist()]
        except (pa.ArrowInvalid, KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{str(path)!r} is not a schedule written by fedlight "
                "(ScheduleTable.save or arrivals.record)"
            ) from error
        return cls(events=events, **rest)


def simulate(
    arrivals: ArrivalProcess,
    num_clients: int,
    *,
    max_rounds: int | None = None,
    max_time: float | None = None,
    max_updates: int | None = None,
    buffer_size: int | None = None,
    interval: float | None = None,
    num_examples: int | Iterable[int] = 1,
    batch_size: int = 1,
    seed: int = 0,
) -> ScheduleTable:
    """See `ArrivalProcess.simulate`."""
    limits = Limits(max_rounds, max_time, max_updates)
    limits.check(arrivals)
    if buffer_size is None and interval is None and not arrivals.by_rounds:
        raise ValueError(
            f"{arrivals!r} has no rounds: give buffer_size (server updates after so many "
            "arrivals) or interval (virtual time between server updates)"
        )
    positive_int("num_clients", num_clients)
    sizes = np.asarray(num_examples, dtype=np.int64)
    federation = Federation(
        num_clients, np.broadcast_to(sizes, (num_clients,)), batch_size, seed=seed
    )
    schedule = Schedule(arrivals, federation, interval=interval, max_time=max_time)
    version, held = 0, list[int]()
    events, round_ends = list[ReplayEvent](), list[float]()
    for event in schedule.events():
        if event.task is not None:
            task = event.task
            held.append(task.client_id)
            events.append(
                ReplayEvent(
                    task.client_id,
                    task.pulled_version,
                    task.arrives_at,
                    task.num_steps,
                    task.dispatched_at,
                )
            )
            due = buffer_size is not None and len(held) >= buffer_size
        elif event.kind is Kind.ROUND_END:
            round_ends.append(schedule.now)
            due = buffer_size is None and interval is None
        else:
            due = True
        released = list[int]()
        if due:
            version, released, held = version + 1, held, []
        schedule.send_on(event, version, released)
        if limits.reached(version, len(events)):
            break
    durations = arrivals.expected_durations()
    return ScheduleTable(
        events, round_ends, num_clients, None if durations is None else durations.tolist()
    )
