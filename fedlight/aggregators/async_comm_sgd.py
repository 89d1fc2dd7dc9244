"""AsyncCommSGD: clients step by a common clock and communicate with the server when they can."""

from __future__ import annotations

from fedlight._support.checks import Rate, positive
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates


class AsyncCommSGD(BufferedAggregator):
    """x <- x + eta * (1/N) * sum of delta_i over the clients that send at this tick, at each tick.

    N is the number of all clients, not only of those that send. delta_i = y_i - r_i, where r_i is
    the server's model that client i received last, so delta_i contains all steps that the client
    has made since then. A tick at which no client sends makes a new version with the same model.
    The algorithm has eta = 1.

    Args:
        interval: Virtual time between ticks.
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.

    Raises:
        ValueError: An argument is outside its range.

    Source: Avdiukhin and Kasiviswanathan, Federated Learning under Arbitrary Communication
    Patterns, ICML 2021, Algorithm 1, https://proceedings.mlr.press/v139/avdiukhin21a.html.

    Example:
        >>> AsyncCommSGD()
        AsyncCommSGD(interval=1.0)
    """

    def __init__(
        self,
        interval: float = 1.0,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__(None, server_lr, server_optimizer, interval=positive("interval", interval))

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1/N for each client that sends."""
        return [1 / self.federation.num_clients] * len(updates)
