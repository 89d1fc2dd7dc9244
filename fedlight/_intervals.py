"""When something is due that comes after every so many client updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedlight.types import RoundRecord


class UpdateInterval:
    """Says after which rounds so many more client updates were used or dropped.

    Args:
        every: The number of updates.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._rounds = self._updates = 0

    def passed(self, history: list[RoundRecord]) -> bool:
        """Whether the newest round contains a multiple of the interval."""
        # All earlier rounds are new for a resumed run, which then goes on as if never stopped.
        *earlier, newest = history[self._rounds :]
        before = self._updates + sum(map(_num_updates, earlier))
        self._rounds, self._updates = len(history), before + _num_updates(newest)
        return before // self._every != self._updates // self._every


def _num_updates(record: RoundRecord) -> int:
    return len(record.updates) + len(record.dropped)
