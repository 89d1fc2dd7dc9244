"""Lists that only grow, so that a checkpoint need not write again what is behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any


class Growing:
    """A list in a `state_dict` to which items are only ever added; what it holds is final.

    A checkpoint then stores the list in parts: full ones are written once and referred to later, so
    its cost does not grow with the run. When a checkpoint is read, a plain list comes back.

    Args:
        items: The list; not copied.
        encode: Makes tensors and plain data of an item; None if items are that already.
    """

    def __init__(self, items: Sequence[Any], encode: Callable[[Any], Any] | None = None) -> None:
        self._items, self._encode = items, encode

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.part(0, len(self)))

    def part(self, start: int, stop: int) -> list[Any]:
        """The items from `start` up to `stop` as plain data."""
        items = self._items[start:stop]
        return list(items) if self._encode is None else [self._encode(item) for item in items]
