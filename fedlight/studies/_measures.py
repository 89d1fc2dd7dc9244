"""What a study measures in the history of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedlight._checks import positive_int
from fedlight.plot import curve

if TYPE_CHECKING:
    from fedlight.studies.runs import StudyRun
    from fedlight.types import RoundRecord


def end_of(metric: str, last: float) -> Callable[[Sequence[RoundRecord]], float]:
    """What is the last value of a run: the mean over its last rounds, or a last share of its time.

    Raises:
        ValueError: `last` is neither a positive integer nor a share between 0 and 1.
    """
    if not 0 < last < 1:
        positive_int("last", last)

    def end(history: Sequence[RoundRecord]) -> float:
        times, values = curve(history, metric, "virtual_time")
        if not len(values):
            raise no_metric(metric, history)
        if last < 1:
            return float(values[times >= (1 - last) * times[-1]].mean())
        return float(values[-int(last) :].mean())

    return end


def at_place(metric: str, axis: str, place: float) -> Callable[[Sequence[RoundRecord]], float]:
    """The value at a place on an axis, by a straight line between the points around it."""

    def at(history: Sequence[RoundRecord]) -> float:
        places, values = curve(history, metric, axis)
        if not len(values):
            raise no_metric(metric, history)
        return float(np.interp(place, places, values))

    return at


def ends_over(
    axis: str, runs: Sequence[StudyRun], lines: Sequence[str], metric: str
) -> dict[str, dict[float, list[float]]]:
    """The last values of runs by the names on some axes, and by the number on another one.

    Raises:
        ValueError: A name on that axis is no number.
    """
    end = end_of(metric, 1)
    found: dict[str, dict[float, list[float]]] = {}
    for run in runs:
        if run.error is None:
            line = ", ".join(str(run.cell[each]) for each in lines)
            place = float(str(run.cell[axis]))
            found.setdefault(line, {}).setdefault(place, []).append(end(run.history))
    return found


def no_metric(metric: str, history: Sequence[RoundRecord]) -> ValueError:
    """The error of a metric that a run does not have."""
    known = sorted({name for record in history for name in record.metrics})
    return ValueError(f"metric={metric!r} is in no round; the metrics are {known}")
