"""Ctrl-C and SIGTERM end a run between two events, not in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Interrupt:
    """The signal that asked for the end, or None.

    Attributes:
        signal: SIGINT or SIGTERM, once it came.
    """

    signal: signal.Signals | None = None


@contextmanager
def graceful_interrupts() -> Iterator[Interrupt]:
    """Note the first SIGINT or SIGTERM instead of dying of it; a second one acts as ever.

    Outside the main thread, where Python handles no signals, nothing changes.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)  # None: set by something that is not Python
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
