"""The batches of a validation or a test, kept from one to the next if they are small."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from fedlight._module.attributes import GENERATORS
from fedlight._module.rng import position

_KEPT_BYTES = 256 * 2**20
_LOOKED_AT = 100
"""The first items of a list in which random generators are looked for; most lists hold data."""


def number_of_batches(examples: int, batch_size: int, limit: int | float | None) -> int:
    """How many batches there are, at most `limit` (int) or this share of them (float)."""
    number = -(-examples // batch_size)
    if isinstance(limit, float):
        limit = max(1, int(limit * number))
    return number if limit is None else min(number, limit)


class EvaluationBatches:
    """The batches of a validation and their sizes, made once and kept if they are small.

    Batches that are collated from single examples are kept, too, if they hold nothing but tensors,
    numbers and texts. They are not if random numbers were drawn while they were read, from a global
    generator or from one that the data set holds: such a data set augments its examples.

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
        self._may_keep = True

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        if self._kept is not None:
            return self._again(self._kept)
        return self._first() if self._may_keep else self._made()

    def _first(self) -> Iterator[tuple[int, Any]]:
        """The batches, which are kept for the next pass as long as they may be."""
        made, total = self._made(), 0.0
        kept: list[Any] = []
        held = [] if self._examples.stackable else list(_generators(self._examples.datasets))
        for _ in self._sizes:
            before = None if self._examples.stackable else position(held)
            with torch.inference_mode(False):  # so that the versions of tensors are counted
                size, batch = next(made)
            drawn = before is not None and position(held) != before
            more = _bytes(batch)
            total += more
            if drawn or max(total, 0 if kept else more * len(self._sizes)) > _KEPT_BYTES:
                self._may_keep = False
            if not self._may_keep:
                yield size, batch
                yield from made
                return
            kept.append(batch)
            with self._watched(batch, first=True):
                yield size, _new_containers(batch)
        if self._may_keep:
            self._kept = kept

    def _again(self, kept: list[Any]) -> Iterator[tuple[int, Any]]:
        for size, batch in zip(self._sizes, kept, strict=True):
            with self._watched(batch):
                yield size, _new_containers(batch)

    @contextmanager
    def _watched(self, batch: Any, first: bool = False) -> Iterator[None]:
        """If a step writes to a batch within the context, the next pass gets new ones.

        torch counts the writes to a tensor, but not those through ``tensor.data`` or an array of
        numpy in the same memory: in the first pass the numbers themselves are compared.
        """
        parts = [leaf for leaf in _leaves(batch) if isinstance(leaf, Tensor)]
        before = [part._version for part in parts]
        copies = [part.clone() for part in parts] if first else []
        yield
        if [part._version for part in parts] != before or not all(map(_equal, copies, parts)):
            self._kept, self._may_keep = None, False

    def _made(self) -> Iterator[tuple[int, Any]]:
        return zip(self._sizes, self._examples.batches(self._batch_size), strict=False)


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for part in batch:
            yield from _leaves(part)
    else:
        yield batch


def _bytes(batch: Any) -> float:
    """The bytes of a batch's tensors; infinite if it holds anything that a step might change."""
    size = 0.0
    for leaf in _leaves(batch):
        if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
            size += leaf.nbytes
        elif not isinstance(leaf, bool | int | float | complex | str | bytes | None):
            return math.inf
    return size


def _new_containers(batch: Any) -> Any:
    """The same tensors in new tuples, lists and mappings, which a step may change."""
    return apply_to_collection(batch, Tensor, lambda tensor: tensor)


def _generators(value: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """The random generators that data sets hold, also within their transforms."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, Tensor | np.ndarray | str | bytes | type):
        return
    seen.add(id(value))
    if isinstance(value, GENERATORS):
        yield value
    elif isinstance(value, Mapping):
        yield from _generators(list(islice(value.values(), _LOOKED_AT)), seen)
    elif isinstance(value, list | tuple):
        for each in value[:_LOOKED_AT]:
            yield from _generators(each, seen)
    else:
        yield from _generators(getattr(value, "__dict__", {}), seen)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers; nan is the same as nan."""
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
