"""A schedule made without a model: the event loop with a server that only counts."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedlight._checks import integer, positive, positive_int
from fedlight.arrivals._table_writer import TableWriter
from fedlight.arrivals.schedule import Schedule
from fedlight.events import Kind
from fedlight.loop import Event, Handled, Limits, play
from fedlight.types import Federation

if TYPE_CHECKING:
    from fedlight.arrivals.base import ArrivalProcess
    from fedlight.arrivals.table import ScheduleTable
    from fedlight.types import Task


class CountingServer:
    """Makes versions on the occasions of an aggregator, of no model, and writes the schedule down.

    Args:
        schedule: The schedule, for the virtual time.
        buffer_size: A version after so many arrivals; None for none of this kind.
        by_rounds: A version at the end of each round of the process.
    """

    over = False

    def __init__(self, schedule: Schedule, buffer_size: int | None, by_rounds: bool) -> None:
        self._schedule = schedule
        self._buffer_size, self._by_rounds = buffer_size, by_rounds
        self._held: list[int] = []
        self.writer = TableWriter()
        self.version = 0
        self.num_updates = 0
        self.num_pulls = 0

    def handle(self, event: Event) -> Generator[Sequence[None], None, Handled]:
        """Count; no local run has to be computed, so nothing is yielded."""
        kind, task, _ = event
        due, released = kind is Kind.DEADLINE, list[int]()
        if task is not None:
            self.writer.arrive(task)
            if not task.lost:
                self._held.append(task.client_id)
                self.num_updates += 1
                due = self._buffer_size is not None and len(self._held) >= self._buffer_size
        elif kind is Kind.ROUND_END:
            self.writer.end_round(self._schedule.now)
            due = self._by_rounds
        if due:
            self.version += 1
            released, self._held = self._held, []
            self.writer.use(released, self.version)
        return Handled(self.version, released)
        yield  # makes this a generator

    def dispatch(self, task: Task) -> None:
        """Count the pull."""
        self.num_pulls += 1


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
    """The schedule that an arrival process gives, made without a model.

    The server steps as an aggregator of the same `buffer_size` or `interval` would; without both,
    at the process's ends of rounds.

    Args:
        arrivals: The arrival process.
        num_clients: M.
        max_rounds: Stop after this many server updates.
        max_time: Stop after this virtual time (events at that time still count).
        max_updates: Stop after this many arrivals.
        buffer_size: Server updates after so many arrivals.
        interval: Server updates at multiples of this virtual time.
        num_examples: n_i, one number for all clients or one each.
        batch_size: Examples per local step.
        seed: The run's seed.

    Raises:
        ValueError: Nothing would stop it, or the process does not fit.

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals, UniformSpeeds
        >>> table = simulate(
        ...     ContinuousArrivals(UniformSpeeds(0.8)), num_clients=5, buffer_size=2, max_rounds=10
        ... )
        >>> len(table), table.staleness().tolist()[:6]
        (20, [0, 0, 0, 1, 0, 1])
    """
    limits = Limits(max_rounds, max_time, max_updates)
    limits.check(arrivals)
    if buffer_size is None and interval is None and not arrivals.by_rounds:
        raise ValueError(
            f"{arrivals!r} has no rounds: give buffer_size (server updates after so many "
            "arrivals) or interval (virtual time between server updates)"
        )
    if buffer_size is not None:
        positive_int("buffer_size", buffer_size)
    if interval is not None:
        positive("interval", interval)
    federation = federation_of(num_clients, num_examples, batch_size, integer("seed", seed))
    schedule = Schedule(arrivals, federation, interval=interval, max_time=max_time)
    by_rounds = buffer_size is None and interval is None
    server = CountingServer(schedule, buffer_size, by_rounds)
    for _ in play(schedule, server, limits):
        pass
    schedule.finish()
    durations = arrivals.expected_durations()
    return server.writer.table(num_clients, None if durations is None else durations.tolist())


def federation_of(
    num_clients: int, num_examples: int | Iterable[int], batch_size: int, seed: int
) -> Federation:
    """The federation that a simulation is about.

    Raises:
        TypeError: A number of the wrong kind.
        ValueError: A number outside its range, or not one size for each client.
    """
    positive_int("num_clients", num_clients)
    positive_int("batch_size", batch_size)
    if isinstance(num_examples, int):
        sizes = np.broadcast_to(np.int64(num_examples), (num_clients,))
    else:
        sizes = np.array(list(num_examples), dtype=np.int64)
    if sizes.shape != (num_clients,):
        raise ValueError(
            f"num_examples has {len(sizes)} numbers, but there are {num_clients} clients; "
            "give one number for all, or one for each"
        )
    if (sizes < 1).any():
        raise ValueError(f"num_examples must be at least 1 for each client, got {sizes.min()}")
    return Federation(num_clients, sizes, batch_size, seed=seed)
