"""How the runs of a study are computed: in turn, together, on the cores, on a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fedlight.loop import drive
from fedlight.studies._progress import RunUnderWay, StudyBar
from fedlight.studies.one_run import OneRun, StudySettings
from fedlight.studies.runs import Planned

if TYPE_CHECKING:
    from fedlight.run import Run

Y = TypeVar("Y")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class PendingRuns:
    """The runs that a study passes to its workers.

    Attributes:
        ready: The runs that can begin.
        free: Those of them that no other process computes, each locked when it is taken.
        shared: What all runs share.
        over: Called by the workers with each run that is over or interrupted.
        stopped: Returns True once no further run is to begin.
        progress: The progress bar, which the workers tell which runs are under way.
    """

    ready: Sequence[Planned]
    free: Iterator[Planned]
    shared: StudySettings
    over: Callable[[OneRun], None]
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
            run = OneRun(planned, pending.shared)
            go_through(run, lambda each: pending.progress.tick([RunUnderWay.of(each)]))
            pending.over(run)
            if pending.stopped():
                return


def go_through(run: OneRun, tick: Callable[[OneRun], None] = lambda run: None) -> None:
    """Compute one run."""

    def compute(waiting: Iterable[object]) -> None:
        assert run.trainer is not None
        run.trainer.run.compute(list(waiting))
        tick(run)

    drive(run.steps(), compute)


def advancing(
    run: OneRun, compute: Callable[[Run, Sequence[Any]], Generator[Y, S, None]]
) -> Generator[Y, S, None]:
    """Go through a run whose local runs its caller computes together with those of others.

    Args:
        run: The run; an error of `compute` ends it, and is its own.
        compute: The steps of the computation of the local runs that the run waits for.
    """
    with closing(run.steps()) as steps:
        for waiting in steps:
            assert run.trainer is not None
            try:
                yield from compute(run.trainer.run, waiting)
            except Exception as error:  # of the executor, or of a result that is read late
                with suppress(StopIteration):  # the run ends with it
                    steps.throw(error)
