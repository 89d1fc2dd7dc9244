"""The threads of torch's operators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let operators use one thread within the context.

    Several threads share out the numbers of an operator by their count, so bits may depend on it.
    """
    threads = torch.get_num_threads()
    if threads == 1:  # nothing to restore: the step may set another number, which stays
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
