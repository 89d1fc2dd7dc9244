"""The progress bar."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from fedlight._support.checks import positive
from fedlight.callbacks.base import Callback

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.trainer import FedTrainer

_MOST_METRICS = 4


class ProgressBar(Callback):
    """Shows rounds, virtual time, updates per second, staleness and the newest metrics.

    In a Jupyter notebook without ipywidgets it is a line of text.

    Args:
        refresh_rate: How often to redraw, per second of real time.
        console: The console to draw on; standard error by default.

    Raises:
        ValueError: `refresh_rate` is not above 0.
    """

    def __init__(self, refresh_rate: float = 8.0, console: Console | None = None) -> None:
        self._refresh_rate = positive("refresh_rate", refresh_rate)
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
                BarColumn(bar_width=12),
                TimeElapsedColumn(),
                TextColumn(
                    "{task.fields[figures]}",
                    markup=False,
                    table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
                ),
                expand=True,
                console=console,
                refresh_per_second=self._refresh_rate,
            )
        total, _ = _goal(trainer)
        self._task = self._progress.add_task("", total=total, rounds=_rounds(trainer), figures="")
        self._started, self._before = time.perf_counter(), trainer.num_updates
        self._progress.start()

    def on_round_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Update the bar."""
        if self._progress is None:
            return
        record = trainer.history[-1]
        elapsed = max(time.perf_counter() - self._started, 1e-9)
        # A narrow terminal cuts off the end of the line. So those that the module asks for
        # (``prog_bar=True``) come first, and all of them; then the newest, such as those of a
        # validation, which are last in the dict.
        first = trainer.progress_bar_metrics
        values = trainer.callback_metrics
        others = [
            name
            for name in reversed(values)
            if name not in first and not name.startswith(("fed/", "clients/", "lr/"))
        ]
        shown = [*reversed(first), *others[: max(0, _MOST_METRICS - len(first))]]
        figures = [f"{name} {float(values[name]):.4g}" for name in shown]
        figures += [
            f"t={trainer.now:g}",
            f"{(trainer.num_updates - self._before) / elapsed:.0f} updates/s",
            f"staleness {record.metrics.get('fed/staleness', 0.0):.1f}",
        ]
        _, done = _goal(trainer)
        self._progress.update(
            self._task, completed=done, rounds=_rounds(trainer), figures="  ".join(figures)
        )

    def teardown(self, trainer: FedTrainer, module: LightningModule, stage: str) -> None:
        """Stop redrawing; the bar stays on the screen."""
        if stage == "fit" and self._progress is not None:
            self._progress.stop()
            self._progress = None


def lacks_widgets(console: Console) -> bool:
    """Whether rich would warn at each redraw, since a notebook has no ipywidgets."""
    return console.is_jupyter and find_spec("ipywidgets") is None


class _TextLine:
    """The part of rich's `Progress` that the bar uses, as one line that is written over."""

    def __init__(self, file: IO[str], refresh_rate: float) -> None:
        self._file, self._interval = file, 1 / refresh_rate
        self._text, self._width, self._drawn = "", 0, 0.0

    def add_task(self, description: str, total: float | None, rounds: str, figures: str) -> TaskID:
        self._text = f"{rounds}  {figures}"
        return TaskID(0)

    def start(self) -> None:
        self._draw()

    def update(self, task: TaskID, completed: float, rounds: str, figures: str) -> None:
        self._text = f"{rounds}  {figures}"
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


def _goal(trainer: FedTrainer) -> tuple[float | None, float]:
    """The total and the progress so far, in the unit of the first limit that the run has."""
    if trainer.max_rounds is not None:
        return trainer.max_rounds, trainer.version
    if trainer.max_updates is not None:
        return trainer.max_updates, trainer.num_updates
    return trainer.max_time, trainer.now


def _rounds(trainer: FedTrainer) -> str:
    """The current round, and the total number of rounds if it is known."""
    of = "" if trainer.max_rounds is None else f"/{trainer.max_rounds}"
    return f"round {trainer.version}{of}"
