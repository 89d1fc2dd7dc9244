"""Many runs in lockstep: each goes on until it waits, then all that they wait for is one stack."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedlight.executors import VectorizedExecutor
from fedlight.executors.base import Job, Outcome
from fedlight.studies._bench import Bench, Group, Member
from fedlight.studies.one_run import OneRun, Surroundings
from fedlight.studies.runs import Planned

MOST_TOGETHER = 32
"""The largest number of runs that are under way at once: each has its model, data and history."""


def run_together(
    plan: Iterable[Planned],
    shared: Surroundings,
    over: Callable[[OneRun], None],
    stopped: Callable[[], bool],
    tick: Callable[[Sequence[OneRun]], None],
    most: int = MOST_TOGETHER,
    bench: Bench | None = None,
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
        bench: Executors that are there already, or None; they are let go of at the end.
    """
    waiting, bench = iter(plan), Bench() if bench is None else bench
    going: list[_Going] = []
    try:
        while True:
            while len(going) < most and not stopped():
                planned = next(waiting, None)
                if planned is None:
                    break
                member = Member(bench, planned.cell.arguments.get("executor", "auto"))
                run = _Going(OneRun(planned, shared, member), member)
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
        bench.close()


@dataclass(frozen=True, slots=True)
class Look:
    """What the first stacks of a run look like.

    Attributes:
        device: The kind of the device, such as "cpu".
        width: How many local runs there are in a stack; None if its executor does not stack them.
        most: How many there may be.
        bench: The executors, set up.
    """

    device: str
    width: float | None
    most: int
    bench: Bench


def look_at(planned: Planned, shared: Surroundings, stacks: int = 4) -> Look | None:
    """Begin one run, look at its first stacks, and drop the run; None if it fails.

    Args:
        planned: The run.
        shared: What all runs share; nothing is written.
        stacks: How many stacks.
    """
    bench = Bench()
    member = Member(bench, planned.cell.arguments.get("executor", "auto"))
    run = _Going(OneRun(planned, shared.bare(), member), member)
    widths: list[int] = []
    look = None
    try:
        more = run.go_on()
        while more and len(widths) < stacks:
            member.look()
            group = member.group
            widths.append(len(run.jobs))
            stacked = group.executor if isinstance(group.executor, VectorizedExecutor) else None
            # The first stack holds all clients, which begin at the same time.
            later = widths[1:] or widths
            look = Look(
                device=group.work.state.device.type,
                width=None if stacked is None or not group.open else sum(later) / len(later),
                most=group.executor.max_batch,
                bench=bench,
            )
            if stacked is None:
                break
            more = run.go_on(group.executor.run(run.jobs))
    except Exception:  # the run itself meets it again, and reports it
        return None
    finally:
        run.close()
    return look


class _Going:
    """A run under way.

    Attributes:
        run: The run.
        member: Its executor.
        jobs: What it waits for.
        ended: Whether it is over.
    """

    def __init__(self, run: OneRun, member: Member) -> None:
        self.run, self.member = run, member
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
                    self.jobs = [self.member.job(each.job()) for each in batch]
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
        except Exception as error:  # that of a result which is read late
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
        """Let go of a run in the middle of its way."""
        self._steps.close()


def _compute(going: Sequence[_Going]) -> None:
    """Compute what runs wait for, and let them go on."""
    groups: dict[Group, deque[_Going]] = defaultdict(deque)
    for each in going:
        each.member.look()  # all of them first: one may close a group for the others
    for each in going:
        groups[each.member.group].append(each)
    for group, members in groups.items():
        jobs = [job for each in members for job in each.jobs]
        try:
            outcomes = group.executor.run(jobs)
        except Exception:
            _compute_alone(members)
            continue
        start = 0
        for each in members:
            end = start + len(each.jobs)
            each.go_on(outcomes[start:end])
            start = end


def _compute_alone(members: Iterable[_Going]) -> None:
    """One run after another, since something has failed that is no client's failure."""
    for each in members:
        try:
            outcomes = each.member.run(each.jobs)
        except Exception as error:
            each.fail(error)
        else:
            each.go_on(outcomes)
