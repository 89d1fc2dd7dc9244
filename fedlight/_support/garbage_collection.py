"""Python's garbage collector and the libraries that a run imports."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_RARER = 10

_lock = threading.Lock()
_current: list[tuple[int, int, int]] = []
"""The thresholds from before the first of the current fits, once for each of them."""


@cache  # to count what is frozen takes as long as to look at it
def leave_libraries_alone() -> None:
    """Exclude all imported objects from garbage collection, once, in a script.

    torch and Lightning consist of half a million objects that live as long as the process. Each
    full collection looks at all of them. The collections at the end of the process alone take a
    second. Later objects are collected as usual, and their files are closed.

    In an interactive session much more may have been made before the import, so nothing is done.
    """
    interactive = hasattr(sys, "ps1") or sys.flags.interactive or "IPython" in sys.modules
    if not interactive and not gc.get_freeze_count():
        gc.freeze()


@contextmanager
def rarer_full_collections() -> Iterator[None]:
    """Let full collections be ten times rarer during a fit or an evaluation.

    Young objects are collected as usual. The history of a run is made of many small objects, none
    of which is garbage. To look through all of them again and again takes up to a fifth of the time
    of a run with a small model. Several fits may be under way at once (`sweep`), and end in any
    order. Thresholds that somebody else sets meanwhile stay.
    """
    with _lock:
        before = _current[0] if _current else gc.get_threshold()
        rarer = (*before[:2], before[2] * _RARER)
        if not _current:
            gc.set_threshold(*rarer)
        _current.append(before)
    try:
        yield
    finally:
        with _lock:
            _current.pop()
            if not _current and gc.get_threshold() == rarer:
                gc.set_threshold(*before)


@contextmanager
def no_collections() -> Iterator[None]:
    """Let the collector rest while many objects are made that all stay.

    Each thousand new objects start a collection, and some of these look at all that a run has: with
    100,000 clients in flight and their history, that takes longer than to write a checkpoint. What
    is garbage by its reference count is freed as usual.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
