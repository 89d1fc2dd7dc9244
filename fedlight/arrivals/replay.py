"""Replay of a recorded schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlight._support.checks import described, items, one_of, positive, shown
from fedlight._support.files import existing_file
from fedlight._support.strategy import Summary, digest
from fedlight.arrivals._device_log import Clients, read_device_log
from fedlight.arrivals._per_client import as_list, no_client
from fedlight.arrivals.base import Action, ArrivalProcess, Cancel, Dispatch, EndRound, Wake
from fedlight.arrivals.durations import FixedDurations
from fedlight.arrivals.table import ReplayEvent, ScheduleTable
from fedlight.events import to_ticks, to_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation, Task


class ReplayArrivals(ArrivalProcess):
    """Replays records of (client, pulled version, arrival time, local steps) for any aggregator.

    ``pull at dispatched_at``, or, for a record without it, as soon as its pulled version exists and
    the client's previous record has arrived.

    The version given in a record is pulled even if a newer one exists; the server keeps it until
    then. A cancelled local run is pulled and cancelled again, and a lost task is lost again.

    Version numbers are those of the recorded run. An aggregator that makes versions less often
    than the recorded one raises an error as soon as a version is missing. One that makes them more
    often is replayed without a message: a recorded version is then older than it was, and updates
    are staler than in the record. Write ``pull="newest"`` for either of them.

    Args:
        events: The records, a `ScheduleTable`, or the path of a file with one, written by
            `ScheduleTable.save` or `Recording`.
        durations: T_i, the mean duration of each client's tasks in virtual time, for aggregators
            whose weights depend on it.
        round_ends: Virtual times at which rounds end, for aggregators without a buffer size.
        pull: "recorded": pull the version given in the record. "newest": pull the newest version
            at `dispatched_at`, for an aggregator that makes its versions at other times than the
            aggregator of the recorded run.

    Raises:
        FileNotFoundError: There is no such file.
        TypeError: `events` are not `ReplayEvent` objects, or another argument is of the wrong kind.
        ValueError: There is no record; with ``pull="newest"`` a record has no `dispatched_at`, or
            without it no `pulled_version`; a lost or unfinished task has no `dispatched_at`; or
            (during the run) a record's version cannot exist before its arrival.

    Attributes:
        events: The records.
        unfinished: The tasks that were in flight at the end of the recorded run, which pull and
            never arrive.
        lost: The tasks that are lost.
        clients: The data client of each name of a log (`from_csv`); empty for other records.
        left_out: How many rows of a log were left out since they lack a value.
        overlaps: How many local runs of a log start before an earlier one of their client has
            ended.

    Example:
        >>> table = ScheduleTable([ReplayEvent(client=0, pulled_version=0, time=1.0, num_steps=2)])
        >>> ReplayArrivals(table)
        ReplayArrivals(1 events, 0159d2fc)
    """

    finite = True
    _saved_attributes = ("_started", "_version")

    def __init__(
        self,
        events: Iterable[ReplayEvent] | ScheduleTable | str | Path,
        durations: Sequence[float] | FixedDurations | None = None,
        round_ends: Sequence[float] = (),
        pull: str = "recorded",
    ) -> None:
        if isinstance(events, str | Path):
            events = ScheduleTable.load(existing_file("events", events, "schedule file"))
        ends = as_list("round_ends", round_ends)
        if ends is None:
            raise TypeError(
                "round_ends must be a list of virtual times, such as [1.0, 2.0], "
                f"got {round_ends!r}"
            )
        if not isinstance(events, ScheduleTable):
            events = ScheduleTable(_as_events(events))
        durations = durations if durations is not None else events.durations
        ends = ends or events.round_ends
        tags, groups = events.round_tags, tuple(events.groups)
        self.events = list(events.events)
        self.pull = one_of("pull", pull, ("recorded", "newest"))
        for number, event in enumerate(self.events):
            if not isinstance(event, ReplayEvent):
                raise TypeError(f"events[{number}] must be a ReplayEvent, got {event!r}")
            if event.pulled_version is None and pull == "recorded":
                raise ValueError(
                    f"events[{number}] has no pulled_version, which pull='recorded' needs; add it, "
                    "or write pull='newest'"
                )
            if event.dispatched_at is None and pull == "newest":
                raise ValueError(
                    f"events[{number}] has no dispatched_at, which pull='newest' needs as the time "
                    "of the pull; add it, or write pull='recorded'"
                )
        if not self.events:
            raise ValueError("events must hold at least one ReplayEvent, got none")
        if durations is not None and not isinstance(durations, FixedDurations):
            durations = FixedDurations(durations)
        self.durations = durations
        self.round_ends = [positive(f"round_ends[{i}]", end) for i, end in enumerate(ends)]
        self.by_rounds = bool(self.round_ends)
        tags = tags + [None] * (len(self.round_ends) - len(tags))
        self._ends = list(zip(self.round_ends, tags, strict=True))
        tagged = (event.tag for event in self.events if event.tag is not None)
        self.groups = groups or tuple(dict.fromkeys(tagged))
        self.arrivals_per_send = events.arrivals_per_send
        self.lost = _timed_events("lost", events.lost)
        self.unfinished = _timed_events("unfinished", events.unfinished)
        self.waste_known = events.waste_known
        everything = [*self.events, *self.lost]
        self.shares_data = any(event.chunk_start is not None for event in everything)
        self.shared_by = events.num_clients if self.shares_data else None
        # Each with whether it would have been lost otherwise.
        stopped = [(e, False) for e in self.events if e.stopped_at_version is not None]
        stopped += [(e, True) for e in self.lost if e.stopped_at_version is not None]
        self.may_stop = bool(stopped) or events.may_stop
        self._stopped = sorted(stopped, key=lambda each: _stop_order(each[0]))
        if self.may_stop:
            self._ends.sort(key=lambda end: end[0])
        self.early_results = events.feedback
        self.clients: dict[str, int] = {}
        self.left_out = self.overlaps = 0
        self._hash: str | None = None  # made once: a checkpoint asks for the repr each time

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        *,
        client: str = "client",
        start: str = "start",
        duration: str | None = None,
        end: str | None = None,
        steps: str | int = 1,
        unit: float = 1.0,
        duration_unit: float = 1.0,
        origin: float | str | None = None,
        clients: Clients = None,
        overlap: str = "raise",
        missing: str = "raise",
        sep: str = ",",
        durations: Sequence[float] | FixedDurations | None = None,
    ) -> ReplayArrivals:
        r"""Replay a log of devices: a CSV file with a row for each local run, in any order.

        ``pull at (start - origin) / unit``, ``arrive at (end - origin) / unit``, or
        ``(start - origin + duration_unit * duration) / unit`` units of virtual time.

        Each device pulls the newest version at its start (``pull="newest"``). Times are numbers, or
        timestamps (ISO 8601; without an offset they are UTC), which are counted in seconds.

        The attribute `clients` says which data client each name stands for. If all names are whole
        numbers, they are the indices of the data's clients, from 0. Other names are numbered from 0
        in alphabetical order, as they are by `clients="names"` (numbers in their own order).

        Args:
            path: The file; its first line names the columns. It may be compressed (``.csv.gz``).
            client: Name of the column of the device's names or numbers.
            start: Name of the column of starts.
            duration: Name of the column of durations; give this or `end`.
            end: Name of the column of ends.
            steps: Name of the column of local steps, or their number if it is the same in all rows.
                Without it each local run makes one step.
            unit: Length of one unit of virtual time, in the log's unit of time (seconds for
                timestamps): 3600 for hours if the log is in seconds.
            duration_unit: Unit of the durations, in the unit of the starts (seconds for
                timestamps): 0.001 if durations are in milliseconds and starts in seconds.
            origin: The time of the log at which virtual time is 0, or "first" for the earliest
                start. None is 0 for numbers and the earliest start for timestamps.
            clients: The names in the order of the data's clients, such as
                ``data.partition.client_ids``; "names" or None as explained above.
            overlap: What to do if a client starts a local run before its last one has ended:
                "raise" refuses the log; "keep" replays both at once, and each pulls at its start.
                A message says how many there are, as does the attribute `overlaps`.
            missing: What to do with a row without a value in one of the columns, such as a local
                run that never ended: "raise" refuses the log; "drop" leaves the row out. A
                message says how many there are, as does the attribute `left_out`.
            sep: The character between columns.
            durations: As in the constructor.

        Raises:
            FileNotFoundError: There is no such file.
            TypeError: An argument is of the wrong kind.
            ValueError: The file is not such a log; the error names the row and the column.

        Example:
            >>> from pathlib import Path
            >>> from tempfile import TemporaryDirectory
            >>> with TemporaryDirectory() as folder:
            ...     log = Path(folder, "log.csv")
            ...     _ = log.write_text("client,start,duration\ntablet,30,60\nphone,0,90\n")
            ...     arrivals = ReplayArrivals.from_csv(log, duration="duration", steps=5, unit=60)
            >>> arrivals.clients
            {'phone': 0, 'tablet': 1}
            >>> [(e.client, e.dispatched_at, e.time, e.num_steps) for e in arrivals.events]
            [(0, 0.0, 1.5, 5), (1, 0.5, 1.5, 5)]
        """
        log = read_device_log(
            path,
            client=client,
            start=start,
            duration=duration,
            end=end,
            steps=steps,
            unit=unit,
            duration_unit=duration_unit,
            origin=origin,
            clients=clients,
            overlap=overlap,
            missing=missing,
            sep=sep,
        )
        made = cls(log.events, durations, pull="newest")
        made.clients, made.left_out, made.overlaps = log.clients, log.left_out, log.overlaps
        return made

    def setup(self, federation: Federation) -> None:
        """Start at the first record.

        Raises:
            ValueError: A record names a client that does not exist.
        """
        if self.clients:
            name, client = list(self.clients.items())[-1]  # they are sorted by client
            if client >= federation.num_clients:
                raise ValueError(
                    f"the log's client {name!r} is client {client}, but the data have only "
                    f"{federation.num_clients} clients (0 to {federation.num_clients - 1}); the "
                    f"log names {len(self.clients)} clients: give the data as many, or say which "
                    'data client each name is (ReplayArrivals.from_csv(…, clients="names") counts '
                    "them from 0)"
                )
        for name in ("events", "lost", "unfinished"):
            for number, event in enumerate(getattr(self, name)):
                if event.client >= federation.num_clients:
                    raise no_client(f"{name}[{number}]", event.client, federation)
        if self.shares_data and federation.shard_sizes is not None:
            self._check_chunks(len(federation.shard_sizes))
        if self.durations is not None:
            self.durations.check(federation)
        self._started = False
        self._version = 0
        # The number of records cancelled so far, of rounds ended so far, and of those among them
        # whose end the server has not handled yet.
        self._stops = self._ended = self._ending = 0
        # The records without a `dispatched_at`, for each client: the last one first, so that the
        # next one is popped from the end.
        self._queues: dict[int, list[ReplayEvent]] = {}
        for event in sorted(self.events, key=lambda event: -event.time):
            if event.dispatched_at is None:
                self._queues.setdefault(event.client, []).append(event)
        # By version: the clients that are free and whose next record pulls it.
        self._wanted: dict[int, set[int]] = {}
        for client in self._queues:
            self._want(client)
        named = [*self.events, *self.unfinished] if self.pull == "recorded" else []
        self._open: Counter[int | None] = Counter(event.pulled_version for event in named)

    def _check_chunks(self, num_shards: int) -> None:
        for number, event in enumerate(self.events):
            shard = event.client if event.chunk_start is None else event.chunk_shard
            if shard is not None and shard >= num_shards:
                what = "has no chunk_start, and there are no examples of client"
                what = what if event.chunk_start is None else "reads shard"
                raise ValueError(
                    f"events[{number}] {what} {shard}; the data have only {num_shards} parts (0 to "
                    f"{num_shards - 1}): replay it on data with the partition of the recorded run"
                )

    def on_wake(self, now: float) -> Iterator[Action]:
        """Dispatch records with a `dispatched_at` at the start; later, check for overdue ones."""
        if not self._started:
            self._started = True
            yield from self._timed()
            yield from self._pull(now)
            return
        if self.may_stop:
            yield from self._stop(now)
        # A record whose version is never made would wait forever, and the run would silently end
        # without it. So there is a `Wake` at the arrival time of each.
        ticks = to_ticks(now)
        for client in sorted(self._free):
            queue = self._queues[client]
            if to_ticks(queue[-1].time) <= ticks:
                raise self._impossible(queue[-1])

    def on_arrival(self, task: Task, now: float) -> Iterable[Action]:
        """The client's next record may be dispatched."""
        if task.lost:  # the records do not wait for it
            return ()
        client = task.client_id
        actions: list[Action] = list(self._cancel(now, self._version)) if self.may_stop else []
        if self._queues.get(client):
            self._want(client)
            actions += self._pull(now)
        return actions

    def on_version(self, version: int, clients: Collection[int], now: float) -> Iterator[Action]:
        """Dispatch the records that waited for this version."""
        self._version = version
        # A local run that was cancelled after a later version of the same time has to wait for it.
        yield from self._cancel(now, self._newest)
        yield from self._pull(now)

    def needs_version(self, version: int) -> bool:
        """Whether a record that is not dispatched yet names the version."""
        return self._open[version] > 0

    def expected_durations(self) -> NDArray[np.float64] | None:
        """The given durations, shape ``[M]``."""
        return None if self.durations is None else np.array(self.durations.durations)

    def _timed(self) -> Iterator[Action]:
        for event in self.events:
            if event.dispatched_at is None or event.stopped_at_version is not None:
                yield Wake(event.time)
            if event.dispatched_at is not None and event.dispatched_at < event.time:
                self._open[event.pulled_version] -= 1
                yield self._dispatch(event, event.dispatched_at, delay=event.dispatched_at)
        for event in self.unfinished:
            at = event.dispatched_at
            assert at is not None
            self._open[event.pulled_version] -= 1
            yield self._dispatch(event, at, delay=at)._replace(unfinished=True)
        for event in self.lost:
            at = event.dispatched_at
            assert at is not None
            if event.stopped_at_version is not None:
                yield Wake(event.time)
            if at < event.time:
                yield self._dispatch(event, at, delay=at)._replace(lost=True)
        for end, tag in self._ends:
            yield Wake(end) if self.may_stop else EndRound(end, tag=tag)

    def _stop(self, now: float) -> Iterator[Action]:
        """Cancel the local runs that are due by now, and then end the rounds that end now."""
        ticks, begun = to_ticks(now), self._ended
        while self._ended < len(self._ends) and to_ticks(self._ends[self._ended][0]) <= ticks:
            self._ended += 1
        self._ending += self._ended - begun
        yield from self._cancel(now, self._newest if self._ending else None)
        for _, tag in self._ends[begun : self._ended]:
            yield EndRound(0.0, tag=tag)

    def on_round_end(self, now: float) -> Iterable[Action]:
        """After the last round that ends now, cancel the local runs that are due by now."""
        if not self.may_stop:
            return ()
        self._ending -= 1
        return self._cancel(now, self._newest if self._ending else None)

    @property
    def _newest(self) -> int | None:
        """The version up to which local runs are cancelled; None if versions have other numbers."""
        return self._version if self.pull == "recorded" else None

    def _cancel(self, now: float, version: int | None = None) -> Iterator[Action]:
        """Cancel the local runs that are due by now; with a version, only those up to it."""
        ticks = to_ticks(now)
        while self._stops < len(self._stopped):
            event, lost = self._stopped[self._stops]
            at, stopped_at, client = _stop_order(event)
            if at > ticks or (version is not None and stopped_at > version):
                return
            if event.dispatched_at == event.time:  # cancelled at the time of its pull
                if not lost:
                    self._open[event.pulled_version] -= 1
                yield self._dispatch(event, event.time)._replace(lost=lost)
            self._stops += 1
            yield Cancel(client)

    @property
    def _free(self) -> set[int]:
        """The clients whose next record waits for its version."""
        return set().union(*self._wanted.values())

    def _want(self, client: int) -> None:
        version = self._queues[client][-1].pulled_version
        assert version is not None  # it is one of the records without a `dispatched_at`
        self._wanted.setdefault(version, set()).add(client)

    def _pull(self, now: float) -> Iterator[Action]:
        """Dispatch the free clients whose version exists."""
        ready = [
            client
            for v in list(self._wanted)
            if v <= self._version
            for client in self._wanted.pop(v)
        ]
        for client in sorted(ready):
            event = self._queues[client].pop()
            if to_ticks(event.time) <= to_ticks(now):
                raise self._impossible(event)
            self._open[event.pulled_version] -= 1
            yield self._dispatch(event, now)

    def _dispatch(self, event: ReplayEvent, at: float, delay: float = 0.0) -> Dispatch:
        duration = to_time(to_ticks(event.time) - to_ticks(at))
        if event.stopped_at_version is not None:
            duration += 1.0  # it does not arrive before it is cancelled
        return Dispatch(
            event.client,
            duration,
            event.num_steps,
            delay,
            event.pulled_version if self.pull == "recorded" else None,
            visit=event.visit,
            tag=event.tag,
            cut=event.cut,
            chunk=event.chunk,
        )

    def _impossible(self, event: ReplayEvent) -> ValueError:
        return ValueError(
            f"{event} can never happen: there is no time before its arrival at {event.time} at "
            f"which version {event.pulled_version} exists and the client is free; the server is at "
            f"version {self._version}"
        )

    def state_dict(self) -> dict[str, Any]:
        """The version, and how many records of each client are still to come."""
        return super().state_dict() | {
            "left": [[client, len(queue)] for client, queue in self._queues.items()],
            "free": sorted(self._free),
            "stops": [self._stops, self._ended, self._ending],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self._stops, self._ended, self._ending = state.get("stops", (0, 0, 0))
        self._wanted = {}
        self._open = Counter()
        for client, left in state["left"]:
            queue = self._queues[client]
            del queue[left:]
            self._open.update(event.pulled_version for event in queue)
        for client in state["free"]:
            self._want(client)
        if not self._started and self.pull == "recorded":
            timed = (event for event in self.events if event.dispatched_at is not None)
            self._open.update(event.pulled_version for event in (*timed, *self.unfinished))
        elif self.pull == "recorded":
            for event, lost in self._stopped[self._stops :]:
                if event.dispatched_at == event.time and not lost:
                    self._open[event.pulled_version] += 1

    def _kept_otherwise(self) -> dict[str, Any]:
        if self._hash is None:
            # Not the records themselves: a table that was saved has floats for numpy's.
            rows = map(attrgetter(*ReplayEvent.__slots__[:6]), self.events)
            events = [[value if value is None else float(value) for value in row] for row in rows]
            times = None if self.durations is None else self.durations.durations
            content: tuple[Any, ...] = (events, times, self.round_ends, self.pull)
            more = [[each.stopped_at_version, each.tag, each.cut] for each in self.events]
            if self.may_stop or self.groups or any(each.cut for each in self.events):
                content = (*content, more, self._ends, self.groups)
            if self.arrivals_per_send is not None:
                content = (*content, self.arrivals_per_send)
            if self.early_results:
                content = (*content, "feedback")
            if self.unfinished:
                last = map(attrgetter(*ReplayEvent.__slots__), self.unfinished)
                content = (*content, "unfinished", list(last))
            if self.lost:
                last = map(attrgetter(*ReplayEvent.__slots__), self.lost)
                content = (*content, "lost", list(last))
            if self.shares_data:
                content = (*content, [each.chunk for each in self.events], self.shared_by)
            self._hash = digest(content)
        return {"events": Summary(f"{len(self.events)} events, {self._hash}")}


def _stop_order(event: ReplayEvent) -> tuple[int, int, int]:
    """When a local run was cancelled: the time in ticks, the version, the client."""
    assert event.stopped_at_version is not None
    return to_ticks(event.time), event.stopped_at_version, event.client


def _timed_events(name: str, events: Iterable[ReplayEvent]) -> list[ReplayEvent]:
    """The tasks of a table that have not arrived, checked."""
    found = items(name, events)
    for number, event in enumerate(found):
        if not isinstance(event, ReplayEvent):
            raise TypeError(f"{name}[{number}] must be a ReplayEvent, got {event!r}")
        if event.dispatched_at is None:
            raise ValueError(
                f"{name}[{number}] has no dispatched_at, the virtual time of its pull; add it"
            )
    return found


def _as_events(events: object) -> list[Any]:
    # Iterating over a data frame or a mapping gives names of columns; the error would name those.
    if isinstance(events, Mapping) or hasattr(events, "columns"):
        raise TypeError(
            f"events must be ReplayEvent objects, got {described(events)}; for a table with "
            "the columns of ReplayEvent write [ReplayEvent(**row) for row in rows], with one "
            "mapping for each row"
        )
    if not isinstance(events, Iterable) or isinstance(events, bytes):
        raise TypeError(
            f"events must be a list of ReplayEvent objects, a ScheduleTable or the path of a "
            f"schedule file, got {shown(events)}"
        )
    return items("events", events)
