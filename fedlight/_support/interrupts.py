"""Ctrl-C and SIGTERM end a run between two events, so that it can be saved and resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch


@dataclass(slots=True)
class Interrupt:
    """The signal that asked for the end of a run.

    Attributes:
        signal: SIGINT or SIGTERM once it has come; None before.
    """

    signal: signal.Signals | None = None

    def end_the_script(self) -> None:
        """Raise the usual exception of the signal, once the run has ended in order.

        Raises:
            KeyboardInterrupt: It was SIGINT.
            SystemExit: It was SIGTERM; the exit status is 143, as if it had killed the process.
        """
        if self.signal is signal.SIGINT:
            raise KeyboardInterrupt("fit was stopped by SIGINT")
        if self.signal is not None:
            raise SystemExit(128 + self.signal)


class Alone:
    """A context that cannot be entered a second time before it is left; gradients are on in it.

    As under `lightning.Trainer`, a fit trains also within ``torch.no_grad()``.

    Raises:
        RuntimeError: (when it is entered) It is entered already.
    """

    def __init__(self) -> None:
        self._entered = False

    def __enter__(self) -> None:
        if self._entered:
            raise RuntimeError("this trainer is in a fit already; make another FedTrainer for it")
        self._entered = True
        self._gradients = torch.enable_grad()
        self._gradients.__enter__()

    def __exit__(self, *error: object) -> None:
        self._gradients.__exit__(None, None, None)
        self._entered = False


_outer: list[Interrupt] = []  # of the context around all others, such as a study's


@contextmanager
def graceful_interrupts() -> Iterator[Interrupt]:
    """Record the first SIGINT or SIGTERM; a second signal has its default effect.

    A context within another one yields the other's record: a signal ends all fits of a study.
    Outside the main thread nothing changes, because Python handles signals in the main thread only.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    if _outer:
        yield _outer[0]
        return

    # `getsignal` returns None for a handler that was not set from Python.
    before = {n: signal.getsignal(n) or signal.SIG_DFL for n in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        interrupt.signal = signal.Signals(number)
        restore()

    try:
        _outer.append(interrupt)
        for number in before:
            signal.signal(number, note)
        yield interrupt
    finally:
        _outer.clear()
        restore()
