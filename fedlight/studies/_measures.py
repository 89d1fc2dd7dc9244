"""What a study measures in the history of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedlight._checks import positive_int
from fedlight.plot import curve

if TYPE_CHECKING:
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


def no_metric(metric: str, history: Sequence[RoundRecord]) -> ValueError:
    """The error of a metric that a run does not have."""
    known = sorted({name for record in history for name in record.metrics})
    return ValueError(f"metric={metric!r} is in no round; the metrics are {known}")
