"""One process for each run, several at a time, on the cores of this machine."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, cast

import torch

from fedlight._support.checks import positive_int
from fedlight._support.voice import Note, keep_what_is_said_once, say_once
from fedlight.executors.processes import cores_to_use
from fedlight.studies.one_run import OneRun, Surroundings
from fedlight.studies.runs import Planned, StudyRun
from fedlight.studies.workers import Work, Workers, go_through

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess


_PARENT_DIES = 1  # PR_SET_PDEATHSIG of Linux
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
        cores = cores_to_use()
        if not cores:
            raise RuntimeError(
                'workers="processes" forks this process, which is safe on Linux only; write '
                'workers="together"'
            )
        self.workers = cores if workers is None else positive_int("workers", workers)

    def run(self, work: Work) -> None:
        """Compute runs."""
        going: dict[Connection, _Worker] = {}
        told = False
        try:
            while True:
                while len(going) < self.workers and not work.stopped():
                    planned = next(work.free, None)
                    if planned is None:
                        break
                    worker = _Worker.start(planned, work.shared)
                    going[worker.pipe] = worker
                if not going:
                    return
                if work.stopped() and not told:
                    told = True
                    for worker in going.values():
                        worker.end()
                for pipe in wait([*going], timeout=_LOOK):
                    worker = going.pop(cast(Connection, pipe))
                    run = OneRun(worker.planned, work.shared)
                    run.result = worker.result()
                    run.notes = worker.notes
                    work.over(run)
                work.progress.tick([])
        finally:
            for worker in going.values():
                worker.process.kill()


@dataclass(slots=True)
class _Worker:
    """A process, as the one that has forked it sees it."""

    planned: Planned
    process: ForkProcess
    pipe: Connection
    notes: list[Note] = field(default_factory=list)

    @classmethod
    def start(cls, planned: Planned, shared: Surroundings) -> _Worker:
        # What the run needs is made here, so that all processes share the memory.
        try:
            shared.data_of(planned)
            shared.start_of(planned)
        except Exception:
            pass  # the worker meets the error again and reports it
        fork = multiprocessing.get_context("fork")
        here, there = fork.Pipe(duplex=False)
        given = (planned, shared, there, os.getpid())
        process = fork.Process(target=_work, args=given, name="fedlight run")
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
            process.start()
        there.close()
        return cls(planned, process, here)

    def end(self) -> None:
        """Ask the run to stop between two events, if a signal has not reached it already."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGTERM)

    def result(self) -> StudyRun | None:
        """The record of the run that is over; None if it was interrupted."""
        try:
            answer: Any = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            words = (
                f"the process of the run has died {how}; where memory is short the system kills "
                "processes: write fewer workers"
            )
            return self.planned.failed(RuntimeError(words))
        self.process.join()
        self.pipe.close()
        if answer is None:
            return None
        self.planned.schedule = answer["schedule"]
        for message in answer["said"]:
            say_once(message)
        self.notes = answer["notes"]
        return StudyRun.from_plain(answer["run"], dict(self.planned.cell.names))


def _work(planned: Planned, shared: Surroundings, pipe: Connection, parent: int) -> None:
    """What a process does: one run."""
    if os.getppid() != parent:
        return
    _end_with_parent()
    torch.set_num_threads(1)
    run, said = OneRun(planned, shared), keep_what_is_said_once()
    try:
        go_through(run)
        answer = None
        if run.result is not None:
            answer = {
                "run": run.result.to_plain(),
                "schedule": planned.schedule,
                "said": said,
                "notes": run.notes,
            }
        pipe.send(answer)
    except BrokenPipeError:
        return
    except Exception as error:  # of the study itself, not of the run
        error.add_note(traceback.format_exc())
        plain = planned.failed(error).to_plain()
        pipe.send({"run": plain, "schedule": None, "said": said, "notes": []})


def _end_with_parent() -> None:
    """Let the run stop in order when the process that has forked this one dies."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PARENT_DIES, signal.SIGTERM)
    except (AttributeError, OSError):
        return
