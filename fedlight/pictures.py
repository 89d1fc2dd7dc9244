"""Pictures for loggers, drawn with Pillow alone: who holds what, who worked when, who was heard.

For figures to print see `fedlight.plot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.data import FederatedDataModule
    from fedlight.types import RoundRecord

    Picture = NDArray[np.uint8]
    Colour = tuple[int, int, int]

_WIDTH = 960
_MARGIN = 24
_INK: Colour = (33, 37, 41)
_FAINT: Colour = (173, 181, 189)
_ORANGE: Colour = (230, 97, 1)
_MOST_ROWS = 60
_MOST_CLASSES = 128
_MOST_LINES = 60
# From light to dark in one hue, which every kind of colour vision reads the same way.
_SCALE = ((238, 244, 251), (158, 202, 225), (66, 146, 198), (8, 81, 156), (8, 36, 85))


class Work(NamedTuple):
    """A task as a timeline draws it.

    Attributes:
        client: Who worked.
        start: Virtual time of the pull.
        end: Virtual time of the arrival.
        staleness: Versions that were made meanwhile; None where the result was not used.
    """

    client: int
    start: float
    end: float
    staleness: int | None


def label_table(
    data: FederatedDataModule,
) -> tuple[NDArray[np.int64], list[str]] | None:
    """Examples of each class that each client holds, ``[clients, classes]``, and the class names.

    None where the data have no column of labels: the target is no single integer per example, or
    there are more than 128 classes.
    """
    table: Any = data.train_data
    if not table.stackable or len(table.columns) < 2:
        return None
    labels = table.columns[-1].values
    if labels.dim() != 1 or labels.is_floating_point():
        return None
    codes = labels.cpu().numpy()
    distinct = np.unique(codes)
    if len(distinct) > _MOST_CLASSES:
        return None
    names = [str(code) for code in distinct]
    if data.train_dataset is not None:
        known = [f.names for f in data.train_dataset.features.values() if hasattr(f, "names")]
        if len(known) == 1 and distinct.min() >= 0 and distinct.max() < len(known[0]):
            names = [known[0][code] for code in distinct]
    return data.partition.label_counts(codes), names


def work_of(records: Iterable[RoundRecord]) -> list[Work]:
    """The tasks whose results were used or dropped in some rounds."""
    work = []
    for record in records:
        for update in record.updates:
            times = update.dispatched_at, update.arrived_at
            work.append(Work(update.client_id, *times, update.staleness))
        for update in record.dropped:
            work.append(Work(update.client_id, update.dispatched_at, update.arrived_at, None))
    return work


def lanes(work: Sequence[Work]) -> list[tuple[int, int]]:
    """For each task its lane among those of its client that overlap, and how many lanes those are.

    Example:
        >>> lanes([Work(0, 0.0, 2.0, 0), Work(0, 1.0, 3.0, 0), Work(0, 2.0, 4.0, 0)])
        [(0, 2), (1, 2), (0, 2)]
    """
    free: dict[int, list[float]] = {}
    chosen = [0] * len(work)
    for index in sorted(range(len(work)), key=lambda i: (work[i].start, work[i].end)):
        task = work[index]
        ends = free.setdefault(task.client, [])
        lane = next((k for k, end in enumerate(ends) if end <= task.start), len(ends))
        if lane == len(ends):
            ends.append(task.end)
        else:
            ends[lane] = task.end
        chosen[index] = lane
    return [(lane, len(free[task.client])) for lane, task in zip(chosen, work, strict=True)]


def draw_partition(counts: NDArray[np.int64], names: Sequence[str]) -> Picture:
    """Who holds which labels: a row per client, a column per class; darker is more.

    Args:
        counts: Examples, shape ``[clients, classes]``.
        names: The classes' names.
    """
    rows = _spread(len(counts), _MOST_ROWS)
    sizes = counts.sum(axis=1)
    height = 26 if len(rows) <= 20 else 13
    left, top, bars = 92, 76, 150
    width = (_WIDTH - left - bars - _MARGIN) / len(names)
    canvas = _Canvas(top + height * len(rows) + 56)
    canvas.title(
        "Who holds which labels",
        f"{_of(rows, len(counts), 'client')}, {int(sizes.sum()):,} examples, "
        f"{len(names)} classes; the bars are the clients' totals",
    )
    most, largest = max(int(counts[rows].max()), 1), max(int(sizes[rows].max()), 1)
    numbers = height >= 20 and width >= 34
    for place, row in enumerate(rows):
        y = top + place * height
        if height >= 20 or place % 2 == 0:
            canvas.text((left - 8, y + height / 2), f"client {row}", "rm")
        for column, count in enumerate(counts[row]):
            x = left + column * width
            share = count / most
            canvas.box((x, y, x + width - 1, y + height - 1), shade(share) if count else None)
            if numbers and count:
                ink = (255, 255, 255) if share > 0.45 else _INK
                canvas.text((x + width / 2, y + height / 2), f"{count}", "mm", ink, small=True)
        x = left + len(names) * width + 10
        length = (bars - 62) * sizes[row] / largest
        canvas.box((x, y + 3, x + max(length, 1), y + height - 4), _FAINT)
        if height >= 20:
            canvas.text((x + length + 5, y + height / 2), f"{sizes[row]}", "lm", small=True)
    bottom = top + height * len(rows)
    canvas.ticks([left + (k + 0.5) * width for k in range(len(names))], names, bottom + 6, width)
    canvas.legend(bottom + 34, "0", f"{most} examples of a class")
    return canvas.picture()


def draw_timeline(
    work: Sequence[Work], updates: Sequence[float], start: float, end: float, num_clients: int
) -> Picture:
    """Who worked when: a bar per task from its pull to its arrival; darker is staler.

    Args:
        work: The tasks.
        updates: Virtual times of the server's updates.
        start: Virtual time at the left edge.
        end: Virtual time at the right edge.
        num_clients: M.
    """
    shown = [task for task in work if task.end > start and task.start < end]
    active = sorted({task.client for task in shown})
    rows = [active[k] for k in _spread(len(active), _MOST_ROWS)] if active else []
    height = 22 if len(rows) <= 25 else 12
    left, top = 92, 92
    canvas = _Canvas(top + height * max(len(rows), 1) + 62)
    canvas.title(
        f"Who worked when, from {start:g} to {end:g}",
        f"{_of(rows, num_clients, 'client')}; bars: tasks from pull to arrival, darker is staler, "
        "outlined was dropped; lines: server updates",
    )
    scale = (_WIDTH - left - _MARGIN) / max(end - start, 1e-12)
    bottom = top + height * max(len(rows), 1)

    def across(time: float) -> float:
        return left + (min(max(time, start), end) - start) * scale

    lines = [time for time in updates if start <= time <= end]
    foot = bottom + 2 if len(lines) <= _MOST_LINES else top - 3  # many would hide the bars
    for time in lines:
        canvas.box((across(time), top - 9, across(time), foot), _ORANGE)
    place_of = {client: place for place, client in enumerate(rows)}
    most = max((task.staleness or 0 for task in shown), default=0)
    for task, (lane, number) in zip(shown, lanes(shown), strict=True):
        if task.client not in place_of:
            continue
        y = top + place_of[task.client] * height
        thick = (height - 4) / number
        box = (
            across(task.start),
            y + 2 + lane * thick,
            max(across(task.end) - 2, across(task.start) + 1),
            y + 1 + (lane + 1) * thick,
        )
        if task.staleness is None:
            canvas.box(box, None, outline=_INK)
        else:
            canvas.box(box, shade(0.25 + 0.75 * task.staleness / max(most, 1)))
    for client, place in place_of.items():
        if height >= 20 or place % 2 == 0:
            canvas.text((left - 8, top + (place + 0.5) * height), f"client {client}", "rm")
    times = np.linspace(start, end, 6)
    labels = [f"{time:.4g}" for time in times]
    canvas.ticks([across(float(time)) for time in times], labels, bottom + 8, 90)
    canvas.text((_WIDTH - _MARGIN, bottom + 40), f"virtual time; {len(lines)} server updates", "rm")
    canvas.legend(bottom + 34, "staleness 0", str(most), low=0.25)
    return canvas.picture()


def draw_participation(counts: NDArray[np.int64]) -> Picture:
    """How often each client was heard: updates of it that the server used.

    Args:
        counts: Updates used, shape ``[clients]``.
    """
    left, top, tall = 92, 84, 260
    canvas = _Canvas(top + tall + 60)
    groups = np.array_split(np.arange(len(counts)), min(len(counts), 160))
    means = np.array([counts[group].mean() for group in groups])
    average, silent = float(counts.mean()), int((counts == 0).sum())
    each = "client" if len(groups) == len(counts) else f"group of {len(groups[0])} clients (mean)"
    canvas.title(
        "Updates used of each client",
        f"a bar per {each}; line: mean, {average:.4g}; {silent:,} of {len(counts):,} clients "
        "were not heard",
    )
    width = (_WIDTH - left - _MARGIN) / len(groups)
    most = max(float(means.max()), 1.0)
    for place, value in enumerate(means):
        x = left + place * width
        gap = 1 if width > 3 else 0
        y = top + tall * (1 - value / most)
        canvas.box((x, y, x + width - 1 - gap, top + tall), shade(0.6))
    y = top + tall * (1 - average / most)
    canvas.box((left, y, _WIDTH - _MARGIN, y + 1), _ORANGE)
    for value in (0.0, most / 2, most):
        canvas.text((left - 8, top + tall * (1 - value / most)), f"{value:.3g}", "rm")
    middles = [left + (place + 0.5) * width for place in range(len(groups))]
    canvas.ticks(middles, [str(group[0]) for group in groups], top + tall + 6, width)
    canvas.text((left + (_WIDTH - left - _MARGIN) / 2, top + tall + 40), "client", "mm")
    return canvas.picture()


def shade(share: float) -> Colour:
    """The colour of a share from 0 (light) to 1 (dark)."""
    place = min(max(share, 0.0), 1.0) * (len(_SCALE) - 1)
    below = min(int(place), len(_SCALE) - 2)
    rest = place - below
    red, green, blue = (
        round(low + (high - low) * rest)
        for low, high in zip(_SCALE[below], _SCALE[below + 1], strict=True)
    )
    return red, green, blue


class _Canvas:
    """A white picture of the common width."""

    def __init__(self, height: float) -> None:
        self._image = Image.new("RGB", (_WIDTH, round(height)), (255, 255, 255))
        self._draw = ImageDraw.Draw(self._image)
        self._font, self._small, self._large = map(ImageFont.load_default, (14, 12, 20))

    def text(
        self,
        place: tuple[float, float],
        text: str,
        anchor: str,
        colour: Colour = _INK,
        small: bool = False,
    ) -> None:
        self._draw.text(place, text, colour, self._small if small else self._font, anchor)

    def title(self, title: str, below: str) -> None:
        self._draw.text((_MARGIN, 14), title, _INK, self._large)
        self._draw.text((_MARGIN, 44), below, (90, 98, 104), self._font)

    def box(
        self,
        box: tuple[float, float, float, float],
        colour: Colour | None,
        outline: Colour | None = None,
    ) -> None:
        x0, y0, x1, y1 = map(round, box)
        self._draw.rectangle((x0, y0, max(x0, x1), max(y0, y1)), colour, outline)

    def ticks(self, places: Sequence[float], labels: Sequence[str], y: float, room: float) -> None:
        """Labels under an axis, as many as there is room for."""
        widest = max(self._draw.textlength(label, self._small) for label in labels)
        step = max(1, -(-int(widest + 8) // max(int(room), 1)))
        for place, label in list(zip(places, labels, strict=True))[::step]:
            self.text((place, y), label, "ma", small=True)

    def legend(self, y: float, least: str, most: str, low: float = 0.0) -> None:
        """The scale of colours, from the left edge of the drawing."""
        x = 92 + self._draw.textlength(least, self._small) + 6
        self.text((92, y + 6), least, "lm", small=True)
        for step in range(100):
            colour = shade(low + (1 - low) * step / 99)
            self.box((x + step, y, x + step, y + 11), colour)
        self.text((x + 106, y + 6), most, "lm", small=True)

    def picture(self) -> Picture:
        """Height x width x RGB."""
        return np.asarray(self._image, dtype=np.uint8)


def _spread(number: int, most: int) -> list[int]:
    """All of 0 … number - 1, or `most` of them, evenly spread."""
    if number <= most:
        return list(range(number))
    return [round(place) for place in np.linspace(0, number - 1, most)]


def _of(shown: Sequence[int], number: int, what: str) -> str:
    plural = what if number == 1 else f"{what}s"
    if len(shown) == number:
        return f"{number} {plural}"
    return f"{len(shown)} of {number:,} {plural}"
