"""Lightning's profilers around the calls of a trainer and the events of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lightning.pytorch.profilers import PassThroughProfiler, Profiler

T = TypeVar("T")


@contextmanager
def profiled(profiler: Profiler, stage: str) -> Iterator[None]:
    """Set a profiler up for a stage; it reports at the end."""
    profiler.setup(stage)
    try:
        with profiler.profile(stage):
            yield
    finally:
        profiler.describe()
        profiler.teardown(stage)


def each_profiled(items: Iterable[T], profiler: Profiler, action: str) -> Iterable[T]:
    """The items; the time that it takes to get each of them is an action of the profiler."""
    # The events of a run are many, and a profiler that does nothing still enters a context.
    return items if isinstance(profiler, PassThroughProfiler) else _timed(items, profiler, action)


def _timed(items: Iterable[T], profiler: Profiler, action: str) -> Iterator[T]:
    iterator = iter(items)
    while True:
        with profiler.profile(action):
            item = next(iterator, None)
        if item is None:
            return
        yield item
