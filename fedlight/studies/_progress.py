"""The progress bar of a study, and a line of what is running."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from fedlight.callbacks.progress import lacks_widgets

if TYPE_CHECKING:
    from fedlight.studies.one_run import OneRun
    from fedlight.studies.runs import Planned, StudyRun
    from fedlight.trainer import FedTrainer

_REFRESH = 0.2  # seconds
_LEAST_NAME = 4  # characters


@dataclass(frozen=True, slots=True)
class RunUnderWay:
    """A run under way.

    Attributes:
        planned: Its place in the plan.
        share: How much of its way it has gone, from 0 to 1.
        round: Its current round; 0 if it is not known, as of a run on another machine.
        value: The newest value of the study's metric; nan if there is none.
    """

    planned: Planned
    share: float = 0.0
    round: int = 0
    value: float = math.nan

    @classmethod
    def of(cls, run: OneRun) -> RunUnderWay:
        """The state of a run of this process."""
        trainer = run.trainer
        if trainer is None:
            return cls(run.planned)
        value = trainer.newest_metrics.get(run.shared.metric, math.nan)
        return cls(run.planned, _share(trainer), trainer.version, value)

    def words(self, metric: str, room: int) -> str:
        """The run in words, whose name is cut off if there is no room for all of it."""
        facts = []
        if self.round:
            limit = self.planned.cell.arguments.get("max_rounds")
            facts.append(f"round {self.round}" + (f"/{limit}" if limit else ""))
        if not math.isnan(self.value):
            facts.append(f"{metric} {self.value:.4g}")
        end = ": " + ", ".join(facts) if facts else ""
        name = " ".join(str(self.planned).split())
        most = max(room - len(end), _LEAST_NAME)
        return (name if len(name) <= most else f"{name[: most - 1]}…") + end


def line_of(going: Sequence[RunUnderWay], metric: str, width: int) -> str:
    """The runs under way in one line: as many as have room, and the number of the others."""
    shown: list[str] = []
    room = width
    for place, run in enumerate(going):
        left = len(going) - place - 1
        words = run.words(metric, width - len(f"; {left} more"))
        needed = len(words) + 2 * bool(shown)
        if shown and needed + len(f"; {left} more") * bool(left) > room:
            return "; ".join([*shown, f"{left + 1} more"])
        shown.append(words)
        room -= needed
    return "; ".join(shown)


class _WithLine(Progress):
    """A progress bar with a line of text below it."""

    line = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.line:
            yield Text(self.line, no_wrap=True, overflow="ellipsis")


class StudyBar:
    """Shows how many runs are finished, the real time that is left, and what is running.

    The estimate counts the shares of runs under way, and only runs of this call: those that were
    found finished have cost nothing.

    Args:
        plan: All runs.
        runs: The finished ones, which others add to.
        enabled: Whether to show it.
        metric: The metric whose newest value is shown.
        console: The console to draw on; standard error by default.
    """

    def __init__(
        self,
        plan: Sequence[Planned],
        runs: Mapping[Planned, StudyRun],
        enabled: bool,
        metric: str,
        console: Console | None = None,
    ) -> None:
        self._total, self._runs = len(plan), runs
        self._found, self._drawn = len(runs), 0.0
        self._failed = 0
        self._enabled, self._metric = enabled, metric
        console = console or Console(stderr=True)
        if lacks_widgets(console):
            console = Console(stderr=True, force_jupyter=False)
        self._progress = _WithLine(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not enabled,
        )
        self._task = self._progress.add_task(self._words(), total=self._total - self._found)

    def __enter__(self) -> StudyBar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.line = ""
        self._progress.stop()

    def over(self, run: OneRun) -> None:
        """Count a run that is over."""
        self._failed += run.result is not None and run.result.error is not None
        done = len(self._runs) - self._found
        self._progress.update(self._task, completed=done, description=self._words())

    def tick(self, going: Iterable[RunUnderWay]) -> None:
        """Show the runs under way, unless they have just been shown."""
        if not self._enabled or time.monotonic() - self._drawn < _REFRESH:
            return
        self._drawn = time.monotonic()
        states = list(going)
        self._progress.line = line_of(states, self._metric, self._progress.console.width)
        done = len(self._runs) - self._found + sum(each.share for each in states)
        self._progress.update(self._task, completed=done, description=self._words())

    def _words(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"runs {len(self._runs)}/{self._total}{failed}"


def _share(trainer: FedTrainer) -> float:
    """How much of its way a run has gone, from 0 to 1."""
    shares = [
        done / limit
        for done, limit in (
            (trainer.version, trainer.max_rounds),
            (trainer.num_updates, trainer.max_updates),
            (trainer.now, trainer.max_time),
        )
        if limit is not None
    ]
    return min(1.0, max(shares, default=0.0))
