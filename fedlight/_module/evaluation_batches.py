"""The batches of a validation or a test, kept from one to the next if they are small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_KEPT_BYTES = 256 * 2**20


def number_of_batches(examples: int, batch_size: int, limit: int | float | None) -> int:
    """How many batches there are, at most `limit` (int) or this share of them (float)."""
    number = -(-examples // batch_size)
    if isinstance(limit, float):
        limit = max(1, int(limit * number))
    return number if limit is None else min(number, limit)


class EvaluationBatches:
    """The batches of a validation and their sizes, made once and kept if they are small.

    Args:
        examples: An `ExampleTable` or `ExampleList` on the device.
        batch_size: Examples per batch.
        limit: At most so many batches (int) or this share of them (float).
        most: In addition to that, at most so many batches.
    """

    def __init__(
        self, examples: Any, batch_size: int, limit: int | float | None, most: int | None = None
    ) -> None:
        self._examples, self._batch_size = examples, batch_size
        number = number_of_batches(len(examples), batch_size, limit)
        number = number if most is None else min(number, most)
        self._sizes = [min(batch_size, len(examples) - k * batch_size) for k in range(number)]
        self._kept: list[Any] | None = None
        self._written = self._compared = False

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        if not self._sizes:
            return iter(())
        if self._kept is None and self._may_keep():
            with torch.inference_mode(False):  # so that their versions are counted
                self._kept = [batch for _, batch in self._made()]
        return self._made() if self._kept is None else self._watched(self._kept)

    def _may_keep(self) -> bool:
        if self._written or not self._examples.stackable:
            return False
        _, first = next(self._made())
        size: int = sum(part.nbytes for part in tree_leaves(first)) * len(self._sizes)
        return size <= _KEPT_BYTES

    def _watched(self, kept: list[Any]) -> Iterator[tuple[int, Any]]:
        """The kept batches; if a step writes to one of them, the next pass gets new ones.

        torch counts the writes to a tensor, but not those through ``tensor.data`` or an array of
        numpy in the same memory: in the first pass the numbers themselves are compared.
        """
        for size, batch in zip(self._sizes, kept, strict=True):
            parts = tree_leaves(batch)
            before = [part._version for part in parts]
            copies = [] if self._compared else [part.clone() for part in parts]
            yield size, batch
            if [part._version for part in parts] != before or not all(map(_equal, copies, parts)):
                self._kept, self._written = None, True
        self._compared = True

    def _made(self) -> Iterator[tuple[int, Any]]:
        return zip(self._sizes, self._examples.batches(self._batch_size), strict=False)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers; nan is the same as nan."""
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
