"""FedFix: the server steps at fixed times with the updates that arrived since the last step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedlight._support.checks import Rate, one_of, positive
from fedlight.aggregators._client_times import ClientTimes
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from fedlight.types import Federation, ServerState


class FedFix(BufferedAggregator):
    """x <- x + eta * sum of d_i * delta_i over the arrivals in ((k - 1) * dt, k * dt], at k * dt.

    ``d_i = ceil(T_i / dt) * p_i``, not renormalised; T_i / dt is computed with exact decimals. A
    window without arrivals makes a new version with the same model (a reading). T_i, compute plus
    communication time, is given by the arrival process. If the process does not give it, T_i is the
    mean over the client's tasks so far, including the one being weighted.

    Args:
        interval: dt, virtual time between server updates.
        client_weights: p_i: "uniform" for 1/M, "examples" for n_i / sum of n over all clients.
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.

    Raises:
        ValueError: An argument is outside its range.

    Source: Fraboni et al., A General Theory for Federated Optimization with Asynchronous and
    Heterogeneous Clients Updates, 2022, Section 4.4, equation (14),
    https://arxiv.org/abs/2206.10189.

    Example:
        >>> FedFix(interval=0.5)
        FedFix(interval=0.5, client_weights='uniform')
    """

    interval: float

    def __init__(
        self,
        interval: float,
        client_weights: str = "uniform",
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__(None, server_lr, server_optimizer, interval=positive("interval", interval))
        self.client_weights = one_of("client_weights", client_weights, ("examples", "uniform"))

    def start(self, federation: Federation, state: ServerState) -> None:
        """Read T_i, if it is known."""
        self.times = ClientTimes(federation)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """d_i, equation (14)."""
        for update in updates:
            self.times.observe(update.task)
        windows = [self.times.windows(u.client_id, self.interval) for u in updates]
        return [n * self.importance(u.client_id) for n, u in zip(windows, updates, strict=True)]
