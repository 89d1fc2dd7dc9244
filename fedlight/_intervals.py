"""When something is due that comes after every so many client updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedlight._checks import optional, positive_int

if TYPE_CHECKING:
    from fedlight.types import RoundRecord


def check_intervals(rounds: int | None, updates: int | None) -> tuple[int | None, int | None]:
    """``check_val_every_n_rounds`` and ``check_val_every_n_updates``, of which one is None.

    Raises:
        TypeError: One is no integer.
        ValueError: One is below 1, or both are given.
    """
    rounds = optional(positive_int, "check_val_every_n_rounds", rounds)
    updates = optional(positive_int, "check_val_every_n_updates", updates)
    if updates is None:
        return rounds, None
    if rounds not in (None, 1):  # 1 is the default, so it may not have been given
        raise ValueError(
            f"check_val_every_n_rounds={rounds} and check_val_every_n_updates={updates}: "
            "give one of the two"
        )
    return None, updates


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
