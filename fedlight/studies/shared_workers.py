"""Several runs whose local runs are computed by the same workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from copy import copy
from inspect import signature
from typing import Any, TypeAlias

from fedlight._runs.content import content
from fedlight._support.checks import positive_int
from fedlight.executors import Executor, ProcessExecutor, RayExecutor
from fedlight.executors._remote.shared_crew import CrewShare, SharedCrew
from fedlight.run import Run
from fedlight.studies._progress import RunUnderWay
from fedlight.studies.one_run import OneRun, StudySettings
from fedlight.studies.runs import Planned
from fedlight.studies.together import MOST_TOGETHER
from fedlight.studies.workers import PendingRuns, Workers, advancing

WorkerExecutor: TypeAlias = ProcessExecutor | RayExecutor
"""An executor with workers, which compute local runs of several runs of a study."""


class SharedWorkers(Workers):
    """Many runs in this process; their local runs are computed by the same workers.

    The schedule of a run is known before its model is, so it feeds workers ahead. Where it has to
    wait nevertheless, others feed them. The result of a run is that of the run alone with the same
    executor, to the bit.

    Args:
        executor: Has the workers.
        most: The largest number of runs that are under way at once.
    """

    def __init__(self, executor: WorkerExecutor, most: int = MOST_TOGETHER) -> None:
        self.executor = executor
        self.most = positive_int("most", most)

    def run(self, pending: PendingRuns) -> None:
        """Advance runs until all of them are over.

        ::

            until no run is left:
                runs begin                                         as many as there may be
                each run takes its results, advances and feeds     as long as workers take more
                wait for results                                   of any run
        """
        most = min(self.most, len(pending.ready))
        going: list[_RunUnderWay] = []
        with closing(self.executor.team(max(1, most))) as crew:
            try:
                while True:
                    while len(going) < most and not pending.stopped():
                        planned = next(pending.free, None)
                        if planned is None:
                            break
                        run = _RunUnderWay(planned, pending.shared, self.executor, crew)
                        run.go_on()
                        going.append(run)
                    if not going:
                        return
                    _advance(going, crew)
                    pending.progress.tick(RunUnderWay.of(each.run) for each in going)
                    for each in going:
                        if each.ended:
                            pending.over(each.run)
                    going = [each for each in going if not each.ended]
                    if going and not any(each.share.finished for each in going):
                        _wait(going, crew)
            finally:
                for each in going:
                    each.close()


def has_workers(executor: object) -> bool:
    """Whether an executor that is asked for has workers."""
    return executor == "processes" or isinstance(executor, WorkerExecutor)


def is_same(one: object, other: object) -> bool:
    """Whether two executors have the same arguments."""
    one, other = (ProcessExecutor() if each == "processes" else each for each in (one, other))
    if isinstance(one, Executor) and type(one) is type(other):
        return one is other or _arguments(one) == _arguments(other)
    return one == other


def _arguments(executor: Executor) -> str:
    given = vars(executor)
    return content({name: given.get(name) for name in signature(type(executor)).parameters})


class _RunUnderWay:
    """A run under way.

    Attributes:
        run: The run.
        ended: Whether it is over.
    """

    def __init__(
        self, planned: Planned, shared: StudySettings, like: WorkerExecutor, crew: SharedCrew[Any]
    ) -> None:
        self._executor = copy(like)
        self._executor.shared = crew
        self.run = OneRun(planned, shared, self._executor)
        self.ended = False
        self._waits = advancing(self.run, Run.in_parcels)
        self._begun = False

    @property
    def share(self) -> CrewShare:
        """Its share of the workers."""
        share = self._executor.crew
        assert isinstance(share, CrewShare)
        return share

    def go_on(self) -> None:
        """Pass on what has come, and advance until the run has to wait again."""
        try:
            if self._begun:
                self._waits.send(self.share.take())
            else:
                self._begun = True
                next(self._waits)
        except StopIteration:
            self.ended = True

    def fail(self, error: Exception) -> None:
        """Let the run end with an error of the workers."""
        try:
            self._waits.throw(error)
        except StopIteration:
            self.ended = True

    def close(self) -> None:
        """Drop a run before its end."""
        self._waits.close()


def _advance(going: Sequence[_RunUnderWay], crew: SharedCrew[Any]) -> None:
    """Let runs take their results and feed the workers, those with least under way first."""
    some = max(1, crew.places // len(going))
    for most in (some, math.inf):  # first an equal part for each, then the rest
        runs = [each for each in going if not each.ended]
        runs.sort(key=lambda each: (each.share.num_under_way, each.share.turn))
        for each in runs:
            each.share.most = most
            if each.share.finished or each.share.room:
                each.go_on()


def _wait(going: Sequence[_RunUnderWay], crew: SharedCrew[Any]) -> None:
    """Wait for results of any run."""
    try:
        crew.wait()
    except Exception as error:  # there are no workers any more, or none can be started
        for each in going:
            each.fail(error)
