"""The progress bar."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from fedlight._support.checks import positive
from fedlight.callbacks.base import Callback

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.trainer import FedTrainer

_MOST_METRICS = 4
_SPEED_PERIOD = 3600.0
"""Seconds over which the time left is estimated; a round may take minutes."""


class ProgressBar(Callback):
    """Shows rounds, real time and time left, virtual time, updates a second and the metrics.

    ``round 3/150 ━━━━━━━━━━ 0:04<3:12 t=3.5  49 updates/s  val_acc 0.8765  staleness 1.0``

    ``0:04<3:12`` is the real time so far, and an estimate of the time left. The bar is the share of
    `max_rounds`, `max_updates` or `max_time` that is done, the largest of them, and full when the
    run has come to its end. Of the metrics, those that the module asks for (``prog_bar=True``) come
    first, then the newest ones, then the staleness of the round. A narrow terminal shows the first
    ones, as many as fit. Messages of the run are printed above the bar.

    In a Jupyter notebook without ipywidgets it is a line of text.

    Args:
        refresh_rate: How often to redraw, per second of real time.
        console: The console to draw on; standard error by default.

    Raises:
        ValueError: `refresh_rate` is not above 0.
    """

    def __init__(self, refresh_rate: float = 8.0, console: Console | None = None) -> None:
        self._refresh_rate = positive("refresh_rate", refresh_rate)
        if not isinstance(console, Console | None):
            raise TypeError(f"console must be a rich.console.Console or None, got {console!r}")
        self._console = console
        self._progress: Progress | _TextLine | None = None

    @property
    def is_enabled(self) -> bool:
        """Whether the bar is on the screen; ``self.print`` of a module asks for it."""
        return self._progress is not None

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print above the bar; the arguments are those of ``print``."""
        print(*args, **kwargs)  # rich moves printed lines above the bar

    def on_fit_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Draw the empty bar."""
        console = self._console or Console(stderr=True)
        if lacks_widgets(console):
            self._progress = _TextLine(console.file, self._refresh_rate)
        else:
            self._progress = Progress(
                TextColumn("{task.fields[rounds]}", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=10),
                _Clock(table_column=Column(no_wrap=True)),
                _Figures(table_column=Column(ratio=1)),
                expand=True,
                console=console,
                refresh_per_second=self._refresh_rate,
                speed_estimate_period=_SPEED_PERIOD,
            )
        self._started, self._before = time.perf_counter(), trainer.num_updates
        share = _share(trainer)
        self._task = self._progress.add_task(
            "",
            total=None if share is None else 1.0,
            completed=share or 0.0,  # type: ignore[arg-type]  # as `update`, it takes floats
            rounds=_rounds(trainer),
            figures=[],
        )
        stderr = sys.stderr
        self._progress.start()
        # rich moves all that is written to `sys.stderr` above the bar. Lightning's log keeps the
        # stream of before, and would write behind the bar.
        self._logs = [
            handler
            for handler in logging.getLogger("lightning.pytorch").handlers
            if isinstance(handler, logging.StreamHandler) and handler.stream is stderr
        ]
        for handler in self._logs:
            handler.setStream(sys.stderr)

    def on_round_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Update the bar."""
        self._draw(trainer, _share(trainer))

    def on_fit_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Fill the bar, unless a callback or a signal has ended the run."""
        self._draw(trainer, _share(trainer) if trainer.should_stop else 1.0)

    def _draw(self, trainer: FedTrainer, share: float | None) -> None:
        if self._progress is None:
            return
        elapsed = max(time.perf_counter() - self._started, 1e-9)
        # All metrics that the module asks for (``prog_bar=True``), then the newest of the others,
        # such as those of a validation, which are last in the dict.
        first = trainer.progress_bar_metrics
        values = trainer.callback_metrics
        others = [
            name
            for name in reversed(values)
            if name not in first and not name.startswith(("fed/", "clients/", "lr/"))
        ]
        shown = [*reversed(first), *others[: max(0, _MOST_METRICS - len(first))]]
        speed = (trainer.num_updates - self._before) / elapsed
        figures = [
            f"t={trainer.now:.{5 if trainer.now < 1e5 else 9}g}",
            f"{speed:.{1 if speed < 10 else 0}f} updates/s",
            *(f"{name} {float(values[name]):.4g}" for name in shown),
        ]
        if trainer.history:
            staleness = trainer.history[-1].metrics.get("fed/staleness", 0.0)
            figures.append(f"staleness {staleness:.1f}")
        self._progress.update(
            self._task,
            total=None if share is None else 1.0,
            completed=share or 0.0,
            rounds=_rounds(trainer),
            figures=figures,
        )

    def teardown(self, trainer: FedTrainer, module: LightningModule, stage: str) -> None:
        """Stop redrawing; the bar stays on the screen."""
        if stage == "fit" and self._progress is not None:
            self._progress.stop()
            self._progress = None
            for handler in self._logs:
                handler.setStream(sys.stderr)


def lacks_widgets(console: Console) -> bool:
    """Whether rich would warn at each redraw, since a notebook has no ipywidgets."""
    return console.is_jupyter and find_spec("ipywidgets") is None


class _Clock(ProgressColumn):
    """The real time of the run, and an estimate of the time left."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Such as ``0:12<1:05``, in the order of Lightning's bar."""
        elapsed = task.finished_time if task.finished else task.elapsed
        left = None if task.finished else task.time_remaining
        words = [_clock(each) for each in (elapsed or 0.0, left) if each is not None]
        return Text("<".join(words), style="progress.elapsed")


class _Figures(ProgressColumn):
    """The figures of the run."""

    def render(self, task: Task) -> _Fitting:
        """Those that fit."""
        return _Fitting(task.fields["figures"])


class _Fitting:
    """The first of some words, as many as fit on a line."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        words = list(self._words)
        while cell_len("  ".join(words)) > options.max_width:
            words.pop()
        yield Text("  ".join(words))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(0, options.max_width)


class _TextLine:
    """The part of rich's `Progress` that the bar uses, as one line that is written over."""

    def __init__(self, file: IO[str], refresh_rate: float) -> None:
        self._file, self._interval = file, 1 / refresh_rate
        self._text, self._width, self._drawn = "", 0, 0.0

    def add_task(
        self,
        description: str,
        total: float | None,
        completed: float,
        rounds: str,
        figures: Sequence[str],
    ) -> TaskID:
        self._text = "  ".join([rounds, *figures])
        return TaskID(0)

    def start(self) -> None:
        self._draw()

    def update(
        self,
        task: TaskID,
        total: float | None,
        completed: float,
        rounds: str,
        figures: Sequence[str],
    ) -> None:
        self._text = "  ".join([rounds, *figures])
        if time.perf_counter() - self._drawn >= self._interval:
            self._draw()

    def stop(self) -> None:
        self._draw()
        self._file.write("\n")

    def _draw(self) -> None:
        self._width = max(self._width, len(self._text))  # blanks cover a longer line before it
        self._file.write(f"\r{self._text:<{self._width}}")
        self._file.flush()
        self._drawn = time.perf_counter()


def _share(trainer: FedTrainer) -> float | None:
    """The share of the run that is done, by the limit that is nearest; None without a limit."""
    pairs = (
        (trainer.version, trainer.max_rounds),
        (trainer.num_updates, trainer.max_updates),
        (trainer.now, trainer.max_time),
    )
    return max((done / limit for done, limit in pairs if limit is not None), default=None)


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds, such as ``1:02:05`` or ``2:05``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _rounds(trainer: FedTrainer) -> str:
    """The current round, and the total number of rounds if it is known."""
    of = "" if trainer.max_rounds is None else f"/{trainer.max_rounds}"
    return f"round {trainer.version}{of}"
