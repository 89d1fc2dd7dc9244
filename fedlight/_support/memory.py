"""Large tensors on the CPU, and small ones on their way to another device."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LARGE = 4 * 2**20
_ALIGNMENT = 64  # as torch aligns its own tensors


class Blocks:
    """Blocks of memory for large tensors, which are reused once nobody uses them any more.

    A large block from the C library is new memory of the system, which fills it with zeros page by
    page. That takes longer than the arithmetic of a local step on it, and the updates and versions
    of a run come and go with every round.

    A block is free once the last tensor in it is gone, its views and arrays on it included. Free
    blocks never make a process larger than it was without them: before new memory is asked for, as
    much of them is given back.

    Args:
        most: Bytes of free blocks that are kept.

    Example:
        >>> blocks = Blocks(most=2**20)
        >>> array = blocks.array((2, 3), np.dtype(np.float32))
        >>> del array
        >>> blocks.free
        24
    """

    def __init__(self, most: int) -> None:
        self.most = most
        # Blocks come back at any moment, also in the midst of a method: whenever Python collects
        # garbage. So every change is one call of a list's method.
        self._free: dict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._run = 0

    @property
    def free(self) -> int:
        """Bytes of the free blocks."""
        return sum(size * len(blocks) for size, blocks in list(self._free.items()))

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a new array without values, which begins at a multiple of 64 bytes."""
        size = int(np.prod(shape)) * dtype.itemsize
        try:
            block = self._free[size].pop()
        except IndexError:
            self._give_back(size)
            # NumPy asks for large pages, of which twenty are enough for ten million numbers.
            block = np.empty(size + _ALIGNMENT, np.uint8)
        start = -block.ctypes.data % _ALIGNMENT
        # Views of NumPy's own would hold the block and not this array, so nobody gets the array
        # but `torch.from_numpy`: all who use the tensor hold its storage, and that holds the array.
        array = block[start : start + size].view(dtype).reshape(shape)
        weakref.finalize(array, self._take_back, size, block, self._run).atexit = False
        return array

    def end_run(self) -> None:
        """Give all blocks back to the system, those in use as soon as they are free."""
        self._run += 1
        self._free.clear()

    def _take_back(self, size: int, block: NDArray[np.uint8], run: int) -> None:
        if run == self._run and self.free + size <= self.most:
            self._free[size].append(block)

    def _give_back(self, size: int) -> None:
        """Give back free blocks of at least so many bytes, if there are so many."""
        for each, blocks in list(self._free.items()):
            while blocks and size > 0:
                blocks.pop()
                size -= each


BLOCKS = Blocks(most=2**30)
"""The blocks of this process."""


def new_tensor(shape: torch.Size | tuple[int, ...], like: Tensor) -> Tensor:
    """Return a contiguous tensor without values, of the type and on the device of another one."""
    # The usual case first, since `torch.empty` takes twice as long as to add two small vectors.
    if shape == like.shape and like.nbytes < _LARGE and like.is_contiguous():
        return torch.empty_like(like)
    size = torch.Size(shape).numel() * like.element_size()
    if like.device.type != "cpu" or size < _LARGE or like.dtype == torch.bfloat16:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    # The tensor is the base of torch's views of it, as of its own.
    return torch.from_numpy(BLOCKS.array(shape, torch.empty(0, dtype=like.dtype).numpy().dtype))


def sent(
    values: float | Sequence[float], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Return a number or several as a tensor on a device.

    Unlike ``torch.tensor(values, device=device)``, it does not wait for the device.
    """
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


def copied(tensor: Tensor) -> Tensor:
    """Return a contiguous copy."""
    return new_tensor(tensor.shape, tensor).copy_(tensor)
