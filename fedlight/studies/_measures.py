"""The measures that a study takes of the history of a run.

The value is nan for a run without a point of the metric, such as one that ended before its first
round or validation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedlight._support.checks import items, number, positive, positive_int
from fedlight.plot import curve
from fedlight.plot.figures import best_value
from fedlight.privacy import report_of
from fedlight.studies._groups import called

if TYPE_CHECKING:
    from fedlight.studies.runs import StudyRun
    from fedlight.types import RoundRecord


def best_of(metric: str, mode: str) -> Callable[[Sequence[RoundRecord]], float]:
    """The best value of a run; values that are no numbers are not among them."""

    def best(history: Sequence[RoundRecord]) -> float:
        return best_value(curve(history, metric)[1], mode)

    return best


def place_of(
    target: float, metric: str, mode: str, axis: str
) -> Callable[[Sequence[RoundRecord]], float]:
    """The first place on an axis at which a target is reached; nan if it is not.

    Raises:
        TypeError: The target is no number.
        ValueError: It is not finite.
    """
    number("target", target)

    def reached(history: Sequence[RoundRecord]) -> float:
        places, values = curve(history, metric, axis)
        good = values <= target if mode == "min" else values >= target
        return float(places[good.argmax()]) if good.any() else math.nan

    return reached


def epsilons_at(
    delta: float, runs: Iterable[StudyRun]
) -> dict[str, Callable[[Sequence[RoundRecord]], float]]:
    """The epsilon of a run whose server adds noise to its sums, and that of its central baseline.

    Both are nan without noise.

    Raises:
        ValueError: No run has such noise.
    """
    positive("delta", delta)
    histories = [run.history for run in runs if run.history]
    if histories and not any("fed/noise_multiplier" in each[-1].metrics for each in histories):
        raise ValueError(
            f"delta={delta!r} asks for epsilon, but no run of the study adds noise at its server "
            "(PrivateSum); for noise of the clients see privacy_report"
        )

    def epsilon(history: Sequence[RoundRecord]) -> float:
        report = report_of(history, delta)
        return math.nan if report is None else report.epsilon

    def baseline(history: Sequence[RoundRecord]) -> float:
        report = report_of(history, delta)
        return math.nan if report is None else report.baseline_epsilon

    return {f"epsilon (delta {delta:g})": epsilon, "of central DP-FedAvg": baseline}


def end_of(metric: str, last: float) -> Callable[[Sequence[RoundRecord]], float]:
    """The last value of a run: the mean over its last rounds, or over the last share of its time.

    Raises:
        TypeError: `last` is no number.
        ValueError: It is neither a positive integer nor a share between 0 and 1.
    """
    last = checked_last(last)

    def end(history: Sequence[RoundRecord]) -> float:
        times, values = curve(history, metric, "virtual_time" if last < 1 else "round")
        if not len(values):
            return math.nan
        if last < 1:
            return float(values[times >= (1 - last) * times[-1]].mean())
        return float(values[-int(last) :].mean())

    return end


def checked_last(last: object) -> float:
    """Return the number of last rounds, at least 1, or the last share of the time, below 1.

    Raises:
        TypeError: It is no number.
        ValueError: It is neither a positive integer nor a share between 0 and 1.
    """
    share = number("last", last)
    return share if 0 < share < 1 else positive_int("last", last)


def at_place(metric: str, axis: str, place: float) -> Callable[[Sequence[RoundRecord]], float]:
    """The value at a place on an axis, by a straight line between the points around it.

    From the last point to the end of the run it is the last value; it is nan before the first
    point, and for a run that ended before the place.
    """

    def at(history: Sequence[RoundRecord]) -> float:
        places, values = curve(history, metric, axis)
        if not len(values) or not places[0] <= place <= max(places[-1], _end(history, axis)):
            return math.nan
        return float(np.interp(place, places, values))

    return at


def _end(history: Sequence[RoundRecord], axis: str) -> float:
    """The place of the last round on an axis."""
    last = history[-1]
    if axis == "round":
        return float(last.version)
    key = "fed/time" if axis == "virtual_time" else f"fed/{axis}"
    return float(last.metrics.get(key, -math.inf))


def values_at(
    places: Iterable[float], metric: str, axis: str
) -> dict[str, Callable[[Sequence[RoundRecord]], float]]:
    """The values at several places on an axis, by name.

    Raises:
        TypeError: They are no numbers.
        ValueError: There is none, or one is not finite.
    """
    given = items("places", places)
    found = list(dict.fromkeys(number(f"places[{n}]", place) for n, place in enumerate(given)))
    if not found:
        raise ValueError(f"places must be several numbers, such as [250, 500], got {given!r}")
    # As few digits as tell the places apart: 10,000,001 gradients are not 10,000,000.
    for digits in (6, 9, 17):
        names = [f"{axis} {place:.{digits}g}" for place in found]
        if len(set(names)) == len(found):
            break
    return {name: at_place(metric, axis, place) for name, place in zip(names, found, strict=True)}


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
        if run.error is None and has_metric(run.history, metric):
            line = ", ".join(called(each, run.cell[each]) for each in lines)
            try:
                place = float(str(run.cell[axis]))
            except ValueError as error:
                raise ValueError(
                    f"x={axis!r} must be an axis whose names are numbers, got {run.cell[axis]!r}"
                    + (f"; leave its cells out with only({axis}=…)" * (run.cell[axis] == "-"))
                ) from error
            found.setdefault(line, {}).setdefault(place, []).append(end(run.history))
    return found


def has_metric(history: Sequence[RoundRecord], metric: str) -> bool:
    """Whether a round has the metric."""
    return any(metric in record.metrics for record in history)


def check_metric(runs: Sequence[StudyRun], metric: str) -> None:
    """Check that a round of some runs has a metric.

    Raises:
        ValueError: There are rounds, and none has it.
    """
    known = metrics_of(run.history for run in runs)
    if known and metric not in known:
        raise ValueError(
            f"metric={metric!r} is in no round; the metrics are {known}"
            f"{of_validation(metric, known)}"
        )


def of_validation(metric: str, known: Sequence[str]) -> str:
    """A remedy for a metric of validation, if there has been none."""
    if not metric.startswith("val") or any(each.startswith("val") for each in known):
        return ""
    return "; those that validation_step logs need a validation set (val_dataset=)"


def metrics_of(histories: Iterable[Sequence[RoundRecord]]) -> list[str]:
    """The names of the metrics that rounds have, sorted."""
    return sorted({name for history in histories for record in history for name in record.metrics})
