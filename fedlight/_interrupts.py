"""Ctrl-C and SIGTERM end a run between two events, so that it can be saved and resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Interrupt:
    """The signal that asked for the end of a run.

    Attributes:
        signal: SIGINT or SIGTERM once it has come; None before.
    """

    signal: signal.Signals | None = None


@contextmanager
def graceful_interrupts() -> Iterator[Interrupt]:
    """Record the first SIGINT or SIGTERM; a second signal has its default effect.

    Outside the main thread nothing changes, because Python handles signals in the main thread only.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)  # None if it was not set from Python
        before[number] = signal.SIG_DFL if handler is None else handler

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        interrupt.signal = signal.Signals(number)
        restore()

    try:
        for number in before:
            signal.signal(number, note)
        yield interrupt
    finally:
        restore()
