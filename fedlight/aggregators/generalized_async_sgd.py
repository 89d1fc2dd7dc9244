"""Generalized AsyncSGD: asynchronous SGD with unequal sampling, corrected by its probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlight._support.checks import Rate, positive
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates
from fedlight.arrivals._per_client import check_length, one_for_each

if TYPE_CHECKING:
    from fedlight.types import Federation, ServerState


class GeneralizedAsyncSGD(BufferedAggregator):
    """x <- x + eta * delta_i / (M * p_i) after every update.

    p_i is the probability that the next task goes to client i, whether it is busy or not. In the
    long run, p_i is then client i's share of the updates, regardless of its speed, and the weights
    compensate for it. Equal p_i give asynchronous SGD. (The rule is taken from the literature.)

    Args:
        probabilities: p_i, one for each of the M clients, above 0. They must sum to 1; the
            deviation of numbers that are rounded to three digits (M / 2000, at most 0.01) is
            accepted and not corrected.
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range; or (at the start of a run) there is not one
            probability for each client.

    Source: Leconte, Jonckheere, Samsonov, Moulines, Queuing Dynamics of Asynchronous Federated
    Learning, AISTATS 2024, https://arxiv.org/abs/2405.00017.

    Example:
        >>> GeneralizedAsyncSGD([0.5, 0.25, 0.25])
        GeneralizedAsyncSGD(probabilities=(0.5, 0.25, 0.25))
    """

    def __init__(
        self,
        probabilities: Sequence[float],
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__(1, server_lr, server_optimizer)
        each = one_for_each("probabilities", probabilities, positive, equal="1 / num_clients")
        self.probabilities = tuple(each)
        total = sum(self.probabilities)
        rounded = min(len(each) * 0.0005, 0.01)
        if abs(total - 1) > rounded + 1e-9:
            raise ValueError(
                f"probabilities must sum to 1, got a sum of {total:.6g}; divide each by it"
            )

    def start(self, federation: Federation, state: ServerState) -> None:
        """Check that there is one probability for each client."""
        check_length("probabilities", self.probabilities, federation)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1 / (M * p_i)."""
        clients = self.federation.num_clients
        return [1 / (clients * self.probabilities[update.client_id]) for update in updates]
