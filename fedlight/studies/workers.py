"""How the runs of a study are computed: in turn, together, on the cores, on a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fedlight._support.checks import positive_int
from fedlight.loop import drive
from fedlight.studies._shared_executors import SharedExecutors
from fedlight.studies.one_run import OneRun, StudySettings
from fedlight.studies.runs import Planned
from fedlight.studies.together import MOST_TOGETHER, run_together

if TYPE_CHECKING:
    from fedlight.studies._progress import StudyBar

Over: TypeAlias = Callable[[OneRun], None]


@dataclass(frozen=True, slots=True)
class PendingRuns:
    """The runs that a study hands to its workers.

    Attributes:
        ready: The runs that can begin.
        free: Those of them that no other process computes, each locked when it is taken.
        shared: What all runs share.
        over: To be called with each run that is over, or interrupted.
        stopped: Whether no further run is to begin.
        progress: To be told which runs are under way.
    """

    ready: Sequence[Planned]
    free: Iterator[Planned]
    shared: StudySettings
    over: Over
    stopped: Callable[[], bool]
    progress: StudyBar


class Workers(ABC):
    """Computes the runs of a study."""

    @abstractmethod
    def run(self, pending: PendingRuns) -> None:
        """Compute the runs that no other process computes."""


class InTurn(Workers):
    """One run after another, in this process."""

    def run(self, pending: PendingRuns) -> None:
        """Compute runs."""
        for planned in pending.free:
            go_through(
                run := OneRun(planned, pending.shared), lambda each: pending.progress.tick([each])
            )
            pending.over(run)
            if pending.stopped():
                return


class Together(Workers):
    """Many runs in lockstep in this process; their local runs are computed as one stack.

    Args:
        most: The largest number of runs that are under way at once.
        executors: Executors that are set up already, or None.
    """

    def __init__(self, most: int = MOST_TOGETHER, executors: SharedExecutors | None = None) -> None:
        self.most = positive_int("most", most)
        self._executors = executors

    def run(self, pending: PendingRuns) -> None:
        """Compute runs."""
        executors, self._executors = self._executors, None
        run_together(
            pending.free,
            pending.shared,
            pending.over,
            pending.stopped,
            pending.progress.tick,
            self.most,
            executors,
        )


def go_through(run: OneRun, tick: Callable[[OneRun], None] = lambda run: None) -> None:
    """Compute one run."""

    def compute(waiting: Iterable[object]) -> None:
        assert run.trainer is not None
        run.trainer.run.compute(list(waiting))
        tick(run)

    drive(run.steps(), compute)
