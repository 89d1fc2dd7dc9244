"""Schedules made without a model, by the event loop with a server that only counts."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedlight._support.checks import client_count, integer, optional, positive, positive_int, shown
from fedlight._support.strategy import Strategy
from fedlight.arrivals._per_client import one_for_all_or_each
from fedlight.arrivals._table_writer import TableWriter
from fedlight.arrivals.schedule import Schedule
from fedlight.events import MAX_TICKS, TICKS_PER_UNIT, Kind
from fedlight.loop import Counts, Event, Handled, Limits, Stop, play
from fedlight.types import Federation

if TYPE_CHECKING:
    from fedlight.arrivals.base import ArrivalProcess
    from fedlight.arrivals.table import ScheduleTable
    from fedlight.types import Task


class CountingServer:
    """A server without a model: it counts versions and records the schedule.

    Args:
        schedule: The schedule, for the virtual time.
        buffer_size: m, the number of arrivals per version; None if the number does not matter.
        by_rounds: Whether the end of a round makes a version.

    Attributes:
        writer: The recorded schedule.
        counts: Versions, arrivals and pulls so far.
    """

    def __init__(self, schedule: Schedule, buffer_size: int | None, by_rounds: bool) -> None:
        self._schedule = schedule
        self._buffer_size, self._by_rounds = buffer_size, by_rounds
        self._held: list[Task] = []
        self.writer = TableWriter()
        self.counts = Counts()

    def handle(self, event: Event) -> Generator[Sequence[None], None, Handled]:
        """Count an event; nothing is yielded because no local run has to be computed."""
        kind, task, group = event
        due = kind is Kind.DEADLINE
        used: list[Task] = []
        if task is not None:
            self.writer.arrive(task)
            if not task.lost:
                self.counts.num_updates += 1
                if task.is_first_half:  # the server does not accept it
                    self.writer.use([task.client_id], self.counts.version, self._schedule.now)
                    return Handled(self.counts.version, [task.client_id], dropped=True)
                self._held.append(task)
                due = self._buffer_size is not None and len(self._held) >= self._buffer_size
        elif kind is Kind.ROUND_END:
            self.writer.end_round(self._schedule.now, group)
            due = self._by_rounds
        if due:
            self.counts.version += 1
            used, self._held = self._held, []
            if kind is Kind.ROUND_END and group is not None:  # the others wait for their own round
                self._held = [each for each in used if each.tag != group]
                used = [each for each in used if each.tag == group]
            clients = [each.client_id for each in used]
            self.writer.use(clients, self.counts.version, self._schedule.now)
        return Handled(self.counts.version, [each.client_id for each in used])
        yield  # makes this function a generator

    def dispatch(self, task: Task) -> None:
        """Count a pull."""
        self.counts.num_pulls += 1

    def stop(self, stop: Stop) -> None:
        """Record a local run that was cancelled; one that was cut arrives."""
        if stop.instead is None:
            self.writer.stop(stop.task, self.counts.version, self._schedule.now)


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
    """Return the schedule of an arrival process, made without a model.

    The server makes versions like an aggregator with the same `buffer_size` or `interval`. With
    neither, it makes one at the end of each round of the process. With `Regions`, each arrival and
    each end of a transfer makes one.

    Args:
        arrivals: The arrival process.
        num_clients: M, the number of clients.
        max_rounds: Stop after this many server updates.
        max_time: Stop before the first event later than this virtual time.
        max_updates: Stop after this many arrivals.
        buffer_size: m, the number of arrivals between server updates.
        interval: Virtual time between server updates.
        num_examples: n_i, one number for all clients or one for each; of a process whose clients
            share the data, the sizes of the shards.
        batch_size: Examples per local step.
        seed: The run's seed.

    A schedule of which nothing comes any more ends before its limit, with a warning: no client can
    arrive, or 10,000 + 10 M tasks in a row were lost or stopped (M clients).

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: The simulation would never stop, an argument is outside its range, the process
            does not fit the clients, or it needs feedback, which only a model gives.

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals, UniformSpeeds
        >>> table = simulate(
        ...     ContinuousArrivals(UniformSpeeds(0.8)), num_clients=5, buffer_size=2, max_rounds=10
        ... )
        >>> len(table), table.staleness().tolist()[:6]
        (20, [0, 0, 0, 1, 0, 1])
    """
    if not isinstance(arrivals, Strategy):  # the class of processes imports this module
        raise TypeError(
            f"arrivals must be an arrival process, got {shown(arrivals)}; for example "
            "UniformArrivals(per_round=5)"
        )
    check_no_feedback(arrivals, "a schedule made without a model")
    limits = Limits(max_rounds, max_time, max_updates)
    limits.check(arrivals)
    if buffer_size is None and interval is None and not arrivals.by_rounds:
        raise ValueError(
            f"{arrivals!r} has no rounds; give buffer_size (the number of arrivals between server "
            "updates) or interval (the virtual time between server updates)"
        )
    optional(positive_int, "buffer_size", buffer_size)
    interval = optional(positive, "interval", interval)
    if interval is not None and interval > MAX_TICKS // TICKS_PER_UNIT:
        most = MAX_TICKS // TICKS_PER_UNIT
        raise ValueError(f"interval must be at most {most} units of virtual time, got {interval!r}")
    regional = arrivals.arrivals_per_send is not None
    if regional and (buffer_size not in (None, 1) or interval is not None):
        raise ValueError(
            f"{type(arrivals).__name__} has servers that step at each arrival, got "
            f"buffer_size={buffer_size!r} and interval={interval!r}; leave both out"
        )
    seed = integer("seed", seed)
    federation = federation_of(num_clients, num_examples, batch_size, seed, arrivals)
    schedule = Schedule(
        arrivals, federation, interval=interval, max_time=max_time, buffer_size=buffer_size
    )
    by_rounds = regional or (buffer_size is None and interval is None)
    server = CountingServer(schedule, 1 if regional else buffer_size, by_rounds)
    for _ in play(schedule, server, limits):
        pass
    warn_if_over(schedule, server.counts, limits)
    server.writer.end(schedule.in_flight)
    schedule.finish()
    return server.writer.table(arrivals, num_clients)


def warn_if_over(schedule: Schedule, counts: Counts, limits: Limits) -> None:
    """Warn if a schedule without an end has ended before a number of updates or arrivals.

    One that was to last for some virtual time only is complete if nothing happens any more.
    """
    numbers = limits.max_rounds is not None or limits.max_updates is not None
    if schedule.arrivals.finite or limits.reached(counts.version, counts.num_updates):
        return
    if (why := schedule.why_over) and (numbers or schedule.given_up):
        from fedlight._support.messages import Note, voice  # it loads torch

        words = f"fedlight: {why}: the schedule ends at virtual time {schedule.now:g}"
        voice().note(schedule, Note("no arrivals", f"{words}, before its limit", warns=True))


def check_no_feedback(arrivals: ArrivalProcess, purpose: str) -> None:
    """Refuse a process that cannot go on without a model.

    Raises:
        ValueError: It needs feedback.
    """
    if arrivals.needs_feedback:
        raise ValueError(
            f"{arrivals!r} decides by what clients have logged, so {purpose} is not possible: "
            'record a run with FedTrainer(arrivals=Recording(…, "schedule.parquet")), and use '
            'ReplayArrivals("schedule.parquet")'
        )


def federation_of(
    num_clients: int,
    num_examples: int | Iterable[int],
    batch_size: int,
    seed: int,
    arrivals: ArrivalProcess,
) -> Federation:
    """Return the federation of a simulation.

    Raises:
        TypeError: A number is of the wrong kind.
        ValueError: A number is outside its range, or there is not one size for each client.
    """
    num_clients = client_count("num_clients", num_clients)
    batch_size = positive_int("batch_size", batch_size)
    given = one_for_all_or_each("num_examples", num_examples, positive_int)
    if isinstance(given, int):
        sizes = np.broadcast_to(np.int64(given), (num_clients,))
    else:
        sizes = np.array(given, dtype=np.int64)
    if arrivals.shares_data and arrivals.shared_by not in (None, num_clients):
        raise ValueError(
            f"num_clients={num_clients} here, but {arrivals!r} has {arrivals.shared_by} clients; "
            "write the same number"
        )
    if sizes.shape != (num_clients,) and not (arrivals.shares_data and len(sizes)):
        raise ValueError(
            f"num_examples has {len(sizes)} numbers, but there are {num_clients} clients; "
            "give one number for all, or one for each"
        )
    federation = Federation(num_clients, sizes, batch_size, seed=seed)
    return sharing(federation, num_clients) if arrivals.shares_data else federation


def sharing(federation: Federation, num_clients: int | None) -> Federation:
    """A federation whose clients share all data.

    Args:
        federation: A federation with a client for each part of the data.
        num_clients: M, the number of clients that share them; None for one for each part.
    """
    shards = federation.num_examples
    num_clients = num_clients or len(shards)
    share = max(1, int(shards.sum()) // num_clients)
    sizes = np.full(num_clients, share, dtype=np.int64)
    return replace(federation, num_clients=num_clients, num_examples=sizes, shard_sizes=shards)
