"""Tensors one after another in a block of bytes, in which they cross to another process."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


@dataclass(frozen=True, slots=True)
class PackedShape:
    """What lies where in a block of packed tensors.

    Attributes:
        layout: Where the tensors lie.
        there: For each place whether there is a tensor; else it is None.
    """

    layout: BlockLayout
    there: tuple[bool, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return self.layout.nbytes


@dataclass(frozen=True, slots=True)
class Packed:
    """Tensors in one array, which Ray's object store passes on without a copy.

    Attributes:
        block: The bytes.
        shape: What lies where.
    """

    block: NDArray[np.uint8]
    shape: PackedShape

    @classmethod
    def of(cls, tensors: Sequence[Tensor | None]) -> Packed:
        """Pack tensors; those that are rows of a larger block do not take it along."""
        given = [each.detach() for each in tensors if each is not None]
        layout = BlockLayout.of(given)
        block = np.empty(max(1, layout.nbytes), dtype=np.uint8)
        write(layout.views(block), given)
        return cls(block, PackedShape(layout, tuple(each is not None for each in tensors)))

    def tensors(self) -> list[Tensor | None]:
        """The tensors, in memory that may be written to."""
        # What lies in the object store is read-only, and to write to it ends the process.
        block = self.block if self.block.flags.writeable else self.block.copy()
        views = iter(self.shape.layout.views(block))
        return [next(views) if there else None for there in self.shape.there]


class Marks:
    """Tells tensors from others, also from later ones at the same address, and keeps none alive.

    Args:
        tensors: The tensors.
    """

    __slots__ = ("_marks",)

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        self._marks = [
            None if each is None else (weakref.ref(each), _age(each)) for each in tensors
        ]

    def hold(self, tensors: Sequence[Tensor | None]) -> bool:
        """Whether these are the tensors, as they were."""
        for mark, tensor in zip(self._marks, tensors, strict=True):
            if mark is None or tensor is None:
                if (mark is None) != (tensor is None):
                    return False
            elif mark[0]() is not tensor or mark[1] != _age(tensor):
                return False
        return True

    @property
    def is_gone(self) -> bool:
        """Whether nobody has the tensors any more."""
        return any(mark is not None and mark[0]() is None for mark in self._marks)


def _age(tensor: Tensor) -> int:
    """How often a tensor was changed in place, which torch does not count for some."""
    return 0 if tensor.is_inference() else tensor._version


def write(places: Sequence[Tensor], tensors: Sequence[Tensor | None]) -> int:
    """Copy tensors to places of the same shapes; return how many bytes that were."""
    written = 0
    for place, tensor in zip(places, tensors, strict=True):
        if tensor is not None:
            place.copy_(tensor)
            written += tensor.nbytes
    return written
