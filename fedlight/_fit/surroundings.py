"""What holds within `fit`, `validate`, `test` and `predict`, and is as before afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
from lightning.pytorch.profilers import PassThroughProfiler

from fedlight._support.collector import rarer_full_collections

if TYPE_CHECKING:
    from lightning.pytorch.profilers import Profiler

    from fedlight._fit.lightning_arguments import LightningSettings

T = TypeVar("T")

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def surroundings(settings: LightningSettings) -> Iterator[None]:
    """Apply `deterministic` and `benchmark`, and restore PyTorch's settings on exit.

    Full collections of garbage are rarer in between.
    """
    mode = torch.get_deterministic_debug_mode()
    benchmark, workspace = torch.backends.cudnn.benchmark, os.environ.get(_CUBLAS)
    deterministic = settings.deterministic
    try:
        if deterministic is not None:
            torch.use_deterministic_algorithms(
                bool(deterministic), warn_only=deterministic == "warn"
            )
        if deterministic:
            # Without it cuBLAS refuses to be deterministic; it reads it with its first call.
            os.environ.setdefault(_CUBLAS, ":4096:8")
            torch.backends.cudnn.benchmark = False  # it may choose another algorithm each time
        if settings.benchmark is not None:
            torch.backends.cudnn.benchmark = settings.benchmark
        with rarer_full_collections():
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            os.environ.pop(_CUBLAS, None)


@contextmanager
def profiled(profiler: Profiler, stage: str) -> Iterator[None]:
    """Set a profiler up for a stage, and let it report at the end."""
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
