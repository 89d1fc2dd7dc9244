"""FAVAS: polled clients whose updates are divided by the number of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlight._support.checks import positive
from fedlight.aggregators._server_step import pulled
from fedlight.aggregators.buffered import BufferedAggregator, Updates
from fedlight.arrivals._per_client import check_length, one_for_each
from fedlight.parameters import weighted_sum

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import ClientUpdate, Federation, ServerState


class FAVAS(BufferedAggregator):
    """x <- (x + sum over S of (x_p + delta_i / a_i)) / (s + 1), S the s clients polled.

    x_p is the model from which client i has made K_i steps since its last poll, and
    ``a_i = max(1, K_i)``, so fast clients do not count for more. The clients continue from the new
    model, so any local optimizer can be used, with `PolledArrivals`. A client that is polled before
    its first step has ended sends x_p and is counted in s (a reading).

    Floating buffers become the mean of the clients' buffers.

    Args:
        buffer_size: s, the number of updates per step; None to step when the process's round ends.
        expected_steps: The mean of K_i for each client, used as a_i instead of the actual number of
            steps (the paper's deterministic weights).

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range, or (at set-up) there is not one number for
            each client.

    Source: Leconte, Nguyen, Moulines, FAVAS: Federated AVeraging with ASynchronous clients, 2023,
    https://arxiv.org/abs/2305.16099. The rule is from the literature and was not checked against
    the paper's text, in which a_i of the actual steps is multiplied by the probability that K_i is
    not 0.

    Example:
        >>> FAVAS()
        FAVAS(buffer_size=None, expected_steps=None)
    """

    def __init__(
        self, buffer_size: int | None = None, expected_steps: Sequence[float] | None = None
    ) -> None:
        super().__init__(buffer_size)
        self.expected_steps: tuple[float, ...] | None = None
        if expected_steps is not None:
            self.expected_steps = tuple(one_for_each("expected_steps", expected_steps, positive))

    def start(self, federation: Federation, state: ServerState) -> None:
        """Check that there is one number for each client."""
        check_length("expected_steps", self.expected_steps, federation)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1 / (s + 1)."""
        return [1 / (len(updates) + 1)] * len(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """The mean of the server's model and the models that the clients send, minus x."""
        starts = [pulled(update, "FAVAS averages models and").params for update in updates]
        steps = [update.delta / self._divisor(update) for update in updates]
        sent = [start + step for start, step in zip(starts, steps, strict=True)]
        return weighted_sum([each - state.params for each in sent], weights)

    def _divisor(self, update: ClientUpdate) -> float:
        if self.expected_steps is not None:
            return self.expected_steps[update.client_id]
        return max(1, update.num_steps)
