"""How long a client's next task takes, and how many local steps it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedlight.randomness import Concern, Streams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.arrivals.durations import DurationModel
    from fedlight.arrivals.local_steps import LocalSteps
    from fedlight.types import Federation


class Visits(dict[int, int]):
    """The number of tasks of each client; stores nothing for clients that had none."""

    def next(self, client: int) -> int:
        """Return the number of the client's earlier tasks, and count one more."""
        count = self.get(client, 0)
        self[client] = count + 1
        return count


class TaskDraws:
    """Draws the duration and the number of local steps of each client's next task.

    The k-th task of a client is drawn from the streams (seed, concern, client, k). A single
    sequence for all clients would be simpler, but a client's durations would then depend on the
    order of the other arrivals, and two aggregators could not be compared on the same draws.

    Args:
        federation: The clients.
        durations: A duration model.
        local_steps: Policy for K, the number of local steps.

    Attributes:
        visits: The number of tasks drawn for each client.

    Raises:
        ValueError: The durations or steps do not fit the federation.
    """

    def __init__(
        self, federation: Federation, durations: DurationModel, local_steps: LocalSteps
    ) -> None:
        durations.check(federation)
        local_steps.check(federation)
        self.durations, self.local_steps = durations, local_steps
        self.visits = Visits()
        self._federation = federation
        self._steps = Streams(federation.seed, Concern.STEPS)
        self._durations = Streams(federation.seed, Concern.DURATIONS)
        # Without random draws nothing is counted, so checkpoints do not grow with the clients seen.
        self._random = durations.uses_rng or local_steps.uses_rng

    def draw(self, client: int, starts_at: float) -> tuple[float, int]:
        """Return the duration in virtual time, and K, of the client's next task.

        Args:
            client: The client.
            starts_at: Virtual time of its pull.
        """
        steps, durations = self._steps.generator, self._durations.generator
        # Moving to a stream costs more than a fixed duration, so it is done only if one is read.
        if self._random:
            visit = self.visits.next(client)
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
