"""The treatment of updates that are larger than `max_update_norm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedlight.executors.base import ClientError, Outcome
from fedlight.parameters import shrinking

if TYPE_CHECKING:
    from fedlight.types import LocalResult, Task


class LargeUpdate(ClientError):
    """An update is larger than `max_update_norm` and is left out."""


# It is not a `channel.Clip` in front of the channel. The limit reads the norm that the record of
# the update keeps, and divides in double precision; a channel adds up each row in another order,
# so the last bits differ. And only the limit can refuse an update.
class NormLimit:
    """delta <- delta * min(1, C / |delta|), or no update if |delta| is larger than C.

    |delta| is the Euclidean norm over all P parameters.

    Args:
        most: C, the largest norm.
        clip: Whether a larger update is scaled down; otherwise it is left out.
    """

    def __init__(self, most: float, clip: bool) -> None:
        self.most, self.clip = most, clip

    @classmethod
    def of(cls, most: float | None, how: str) -> NormLimit | None:
        """Return the limit for the trainer's arguments; None if there is none."""
        return None if most is None else cls(most, clip=how == "clip")

    def __call__(self, task: Task, result: LocalResult) -> Outcome:
        """Return the result, a scaled one, or a `LargeUpdate`."""
        norm = result.update_norm
        if norm <= self.most:
            return result
        if not self.clip:
            reason = f"its update has norm {norm:.6g}, over max_update_norm={self.most:g}"
            return LargeUpdate(task, reason)
        factor = shrinking(torch.tensor(norm, dtype=torch.float64), self.most)
        return result._replace(delta=result.delta * factor, clipped_from=norm)
