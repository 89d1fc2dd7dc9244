"""Ringmaster ASGD: asynchronous SGD that ignores updates with a large delay."""

from __future__ import annotations

from fedlight._support.checks import Rate, non_negative_int, optional
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates


class Ringmaster(BufferedAggregator):
    """x <- x + eta * delta_i after every update of tau_i < R; others are dropped.

    A dropped update makes no version, and its client starts again with the latest model. The
    paper's delay threshold is R = `max_staleness` + 1. Without a threshold this is asynchronous
    SGD. This is the variant without calculation stops. For the variant with them, Algorithm 5, use
    ``ContinuousArrivals(…, resume="on_arrival", restart_after=R)``. In the paper K = 1 and all
    clients draw from the same data; if their data differ, fast clients count for more.

    Args:
        max_staleness: R - 1, the largest tau_i (versions) that is used; None for any.
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Maranjyan, Tyurin, Richtárik, Ringmaster ASGD: The First Asynchronous SGD with Optimal
    Time Complexity, ICML 2025, Algorithm 4, https://arxiv.org/abs/2501.16168.

    Example:
        >>> Ringmaster(max_staleness=5)
        Ringmaster(max_staleness=5)
    """

    def __init__(
        self,
        max_staleness: int | None,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__(1, server_lr, server_optimizer)
        self.max_staleness = optional(non_negative_int, "max_staleness", max_staleness)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1 for the one client that has arrived."""
        return [1.0] * len(updates)
