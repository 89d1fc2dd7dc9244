"""A schedule made without a model: a server that only counts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedlight.arrivals.base import ArrivalProcess
from fedlight.arrivals.recording import Recording
from fedlight.arrivals.schedule import Limits, Schedule
from fedlight.arrivals.table import ScheduleTable
from fedlight.checks import integer, positive, positive_int
from fedlight.events import Kind
from fedlight.types import Federation


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
    if buffer_size is not None:
        positive_int("buffer_size", buffer_size)
    if interval is not None:
        positive("interval", interval)
    recording = Recording(arrivals)
    federation = federation_of(num_clients, num_examples, batch_size, integer("seed", seed))
    schedule = Schedule(recording, federation, interval=interval, max_time=max_time)
    num_updates, held = 0, list[int]()
    for event in schedule.events():
        due = event.kind is Kind.DEADLINE
        if event.task is not None:
            held.append(event.task.client_id)
            num_updates += 1
            due = buffer_size is not None and len(held) >= buffer_size
        elif event.kind is Kind.ROUND_END:
            due = buffer_size is None and interval is None
        released = list[int]()
        if due:
            released, held = held, []
        schedule.send_on(event, schedule.version + due, released)
        if limits.reached(schedule.version, num_updates):
            break
    schedule.finish()
    return recording.table()


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
