"""TensorBoard's pages in addition to curves: HParams, and Custom Scalars of a metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedlight.plot.figures import X_AXES, best_value, curve


def layout_of(metric: str, axes: Sequence[str], time_resolution: float) -> dict[str, Any]:
    """The page *Custom Scalars*: the metric on rounds and on the other axes, one chart each.

    Args:
        metric: The metric.
        axes: The axes in addition to rounds.
        time_resolution: Steps of TensorBoard per unit of virtual time.
    """
    charts = {f"{metric} over rounds": ["Multiline", [f"^{metric}$"]]}
    for axis in axes:
        unit = X_AXES[axis].partition(" (")[0]
        if axis == "virtual_time" and time_resolution != 1:
            unit += f" (a unit is {time_resolution:g} steps)"
        charts[f"{metric} over {unit}"] = ["Multiline", [f"^{metric}/by_{axis}$"]]
    return {metric: charts}


def summary_of(history: Sequence[Any], metric: str, mode: str, seconds: float) -> dict[str, float]:
    """The figures of a run for HParams: best and last value of the metric, and real time.

    Args:
        history: The rounds.
        metric: The metric.
        mode: "min" or "max" of it is best.
        seconds: Real time.
    """
    values = curve(history, metric)[1]
    figures = {"run/seconds": seconds}
    if len(values):
        figures[f"{metric}/best"] = best_value(values, mode)
        figures[f"{metric}/last"] = float(values[-1])
    return figures
