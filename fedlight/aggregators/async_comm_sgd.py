"""AsyncCommSGD: all clients step by a common clock and talk to the server when they can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlight._checks import Rate, positive
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator

if TYPE_CHECKING:
    from fedlight.types import ClientUpdate


class AsyncCommSGD(BufferedAggregator):
    """x <- x + eta * (1/N) * sum of delta_i over the clients that talk at this tick, at each tick.

    N counts all clients, not those that talk. delta_i = y_i - r_i, with r_i the server's model
    that client i received last, so it holds all steps that the client made in between. A tick at
    which no client talks makes a version of the same model. The algorithm has eta = 1.

    Args:
        interval: Virtual time between ticks.
        server_lr: eta.
        server_optimizer: A function of parameters giving an optimizer, in place of `server_lr`.

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

    def weights(self, updates: Sequence[ClientUpdate], version: int) -> list[float]:
        """1/N for each client that talks."""
        return [1 / self.federation.num_clients] * len(updates)
