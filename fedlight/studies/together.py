"""Many runs in lockstep: each advances until it waits, then their local runs are one stack."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from fedlight._support.checks import positive_int
from fedlight.executors import VectorizedExecutor
from fedlight.executors.base import Job, Outcome
from fedlight.run import Run
from fedlight.studies._progress import RunUnderWay
from fedlight.studies._shared_executors import SharedExecutor, SharedExecutors, StudyExecutor
from fedlight.studies.one_run import OneRun, StudySettings
from fedlight.studies.runs import Planned
from fedlight.studies.workers import PendingRuns, Workers, advancing

MOST_TOGETHER = 32
"""The largest number of runs that are under way at once: each has its model, data and history."""


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
        """Advance runs together until all of them are over.

        ::

            until no run is left:
                each run advances until it waits for local runs    by itself
                these local runs are computed                      one stack for each executor

        The next run is taken when one of those under way is over, so that `pending.free` may look
        at the runs that other processes have finished meanwhile.
        """
        executors, self._executors = self._executors or SharedExecutors(), None
        going: list[_RunUnderWay] = []
        try:
            while True:
                while len(going) < self.most and not pending.stopped():
                    planned = next(pending.free, None)
                    if planned is None:
                        break
                    run = _RunUnderWay(planned, pending.shared, executors)
                    if run.go_on():
                        going.append(run)
                    else:
                        pending.over(run.run)
                if not going:
                    return
                _compute(going)
                pending.progress.tick(RunUnderWay.of(each.run) for each in going)
                for each in going:
                    if each.ended:
                        pending.over(each.run)
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
        self.run = OneRun(planned, shared, self.executor)
        self.jobs: list[Job] = []
        self.ended = False
        self._batches = advancing(self.run, Run.batches)

    def go_on(self, outcomes: Sequence[Outcome] | None = None) -> bool:
        """Advance until local runs have to be computed; False if the run is over.

        Args:
            outcomes: Those of the jobs; None at the start.
        """
        return self._advance(partial(self._batches.send, outcomes))  # type: ignore[arg-type]

    def fail(self, error: Exception) -> None:
        """Let the run end with an error of the executor."""
        self._advance(partial(self._batches.throw, error))

    def _advance(self, resume: Callable[[], list[Any]]) -> bool:
        try:
            self.jobs = [self.executor.job(each.job()) for each in resume()]
        except StopIteration:
            self.ended = True
        return not self.ended

    def close(self) -> None:
        """Drop a run before its end."""
        self._batches.close()


def _compute(going: Sequence[_RunUnderWay]) -> None:
    """Compute the local runs that runs wait for, and advance the runs."""
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
    """Compute one run after another, to find the run whose local runs fail as a whole."""
    for each in runs:
        try:
            outcomes = each.executor.run(each.jobs)
        except Exception as error:
            each.fail(error)
        else:
            each.go_on(outcomes)
