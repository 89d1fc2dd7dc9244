"""The progress bar of a study: over runs and, within them, over rounds."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedlight.callbacks.progress import lacks_widgets

if TYPE_CHECKING:
    from fedlight.studies.one_run import OneRun
    from fedlight.studies.runs import Planned, StudyRun
    from fedlight.trainer import FedTrainer

_REFRESH = 0.2  # seconds


class StudyBar:
    """Shows how many runs are finished, and the real time that is left.

    The estimate counts the shares of runs under way, and only runs of this call: those that were
    found finished have cost nothing.

    Args:
        plan: All runs.
        runs: The finished ones, which others add to.
        enabled: Whether to show it.
    """

    def __init__(
        self, plan: Sequence[Planned], runs: Mapping[Planned, StudyRun], enabled: bool
    ) -> None:
        self._total, self._runs = len(plan), runs
        self._found, self._drawn = len(runs), 0.0
        self._failed = 0
        console = Console(stderr=True)
        if lacks_widgets(console):
            console = Console(stderr=True, force_jupyter=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
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
        self._progress.stop()

    def over(self, run: OneRun) -> None:
        """Count a run that is over."""
        self._failed += run.result is not None and run.result.error is not None
        self.tick([], now=True)

    def tick(self, going: Sequence[OneRun], now: bool = False) -> None:
        """Show the progress of runs under way.

        Args:
            going: The runs under way.
            now: Draw at once.
        """
        if not now and time.monotonic() - self._drawn < _REFRESH:
            return
        self._drawn = time.monotonic()
        shares = sum(_share(run.trainer) for run in going if run.trainer is not None)
        done = len(self._runs) - self._found + shares
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
