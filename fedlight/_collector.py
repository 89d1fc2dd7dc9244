"""Python's garbage collector and the libraries that a run imports."""

from __future__ import annotations

import gc
import sys


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
