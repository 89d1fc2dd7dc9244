"""How far a run is, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(slots=True)
class Counts:
    """The numbers that the server counts up, and nobody else.

    A run has them from its start, so that hooks before the first event read those of the checkpoint
    that the run goes on from.

    Attributes:
        version: Number of server updates.
        num_updates: Number of client updates that have arrived.
        num_pulls: Number of pulls.
        num_gradients: Number of local steps of the updates that have arrived.
        num_failures: Number of tasks that failed or were lost; those cancelled do not count.
        failed_in_a_row: Number of local runs that have failed since a version was made of updates.
        over: Whether so many local runs have failed in a row that the run should end.
    """

    version: int = 0
    num_updates: int = 0
    num_pulls: int = 0
    num_gradients: int = 0
    num_failures: int = 0
    failed_in_a_row: int = 0
    over: bool = False

    def state_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the numbers from what `state_dict` gave; `state` may hold more."""
        for each in fields(self):
            setattr(self, each.name, state[each.name])
