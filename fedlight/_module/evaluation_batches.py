"""The batches of a validation or a test, kept from one to the next if they are small."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

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


class _Kept:
    """The batches that are kept, and whether any may be.

    Args:
        examples: The examples on their device.

    Attributes:
        examples: The same.
        batches: The batches, or None as long as there are none.
        versions: How often each of their tensors had been written to when it was made.
        allowed: False from the moment at which the batches turn out not to be the same each time.
    """

    def __init__(self, examples: Any) -> None:
        self.examples = examples
        self.batches: list[Any] | None = None
        self.versions: list[int] = []
        self.allowed = True

    def keep(self, batches: list[Any], versions: list[int]) -> None:
        self.batches, self.versions = batches, versions

    def drop(self) -> None:
        self.batches, self.allowed = None, False

    def drop_if_changed(self) -> None:
        """A hook or another run may have written to a batch since it was made."""
        if self.batches is not None and _versions(self.batches) != self.versions:
            self.drop()


_of_tables: WeakKeyDictionary[Any, WeakValueDictionary[Any, _Kept]] = WeakKeyDictionary()
"""What is kept of tables: the runs of a study validate on the same one, often at the same time."""


def _kept_of(
    examples: Any, device: torch.device | str, dtype: torch.dtype | None, *sizes: int
) -> _Kept:
    """What is kept of a table if other evaluations make the same batches of it, or a new one."""
    # A transform may draw random numbers, which are those of one run.
    alone = not examples.stackable or examples.transform is not None
    known = {} if alone else _of_tables.setdefault(examples, WeakValueDictionary())
    key = (str(device), dtype, sizes)
    kept: _Kept | None = known.get(key)
    if kept is None:
        kept = known[key] = _Kept(examples.to(device, dtype))
    return kept


class EvaluationBatches:
    """The batches of a validation and their sizes, made once and kept if they are small.

    Evaluations of one table share what is kept, as long as one of them lives.

    Batches that are collated from single examples are kept, too, if they hold nothing but tensors,
    numbers and texts. They are not if random numbers were drawn while they were read, from a global
    generator or from one that the data set holds: such a data set augments its examples.

    Args:
        examples: An `ExampleTable` or `ExampleList`.
        batch_size: Examples per batch.
        limit: At most so many batches (int) or this share of them (float).
        most: In addition to that, at most so many batches.
        device: Where the batches are.
        dtype: The type of floating-point batches; None keeps theirs.
    """

    def __init__(
        self,
        examples: Any,
        batch_size: int,
        limit: int | float | None,
        most: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        number = number_of_batches(len(examples), batch_size, limit)
        number = number if most is None else min(number, most)
        self._sizes = [min(batch_size, len(examples) - k * batch_size) for k in range(number)]
        self._kept = _kept_of(examples, device, dtype, batch_size, number)
        self._examples, self._batch_size = self._kept.examples, batch_size
        self._is_first = True

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        self._kept.drop_if_changed()
        if self._kept.batches is not None:
            return self._again(self._kept.batches)
        return self._first() if self._kept.allowed else self._made()

    def _first(self) -> Iterator[tuple[int, Any]]:
        """The batches, which are kept for the next pass as long as they may be."""
        made, total = self._made(), 0.0
        kept: list[Any] = []
        versions: list[int] = []
        held = [] if self._examples.stackable else list(_generators(self._examples.datasets))
        for _ in self._sizes:
            before = None if self._examples.stackable else position(held)
            with torch.inference_mode(False):  # so that the versions of tensors are counted
                size, batch = next(made)
            drawn = before is not None and position(held) != before
            more = _bytes(batch)
            total += more
            if drawn or max(total, 0 if kept else more * len(self._sizes)) > _KEPT_BYTES:
                self._kept.allowed = False
            if not self._kept.allowed:
                yield size, batch
                yield from made
                return
            kept.append(batch)
            versions += _versions(batch)
            with self._watched(batch):
                yield size, _new_containers(batch)
        self._is_first = False
        if self._kept.allowed:
            self._kept.keep(kept, versions)

    def _again(self, kept: list[Any]) -> Iterator[tuple[int, Any]]:
        for size, batch in zip(self._sizes, kept, strict=True):
            with self._watched(batch):
                yield size, _new_containers(batch)
        self._is_first = False

    @contextmanager
    def _watched(self, batch: Any) -> Iterator[None]:
        """If a step writes to a batch within the context, the next pass gets new ones.

        torch counts the writes to a tensor, but not those through ``tensor.data`` or an array of
        numpy in the same memory: in the first pass the numbers themselves are compared.
        """
        parts = _tensors(batch)
        before = _versions(batch)
        copies = [part.clone() for part in parts] if self._is_first else []
        yield
        if _versions(batch) != before or not all(map(_equal, copies, parts)):
            self._kept.drop()

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


def _tensors(batch: Any) -> list[Tensor]:
    return [leaf for leaf in _leaves(batch) if isinstance(leaf, Tensor)]


def _versions(batch: Any) -> list[int]:
    """How often each tensor has been written to, as far as torch counts it."""
    return [part._version for part in _tensors(batch)]


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
