"""Lists that only grow, of which a checkpoint writes the new items only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any


class Growing:
    """A list in a `state_dict` to which items are only ever appended and never changed.

    A checkpoint stores such a list in parts. Full parts are written once and referred to later, so
    the cost of a checkpoint does not grow with the run. `read_checkpoint` returns a plain list.

    Args:
        items: The list; not copied.
        encode: Turns an item into tensors and plain data; None if items are that already.
    """

    def __init__(self, items: Sequence[Any], encode: Callable[[Any], Any] | None = None) -> None:
        self._items, self._encode = items, encode

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.part(0, len(self)))

    def part(self, start: int, stop: int) -> list[Any]:
        """Return the items from `start` up to `stop` as plain data."""
        items = self._items[start:stop]
        return list(items) if self._encode is None else [self._encode(item) for item in items]
