"""Many runs in lockstep: each goes on until it waits, then all their local runs are one stack."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fedlight.executors import VectorizedExecutor
from fedlight.executors.base import Job, Outcome
from fedlight.studies._shared_executors import SharedExecutor, SharedExecutors, StudyExecutor
from fedlight.studies.one_run import OneRun, StudySettings
from fedlight.studies.runs import Planned

MOST_TOGETHER = 32
"""The largest number of runs that are under way at once: each has its model, data and history."""


def run_together(
    plan: Iterable[Planned],
    shared: StudySettings,
    over: Callable[[OneRun], None],
    stopped: Callable[[], bool],
    tick: Callable[[Sequence[OneRun]], None],
    most: int = MOST_TOGETHER,
    executors: SharedExecutors | None = None,
) -> None:
    """Advance runs together until all of them are over.

    ::

        until no run is left:
            each run goes on until it waits for local runs     by itself
            what they wait for is computed                     one stack for each shared executor

    Args:
        plan: The runs; the next one is taken from it when one of those under way is over, so that
            it may be a generator that looks at what others have done meanwhile.
        shared: What all runs share.
        over: Is told of each run that is over.
        stopped: Whether no further run is to begin.
        tick: Is told, after each stack, which runs are under way.
        most: The largest number of runs under way.
        executors: Executors that are set up already, or None; they are torn down at the end.
    """
    waiting, executors = iter(plan), SharedExecutors() if executors is None else executors
    going: list[_RunUnderWay] = []
    try:
        while True:
            while len(going) < most and not stopped():
                planned = next(waiting, None)
                if planned is None:
                    break
                run = _RunUnderWay(planned, shared, executors)
                if run.go_on():
                    going.append(run)
                else:
                    over(run.run)
            if not going:
                return
            _compute(going)
            tick([each.run for each in going])
            for each in going:
                if each.ended:
                    over(each.run)
            going = [each for each in going if not each.ended]
    finally:
        for each in going:
            each.close()
        executors.close()


@dataclass(frozen=True, slots=True)
class FirstStacks:
    """The size of the first stacks of a run.

    Attributes:
        device: The kind of the device, such as "cpu".
        width: How many local runs there are in a stack; None if its executor does not stack them.
        most: How many there may be.
        executors: The executors, set up.
    """

    device: str
    width: float | None
    most: int
    executors: SharedExecutors


def first_stacks(planned: Planned, shared: StudySettings, stacks: int = 4) -> FirstStacks | None:
    """Begin one run, compute its first stacks, and drop the run; None if it fails.

    Args:
        planned: The run.
        shared: What all runs share; nothing is written.
        stacks: How many stacks.
    """
    executors = SharedExecutors()
    run = _RunUnderWay(planned, shared.bare(), executors)
    widths: list[int] = []
    found = None
    try:
        more = run.go_on()
        while more and len(widths) < stacks:
            run.executor.check_module()
            used = run.executor.shared
            widths.append(len(run.jobs))
            # The first stack holds all clients, which begin at the same time.
            later = widths[1:] or widths
            found = FirstStacks(
                device=used.work.state.device.type,
                width=sum(later) / len(later) if used.open else None,
                most=used.executor.max_batch,
                executors=executors,
            )
            if not isinstance(used.executor, VectorizedExecutor):
                break
            more = run.go_on(used.executor.run(run.jobs))
    except Exception:  # the run itself meets it again, and reports it
        return None
    finally:
        run.close()
    return found


class _RunUnderWay:
    """A run under way.

    Attributes:
        executor: Its executor.
        run: The run.
        jobs: The local runs that it waits for.
        ended: Whether it is over.
    """

    def __init__(self, planned: Planned, shared: StudySettings, executors: SharedExecutors) -> None:
        asked = planned.cell.arguments.get("executor", "auto")
        self.executor = StudyExecutor(executors, asked)
        self.run = run = OneRun(planned, shared, self.executor)
        self.jobs: list[Job] = []
        self.ended = False
        self._steps = run.steps()
        self._batches: Generator[list[Any], Sequence[Outcome], None] | None = None

    def go_on(self, outcomes: Sequence[Outcome] | None = None) -> bool:
        """Go on until local runs have to be computed; False if the run is over.

        Args:
            outcomes: Those of the jobs, if there are any.
        """
        try:
            while True:
                batch = self._next_batch(outcomes)
                if batch is not None:
                    self.jobs = [self.executor.job(each.job()) for each in batch]
                    return True
                outcomes = None
                waiting = next(self._steps)
                assert self.run.trainer is not None
                self._batches = self.run.trainer.run.batches(waiting)
        except StopIteration:
            self.ended = True
            return False

    def _next_batch(self, outcomes: Sequence[Outcome] | None) -> list[Any] | None:
        if self._batches is None:
            return None
        try:
            if outcomes is None:
                return next(self._batches)
            return self._batches.send(outcomes)
        except StopIteration:
            self._batches = None
        except Exception as error:  # of a result that is read late
            self._batches = None
            self._steps.throw(error)
        return None

    def fail(self, error: BaseException) -> None:
        """Let the run end with an error of the executor."""
        self._batches = None
        try:
            self._steps.throw(error)
        except StopIteration:
            self.ended = True

    def close(self) -> None:
        """Drop a run before its end."""
        self._steps.close()


def _compute(going: Sequence[_RunUnderWay]) -> None:
    """Compute the local runs that runs wait for, and let the runs go on."""
    stacks: dict[SharedExecutor, list[_RunUnderWay]] = defaultdict(list)
    for each in going:
        each.executor.check_module()  # of all runs first: one may close an executor for the others
    for each in going:
        stacks[each.executor.shared].append(each)
    for shared, runs in stacks.items():
        try:
            outcomes = iter(shared.executor.run([job for each in runs for job in each.jobs]))
        except Exception:
            _compute_alone(runs)
            continue
        for each in runs:
            each.go_on(list(islice(outcomes, len(each.jobs))))


def _compute_alone(runs: Iterable[_RunUnderWay]) -> None:
    """Compute one run after another: something has failed that is no client's failure."""
    for each in runs:
        try:
            outcomes = each.executor.run(each.jobs)
        except Exception as error:
            each.fail(error)
        else:
            each.go_on(outcomes)
