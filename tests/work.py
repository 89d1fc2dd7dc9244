"""A bound on work that holds on any machine, however busy it is: no clock is read."""

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bounded_work(lines: int, new_bytes: int | None = None) -> Iterator[None]:
    """Fail if the body runs more Python lines, or holds more new memory at once, than given.

    Each turn of a loop is one line at least, also in a comprehension. A pass over all clients in
    Python therefore shows in `lines`, and one in numpy shows in the array that it makes. The code
    is interrupted when it exceeds `lines`, so that an endless loop fails too. Only functions
    called from the body are counted, not the body itself.
    """
    run = 0

    def count(frame, event, arg):
        nonlocal run
        run += 1
        if run > lines:
            raise AssertionError(f"more than {lines:,} lines of Python were run")
        return count

    tracer = sys.gettrace()
    if new_bytes is not None:
        tracemalloc.start()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(tracer)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    if new_bytes is not None and peak > new_bytes:
        raise AssertionError(f"{peak:,} new bytes were held at once, more than {new_bytes:,}")
