"""Records a schedule during a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from fedlight._support.growing import Growing
from fedlight.arrivals._state import Saved
from fedlight.arrivals.table import ReplayEvent, ScheduleTable

if TYPE_CHECKING:
    from fedlight.arrivals.base import ArrivalProcess
    from fedlight.types import Task


class TableWriter(Saved):
    """Collects arrivals, ends of rounds, and the version at which each update was used."""

    _saved_attributes = ("_version", "_held", "_last", "_waste_known")
    _growing = ("rows", "round_ends", "round_tags", "uses", "lost")

    def __init__(self) -> None:
        self._rows: list[list[Any]] = []
        self._round_ends: list[float] = []
        self._round_tags: list[str | None] = []
        self._uses: list[list[int]] = []  # [row, version], in the order of use
        self._lost: list[list[Any]] = []
        self._waste_known = True  # so far all that came to nothing is in the rows
        self._version = 0
        self._last = 0.0  # the time of the last event that the server may have computed for
        self._unfinished: list[Task] = []
        self._held: dict[int, list[int]] = {}  # by client: rows whose updates were not used yet

    def arrive(self, task: Task) -> None:
        """Record an arrival, or that the task was lost."""
        if task.lost:
            self._lost.append(_row(task, task.arrives_at))
            return
        self._last = task.arrives_at
        self._held.setdefault(task.client_id, []).append(len(self._rows))
        self._rows.append(_row(task, task.arrives_at))

    def stop(self, task: Task, version: int, now: float) -> None:
        """Record that a local run was cancelled, or a task whose result would have been lost."""
        (self._lost if task.lost else self._rows).append(_row(task, now, version))

    def fail(self) -> None:
        """Note that a local run has failed as it was computed, which no row says."""
        self._waste_known = False

    def end_round(self, now: float, tag: str | None = None) -> None:
        """Record the end of a round, of a group if it has a tag."""
        self._last = now
        self._round_ends.append(now)
        if tag is not None:
            self._round_tags += [None] * (len(self._round_ends) - len(self._round_tags) - 1)
            self._round_tags.append(tag)

    def use(self, clients: Collection[int], version: int, now: float) -> None:
        """Record that updates of clients were used or dropped.

        The previous version is recorded, since staleness is relative to it.

        Args:
            clients: The clients, each once for each of its updates.
            version: The server's version afterwards.
            now: Virtual time.
        """
        self._last = now
        for client in clients:
            if rows := self._held.get(client):
                self._uses.append([rows.pop(0), self._version])
                if not rows:
                    del self._held[client]
        self._version = version

    def end(self, in_flight: Iterable[Task]) -> None:
        """Record the tasks in flight at the end, beside which others may have been computed.

        Args:
            in_flight: The tasks. Those that started after the last computation are left out, as
                are lost ones, and those that are tried again, which a replay does by itself.
        """
        self._unfinished = [
            task
            for task in in_flight
            if task.dispatched_at < self._last and not task.lost and not task.tries
        ]

    def table(self, arrivals: ArrivalProcess, num_clients: int) -> ScheduleTable:
        """Return the schedule so far.

        Args:
            arrivals: The process, set up, whose schedule it is.
            num_clients: M, the number of clients.
        """
        durations = arrivals.expected_durations()
        versions: list[int | None] = [None] * len(self._rows)
        for row, version in self._uses:
            versions[row] = version
        events = [ReplayEvent(*row) for row in self._rows]
        if any(event.stopped_at_version is not None for event in events):
            places = sorted(range(len(events)), key=lambda k: _place(events[k]))
            events, versions = [events[k] for k in places], [versions[k] for k in places]
        return ScheduleTable(
            events,
            list(self._round_ends),
            num_clients,
            None if durations is None else durations.tolist(),
            versions,
            list(self._round_tags),
            list(arrivals.groups),
            arrivals.arrivals_per_send,
            arrivals.needs_feedback or arrivals.early_results,
            may_stop=arrivals.may_stop,
            unfinished=_sorted(_row(task, task.arrives_at) for task in self._unfinished),
            lost=_sorted(self._lost),
            waste_known=self._waste_known and arrivals.waste_known,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the records so far."""
        growing = {name: Growing(vars(self)[f"_{name}"]) for name in self._growing}
        return growing | super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, to continue the recording."""
        super().load_state_dict(state)
        if "lost" not in state:  # older checkpoints
            self._waste_known = False
        for name in self._growing:
            # A copy, as two recordings may continue from one checkpoint; older ones have no tags.
            setattr(self, f"_{name}", list(state.get(name, ())))


def _row(task: Task, time: float, stopped_at: int | None = None) -> list[Any]:
    row = [task.client_id, task.pulled_version, time, task.num_steps, task.dispatched_at]
    return [*row, task.visit, stopped_at, task.tag, task.cut, *(task.chunk or ())]


def _sorted(rows: Iterable[list[Any]]) -> list[ReplayEvent]:
    """The records of tasks that have not arrived: a replay has them in the same order."""
    events = (ReplayEvent(*row) for row in rows)
    return sorted(events, key=lambda event: (event.time, event.client, event.visit))


def _place(event: ReplayEvent) -> tuple[float, int, int]:
    """The place of a record in a table with cancelled local runs.

    Of the records of one time, the arrivals come first, in their order. A local run that was cut
    may have arrived after another one was cancelled, but a replay cannot know this order.
    """
    stopped_at = event.stopped_at_version
    return (event.time, -1, -1) if stopped_at is None else (event.time, stopped_at, event.client)
