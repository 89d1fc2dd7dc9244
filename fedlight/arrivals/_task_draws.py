"""How long a client's next task takes, and how many local steps it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedlight.arrivals.durations import DurationModel, as_durations
from fedlight.arrivals.local_steps import LocalSteps, as_local_steps
from fedlight.randomness import Concern, Streams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.types import Federation


class Visits:
    """Counts the tasks of each client; stores nothing for clients that had none."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def next(self, client: int) -> int:
        """Return the number of the client's earlier tasks, and count one more."""
        count = self._counts.get(client, 0)
        self._counts[client] = count + 1
        return count

    def state_dict(self) -> list[tuple[int, int]]:
        """The count of each client that had a task."""
        return list(self._counts.items())

    def load_state_dict(self, state: list[tuple[int, int]]) -> None:
        """Restore the counts from `state_dict`."""
        self._counts = dict(state)


class TaskDraws:
    """Draws the duration and the number of local steps of each client's next task.

    The k-th task of a client is drawn from the streams (seed, concern, client, k). A single
    sequence for all clients would be simpler, but a client's durations would then depend on the
    order of the other arrivals, and two aggregators could not be compared on the same draws.

    Args:
        durations: A duration model.
        local_steps: Policy for K, the number of local steps, or a number of steps.
    """

    def __init__(self, durations: DurationModel, local_steps: LocalSteps | int) -> None:
        self.durations = as_durations(durations)
        self.local_steps = as_local_steps(local_steps)

    def setup(self, federation: Federation) -> None:
        """Start with the first task of each client.

        Raises:
            ValueError: The durations or steps do not fit the federation.
        """
        self.durations.check(federation)
        self.local_steps.check(federation)
        self._federation = federation
        self._steps = Streams(federation.seed, Concern.STEPS)
        self._durations = Streams(federation.seed, Concern.DURATIONS)
        self._visits = Visits()
        self._random = self.durations.uses_rng or self.local_steps.uses_rng

    def draw(self, client: int, starts_at: float) -> tuple[float, int]:
        """Return the duration in virtual time, and K, of the client's next task.

        Args:
            client: The client.
            starts_at: Virtual time of its pull.
        """
        steps, durations = self._steps.generator, self._durations.generator
        # Moving to a stream costs more than a fixed duration, so it is done only if one is read.
        if self._random:
            visit = self._visits.next(client)
            if self.local_steps.uses_rng:
                steps = self._steps.at(client, visit)
            if self.durations.uses_rng:
                durations = self._durations.at(client, visit)
        num_steps = self.local_steps.draw(steps, client, self._federation)
        duration = self.durations.draw(durations, client, num_steps, self._federation, starts_at)
        return duration, num_steps

    def expected_durations(self) -> NDArray[np.float64] | None:
        """T_i of the duration model, shape ``[M]``, or None if it is unknown."""
        steps = self.local_steps.expected(self._federation)
        return self.durations.expected(self._federation, steps)

    def state_dict(self) -> list[tuple[int, int]]:
        """How many tasks were drawn for each client."""
        return self._visits.state_dict()

    def load_state_dict(self, state: list[tuple[int, int]]) -> None:
        """Continue after those tasks."""
        self._visits.load_state_dict(state)
