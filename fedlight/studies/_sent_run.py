"""A run of a study that another process computes and sends back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedlight._support.messages import Note, keep_what_is_said_once, say_once
from fedlight.studies.one_run import OneRun, StudySettings
from fedlight.studies.runs import Planned, StudyRun
from fedlight.studies.workers import go_through

if TYPE_CHECKING:
    from fedlight.arrivals import ScheduleTable


@dataclass(frozen=True, slots=True)
class SentRun:
    """The result of a run in the form in which it is sent.

    Attributes:
        record: The record of the run as plain data; None if it was interrupted.
        schedule: Its schedule, if others replay it.
        notes: Its notes about its end.
        said: Its messages, to be printed once by the process that receives it.
    """

    record: dict[str, Any] | None
    schedule: ScheduleTable | None
    notes: Sequence[Note]
    said: Sequence[str]

    @classmethod
    def compute(
        cls,
        planned: Planned,
        shared: StudySettings,
        tick: Callable[[OneRun], None] = lambda run: None,
    ) -> SentRun:
        """Compute a run in this process, to be sent to the one that has planned it."""
        run, said = OneRun(planned, shared), keep_what_is_said_once()
        go_through(run, tick)
        record = None if run.result is None else run.result.to_plain()
        return cls(record, planned.schedule, run.notes, said)


def received(receive: Callable[[], SentRun], planned: Planned, shared: StudySettings) -> OneRun:
    """The run that is over, in the process that has planned it.

    Args:
        receive: Returns the run that was sent; its error is that of the run.
        planned: The run's place in the plan.
        shared: What all runs share.
    """
    try:
        sent = receive()
    except Exception as error:  # of the run, or its process has died
        return OneRun(planned, shared, result=planned.failed(error))
    for message in sent.said:
        say_once(message)
    if sent.record is None:
        return OneRun(planned, shared)
    planned.schedule = sent.schedule
    result = StudyRun.from_plain(sent.record, dict(planned.cell.names))
    return OneRun(planned, shared, result=result, notes=[*sent.notes])
