"""The threads of torch's operators."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch


@contextmanager
def one_thread() -> Iterator[int]:
    """Let operators use one thread within the context.

    Several threads share out the numbers of an operator by their count, so bits may depend on it.

    Yields:
        How many threads operators use outside, which is what `products_on` may be given.
    """
    threads = torch.get_num_threads()
    if threads == 1:  # nothing to restore: the step may set another number, which stays
        yield 1
        return
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


@contextmanager
def threads_for_copies(threads: int) -> Iterator[None]:
    """Use this many threads within the context, in which numbers are only copied."""
    if threads == 1:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(1)


@contextmanager
def products_on(threads: int) -> Iterator[None]:
    """Let MKL's products use this many threads within the context, and other operators one.

    A product of a stack has the bits that it has on one thread, as long as there are no more
    threads than matrices: each matrix then belongs to one thread.
    """
    choose = _chooses_threads() if threads > 1 else None
    if choose is None:
        yield
        return
    before = choose(threads)
    try:
        yield
    finally:
        choose(before)


@cache
def _chooses_threads() -> Any:
    """MKL's function that sets the threads of the calling thread; None if torch has it not."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll"):
        try:
            return ctypes.CDLL(str(folder / name)).MKL_Set_Num_Threads_Local
        except (OSError, AttributeError):
            continue
    return None
