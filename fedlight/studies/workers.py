"""How the runs of a study are computed: in turn, together, on the cores, on a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fedlight._support.checks import positive_int
from fedlight.loop import drive
from fedlight.studies._bench import Bench
from fedlight.studies.one_run import OneRun, Surroundings
from fedlight.studies.runs import Planned
from fedlight.studies.together import MOST_TOGETHER, run_together

if TYPE_CHECKING:
    from fedlight.studies._progress import StudyBar

Over: TypeAlias = Callable[[OneRun], None]


@dataclass(frozen=True, slots=True)
class Work:
    """What a study hands to its workers.

    Attributes:
        ready: The runs that can begin.
        free: Those of them that no other process computes, each when it is asked for.
        shared: What all runs share.
        over: Is to be told of each run that is over, or interrupted.
        stopped: Whether no further run is to begin.
        progress: Is to be told which runs are under way.
    """

    ready: Sequence[Planned]
    free: Iterator[Planned]
    shared: Surroundings
    over: Over
    stopped: Callable[[], bool]
    progress: StudyBar


class Workers(ABC):
    """Computes the runs of a study."""

    @abstractmethod
    def run(self, work: Work) -> None:
        """Compute the runs that no other process computes."""


class InTurn(Workers):
    """One run after another, in this process."""

    def run(self, work: Work) -> None:
        """Compute runs."""
        for planned in work.free:
            go_through(run := OneRun(planned, work.shared), lambda each: work.progress.tick([each]))
            work.over(run)
            if work.stopped():
                return


class Together(Workers):
    """Many runs in lockstep in this process; their local runs are computed as one stack.

    Args:
        most: The largest number of runs that are under way at once.
        bench: Executors that are there already, or None.
    """

    def __init__(self, most: int = MOST_TOGETHER, bench: Bench | None = None) -> None:
        self.most = positive_int("most", most)
        self._bench = bench

    def run(self, work: Work) -> None:
        """Compute runs."""
        bench, self._bench = self._bench, None
        run_together(
            work.free, work.shared, work.over, work.stopped, work.progress.tick, self.most, bench
        )


def go_through(run: OneRun, tick: Callable[[OneRun], None] = lambda run: None) -> None:
    """Compute one run."""

    def compute(waiting: Iterable[object]) -> None:
        assert run.trainer is not None
        run.trainer.run.compute(list(waiting))
        tick(run)

    drive(run.steps(), compute)
