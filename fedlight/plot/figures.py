"""The figures of `fedlight.plot`: curves, timelines and partitions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from data_partitioners import Partition
from fedlight._support.bootstrap import bootstrap_band, check_confidence
from fedlight._support.checks import (
    described,
    items,
    one_of,
    optional,
    positive_int,
    shown,
    word,
)
from fedlight._support.checks import names as names_of
from fedlight._support.checks import number as finite_number
from fedlight._support.files import user_path
from fedlight.data import FederatedDataModule
from fedlight.plot._pictures import Timeline, Work, label_table, shade, staleness_shade, work_of
from fedlight.types import RoundRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray


History: TypeAlias = Sequence[RoundRecord]

X_AXES = {
    "round": "server updates (rounds)",
    "virtual_time": "virtual time",
    "gradients": "gradients computed (local steps)",
    "models": "models communicated",
    "bytes": "bytes communicated",
    "examples": "examples trained on",
    "tokens": "tokens trained on",
}
"""The horizontal axes of curves, and their labels."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 3)))
_UPDATE = "#D55E00"
_GREY = "#868e96"
_GRID = 200


def curves(
    runs: History | Mapping[str, Any] | Any,
    metric: str = "val_acc",
    x: str = "round",
    *,
    smooth: int = 1,
    band: str | None = "interval",
    confidence: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    """Draw a metric of one or several runs over rounds, virtual time, or what has been used.

    Several runs under one name, such as one for each seed, are drawn as their mean with a band;
    the title of the legend names the band. If their points have different places on the axis, the
    runs are interpolated linearly. Values that are infinite or nan are left out of the mean, and
    the legend says how many runs have some.

    Args:
        runs: A trainer or its ``history``; or a mapping of names to one or several histories; or
            the result of `fedlight.compare`.
        metric: Name of a metric in the records; rounds without it are left out.
        x: "round", "virtual_time", "gradients", "models", "bytes", "examples" or "tokens". The last
            is there for data with `tokens_per_example`, such as those of `fedlight.data.text_data`.
        smooth: Draw the mean of this many points, up to the current one.
        band: "interval" for the bootstrap interval of the mean over the runs (see
            `fedlight.studies.bootstrap`; too narrow with few seeds), "std" for one sample standard
            deviation on both sides, or None for no band.
        confidence: Confidence of the intervals.
        ax: The axes to draw on; None for new ones.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: `runs` or `ax` is of the wrong kind.
        ValueError: There are no runs, no round has the metric, or an argument is outside its range.
    """
    one_of("x", x, tuple(X_AXES))
    positive_int("smooth", smooth)
    shown = Band(band, confidence)
    found = {
        name: [_line(name, history, metric, x, smooth) for history in histories]
        for name, histories in _named(runs).items()
    }
    ax = _axes(ax, (6.0, 4.0))
    for number, (name, lines) in enumerate(found.items()):
        grid = lines[0][0]
        if any(not np.array_equal(grid, places) for places, _ in lines):
            first = max(places[0] for places, _ in lines)
            last = min(places[-1] for places, _ in lines)
            grid = np.linspace(first, max(first, last), _GRID)
        with np.errstate(invalid="ignore"):  # between a number and inf
            values = np.array([np.interp(grid, places, value) for places, value in lines])
        mean, low, high = shown.of(values)
        broken = int((~np.isfinite(values)).any(axis=1).sum())
        label = f"{name} ({broken} of {len(lines)} not finite)".lstrip() if broken else name
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        ax.plot(grid, mean, color=colour, linestyle=dashes, label=label or None, linewidth=1.8)
        if band is not None and len(lines) > 1:
            ax.fill_between(grid, low, high, color=colour, alpha=0.18, linewidth=0)
    ax.set_xlabel(X_AXES[x])
    ax.set_ylabel(metric)
    ax.grid(color="#e9ecef", linewidth=0.8)
    _plain(ax)
    if ax.get_legend_handles_labels()[1]:
        legend = ax.legend(frameon=False, title=shown.words(map(len, found.values())))
        legend.get_title().set_fontsize("small")
    return ax


@dataclass(frozen=True, slots=True)
class Band:
    """The band around the mean of several runs.

    Attributes:
        kind: "interval", "std", or None for no band.
        confidence: Confidence of the intervals.

    Raises:
        ValueError: One is outside its range.
    """

    kind: str | None
    confidence: float

    def __post_init__(self) -> None:
        if self.kind is not None:
            one_of("band", self.kind, ("interval", "std"))
        # As a float, since numpy does not know fractions.
        object.__setattr__(self, "confidence", check_confidence(self.confidence))

    def of(
        self, values: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean over the runs and the two edges of the band.

        Each is nan at places at which it has too few numbers.

        Args:
            values: The values, shape ``[runs, places]``.
        """
        mean, low, high = np.full((3, values.shape[1]), np.nan)
        finite = np.isfinite(values)
        # The runs that have numbers are the same at many places.
        for pattern in np.unique(finite, axis=1).T:
            at = (finite == pattern[:, None]).all(axis=0)
            chosen = values[np.ix_(pattern, at)]
            if not len(chosen):
                continue
            mean[at] = chosen.mean(axis=0)
            if len(chosen) > 1 and self.kind == "std":
                spread = chosen.std(axis=0, ddof=1)
                low[at], high[at] = mean[at] - spread, mean[at] + spread
            elif len(chosen) > 1 and self.kind == "interval":
                low[at], high[at] = bootstrap_band(chosen, self.confidence)
        return mean, low, high

    def words(self, runs: Iterable[int]) -> str | None:
        """Return the title of a legend for lines of so many runs each; None without a band."""
        numbers = sorted({number for number in runs if number > 1})
        if self.kind is None or not numbers:
            return None
        name = f"{100 * self.confidence:g} % interval" if self.kind == "interval" else "± std"
        count = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
        return f"mean, {name} over {count} runs"


def timeline(
    events: Any,
    start: float | None = None,
    end: float | None = None,
    *,
    max_clients: int = 40,
    ax: Axes | None = None,
) -> Axes:
    """Draw a bar for each task from its pull to its arrival, coloured by staleness.

    Server updates are lines. Tasks that were dropped or stopped, and those that are in flight at
    the end, are outlined. A lost task is a cross at the time of its pull.

    Tasks of one client that overlap lie above one another, in thinner bars. This happens with
    arrival processes of rounds such as `UniformArrivals`. They draw a staleness for each update
    that arrives, so a client can pull a version while its older results are still to come.

    Args:
        events: The file of an `EventLog`, its table, or a trainer or its ``history`` (which
            contains neither tasks that were lost or stopped nor those in flight).
        start: Virtual time at the left edge; None for the first pull.
        end: Virtual time at the right edge; None for the last arrival or update.
        max_clients: Largest number of clients, the first ones that have tasks.
        ax: The axes to draw on; None for new ones.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: matplotlib is not installed.
        TypeError: `events` is of the wrong kind.
        ValueError: There is no task between `start` and `end`, or the file is no event log.
    """
    positive_int("max_clients", max_clients)
    events = getattr(events, "history", events)
    start = optional(finite_number, "start", start)
    end = optional(finite_number, "end", end)
    if isinstance(events, Sequence) and not isinstance(events, str | bytes):
        for each in events:
            _check_record("events", each)
        work, lost = work_of(events), list[tuple[int, float]]()
        updates = [record.now for record in events]
    else:
        work, lost, updates = _logged(events)
    ends = [min(task.end, max(updates, default=task.end)) for task in work] + updates
    left = min((task.start for task in work), default=0.0) if start is None else start
    right = max(ends, default=0.0) if end is None else end
    made = Timeline.of(work, updates, left, right, lambda clients: clients[:max_clients])
    if not made.bars:
        raise ValueError(
            f"events must hold a task between start={left!r} and end={right!r}, got none there"
        )
    clients = made.clients
    ax = _axes(ax, (8.0, 1.3 + 0.24 * len(clients)))
    for bar in made.bars:
        ax.broken_barh(
            [(bar.start, bar.end - bar.start)],
            (bar.row - 0.4 + 0.8 * bar.top, 0.8 * (bar.bottom - bar.top)),
            facecolor="white" if bar.shade is None else _colour(bar.shade),
            edgecolor=_GREY if bar.shade is None else "white",
            linewidth=0.6,
            zorder=3,
        )
    for client, time in lost:
        if client in clients and left <= time <= right:
            ax.plot(time, clients.index(client), "x", color=_GREY, markersize=5, zorder=4)
    width = 1.0 if len(made.updates) <= 60 else 0.4
    ax.vlines(made.updates, -0.6, len(clients) - 0.4, color=_UPDATE, linewidth=width, zorder=1)
    ax.set_xlim(left, right)
    ax.set_ylim(len(clients) - 0.4, -0.6)
    step = -(-len(clients) // 40)
    ax.set_yticks(range(0, len(clients), step), [str(client) for client in clients[::step]])
    ax.set_xlabel("virtual time")
    ax.set_ylabel("client")
    _plain(ax)
    _timeline_legend(ax, made, bool(lost))
    return ax


def partition(
    data: FederatedDataModule | Partition,
    labels: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    *,
    max_clients: int = 60,
    ax: Axes | None = None,
) -> Axes:
    """Draw the number of examples of each client (row) and class (column).

    Args:
        data: A data module, whose `setup` is called, or a partition.
        labels: One label for each row of the data set, if `data` is a partition.
        names: The classes' names; None for those of the data set.
        max_clients: Largest number of clients, the first ones.
        ax: The axes to draw on; None for new ones.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: `data` is of the wrong kind.
        ValueError: There are no labels.
    """
    positive_int("max_clients", max_clients)
    if isinstance(data, FederatedDataModule):
        data.setup()
        found = label_table(data)
        if found is None:
            raise ValueError(
                "the data have no column of labels that can be counted; write "
                "plot.partition(data.partition, labels) with one label for each row"
            )
        counts, known = found
    elif not isinstance(data, Partition):
        raise TypeError(
            "data must be a FederatedDataModule or a Partition, got "
            f"{data!r} ({type(data).__name__})"
        )
    elif labels is None or (np.ndim(labels) != 1 and not hasattr(labels, "column_names")):
        raise ValueError(
            f"labels must hold one label for each row of the data set, got {shown(labels)}"
        )
    else:
        counts = data.label_counts(labels)
        known = [str(label) for label in np.unique(np.asarray(labels))]
        known = known if len(known) == counts.shape[1] else list(map(str, range(counts.shape[1])))
    names = known if names is None else names_of("names", names)
    if len(names) != counts.shape[1]:
        raise ValueError(
            f"names must hold {counts.shape[1]} names of classes, got {len(names)}: {shown(names)}"
        )
    total = len(counts)
    counts = counts[:max_clients]
    size = (1.6 + 0.45 * len(names), 1.2 + (0.3 if len(counts) <= 20 else 0.13) * len(counts))
    ax = _axes(ax, (min(size[0], 12.0), size[1]))
    scale = of_matplotlib("colors").ListedColormap([_colour(step / 255) for step in range(256)])
    image = ax.imshow(np.ma.masked_equal(counts, 0), cmap=scale, vmin=0, aspect="auto")
    if len(counts) <= 20 and len(names) <= 20:
        for row, column in np.argwhere(counts):
            dark = counts[row, column] > 0.45 * counts.max()
            ax.text(
                column,
                row,
                str(counts[row, column]),
                ha="center",
                va="center",
                fontsize=7,
                color="white" if dark else "black",
            )
    step = -(-len(counts) // 30)
    ax.set_yticks(range(0, len(counts), step))
    wide = max(map(len, names)) > 3
    ax.set_xticks(
        range(len(names)), names, rotation=45 if wide else 0, ha="right" if wide else "center"
    )
    ax.set_xlabel("class")
    ax.set_ylabel(
        "client" if len(counts) == total else f"client (first {len(counts)} of {total:,})"
    )
    _plain(ax)
    ax.figure.colorbar(image, ax=ax, label="examples").outline.set_visible(False)
    return ax


def _line(
    name: str, history: History, metric: str, x: str, smooth: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the points of a curve: their places on the axis, and their values."""
    places, values = curve(history, metric, x)
    if not len(values):
        known = sorted({key for record in history for key in record.metrics})
        of = f" of {name!r}" if name else ""
        raise ValueError(f"no round{of} has the metric {metric!r}; the metrics are {known}")
    if smooth > 1:
        sums = np.cumsum(np.insert(values, 0, 0.0))
        last = np.arange(1, len(values) + 1)
        first = np.maximum(last - smooth, 0)
        values = (sums[last] - sums[first]) / (last - first)
    return places, values


def curve(
    history: History, metric: str, x: str = "round"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the points of a metric over the axis `x`, one of `X_AXES`: places and values.

    Raises:
        ValueError: No round has a place on the axis.
    """
    one_of("x", x, tuple(X_AXES))
    word("metric", metric)
    history = items("history", history)
    for each in history:
        _check_record("history", each)
    records = [record for record in history if metric in record.metrics]
    key = "fed/time" if x == "virtual_time" else f"fed/{x}"
    if x != "round" and records:
        # Rounds from before a resumed checkpoint may lack an axis that was added later.
        records = [record for record in records if key in record.metrics]
        if not records:
            raise ValueError(_no_place(x, key))
    places = [r.version if x == "round" else r.metrics[key] for r in records]
    values = [record.metrics[metric] for record in records]
    return np.array(places, dtype=np.float64), np.array(values, dtype=np.float64)


def _no_place(x: str, key: str) -> str:
    if x == "tokens":
        return (
            'x="tokens": no round has "fed/tokens", because the data do not say how many tokens '
            "an example has; set data.tokens_per_example before fit, as fedlight.data.text_data "
            'does, or write x="examples"'
        )
    return f'x={x!r}: no round has {key!r}; choose another axis, such as x="gradients"'


def best_value(values: NDArray[np.float64], mode: str) -> float:
    """Return the smallest ("min") or largest ("max") value that is no nan; nan if there is none."""
    numbers = values[~np.isnan(values)]
    if not len(numbers):
        return math.nan
    return float(numbers.min() if mode == "min" else numbers.max())


def _named(runs: Any) -> dict[str, list[History]]:
    """Return histories by name; a single run has the name "".

    Raises:
        TypeError: They are something else.
        ValueError: There are none, or one has no round.
    """
    runs = getattr(runs, "history", runs)
    if not isinstance(runs, Mapping):
        histories = getattr(runs, "histories", None)
        runs = {"": runs} if histories is None else histories
    if not runs:
        raise ValueError(f"runs must hold one or more, got {runs!r}")
    named = {}
    for name, given in runs.items():
        of = f" of {name!r}" if name else ""
        given = getattr(given, "history", given)
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise TypeError(
                f"runs must be a trainer's history, several by name, or the result of compare; "
                f"got {given!r} ({type(given).__name__}){of}"
            )
        histories = [given] if all(isinstance(each, RoundRecord) for each in given) else [*given]
        for history in histories:
            if not isinstance(history, Sequence) or isinstance(history, str | bytes):
                raise TypeError(f"runs must hold histories, got {shown(history)}{of}")
            if not history:
                raise ValueError(
                    f"runs must hold rounds, but the history{of} has none; draw it after fit"
                )
            for each in history:
                _check_record("runs", each)
        named[name] = histories
    return named


def _check_record(name: str, value: object) -> None:
    if not isinstance(value, RoundRecord):
        raise TypeError(f"{name} must hold the rounds of a trainer's history, got {shown(value)}")


def _logged(events: Any) -> tuple[list[Work], list[tuple[int, float]], list[float]]:
    """Return the tasks, the lost tasks, and the times of server updates of an event log."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowInvalid, Table

    if isinstance(events, str | Path):
        given = str(events)
        events = user_path(events)
        if not events.is_file():
            raise FileNotFoundError(
                f"there is no file {given!r}; events must be the file of an EventLog, its table, "
                "or a trainer's history"
            )
        try:
            events = pq.read_table(events)
        except ArrowInvalid as error:
            raise ValueError(
                f"events must be the parquet file of an EventLog, got {str(events)!r}"
            ) from error
    if not isinstance(events, Table) or "arrives_at" not in events.column_names:
        raise TypeError(
            "events must be the file or the table of an EventLog, or a trainer's history, got "
            f"{described(events)}"
        )
    rows = events.to_pylist()
    staleness = {row["serial"]: row["staleness"] for row in rows if row["event"] == "use"}
    # A task that was stopped ends before the time that was planned when it began.
    ended = {row["serial"]: row["time"] for row in rows if row["event"] in ("arrival", "cancel")}
    work, lost = [], []
    for row in rows:
        if row["event"] != "dispatch":
            continue
        if row["arrives_at"] is None:
            lost.append((row["client"], row["time"]))
        else:
            used = staleness.get(row["serial"])
            end = ended.get(row["serial"], row["arrives_at"])
            work.append(Work(row["client"], row["time"], end, used))
    return work, lost, [row["time"] for row in rows if row["event"] == "server_update"]


def _timeline_legend(ax: Axes, made: Timeline, lost: bool) -> None:
    lines, patches = of_matplotlib("lines"), of_matplotlib("patches")
    most = made.most
    levels = range(most + 1) if most <= 4 else sorted({0, round(most / 2), most})
    handles = [
        patches.Patch(color=_colour(staleness_shade(level, most)), label=f"staleness {level}")
        for level in levels
    ]
    if any(bar.shade is None for bar in made.bars):
        handles.append(
            patches.Patch(facecolor="white", edgecolor=_GREY, label="not used (dropped, under way)")
        )
    if lost:
        handles.append(lines.Line2D([], [], color=_GREY, marker="x", linestyle="", label="lost"))
    handles.append(lines.Line2D([], [], color=_UPDATE, label="server update"))
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.01),
        ncols=len(handles),
        frameon=False,
        fontsize=8,
        handlelength=1.4,
        columnspacing=1.2,
        borderaxespad=0.0,
    )


def _colour(share: float) -> tuple[float, float, float]:
    red, green, blue = shade(share)
    return red / 255, green / 255, blue / 255


def _plain(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_axisbelow(True)


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is None:
        ax = of_matplotlib("pyplot").subplots(figsize=size, layout="constrained")[1]
    kind: type[Axes] = of_matplotlib("axes").Axes
    if not isinstance(ax, kind):
        raise TypeError(f"ax must be axes of matplotlib, got {ax!r} ({type(ax).__name__})")
    return ax


def of_matplotlib(name: str) -> Any:
    """Return a module of matplotlib, such as "pyplot".

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        return import_module(f"matplotlib.{name}")
    except ImportError as error:
        raise ImportError(
            "fedlight.plot draws with matplotlib, which is not installed: pip install matplotlib"
        ) from error
