"""Python's garbage collector and the libraries that a run imports."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_RARER = 10

_under_way = 0


def leave_libraries_alone() -> None:
    """Take what is imported by now out of the garbage collector's sight, once, in a script.

    torch and Lightning consist of half a million objects that live as long as the process. Each
    full collection looks at all of them, also the several at the end of the process, which take a
    second together. What is made afterwards is collected as usual, and files in it are closed.

    In an interactive session much more may have been made before the import, so nothing is done.
    """
    interactive = hasattr(sys, "ps1") or sys.flags.interactive or "IPython" in sys.modules
    if not interactive and not gc.get_freeze_count():
        gc.freeze()


@contextmanager
def rarer_full_collections() -> Iterator[None]:
    """During a fit, let full collections be ten times rarer; young objects are collected as usual.

    The history of a run is made of many small objects, none of which is garbage. To look through
    all of them again and again takes up to a fifth of the time of a run with a small model. Several
    fits may be under way at once (`sweep`), and end in any order.
    """
    global _under_way
    _under_way += 1
    if _under_way == 1:
        young, middle, full = gc.get_threshold()
        gc.set_threshold(young, middle, full * _RARER)
    try:
        yield
    finally:
        _under_way -= 1
        if not _under_way:
            young, middle, full = gc.get_threshold()
            gc.set_threshold(young, middle, full // _RARER)
