"""The schedule of a run: it turns the actions of an arrival process into a stream of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedlight._support.checks import integer, non_negative_int, optional
from fedlight.arrivals._silence import Silence
from fedlight.arrivals._state import Saved
from fedlight.arrivals.actions import Action, Cancel, Cut, Dispatch, EndRound, Wake
from fedlight.events import EventQueue, Kind, to_ticks, to_time
from fedlight.loop import Event, Handled, Stop
from fedlight.types import Chunk, Federation, Task, new_record, with_chunk

if TYPE_CHECKING:
    from fedlight.arrivals.base import ArrivalProcess


_ACTIONS = (Dispatch, EndRound, Wake, Cancel, Cut)


class Schedule(Saved):
    """The events of a run, in the order of (time, kind, client, serial).

    It owns the clock, numbers the tasks and sets the deadlines. `fedlight.loop.play` takes each
    event with `next`, lets the server handle it, and lets clients continue with `send_on`.

    Args:
        arrivals: The arrival process; its `setup` is called.
        federation: The clients.
        interval: Virtual time between deadlines, or None. There is a deadline at each multiple, as
            long as other events follow.
        max_time: There are no events later than this virtual time.
        buffer_size: The number of updates that the server collects for a version, or None.

    Attributes:
        version: The server's version after the event handled last.
        silence: What has come to nothing since the last update that the server may use.
        given_up: Whether so much of it has come to nothing that there are no further events.

    Raises:
        ValueError: The process does not fit the federation, or `interval` is too short.
    """

    _saved_attributes = (
        "version",
        "_started",
        "_deadline_due",
        "_serial",
        "silence",
        "_visits",
        "_steps_made",
        "_newest_of",
        "_unfinished",
        "arrivals",
    )

    def __init__(
        self,
        arrivals: ArrivalProcess,
        federation: Federation,
        *,
        interval: float | None = None,
        max_time: float | None = None,
        buffer_size: int | None = None,
    ) -> None:
        self._interval = None if interval is None else to_ticks(interval)
        if self._interval is not None and self._interval < 1:
            raise ValueError(f"interval must be at least 1e-9 of virtual time, got {interval!r}")
        arrivals.setup(federation)
        self.arrivals = arrivals
        self._may_stop = arrivals.may_stop
        self._shares_data = arrivals.shares_data
        sizes = federation.shard_sizes
        self._num_shards = federation.num_clients if sizes is None else len(sizes)
        self._num_clients = federation.num_clients
        self.version = 0
        self._queue: EventQueue[Event] = EventQueue()
        self._queue.push(0, Event(Kind.WAKE), kind=Kind.WAKE)
        self._max_ticks = None if max_time is None else to_ticks(max_time)
        self._started = False
        self.silence = Silence(federation.num_clients, buffer_size)
        self._silent = True  # something was counted since the last update that the server may use
        self.given_up = False
        self._ends = arrivals.finite  # by itself, however little comes of it
        self._coming = 0  # pulls and arrivals in the queue
        self._deadline_due = interval is not None
        self._serial = 0
        self._visits: dict[int, int] = {}
        self._steps_made: dict[int, int] = {}  # by client, of tasks that have arrived
        self._named: Counter[int] = Counter()  # versions that planned pulls name
        self._pulls: list[Task | Stop] = []
        self._kind = Kind.WAKE  # of the event that is being handled
        # Ends of rounds and wake-ups at the same instant, and this instant in ticks.
        self._still, self._still_at = 0, 0
        self._answer: int | None = None
        self._answered: Collection[int] = ()
        # Of regions: the newest version that an event of each of them has made.
        self._regional = arrivals.arrivals_per_send is not None
        self._newest_of: dict[str | None, int] = {}
        if self._regional:
            self._newest_of = dict.fromkeys(arrivals.groups, 0)
        # Tasks that were in flight at the end of a recorded run; lists, in a resumed one.
        self._unfinished: list[Sequence[Any]] = []
        # By client: its tasks in flight, each with the number of the event of its arrival.
        self._in_flight: dict[int, list[tuple[int, Task]]] = {}

    @property
    def now(self) -> float:
        """Virtual time of the newest event."""
        return self._queue.now

    def next(self) -> Event | None:
        """Return the next event and move the clock to it; None if there is no other event."""
        queue = self._queue
        ticks = queue.peek_ticks()
        if ticks is None or self.given_up or (not self._coming and self._over()):
            return None
        if self._deadline_due and ticks > queue.ticks:
            # Only now is it known that another event follows. Without one, deadlines would prolong
            # a run that is over.
            ticks = self._push_deadline(ticks)
        if self._max_ticks is not None and ticks > self._max_ticks:
            return None
        return queue.pop()

    def send_on(self, event: Event, handled: Handled) -> list[Task | Stop]:
        """Let clients continue after the server has handled an event.

        The process is not told of the arrival of a retried task, because it was told of the first
        try. It is told of the client again when the update is used or dropped.

        Args:
            event: The event.
            handled: The server's response.

        Returns:
            The tasks of the clients that pull the model now, and the local runs that are
            stopped, in their order.
        """
        version, released, retried, self._answer, dropped, failures = handled
        if self._answer is not None:
            self._answered = frozenset(released)
        before = self.version
        news = version != before or bool(released)
        kind, task, action = event
        if version != before:
            self.silence.step()
            if self._regional:
                self._newest_of[action if task is None else task.tag] = version
        self.version = version
        self._kind = kind
        now = self._queue.now
        pulls: list[Task | Stop] = []
        self._pulls = pulls
        expected = 0.0 if kind is Kind.ARRIVAL else self.arrivals.silent_until()
        if kind is Kind.ARRIVAL:
            assert task is not None
            self._coming -= 1
            if self._in_flight:
                self._leave(task)
            if not task.lost:
                made = self._steps_made.get(task.client_id, 0)
                self._steps_made[task.client_id] = made + task.num_steps
            self._hear(task.lost, dropped)
            if not task.tries:
                self._act(self.arrivals.on_arrival(task, now))
        elif kind is Kind.DISPATCH:
            self._coming -= 1
            self._pull(action, now)
            if action.pulled_version is not None:
                self._named[action.pulled_version] -= 1
        elif kind is Kind.ROUND_END:
            self._check_clock()
            self.silence.ends += version == before
            if action is None:
                self._act(self.arrivals.on_round_end(now))
            else:
                self._act(self.arrivals.on_round_end_of(action, now))
        elif kind is Kind.WAKE:
            self._check_clock()
            self._started = True
            self._act(self.arrivals.on_wake(now))
        else:
            # The next deadline is set when this instant is over, and only if more is to come.
            self._deadline_due = True
        for failed in failures:
            self.arrivals.on_failure(failed, now)
        if news:
            self._act(self.arrivals.on_version(version, released, now))
        for failed in retried:
            duration = to_time(to_ticks(failed.arrives_at) - to_ticks(failed.dispatched_at))
            again = Dispatch(failed.client_id, duration, failed.num_steps, tag=failed.tag)
            if failed.chunk is not None:  # no other task reads these examples
                again = again._replace(chunk=failed.chunk)
            self._pull(again, now, tries=failed.tries + 1)
        resting = not self._coming and not pulls and now >= expected
        if resting and kind in (Kind.ROUND_END, Kind.WAKE):
            self.silence.rest(kind is Kind.ROUND_END)
            self._give_up()
        return pulls

    def _check_clock(self) -> None:
        """Refuse a process that ends rounds and wakes up again and again at one instant.

        Raises:
            ValueError: It does, so that virtual time would never advance.
        """
        if self._queue.ticks != self._still_at:
            self._still, self._still_at = 0, self._queue.ticks
        self._still += 1
        if self._still > self.silence.most and not self._ends:
            raise ValueError(
                f"{self.arrivals!r} has ended rounds and woken up {self._still:,} times at virtual "
                f"time {self.now:g}, which does not advance; return EndRound or Wake with a delay "
                "above 0"
            )

    def _hear(self, lost: bool, dropped: bool) -> None:
        """Note whether the server may use an update that has arrived."""
        silence = self.silence
        if lost:
            silence.lose()
        elif dropped:
            silence.drop()
        else:
            if self._silent:
                silence.hear()
                self._silent = False
            silence.received += 1
            if silence.received < silence.most_received:
                return
        self._give_up()

    def _give_up(self) -> None:
        """Decide whether the run is given up, after something has come to nothing."""
        self._silent = True
        if self._ends:
            return
        silence = self.silence
        self.given_up = silence.too_long or (
            silence.received >= silence.most_received and not self._version_is_due()
        )

    def _version_is_due(self) -> bool:
        """Whether a deadline or the end of a round is still to come, and may make a version."""
        if self._interval is not None:
            return True
        return self.silence.ends < 10 and any(kind == Kind.ROUND_END for _, kind, *_ in self._queue)

    @property
    def why_over(self) -> str | None:
        """Why there is no other event, for a message; None if there is one."""
        if self.given_up:
            return self.silence.words
        return "no client can arrive any more" if self.exhausted else None

    def _over(self) -> bool:
        """Whether the process only wakes up, and no client will start again."""
        return (
            self._started
            and not self._coming
            and self.arrivals.over(self._queue.now)
            and all(kind == Kind.WAKE for _, kind, *_ in self._queue)
        )

    @property
    def exhausted(self) -> bool:
        """Whether there is no other event."""
        return self._queue.peek_ticks() is None or self.given_up or self._over()

    @property
    def in_flight(self) -> Iterator[Task]:
        """The tasks that are in flight, in no special order."""
        for fields in self._unfinished:
            yield with_chunk(Task(*fields))
        for *_, (kind, task, _) in self._queue:
            if kind is Kind.ARRIVAL and task is not None:
                yield task

    def finish(self) -> None:
        """Tell the arrival process that the run is over."""
        self.arrivals.on_end(self.in_flight)
        self.arrivals.finish()

    def needs_version(self, version: int) -> bool:
        """Return whether a task that is not dispatched yet may pull the version."""
        if self._named[version] > 0 or version in self._newest_of.values():
            return True
        return self.arrivals.needs_version(version)

    def state_dict(self) -> dict[str, Any]:
        """Return the clock, the queue and the state of the process between two events."""
        named = [[version, count] for version, count in self._named.items() if count]
        return super().state_dict() | {"named": named, "queue": self._queue.state_dict(_encode)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, in a schedule made with the same arguments."""
        super().load_state_dict(state)
        self.silence.lost = state.get("lost_in_a_row", self.silence.lost)  # of 0.2
        self._give_up()
        self._named = Counter(dict(state["named"]))
        self._queue.load_state_dict(state["queue"], _decode)
        self._coming = sum(kind in (Kind.ARRIVAL, Kind.DISPATCH) for _, kind, *_ in self._queue)
        if self._may_stop:
            for *_, number, (kind, task, _) in sorted(self._queue):
                if kind is Kind.ARRIVAL and task is not None:
                    self._in_flight.setdefault(task.client_id, []).append((number, task))

    def _act(self, actions: Iterable[Action]) -> None:
        if actions is None or isinstance(actions, _ACTIONS):
            raise TypeError(
                f"{self.arrivals!r} returned {actions!r}; yield each action, or return a list "
                "of actions, and () for none"
            )
        for action in actions:
            if isinstance(action, Dispatch):
                if action.delay == 0:
                    self._pull(action, self._queue.now)
                    continue
                if action.pulled_version is not None:
                    self._named[action.pulled_version] += 1
                ticks, kind = self._after(action.delay), Kind.DISPATCH
                planned = Event(kind, None, action)
                self._queue.push(ticks, planned, kind=kind, client=action.client_id)
                self._coming += 1
            elif isinstance(action, Cancel | Cut):
                self._stop(action)
            elif isinstance(action, EndRound):
                if not self.arrivals.by_rounds:
                    raise ValueError(
                        f"{self.arrivals!r} returned {action!r}, but its by_rounds is False; set "
                        "by_rounds = True in its class, so that aggregators know of its rounds"
                    )
                kind = Kind.ROUND_END
                ticks = self._after(action.delay, now_too=self._kind is not kind)
                ended = Event(kind, None, action.tag)
                self._queue.push(ticks, ended, kind=kind, client=action.client_id)
            else:
                kind = Kind.WAKE
                ticks = self._after(action.delay, now_too=self._kind is not kind)
                self._queue.push(ticks, Event(kind), kind=kind)

    def _stop(self, action: Cancel | Cut) -> None:
        """Stop the tasks that a client has in flight."""
        if not self._may_stop:
            raise ValueError(
                f"{self.arrivals!r} returned {action!r}, but its may_stop is False; set "
                "may_stop = True in its class, so that no local run is computed before it arrives"
            )
        for number, task in self._in_flight.pop(action.client_id, ()):
            self._queue.remove(number)
            self._coming -= 1
            instead = None
            num_steps = self._steps_until_now(task) if isinstance(action, Cut) else 0
            if num_steps:
                now = self._queue.now
                instead = task._replace(arrives_at=now, num_steps=num_steps, cut=True)
                self._send(instead, self._queue.ticks)
            self._pulls.append(Stop(task, instead))
            if instead is None:
                self.silence.lose(stopped=True)
                self._give_up()
                self.arrivals.on_stop(task, self.version, self._queue.now)

    def _steps_until_now(self, task: Task) -> int:
        """The complete steps of a task up to now; 0 for a task that will be lost."""
        begin = to_ticks(task.dispatched_at)
        whole = to_ticks(task.arrives_at) - begin
        return 0 if task.lost else task.num_steps * (self._queue.ticks - begin) // whole

    def _send(self, task: Task, ticks: int) -> None:
        """Put the arrival of a task that was cut into the queue, after the others of this time."""
        event = new_record(Event, (Kind.ARRIVAL, task, None))
        client = task.client_id + self._num_clients
        number = self._queue.push(ticks, event, kind=Kind.ARRIVAL, client=client)
        self._coming += 1
        self._in_flight.setdefault(task.client_id, []).append((number, task))

    def _leave(self, task: Task) -> None:
        """Note that a task has arrived and can no longer be stopped."""
        others = [each for each in self._in_flight[task.client_id] if each[1] != task]
        if others:
            self._in_flight[task.client_id] = others
        else:
            del self._in_flight[task.client_id]

    def _after(self, delay: float, now_too: bool = False) -> int:
        ticks = to_ticks(delay)
        if ticks <= 0 and not (now_too and ticks == 0):
            raise ValueError(
                f"{self.arrivals!r} returned a duration or delay of {delay!r}; "
                "virtual time must advance by at least 1e-9"
            )
        return self._queue.ticks + ticks

    def _pull(self, action: Dispatch, now: float, tries: int = 0) -> None:
        client, duration, num_steps, _, version, lost, visit, tag, cut, chunk, unfinished = action
        if type(num_steps) is not int or num_steps < 0:
            num_steps = non_negative_int("Dispatch.num_steps", num_steps)
        if type(client) is not int:
            client = integer("Dispatch.client_id", client)
        arrival = self._after(duration)
        if version is None:
            version = self._newest_of.get(tag, self.version) if self._regional else self.version
            if self._answer is not None and client in self._answered:
                version = self._answer
        elif version > self.version:
            if unfinished:  # nothing in the schedule depends on it
                return
            if not lost:
                raise self._too_early(client, version, now, arrival)
            version = self.version  # it is never computed from it
        if not 0 <= client < self._num_clients:
            raise ValueError(
                f"the arrival process dispatches client {client}, but there are only "
                f"{self._num_clients} clients (0 to {self._num_clients - 1})"
            )
        if visit is None:
            visit = self._visits.get(client, 0)
        self._visits[client] = visit + 1
        # Not before the pull: only now are the number of steps and the order of the pulls final.
        if self._shares_data:
            source = "as the chunk of a Dispatch"
            if chunk is None:
                chunk, source = self.arrivals.chunk(client, num_steps), "from chunk"
            if chunk is not None:
                chunk = self._checked(chunk, source)
        elif chunk is not None:
            raise ValueError(
                f"{self.arrivals!r} returned {action!r}, but its shares_data is False; set "
                "shares_data = True in its class, so that its clients share the data"
            )
        arrives_at = to_time(arrival)
        made = self._steps_made.get(client, 0)
        serial = self._serial
        self._serial += 1
        when = version, now, arrives_at, num_steps, serial, visit
        task = new_record(Task, (client, *when, lost, tries, tag, cut, made, chunk))
        self._pulls.append(task)
        if unfinished:
            self._unfinished.append(task)
            return
        # As in `_send`, but without the cost of a call for each task.
        event = new_record(Event, (Kind.ARRIVAL, task, None))
        order = client + self._num_clients if cut else client
        number = self._queue.push(arrival, event, kind=Kind.ARRIVAL, client=order)
        self._coming += 1
        if self._may_stop:
            self._in_flight.setdefault(client, []).append((number, task))
            self.arrivals.on_start(task)

    def _too_early(self, client: int, version: int, now: float, arrival: int) -> ValueError:
        return ValueError(
            f"client {client} is to pull version {version} at {now} for its arrival at "
            f"{to_time(arrival)}, but the server is only at version {self.version}; if the "
            "aggregator makes its versions at other times than the recorded one, write "
            'ReplayArrivals(…, pull="newest")'
        )

    def _checked(self, chunk: object, source: str) -> Chunk:
        """What a task reads of shared data, as the process says it, in Python's own numbers.

        Raises:
            TypeError: It is not a chunk, or a part of it is of the wrong kind.
            ValueError: There are no such examples.
        """
        shards = self._num_shards
        try:
            if not isinstance(chunk, Chunk):
                raise TypeError(
                    "return a fedlight.types.Chunk, or None for the client's own examples"
                )
            start = integer("start", chunk.start)
            shard = optional(integer, "shard", chunk.shard)
            if not isinstance(chunk.shuffle, bool):
                raise TypeError(f"shuffle must be True or False, got {chunk.shuffle!r}")
            if start < 0 or (shard is not None and not 0 <= shard < shards):
                raise ValueError(
                    "start must be at least 0, and shard between 0 and "
                    f"{shards - 1} (the data have {shards} parts), or None"
                )
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self.arrivals!r} returned {chunk!r} {source}; {error}") from None
        return Chunk(start, shard, chunk.shuffle)

    def _push_deadline(self, earliest: int) -> int:
        """Add the next deadline to the queue, and return the time of the first event in it."""
        assert self._interval is not None
        self._deadline_due = False
        ticks = (self._queue.ticks // self._interval + 1) * self._interval
        self._queue.push(ticks, Event(Kind.DEADLINE), kind=Kind.DEADLINE)
        return min(ticks, earliest)


def _encode(event: Event) -> list[Any]:
    """Return an event as plain data."""
    kind, task, action = event
    planned = list(action) if isinstance(action, Dispatch) else action
    return [int(kind), None if task is None else list(task), planned]


def _decode(data: list[Any]) -> Event:
    """Return the event that `_encode` turned into plain data."""
    kind, task, action = data
    planned = with_chunk(Dispatch(*action)) if isinstance(action, list | tuple) else action
    return Event(Kind(kind), task and with_chunk(Task(*task)), planned)
