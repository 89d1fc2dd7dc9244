"""One process for each run, several at a time, on the cores of this machine."""

from __future__ import annotations

import math
import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import RawArray
from typing import cast

from fedlight.executors._remote.fork import Forked, end_with_parent, number_of_workers
from fedlight.studies._progress import RunUnderWay
from fedlight.studies._sent_run import SentRun, received
from fedlight.studies.one_run import OneRun, StudySettings
from fedlight.studies.runs import Planned
from fedlight.studies.workers import PendingRuns, Workers

_LOOK = 0.5  # seconds between two looks at signals


class Processes(Workers):
    """Runs on the cores of this machine: each in a process of its own, forked from this one.

    The result of a run is that of the run in this process, to the bit: one thread computes it.

    Args:
        workers: How many run at once; None for the cores of this machine.

    Raises:
        RuntimeError: The system is not Linux, where forking is safe.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = number_of_workers(workers, 'workers="processes"', 'workers="together"')

    def run(self, pending: PendingRuns) -> None:
        """Compute runs."""
        going: dict[Connection, tuple[Forked, Planned]] = {}
        states: dict[Connection, _State] = {}
        told = False
        try:
            while True:
                while len(going) < self.workers and not pending.stopped():
                    planned = next(pending.free, None)
                    if planned is None:
                        break
                    state = _State()
                    forked = _fork(planned, pending.shared, state)
                    going[forked.pipe], states[forked.pipe] = (forked, planned), state
                if not going:
                    return
                if pending.stopped() and not told:
                    told = True
                    for forked, _ in going.values():
                        _interrupt(forked)
                for pipe in wait([*going], timeout=_LOOK):
                    forked, planned = going.pop(cast(Connection, pipe))
                    run = received(forked.receive, planned, pending.shared)
                    forked.close()
                    pending.over(run)
                pending.progress.tick(
                    states[pipe].of(planned) for pipe, (_, planned) in going.items()
                )
        finally:
            for forked, _ in going.values():
                forked.stop()


class _State:
    """What a process shows of its run to this one, in memory that both have."""

    def __init__(self) -> None:
        self._shared = RawArray("d", [0.0, 0.0, math.nan])

    def show(self, run: OneRun) -> None:
        """Show the state of the run; called in its own process."""
        state = RunUnderWay.of(run)
        self._shared[:] = [state.share, state.round, state.value]

    def of(self, planned: Planned) -> RunUnderWay:
        """The state that was shown last."""
        share, number, value = self._shared
        return RunUnderWay(planned, share, int(number), value)


def _fork(planned: Planned, shared: StudySettings, state: _State) -> Forked:
    """Begin a run in a process of its own."""
    # The data and the module are made before the fork, so that all processes share their memory.
    with suppress(Exception):  # the other process meets the error again and reports it
        shared.data_of(planned)
        shared.start_of(planned)
    return Forked.start(
        _compute, planned, shared, state, os.getpid(), name="the worker of the run", daemon=False
    )


def _interrupt(forked: Forked) -> None:
    """Ask a run to stop between two events, if a signal has not reached it already."""
    if forked.process.is_alive() and forked.process.pid is not None:
        os.kill(forked.process.pid, signal.SIGTERM)


def _compute(
    pipe: Connection, planned: Planned, shared: StudySettings, state: _State, parent: int
) -> None:
    """Compute one run in this process."""
    if os.getppid() != parent:
        return
    end_with_parent(signal.SIGTERM)
    pipe.send(SentRun.compute(planned, shared, state.show))
