"""Asynchronous FedAvg: the server steps along each client's delta as it arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlight._support.checks import Rate, one_of
from fedlight.aggregators._client_times import ClientTimes
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import Federation, ServerState


class AsyncFedAvg(BufferedAggregator):
    """x <- x + eta * d_i * delta_i, after every update.

    With "identical", d_i = 1, which biases the model toward the fast clients. With "time_based",
    ``d_i = (sum over all j of 1/T_j) * T_i * p_i``, which does not: slow clients arrive less often
    and have larger weights. T_i, compute plus communication time, is given by the arrival process.
    If the process does not give it, T_i is the mean over the client's tasks so far, and clients not
    seen yet count as the average of those seen (so the very first update has d_i = M * p_i).

    Args:
        weights: "time_based" or "identical".
        client_weights: p_i of "time_based": "uniform" for 1/M, "examples" for n_i / sum of n. It
            has no effect with "identical", where d_i is 1 for every client.
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.

    Raises:
        ValueError: An argument is outside its range.

    Source: Fraboni et al., A General Theory for Federated Optimization with Asynchronous and
    Heterogeneous Clients Updates, 2022, Section 4.3, equation (12), and Section 5 for
    "identical", https://arxiv.org/abs/2206.10189.

    Example:
        >>> AsyncFedAvg("identical")
        AsyncFedAvg(weights='identical', client_weights='uniform')
    """

    def __init__(
        self,
        weights: str = "time_based",
        client_weights: str = "uniform",
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__(1, server_lr, server_optimizer)
        self._weights = one_of("weights", weights, ("time_based", "identical"))
        self.client_weights = one_of("client_weights", client_weights, ("examples", "uniform"))

    def start(self, federation: Federation, state: ServerState) -> None:
        """Read T_i, if it is known."""
        self.times = ClientTimes(federation)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """d_i of the one client that has arrived."""
        if self._weights == "identical":
            return [1.0]
        (update,) = updates
        self.times.observe(update.task)
        return [self.times.share(update.client_id) * self.importance(update.client_id)]

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """Equation (5): a sum of one term needs no matrix product."""
        return updates[0].delta * weights[0]
