"""From an arrival process to a stream of events: the clock, the numbers of tasks, the deadlines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, EndRound, Wake
from fedlight.checks import positive, positive_int
from fedlight.events import EventQueue, Kind, to_ticks, to_time
from fedlight.types import Federation, Task


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
        on_lost: Called with each task that is lost, when it would have arrived.
    """

    def __init__(
        self,
        arrivals: ArrivalProcess,
        federation: Federation,
        *,
        interval: float | None = None,
        max_time: float | None = None,
        on_dispatch: Callable[[Task], None] = lambda task: None,
        on_lost: Callable[[Task], None] = lambda task: None,
    ) -> None:
        self._interval = None if interval is None else to_ticks(interval)
        if self._interval is not None and self._interval < 1:
            raise ValueError(f"interval must be at least 1e-9 of virtual time, got {interval!r}")
        arrivals.setup(federation)
        self.arrivals = arrivals
        self._num_clients = federation.num_clients
        self.version = 0
        self.current: Event | None = None
        """The event that the server is handling: given out, and not sent on yet."""
        self._queue: EventQueue[Event | Dispatch] = EventQueue()
        self._max_ticks = None if max_time is None else to_ticks(max_time)
        self._on_dispatch, self._on_lost = on_dispatch, on_lost
        self._started = False
        self.stopped = False
        """Set to end `events` before anything else happens."""
        self.lost_in_a_row = 0
        self._coming = 0
        self._deadline_due = False
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
            self._deadline_due = self._interval is not None
        queue = self._queue
        while (ticks := queue.peek_ticks()) is not None and not self._over():
            if self.stopped:
                return
            if self._deadline_due and ticks > queue.ticks:
                self._push_deadline()
                continue
            if self._max_ticks is not None and ticks > self._max_ticks:
                return
            event = queue.pop()
            if isinstance(event, Dispatch):
                self._coming -= 1
                self._dispatch(event, queue.now)
                if event.pulled_version is not None:
                    self._named[event.pulled_version] -= 1
                continue
            kind, task = event
            if kind is Kind.WAKE:
                self._act(self.arrivals.on_wake(queue.now))
                continue
            if task is not None:
                self._coming -= 1
                if task.lost:
                    self.lost_in_a_row += 1
                    self._on_lost(task)
                    self._act(self.arrivals.on_arrival(task, queue.now))
                    continue
                self.lost_in_a_row = 0
            self.current = event
            yield event

    def send_on(
        self,
        event: Event,
        version: int,
        released: Collection[int],
        failed: Iterable[Task] = (),
    ) -> None:
        """Let the clients go on once the server has handled an event.

        Args:
            event: The event handled.
            version: The server's version now.
            released: Clients whose updates were used or dropped.
            failed: Tasks to be tried once more, from the newest version. The process hears nothing
                of such a try until its update is used or dropped: it has heard of the first one.
        """
        news = version != self.version or bool(released)
        self.version, self.current = version, None
        now = self._queue.now
        if event.task is not None:
            if not event.task.tries:
                self._act(self.arrivals.on_arrival(event.task, now))
        elif event.kind is Kind.ROUND_END:
            self._act(self.arrivals.on_round_end(now))
        if news:
            self._act(self.arrivals.on_version(version, released, now))
        for task in failed:
            duration = to_time(to_ticks(task.arrives_at) - to_ticks(task.dispatched_at))
            again = Dispatch(task.client_id, duration, task.num_steps)
            self._dispatch(again, now, tries=task.tries + 1)
        # The next deadline is set when this instant is over, and only if more is still to come.
        self._deadline_due |= event.kind is Kind.DEADLINE

    def _over(self) -> bool:
        """Whether nobody can arrive: all that come are lost, or the process only wakes up."""
        if self.lost_in_a_row >= 1000 + 10 * self._num_clients:
            return True
        return (
            not self._coming
            and self.arrivals.over(self._queue.now)
            and all(kind == Kind.WAKE for _, kind, *_ in self._queue)
        )

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left that could happen."""
        return self._started and (self._queue.peek_ticks() is None or self._over())

    def finish(self) -> None:
        """Tell the process that the run is over."""
        self.arrivals.finish()

    def needs_version(self, version: int) -> bool:
        """Whether a task that is not dispatched yet names the version."""
        return self._named[version] > 0 or self.arrivals.needs_version(version)

    def in_flight(self) -> list[Task]:
        """The tasks dispatched whose results are still to come, lost ones too, by serial."""
        tasks = [e.task for *_, e in self._queue if isinstance(e, Event) and e.task is not None]
        return sorted(tasks, key=lambda task: task.serial)

    def state_dict(self) -> dict[str, Any]:
        """The clock, the queue and the state of the process, as plain data.

        An event that the server is handling is in it as `current`: once it is loaded, send that
        one on, then go on with `events`.
        """
        return {
            "version": self.version,
            "started": self._started,
            "deadline_due": self._deadline_due,
            "serial": self._serial,
            "lost_in_a_row": self.lost_in_a_row,
            "visits": [list(pair) for pair in self._visits.items()],
            "named": [[version, count] for version, count in self._named.items() if count],
            "current": None if self.current is None else _encode(self.current),
            "queue": self._queue.state_dict(_encode),
            "arrivals": self.arrivals.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, in a schedule that was made with the same arguments."""
        self.version, self._started = state["version"], state["started"]
        self._serial, self._deadline_due = state["serial"], state["deadline_due"]
        self.lost_in_a_row = state["lost_in_a_row"]
        self._visits = dict(state["visits"])
        self._named = Counter(dict(state["named"]))
        current = None if state["current"] is None else _decode(state["current"])
        assert not isinstance(current, Dispatch)
        self.current = current
        self._queue.load_state_dict(state["queue"], _decode)
        self._coming = sum(isinstance(e, Dispatch) or e.task is not None for *_, e in self._queue)
        self.arrivals.load_state_dict(state["arrivals"])

    def _act(self, actions: Iterable[Action]) -> None:
        if actions is None or isinstance(actions, Dispatch | EndRound | Wake):
            raise TypeError(
                f"{self.arrivals!r} answered with {actions!r}; yield each action, or return a list "
                "of actions, () for none"
            )
        for action in actions:
            if isinstance(action, Dispatch):
                if action.delay == 0:
                    self._dispatch(action, self._queue.now)
                    continue
                if action.pulled_version is not None:
                    self._named[action.pulled_version] += 1
                ticks, kind = self._after(action.delay), Kind.DISPATCH
                self._queue.push(ticks, action, kind=kind, client=action.client_id)
                self._coming += 1
            else:
                kind = Kind.ROUND_END if isinstance(action, EndRound) else Kind.WAKE
                self._queue.push(self._after(action.delay), Event(kind), kind=kind)

    def _after(self, delay: float) -> int:
        ticks = to_ticks(delay)
        if ticks <= 0:
            raise ValueError(
                f"{self.arrivals!r} gave a duration or delay of {delay!r}; "
                "virtual time has to go on, by at least 1e-9"
            )
        return self._queue.ticks + ticks

    def _dispatch(self, action: Dispatch, now: float, tries: int = 0) -> None:
        client, duration, num_steps, _, version, lost, visit = action
        arrival = self._after(duration)
        if version is None:
            version = self.version
        elif version > self.version:
            raise ValueError(
                f"client {client} is to pull version {version} at {now} for its arrival at "
                f"{to_time(arrival)}, but the server is only at version {self.version}; under an "
                "aggregator that makes its versions at other times than the recorded one, write "
                'ReplayArrivals(…, pull="newest")'
            )
        if not 0 <= client < self._num_clients:
            raise ValueError(
                f"the arrival process dispatches client {client}, but there are only "
                f"{self._num_clients} clients (0 to {self._num_clients - 1})"
            )
        if visit is None:
            visit = self._visits.get(client, 0)
        self._visits[client] = visit + 1
        arrives_at = to_time(arrival)
        task = Task(client, version, now, arrives_at, num_steps, self._serial, visit, lost, tries)
        self._serial += 1
        self._queue.push(arrival, Event(Kind.ARRIVAL, task), kind=Kind.ARRIVAL, client=client)
        self._coming += 1
        self._on_dispatch(task)

    def _push_deadline(self) -> None:
        assert self._interval is not None
        self._deadline_due = False
        number = self._queue.ticks // self._interval + 1
        self._queue.push(number * self._interval, Event(Kind.DEADLINE), kind=Kind.DEADLINE)


def _encode(event: Event | Dispatch) -> list[Any]:
    """An event as plain data."""
    if isinstance(event, Dispatch):
        return ["dispatch", *event]
    task = event.task
    if task is None:
        return [int(event.kind)]
    return [int(event.kind), *task]


def _decode(data: list[Any]) -> Event | Dispatch:
    """What `_encode` made plain data of."""
    kind, *rest = data
    if kind == "dispatch":
        return Dispatch(*rest)
    return Event(Kind(kind), Task(*rest) if rest else None)


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
