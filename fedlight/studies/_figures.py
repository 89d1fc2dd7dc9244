"""Figures of a study: curves with bands over the seeds, in panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from fedlight.plot import COLOURS, DASHES, History, curves
from fedlight.plot.figures import Band, of_matplotlib
from fedlight.studies._measures import has_metric

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
    without: Mapping[str, str],
    band: Band,
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
        zoom: Choose the vertical range from the values after this share of a panel.
        without: Why a part has no lines, by its title.
        band: The band around the mean over the seeds.

    Raises:
        ImportError: matplotlib is not installed.
    """
    columns = [*product(metrics, xs)]
    number = len(panels) * len(columns)
    figure, places = _grid(number, len(columns) if len(columns) > 1 else None)
    of_metric: dict[str, list[Axes]] = {metric: [] for metric in metrics}
    drawn: list[Axes] = []  # the pictures that have lines
    for ax, ((title, all_lines), (metric, x)) in zip(
        places, product(panels.items(), columns), strict=True
    ):
        ax.set_title(title, fontsize=10)
        lines = _with_metric(all_lines, metric)
        if not lines:
            _say_why(ax, without[title])
            continue
        kind, confidence = band.kind, band.confidence
        curves(lines, metric, x, smooth=smooth, band=kind, confidence=confidence, ax=ax)
        drawn.append(ax)
        if log:
            ax.set_yscale("log")
        of_metric[metric].append(ax)
    for group in filter(None, of_metric.values()):
        low, high_end = _range(group, zoom, log)
        for ax in group:
            ax.set_ylim(low, high_end)
    _share_legend(figure, drawn)
    return figure


def _share_legend(figure: Figure, drawn: Sequence[Axes]) -> None:
    """Put one legend below several pictures with the same lines, where it hides none of them.

    Pictures whose legends differ keep their own.
    """
    legends = [legend for ax in drawn if (legend := ax.get_legend())]
    if len(drawn) < 2 or len(legends) < len(drawn):
        return
    handles, labels = drawn[0].get_legend_handles_labels()
    title = legends[0].get_title().get_text()
    for ax, legend in zip(drawn, legends, strict=True):
        if (ax.get_legend_handles_labels()[1], legend.get_title().get_text()) != (labels, title):
            return
    for legend in legends:
        legend.remove()
    columns = min(len(labels), max(2, round(figure.get_figwidth() / 2.5)))  # inches for a label
    shared = figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, title=title
    )
    shared.get_title().set_fontsize("small")
    rows = -(-len(labels) // columns) + bool(title)
    figure.set_figheight(figure.get_figheight() + 0.1 + 0.22 * rows)


def draw_ends(
    panels: Mapping[str, Mapping[str, Mapping[float, Sequence[float]]]],
    x: str,
    metric: str,
    log: bool,
    without: Mapping[str, str],
    band: Band,
) -> Figure:
    """Draw the last values over an axis of the study: mean and band over the seeds.

    Args:
        panels: The values of each seed by title, line and place.
        x: Name of the horizontal axis.
        metric: Name of the metric.
        log: Draw the vertical axis in a logarithmic scale.
        without: Why a part has no values, by its title.
        band: The band around the mean over the seeds.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure, places = _grid(len(panels), None)
    for ax, (title, lines) in zip(places, panels.items(), strict=True):
        for number, (name, found) in enumerate(lines.items()):
            ordered = sorted(found)
            columns = [band.of(np.array([found[place]]).T) for place in ordered]
            mean, low, high = np.concatenate(columns, axis=1)
            ax.errorbar(
                ordered,
                mean,
                np.nan_to_num([mean - low, high - mean]),
                color=COLOURS[number % len(COLOURS)],
                linestyle=DASHES[number % len(DASHES)],
                marker="o",
                capsize=3,
                label=name or None,
            )
        ax.set(title=title, xlabel=x, ylabel=f"last {metric}", yscale="log" if log else "linear")
        ax.spines[["top", "right"]].set_visible(False)
        if not lines:
            _say_why(ax, without[title])
        seeds = [len(values) for found in lines.values() for values in found.values()]
        if any(lines):
            legend = ax.legend(frameon=False, title=band.words(seeds))
            legend.get_title().set_fontsize("small")
    with_lines = [ax for ax, lines in zip(places, panels.values(), strict=True) if lines]
    _share_legend(figure, with_lines)
    return figure


def _with_metric(lines: Lines, metric: str) -> dict[str, list[History]]:
    """The histories that have the metric."""
    found = {name: [h for h in each if has_metric(h, metric)] for name, each in lines.items()}
    return {name: histories for name, histories in found.items() if histories}


def _say_why(ax: Axes, words: str) -> None:
    """A picture without lines says why."""
    ax.text(0.5, 0.5, words, ha="center", va="center", transform=ax.transAxes)
    ax.set(xticks=[], yticks=[])


def _grid(number: int, columns: int | None) -> tuple[Figure, list[Axes]]:
    """A figure with so many pictures, in so many columns or as it fits best."""
    pyplot = of_matplotlib("pyplot")
    most = columns or (4 if number == 4 else 3)
    wide, high = min(most, number), -(-number // most)
    size = (1.5 + 3.5 * wide, 0.6 + 2.9 * high) if number > 1 else (6.0, 4.0)
    figure, grid = pyplot.subplots(high, wide, figsize=size, layout="constrained", squeeze=False)
    for ax in grid.flat[number:]:
        ax.set_visible(False)
    return figure, list(grid.flat[:number])


def _range(group: Sequence[Axes], zoom: float, log: bool) -> tuple[float, float]:
    """The range of the vertical axes of panels that show the same metric."""
    if not zoom:
        lows, highs = zip(*(ax.get_ylim() for ax in group), strict=True)
        return min(lows), max(highs)
    shown = []
    for ax in group:
        lines = [np.asarray(line.get_xydata(), dtype=np.float64) for line in ax.lines]
        first = min(points[:, 0].min() for points in lines)
        last = max(points[:, 0].max() for points in lines)
        behind = [points[points[:, 0] >= first + zoom * (last - first)] for points in lines]
        shown += [points[:, 1] for points in behind]
    values = np.concatenate(shown)
    values = values[np.isfinite(values)]
    if not len(values):
        return _range(group, 0.0, log)
    low, high = float(values.min()), float(values.max())
    if log and low > 0:
        margin = (high / low) ** 0.08
        return low / margin, high * margin
    margin = 0.08 * (high - low) or 0.01
    return low - margin, high + margin
