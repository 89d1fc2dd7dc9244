"""FedAvg, the synchronous baseline of all papers."""

from __future__ import annotations

from fedlight._support.checks import Rate, one_of
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates


class FedAvg(BufferedAggregator):
    """x <- x + eta * sum over S of w_i * delta_i, with weights that sum to 1 over S.

    S is the set of participants of the step. ``w_i = n_i / sum over S of n_j`` with "examples" (a
    reading), or ``w_i = 1 / |S|`` with "uniform".

    Args:
        buffer_size: |S|, the number of updates per step; None to step when the process's round
            ends.
        client_weights: "examples" or "uniform".
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.

    Raises:
        ValueError: An argument is outside its range.

    Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
    Data, 2017, Algorithm 1, https://arxiv.org/abs/1602.05629.

    Example:
        >>> FedAvg(buffer_size=10, client_weights="uniform")
        FedAvg(buffer_size=10, client_weights='uniform')
    """

    def __init__(
        self,
        buffer_size: int | None = None,
        client_weights: str = "examples",
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__(buffer_size, server_lr, server_optimizer)
        self.client_weights = one_of("client_weights", client_weights, ("examples", "uniform"))

    def weights(self, updates: Updates, version: int) -> list[float]:
        """w_i, normalised over the participants."""
        sizes = [u.num_examples if self.client_weights == "examples" else 1 for u in updates]
        total = sum(sizes)
        return [size / total for size in sizes]
