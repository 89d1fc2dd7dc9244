"""Rennala SGD: a mini-batch of updates that all start from the latest model."""

from __future__ import annotations

from fedlight._support.checks import Rate, positive_int
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates


class Rennala(BufferedAggregator):
    """x <- x + eta * (1/m) * sum of delta_i, after m updates of tau_i = 0; others are dropped.

    Several of the m updates may come from one client: between two steps, each client starts again
    immediately from the same model. In this variant (a reading of the paper), clients finish tasks
    that the server will ignore. ``ContinuousArrivals(…, resume="on_arrival", restart_after=1)``
    gives the variant that restarts all clients at each step. In the paper K = 1 and all clients
    draw from the same data. If their data differ, `Malenia` gives each client the same weight.

    Args:
        buffer_size: m, the batch size of the paper.
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Tyurin, Richtárik, Optimal Time Complexities of Parallel Stochastic Optimization Methods
    Under a Fixed Computation Model, NeurIPS 2023, https://arxiv.org/abs/2305.12387.

    Example:
        >>> Rennala(buffer_size=6)
        Rennala(buffer_size=6)
    """

    max_staleness = 0

    def __init__(
        self,
        buffer_size: int,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__(positive_int("buffer_size", buffer_size), server_lr, server_optimizer)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1/m."""
        return [1 / len(updates)] * len(updates)
