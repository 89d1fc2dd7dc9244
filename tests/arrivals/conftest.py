"""A server that only counts, and what it sees."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedlight.arrivals import ArrivalProcess
from fedlight.arrivals.schedule import Schedule
from fedlight.events import Kind
from fedlight.loop import Event, Handled
from fedlight.types import Federation, Task
from tests.playing import events, note


class Line(NamedTuple):
    """One event as the server sees it, and the server's version behind it."""

    now: float
    kind: Kind
    task: Task | None
    version: int


class Server:
    """Steps when `buffer_size` updates are there, at deadlines, or at the ends of rounds."""

    def __init__(self, buffer_size: int | None = None, interval: float | None = None) -> None:
        self.buffer_size, self.interval = buffer_size, interval
        self.version, self.held = 0, list[int]()

    def handle(self, event: Event) -> list[int]:
        """The clients let go."""
        due = event.kind is Kind.DEADLINE
        if event.task is not None:
            self.held.append(event.task.client_id)
            due = self.buffer_size is not None and len(self.held) >= self.buffer_size
        elif event.kind is Kind.ROUND_END:
            due = self.buffer_size is None and self.interval is None
        released = list[int]()
        if due:
            released, self.held = self.held, []
            self.version += 1
        return released


def sizes(num_clients: int, seed: int = 0, num_examples: int = 6) -> Federation:
    return Federation(num_clients, np.full(num_clients, num_examples), batch_size=2, seed=seed)


def drive(
    make: Callable[[], ArrivalProcess],
    num_clients: int,
    *,
    num_events: int = 100,
    stop_after: int | None = None,
    seed: int = 0,
    max_time: float | None = None,
    buffer_size: int | None = None,
    interval: float | None = None,
) -> tuple[list[Line], list[Task]]:
    """All events and all tasks dispatched; killed and taken up again after `stop_after` events."""
    tasks = list[Task]()
    server = Server(buffer_size, interval)

    def schedule() -> Schedule:
        return Schedule(
            make(),
            sizes(num_clients, seed),
            interval=interval,
            max_time=max_time,
        )

    lines = list[Line]()
    running = schedule()
    while True:
        for event in events(running, tasks):
            released = server.handle(event)
            note(tasks, running.send_on(event, Handled(server.version, released)), running.now)
            lines.append(Line(running.now, event.kind, event.task, server.version))
            if len(lines) >= num_events:
                return lines, tasks
            if len(lines) == stop_after:
                break
        else:
            return lines, tasks
        state = json.loads(json.dumps(running.state_dict()))
        running = schedule()
        running.load_state_dict(state)


@pytest.fixture(scope="session", name="drive")
def _drive() -> Any:
    return drive


@pytest.fixture(scope="session")
def federation() -> Any:
    """Makes a federation of clients with six examples each, batches of two."""
    return sizes
