"""Pictures for loggers, drawn with Pillow alone; `fedlight.plot` shares their layout.

There are three: the labels of each client, a timeline of tasks, and the participation of clients.
All have one size, whose text can be read on a card of TensorBoard: a card has room for about 300
by 220 pixels, so a picture appears at half its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fedlight.data.sources import is_a

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.data import FederatedDataModule
    from fedlight.types import RoundRecord

    Picture = NDArray[np.uint8]
    Colour = tuple[int, int, int]

# Pixels. On a card the text of 24 comes out at 11.
_WIDTH, _HEIGHT = 640, 460
_MARGIN = 16
_LEFT = 84
_FOOT = 84
_TEXT, _TITLE, _LINE = 24, 28, 28
_HIGH = 22  # a row that has room for text
_MOST_ROWS = 30
_MOST_CLASSES = 128
_LABELS = ("label", "labels", "target", "targets", "y")
_MOST_LINES = 60
_INK: Colour = (33, 37, 41)
_GREY: Colour = (90, 98, 104)
_FAINT: Colour = (173, 181, 189)
_ORANGE: Colour = (230, 97, 1)
# From light to dark in one hue, which every kind of colour vision reads in the same way.
_SCALE = ((238, 244, 251), (158, 202, 225), (66, 146, 198), (8, 81, 156), (8, 36, 85))
_LIGHTEST = 0.25  # a bar of staleness 0 must still stand out from the paper


class Work(NamedTuple):
    """A task in a timeline.

    Attributes:
        client: The client.
        start: Virtual time of the pull.
        end: Virtual time of the arrival.
        staleness: Versions made between the pull and the use; None if the result was not used.
    """

    client: int
    start: float
    end: float
    staleness: int | None


class Bar(NamedTuple):
    """The place of a task in a timeline.

    Attributes:
        row: Row of its client, counted from above.
        top: Upper edge within the row, from 0 (above) to 1.
        bottom: Lower edge within the row.
        start: Virtual time of its left edge.
        end: Virtual time of its right edge.
        shade: Its colour, see `shade`; None for an outline, if the result was not used.
    """

    row: int
    top: float
    bottom: float
    start: float
    end: float
    shade: float | None


class Timeline(NamedTuple):
    """Tasks laid out as bars, independent of the library that draws them.

    Tasks of one client that overlap lie above one another, in thinner bars. They come from arrival
    processes of rounds (`UniformArrivals`), which draw a staleness for each update that arrives: a
    client can pull a version while its older results are still to come.

    Attributes:
        clients: The client of each row.
        bars: The tasks.
        updates: Virtual times of the server updates between the two edges.
        most: The largest staleness.
        overlaps: Whether tasks of a client overlap.
    """

    clients: list[int]
    bars: list[Bar]
    updates: list[float]
    most: int
    overlaps: bool

    @classmethod
    def of(
        cls,
        work: Iterable[Work],
        updates: Iterable[float],
        start: float,
        end: float,
        choose: Callable[[list[int]], list[int]],
    ) -> Timeline:
        """Lay out the tasks between two edges.

        Args:
            work: The tasks.
            updates: Virtual times of all server updates.
            start: Virtual time at the left edge.
            end: Virtual time at the right edge.
            choose: Chooses the clients to be drawn among those that have tasks.
        """
        shown = [task for task in work if task.end > start and task.start < end]
        clients = choose(sorted({task.client for task in shown}))
        row_of = {client: row for row, client in enumerate(clients)}
        shown = [task for task in shown if task.client in row_of]
        most = max((task.staleness or 0 for task in shown), default=0)
        places, bars = lanes(shown), []
        for task, (lane, number) in zip(shown, places, strict=True):
            share = None if task.staleness is None else staleness_shade(task.staleness, most)
            edges = lane / number, (lane + 1) / number
            bars.append(Bar(row_of[task.client], *edges, task.start, task.end, share))
        within = [time for time in updates if start <= time <= end]
        return cls(clients, bars, within, most, any(number > 1 for _, number in places))


def label_table(
    data: FederatedDataModule,
) -> tuple[NDArray[np.int64], list[str]] | None:
    """Return the numbers of examples, ``[clients, classes]``, and the names of the classes.

    Return None if the data have no column of labels: the target is not one integer per example, or
    there are more than 128 classes.
    """
    table: Any = data.train_data
    if not table.stackable or len(table.columns) < 2:
        return None
    at = -1
    if table.keys is not None:  # a dict's order says nothing
        at = next((k for k, key in enumerate(table.keys) if key in _LABELS), -1)
        if at < 0:
            return None
    labels = table.columns[at].values
    if labels.dim() != 1 or labels.is_floating_point():
        return None
    codes = labels.cpu().numpy()
    distinct = np.unique(codes)
    if len(distinct) > _MOST_CLASSES:
        return None
    names = [str(code) for code in distinct]
    if is_a("Dataset", data.train_dataset):
        known = [f.names for f in data.train_dataset.features.values() if hasattr(f, "names")]
        if len(known) == 1 and distinct.min() >= 0 and distinct.max() < len(known[0]):
            names = [known[0][code] for code in distinct]
    return data.partition.label_counts(codes), names


def work_of(records: Iterable[RoundRecord]) -> list[Work]:
    """Return the tasks whose results were used or dropped in the given rounds."""
    work = []
    for record in records:
        for update in record.updates:
            times = update.dispatched_at, update.arrived_at
            work.append(Work(update.client_id, *times, update.staleness))
        for update in record.dropped:
            work.append(Work(update.client_id, update.dispatched_at, update.arrived_at, None))
    return work


def lanes(work: Sequence[Work]) -> list[tuple[int, int]]:
    """Return for each task its lane and the number of lanes of its client, so that none overlap.

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
    """Draw who holds which labels: a row per client, a column per class; darker is more.

    Args:
        counts: Numbers of examples, shape ``[clients, classes]``.
        names: The classes' names.
    """
    rows = _spread(len(counts), _MOST_ROWS)
    sizes = counts.sum(axis=1)
    totals = 130  # pixels on the right for the bars of all examples of a client
    width = (_WIDTH - _LEFT - totals - _MARGIN) / len(names)
    canvas = _Canvas(
        "Who holds which labels",
        f"{_of(rows, len(counts), 'client')}, {int(sizes.sum()):,} examples, {len(names)} classes",
        "right: all examples of a client",
    )
    height = canvas.rows(rows)
    most, largest = max(int(counts[rows].max()), 1), max(int(sizes[rows].max()), 1)
    numbers = height >= _HIGH and width >= canvas.width(f"{most}") + 4
    for place, row in enumerate(rows):
        y = canvas.top + place * height
        for column, count in enumerate(counts[row]):
            x = _LEFT + column * width
            share = count / most
            if count:
                canvas.box((x, y, x + width - 1, y + height - 1), shade(share))
            if numbers and count:
                ink = (255, 255, 255) if share > 0.45 else _INK
                canvas.text((x + width / 2, y + height / 2), f"{count}", "mm", ink)
        x = _LEFT + len(names) * width + 8
        length = (totals - 76) * sizes[row] / largest
        canvas.box((x, y + height / 8, x + max(length, 1), y + height * 7 / 8 - 1), _FAINT)
        if height >= _HIGH:
            canvas.text((x + length + 5, y + height / 2), _short(int(sizes[row])), "lm")
    canvas.ticks([_LEFT + (k + 0.5) * width for k in range(len(names))], names, width)
    canvas.legend("0", f"{most:,} of a class")
    return canvas.picture()


def draw_timeline(
    work: Sequence[Work], updates: Sequence[float], start: float, end: float, num_clients: int
) -> Picture:
    """Draw who worked when: a bar per task from its pull to its arrival; darker is staler.

    Args:
        work: The tasks.
        updates: Virtual times of the server's updates.
        start: Virtual time at the left edge.
        end: Virtual time at the right edge.
        num_clients: M.
    """

    def evenly(clients: list[int]) -> list[int]:
        return [clients[k] for k in _spread(len(clients), _MOST_ROWS)]

    made = Timeline.of(work, updates, start, end, evenly)
    number = len(made.updates)
    canvas = _Canvas(
        f"Who worked when, from {start:.4g} to {end:.4g}",
        _of(made.clients, num_clients, "client"),
        "darker is staler",
        f"orange: {number:,} server update{'s' * (number != 1)}",
        *["outlined: dropped"] * any(bar.shade is None for bar in made.bars),
        *["thin: tasks that overlap"] * made.overlaps,
    )
    height = canvas.rows(made.clients)
    gap = height / 14
    scale = (_WIDTH - _LEFT - _MARGIN) / max(end - start, 1e-12)

    def across(time: float) -> float:
        return _LEFT + (min(max(time, start), end) - start) * scale

    # Many lines would hide the bars, so then they become marks above them.
    foot = canvas.bottom + 2 if len(made.updates) <= _MOST_LINES else canvas.top - 3
    for time in made.updates:
        canvas.box((across(time), canvas.top - 9, across(time), foot), _ORANGE)
    for bar in made.bars:
        y = canvas.top + bar.row * height + gap
        box = (
            across(bar.start),
            y + bar.top * (height - 2 * gap),
            max(across(bar.end) - 2, across(bar.start) + 1),
            y - 1 + bar.bottom * (height - 2 * gap),
        )
        if bar.shade is None:
            canvas.box(box, None, outline=_INK)
        else:
            canvas.box(box, shade(bar.shade))
    times = np.linspace(start, end, 6)
    canvas.ticks([across(float(time)) for time in times], [f"{time:.3g}" for time in times], 90)
    canvas.note("virtual time")
    canvas.legend("staleness 0", str(made.most), low=_LIGHTEST)
    return canvas.picture()


def draw_participation(counts: NDArray[np.int64]) -> Picture:
    """Draw how many updates of each client the server used.

    Args:
        counts: Numbers of updates used, shape ``[clients]``.
    """
    groups = np.array_split(np.arange(len(counts)), min(len(counts), 160))
    means = np.array([counts[group].mean() for group in groups])
    average, silent = float(counts.mean()), int((counts == 0).sum())
    each = "client" if len(groups) == len(counts) else f"{len(groups[0])} clients (their mean)"
    canvas = _Canvas(
        "Updates used of each client",
        f"a bar for each {each}",
        f"line: mean, {average:.4g}",
        f"{silent:,} of {len(counts):,} clients not heard",
    )
    tall = canvas.bottom - canvas.top
    width = (_WIDTH - _LEFT - _MARGIN) / len(groups)
    most = max(float(means.max()), 1.0)

    def height(value: float) -> float:
        return canvas.top + tall * (1 - value / most)

    for place, value in enumerate(means):
        x = _LEFT + place * width
        gap = 1 if width > 3 else 0
        canvas.box((x, height(value), x + width - 1 - gap, canvas.bottom), shade(0.6))
    y = height(average)
    canvas.box((_LEFT, y, _WIDTH - _MARGIN, y + 1), _ORANGE)
    for value in (0.0, most / 2, most):
        canvas.text((_LEFT - 8, height(value)), f"{value:.3g}", "rm")
    middles = [_LEFT + (place + 0.5) * width for place in range(len(groups))]
    canvas.ticks(middles, [str(group[0]) for group in groups], width)
    canvas.note("client")
    return canvas.picture()


def staleness_shade(staleness: int, most: int) -> float:
    """Return the darkness of a staleness, see `shade`; `most` is the largest staleness."""
    return _LIGHTEST + (1 - _LIGHTEST) * staleness / max(most, 1)


def shade(share: float) -> Colour:
    """Return the colour of a share from 0 (light) to 1 (dark)."""
    places = np.linspace(0, 1, len(_SCALE))
    red, green, blue = (round(np.interp(share, places, each)) for each in zip(*_SCALE, strict=True))
    return red, green, blue


class _Canvas:
    """A white picture with a title, lines below it, room for a drawing, and a foot.

    Args:
        title: The title.
        *words: What stands below it, joined to lines as there is room.

    Attributes:
        top: Upper edge of the drawing, in pixels.
        bottom: Lower edge of the drawing.
    """

    def __init__(self, title: str, *words: str) -> None:
        self._image = Image.new("RGB", (_WIDTH, _HEIGHT), (255, 255, 255))
        self._draw = ImageDraw.Draw(self._image)
        self._font = ImageFont.load_default(_TEXT)
        self._draw.text((_MARGIN, 6), title, _INK, ImageFont.load_default(_TITLE))
        lines = [words[0]]
        for each in words[1:]:
            longer = f"{lines[-1]}; {each}"
            if self.width(longer) <= _WIDTH - 2 * _MARGIN:
                lines[-1] = longer
            else:
                lines.append(each)
        for number, line in enumerate(lines):
            self.text((_MARGIN, 42 + _LINE * number), line, "la", _GREY)
        self.top = 42 + _LINE * len(lines) + 30
        self.bottom = _HEIGHT - _FOOT

    def text(
        self, place: tuple[float, float], text: str, anchor: str, colour: Colour = _INK
    ) -> None:
        self._draw.text(place, text, colour, self._font, anchor)

    def width(self, text: str) -> float:
        return self._draw.textlength(text, self._font)

    def box(
        self,
        box: tuple[float, float, float, float],
        colour: Colour | None,
        outline: Colour | None = None,
    ) -> None:
        x0, y0, x1, y1 = map(round, box)
        self._draw.rectangle((x0, y0, max(x0, x1), max(y0, y1)), colour, outline)

    def rows(self, clients: Sequence[int]) -> float:
        """Write the clients' numbers on the left as there is room; return the height of a row."""
        height = (self.bottom - self.top) / max(len(clients), 1)
        self.text((_MARGIN, self.top - 9), "client", "ls", _GREY)
        step = -(-_HIGH // int(max(height, 1)))
        for place in range(0, len(clients), step):
            self.text((_LEFT - 8, self.top + (place + 0.5) * height), f"{clients[place]}", "rm")
        return height

    def ticks(self, places: Sequence[float], labels: Sequence[str], room: float) -> None:
        """Write labels below the drawing; `room` is the space for one of them, in pixels."""
        widest = max(map(self.width, labels))
        step = max(1, -(-int(widest + 8) // max(int(room), 1)))
        for place, label in list(zip(places, labels, strict=True))[::step]:
            most = _WIDTH - self.width(label) / 2 - 2  # that of the last one may lie at the edge
            self.text((min(place, most), self.bottom + 6), label, "ma")

    def note(self, text: str) -> None:
        """Write a line at the foot, on the right."""
        self.text((_WIDTH - _MARGIN, self.bottom + 60), text, "rm")

    def legend(self, least: str, most: str, low: float = 0.0) -> None:
        """Draw the scale of colours at the foot, on the left."""
        y, x = self.bottom + 60, _LEFT + self.width(least) + 6
        self.text((_LEFT, y), least, "lm")
        for step in range(100):
            colour = shade(low + (1 - low) * step / 99)
            self.box((x + step, y - 9, x + step, y + 9), colour)
        self.text((x + 106, y), most, "lm")

    def picture(self) -> Picture:
        """Return the pixels, shape ``[height, width, 3]``."""
        return np.asarray(self._image, dtype=np.uint8)


def _short(number: int) -> str:
    """A number of at most four signs, such as 12k."""
    return f"{number}" if number < 10_000 else f"{number / 1000:.0f}k"


def _spread(number: int, most: int) -> list[int]:
    """Return all of 0 … number - 1, or `most` of them at even distances."""
    if number <= most:
        return list(range(number))
    return [round(place) for place in np.linspace(0, number - 1, most)]


def _of(shown: Sequence[int], number: int, noun: str) -> str:
    plural = noun if number == 1 else f"{noun}s"
    if len(shown) == number:
        return f"{number} {plural}"
    return f"{len(shown)} of {number:,} {plural}"
