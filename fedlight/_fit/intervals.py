"""The rounds after which a run is validated, by rounds or by client updates."""

from __future__ import annotations

from fedlight._support.checks import optional, positive_int
from fedlight.aggregators import Aggregator
from fedlight.types import RoundRecord

AUTO_UPDATES = 10
"""Client updates between two validations by default, if a version takes fewer."""


def check_intervals(
    rounds: int | str | None, updates: int | None
) -> tuple[int | str | None, int | None]:
    """``check_val_every_n_rounds`` and ``check_val_every_n_updates``, of which one is None.

    Raises:
        TypeError: One is no integer.
        ValueError: One is below 1, or both are given.
    """
    if isinstance(rounds, str) and rounds != "auto":
        raise ValueError(
            f'check_val_every_n_rounds must be a number, None for never or "auto", got {rounds!r}'
        )
    if not isinstance(rounds, str):
        rounds = optional(positive_int, "check_val_every_n_rounds", rounds)
    updates = optional(positive_int, "check_val_every_n_updates", updates)
    if updates is None:
        return rounds, None
    if rounds not in (None, "auto"):
        raise ValueError(
            f"check_val_every_n_rounds={rounds} and check_val_every_n_updates={updates}: "
            "give one of the two"
        )
    return None, updates


def validation_interval(
    rounds: int | str | None, updates: int | None, aggregator: Aggregator, clients: int
) -> tuple[int | None, int | None]:
    """The two intervals of a run, of which one is None; both are for no validation.

    Args:
        rounds: ``check_val_every_n_rounds``, checked. "auto" is every round, but of an aggregator
            that makes a version of fewer than `AUTO_UPDATES` updates, every `AUTO_UPDATES` updates
            (or as many as there are clients).
        updates: ``check_val_every_n_updates``, checked.
        aggregator: The aggregator, set up or not.
        clients: Number of clients.
    """
    if rounds != "auto":
        return rounds, updates  # type: ignore[return-value]  # the only string is "auto"
    usual, size = min(AUTO_UPDATES, clients), aggregator.buffer_size or 1
    rounds_only = aggregator.needs_rounds and not aggregator.regional  # which steps at arrivals too
    waits = rounds_only or aggregator.interval is not None or size >= usual
    return (1, None) if waits else (None, usual)


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
        # For a resumed run all earlier rounds are new; counting them, it validates at the same
        # rounds as a run that never stopped.
        *earlier, newest = history[self._rounds :]
        before = self._updates + sum(map(_num_updates, earlier))
        self._rounds, self._updates = len(history), before + _num_updates(newest)
        return before // self._every != self._updates // self._every


def _num_updates(record: RoundRecord) -> int:
    return len(record.updates) + len(record.dropped)
