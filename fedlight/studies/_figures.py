"""Figures of a study: curves with bands over the seeds, in panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from fedlight.plot import History, curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lines = Mapping[str, Sequence[History]]


def draw(
    panels: Mapping[str, Lines],
    metrics: Sequence[str],
    xs: Sequence[str],
    smooth: int,
    log: bool,
    zoom: float,
) -> Figure:
    """Draw a panel for each of the parts of a study, metrics and horizontal axes.

    With one metric and one axis the panels are laid out in rows. With several, each part is a row,
    which has a column for each of them.

    Args:
        panels: The lines of each part by its title, "" for none.
        metrics: Metrics.
        xs: Horizontal axes.
        smooth: Draw the mean of this many points, up to the current one.
        log: Draw the vertical axis in a logarithmic scale.
        zoom: Choose the range of the vertical axis by what lies behind this share of a panel.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "study.plot draws with matplotlib, which is not installed: pip install matplotlib"
        ) from error
    columns = [*product(metrics, xs)]
    number = len(panels) * len(columns)
    most = len(columns) if len(columns) > 1 else 4 if number == 4 else 3
    wide, high = min(most, number), -(-number // most)
    size = (1.5 + 3.5 * wide, 0.6 + 2.9 * high) if number > 1 else (6.0, 4.0)
    figure, grid = pyplot.subplots(high, wide, figsize=size, layout="constrained", squeeze=False)
    places = list(grid.flat)
    of_metric: dict[str, list[Axes]] = {metric: [] for metric in metrics}
    for ax, ((title, lines), (metric, x)) in zip(
        places, product(panels.items(), columns), strict=False
    ):
        curves(lines, metric, x, smooth=smooth, ax=ax)
        ax.set_title(title, fontsize=10)
        if log:
            ax.set_yscale("log")
        if set(lines) == set(next(iter(panels.values()))) and ax is not places[0]:
            ax.get_legend().remove()
        of_metric[metric].append(ax)
    for group in of_metric.values():
        low, high_end = _range(group, zoom, log)
        for ax in group:
            ax.set_ylim(low, high_end)
    for ax in places[number:]:
        ax.set_visible(False)
    return figure


def _range(group: Sequence[Axes], zoom: float, log: bool) -> tuple[float, float]:
    """The range of the vertical axes of panels that show the same metric."""
    if not zoom:
        lows, highs = zip(*(ax.get_ylim() for ax in group), strict=True)
        return min(lows), max(highs)
    shown = []
    for ax in group:
        lines = [line.get_xydata() for line in ax.lines]
        first = min(points[:, 0].min() for points in lines)
        last = max(points[:, 0].max() for points in lines)
        behind = [points[points[:, 0] >= first + zoom * (last - first)] for points in lines]
        shown += [points[:, 1] for points in behind if len(points)]
    values = np.concatenate(shown)
    low, high = float(values.min()), float(values.max())
    if log and low > 0:
        margin = (high / low) ** 0.08
        return low / margin, high * margin
    margin = 0.08 * (high - low) or 0.01
    return low - margin, high + margin
