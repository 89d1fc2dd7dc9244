"""The events of a schedule, one by one, for tests that play the server themselves."""

from collections.abc import Iterable, Iterator

from fedlight.arrivals.schedule import Schedule
from fedlight.events import Kind
from fedlight.loop import Event, Handled, Stop
from fedlight.types import Task


def events(schedule: Schedule, pulls: list[Task] | None = None) -> Iterator[Event]:
    """The events that change something at the server; the test sends each of them on.

    The others (wake-ups, planned pulls, losses) are sent on here; their pulls join `pulls`.
    """
    while (event := schedule.next()) is not None:
        lost = event.task is not None and event.task.lost
        if lost or event.kind in (Kind.WAKE, Kind.DISPATCH):
            tasks = schedule.send_on(event, Handled(schedule.version))
            if pulls is not None:
                note(pulls, tasks, schedule.now)
        else:
            yield event


def note(tasks: list[Task], changes: Iterable[Task | Stop], now: float) -> None:
    """Add the tasks that start to the others; those that are stopped end now."""
    for change in changes:
        if isinstance(change, Stop):
            ended = change.instead or change.task._replace(arrives_at=now)
            tasks[:] = [ended if each.serial == ended.serial else each for each in tasks]
        else:
            tasks.append(change)
