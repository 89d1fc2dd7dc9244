"""How long a task takes, in virtual time: T_i."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedlight.checks import positive

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation


class DurationModel(ABC):
    """Compute plus communication time of a task, always larger than 0."""

    @abstractmethod
    def draw(
        self, rng: np.random.Generator, client_id: int, num_steps: int, federation: Federation
    ) -> float:
        """Duration of one task, virtual time > 0; `rng` is a stream of this task alone."""

    def check(self, federation: Federation) -> None:
        """Raise a ValueError where the model does not fit the federation."""
        return

    def expected(self, federation: Federation) -> NDArray[np.float64] | None:
        """T_i, the mean duration of each client's tasks, shape ``[M]``, where it is known."""
        return None


class FixedDurations(DurationModel):
    """Every task of client i takes ``durations[i]``.

    Args:
        durations: T_i in virtual time, one for each client, larger than 0.

    Raises:
        ValueError: A duration is not above 0, or there is none.

    Example:
        >>> FixedDurations([1.0, 0.8, 0.2])
        FixedDurations([1.0, 0.8, 0.2])
    """

    def __init__(self, durations: Sequence[float]) -> None:
        self.durations = [
            positive(f"durations[{client}]", duration) for client, duration in enumerate(durations)
        ]
        if not self.durations:
            raise ValueError("durations must hold one number for each client, got none")

    def draw(
        self, rng: np.random.Generator, client_id: int, num_steps: int, federation: Federation
    ) -> float:
        """T_i."""
        return self.durations[client_id]

    def check(self, federation: Federation) -> None:
        """Raise a ValueError unless there is one duration for each client."""
        if len(self.durations) != federation.num_clients:
            raise ValueError(
                f"FixedDurations has {len(self.durations)} durations, "
                f"but there are {federation.num_clients} clients; give one for each"
            )

    def expected(self, federation: Federation) -> NDArray[np.float64]:
        """T_i."""
        return np.array(self.durations, dtype=np.float64)

    def __repr__(self) -> str:
        return f"FixedDurations({self.durations})"
