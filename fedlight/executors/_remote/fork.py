"""Processes that are forked from this one, each with a pipe to it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, TypeVarTuple

import torch

from fedlight._support.checks import positive_int
from fedlight.executors._remote.crew import WorkerLost

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

Ts = TypeVarTuple("Ts")

_PARENT_DIES = 1  # PR_SET_PDEATHSIG of Linux


def cores_to_use() -> int:
    """The cores that this process may use; 0 on a system where forking is not safe."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 0


def number_of_workers(workers: int | None, who: str, instead: str) -> int:
    """Check how many processes to fork; None is one for each core that this process may use.

    Args:
        workers: The argument.
        who: The name of the class or the argument that forks processes.
        instead: The remedy on a system where forking is not safe.

    Raises:
        RuntimeError: The system is not Linux.
        TypeError: The argument is no integer.
        ValueError: It is below 1.
    """
    cores = cores_to_use()
    if not cores:
        raise RuntimeError(
            f"{who} forks this process, which is safe on Linux only; write {instead}"
        )
    return cores if workers is None else positive_int("workers", workers)


@dataclass(frozen=True, slots=True)
class Forked:
    """A forked process, as this process sees it.

    Attributes:
        process: The process.
        pipe: This process's end of the pipe between them.
        ended: A file descriptor that can be read from once the process has ended.
    """

    process: ForkProcess
    pipe: Connection
    ended: int

    @classmethod
    def start(
        cls, body: Callable[[Connection, *Ts], None], *given: *Ts, name: str, daemon: bool
    ) -> Forked:
        """Fork a process.

        Args:
            body: The function that it runs, with its end of the pipe and `given`.
            given: Further arguments. Nothing is pickled.
            name: Its name in errors, such as "the worker of the run".
            daemon: Whether it is ended at the interpreter's exit, and may start no process itself.
        """
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        process = context.Process(
            target=_begin, args=(body, here, there, *given), name=name, daemon=daemon
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of each fork of a process with threads.
            warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
            process.start()
        # The other process then has the only one, and its death is the end of the pipe.
        there.close()
        assert process.pid is not None
        try:
            ended = os.pidfd_open(process.pid)
        except OSError:  # an old kernel; this one shows no death while others have inherited it
            ended = os.dup(process.sentinel)
        return cls(process, here, ended)

    def send(self, message: object) -> None:
        """Send a message to the process.

        Raises:
            WorkerLost: It has died.
        """
        try:
            self.pipe.send(message)
        except OSError as error:
            raise self._died() from error

    def receive(self) -> Any:
        """Receive the next message of the process.

        Raises:
            WorkerLost: It has died.
            RuntimeError: It has raised an error.
        """
        # The end of the pipe does not show a death where another process has inherited it.
        wait([self.pipe, self.ended])
        try:
            if not self.pipe.poll():
                raise self._died()
            received = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        if isinstance(received, _Raised):
            raise RuntimeError(f"in {self.process.name}:\n{received.trace}")
        return received

    def _died(self) -> WorkerLost:
        self.process.join(1)
        code = self.process.exitcode
        how = f"with exit code {code}"
        if code is not None and code < 0:
            how = f"by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            how += "; where memory is short the system kills processes: write fewer workers"
        return WorkerLost(f"{self} has died {how}")

    def __str__(self) -> str:
        return f"{self.process.name} (process {self.process.pid})"

    def close(self) -> None:
        """Wait until the process has ended, and release what this one has of it."""
        self.process.join()
        self.pipe.close()
        os.close(self.ended)

    def stop(self) -> None:
        """End the process, even in the middle of its work."""
        self.process.kill()
        self.close()
        with suppress(ValueError):  # another thread has waited for the process, and notes it late
            self.process.close()


@dataclass(frozen=True, slots=True)
class _Raised:
    """An error of a forked process, with its traceback as text: the error may not pickle."""

    trace: str


def _begin(
    body: Callable[[Connection, *Ts], None], parents: Connection, pipe: Connection, *given: *Ts
) -> None:
    parents.close()
    # The processes use up the cores already, and pools of threads do not survive a fork.
    torch.set_num_threads(1)
    try:
        body(pipe, *given)
    except (EOFError, ConnectionError):  # this process's parent has ended
        return
    except Exception:
        pipe.send(_Raised(traceback.format_exc()))


def end_with_parent(number: int) -> None:
    """Let this process get a signal when the one that has forked it dies.

    Args:
        number: The number of the signal.
    """
    with suppress(AttributeError, OSError):  # a C library without this function
        ctypes.CDLL(None, use_errno=True).prctl(_PARENT_DIES, number)
