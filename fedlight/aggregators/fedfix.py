"""FedFix: the server steps at fixed times with what has come since the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.client_times import ClientTimes
from fedlight.aggregators.server import (
    OptimizerFactory,
    ServerStep,
    UpdateBuffer,
    check_client_weights,
    check_interval,
    client_importance,
    weighted_sum,
)
from fedlight.types import UsedUpdate

if TYPE_CHECKING:
    from fedlight.checks import Rate
    from fedlight.types import ClientUpdate, Federation, ServerState


class FedFix(Aggregator):
    """x <- x + eta * sum of d_i * delta_i over the arrivals in ((k - 1) * dt, k * dt], at k * dt.

    ``d_i = ceil(T_i / dt) * p_i``, not renormalised, with T_i / dt on exact decimals. A window in
    which nobody arrived makes a version as well, of the same model (a reading). T_i, compute plus
    communication time, is what the arrival process states; where it does not, the mean over the
    client's tasks so far, the one being weighed included.

    Args:
        interval: dt, virtual time between server updates.
        client_weights: p_i: "uniform" for 1/M, "examples" for n_i / sum of n over all clients.
        server_lr: eta.
        server_optimizer: A function of parameters giving an optimizer, in place of `server_lr`.

    Raises:
        ValueError: An argument is outside its range.

    Source: the FedFix paper (Fraboni et al.), Section 4.4, equation (14).

    Example:
        >>> FedFix(interval=0.5)
        FedFix(interval=0.5, client_weights='uniform')
    """

    def __init__(
        self,
        interval: float,
        client_weights: str = "uniform",
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        self.interval: float = check_interval(interval)
        self.client_weights = check_client_weights(client_weights)
        self.server = ServerStep(server_lr, server_optimizer)
        self.buffer = UpdateBuffer(None)
        self.times = ClientTimes()

    def setup(self, federation: Federation, state: ServerState) -> None:
        """Take p_i, and T_i where it is known."""
        self.buffer.clear()
        self.server.setup(state)
        self.times.setup(federation)
        self.importance = client_importance(self.client_weights, federation)

    def receive(self, update: ClientUpdate) -> bool:
        """Store it until the deadline."""
        return self.buffer.add(update)

    def step(self, state: ServerState) -> ServerState:
        """Equation (5) with the weights of equation (14)."""
        updates = self.buffer.drain()
        if not updates:
            return self.server(state, None, ())
        for update in updates:
            self.times.observe(update.task)
        weights = [
            self.times.windows(u.client_id, self.interval) * float(self.importance[u.client_id])
            for u in updates
        ]
        direction = weighted_sum([update.delta for update in updates], weights)
        return self.server(state, direction, list(map(UsedUpdate, updates, weights)))

    def state_dict(self) -> dict[str, Any]:
        """The durations seen and the server optimizer's state."""
        return {"server": self.server.state_dict(), "times": self.times.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the durations seen and the server optimizer's state."""
        self.server.load_state_dict(state["server"])
        self.times.load_state_dict(state["times"])

    def __repr__(self) -> str:
        weights = self.client_weights
        return f"FedFix(interval={self.interval:g}, client_weights={weights!r}{self.server})"
