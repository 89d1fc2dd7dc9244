"""Tensors one after another in a block of bytes, in which they cross to another process."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ALIGNED = 64  # bytes: a line of the cache, and the widest vector of a processor


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where each tensor lies in a block.

    Attributes:
        parts: Type, shape and first byte of each tensor.
        nbytes: Bytes of the block.
    """

    parts: tuple[tuple[torch.dtype, torch.Size, int], ...]
    nbytes: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> BlockLayout:
        """The layout for tensors of these types and shapes."""
        parts, end = [], 0
        for each in tensors:
            parts.append((each.dtype, each.shape, end))
            end += -(-each.nbytes // _ALIGNED) * _ALIGNED
        return cls(tuple(parts), end)

    def views(self, block: Any) -> tuple[Tensor, ...]:
        """The tensors in a block; they keep it alive.

        Args:
            block: Writable memory, such as an `mmap` or a numpy array.
        """
        return tuple(
            torch.frombuffer(block, dtype=dtype, count=shape.numel(), offset=begin).view(shape)
            if shape.numel()
            else torch.empty(shape, dtype=dtype)
            for dtype, shape, begin in self.parts
        )


class SharedBlocks:
    """Blocks of memory that this process shares with those forked from it later.

    The memory has no name, so nothing is left behind, and does not count against ``/dev/shm``,
    which is small in containers. A block takes memory once it has been written to.

    Args:
        like: Tensors of the types and shapes of those of a block.
        number: How many blocks.
    """

    def __init__(self, like: Sequence[Tensor], number: int) -> None:
        self._layout = BlockLayout.of(like)
        # One map for each, so that a tensor that is kept does not keep the others.
        self._maps = [mmap.mmap(-1, max(1, self._layout.nbytes)) for _ in range(number)]
        self._views = [self._layout.views(each) for each in self._maps]
        self._free = list(range(number))

    @property
    def num_free(self) -> int:
        """How many blocks nobody uses."""
        return len(self._free)

    def take(self) -> int:
        """The number of a free block."""
        return self._free.pop()

    def give_back(self, number: int) -> None:
        """Let others use a block."""
        self._free.append(number)

    def tensors(self, number: int) -> tuple[Tensor, ...]:
        """The tensors of a block."""
        return self._views[number]

    def lent(self, number: int) -> tuple[Tensor, ...]:
        """The tensors of a block, which is free again once all of them are gone."""
        whole = memoryview(self._maps[number])
        weakref.finalize(whole, self._free.append, number).atexit = False
        return self._layout.views(whole)


def write(places: Sequence[Tensor], tensors: Sequence[Tensor | None]) -> int:
    """Copy tensors to places of the same shapes; return how many bytes that were."""
    written = 0
    for place, tensor in zip(places, tensors, strict=True):
        if tensor is not None:
            place.copy_(tensor)
            written += tensor.nbytes
    return written
