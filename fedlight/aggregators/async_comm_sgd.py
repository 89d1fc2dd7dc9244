"""AsyncCommSGD: all clients step by a common clock and talk to the server when they can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.server import (
    OptimizerFactory,
    ServerStep,
    UpdateBuffer,
    check_interval,
    weighted_sum,
)
from fedlight.types import UsedUpdate

if TYPE_CHECKING:
    from fedlight.checks import Rate
    from fedlight.types import ClientUpdate, Federation, ServerState


class AsyncCommSGD(Aggregator):
    """x <- x + eta * (1/N) * sum of delta_i over the clients that talk at this tick, at each tick.

    N counts all clients, not those that talk. delta_i = y_i - r_i, with r_i the server's model
    that client i received last, so it holds all steps that the client made in between. A tick at
    which nobody talks makes a version as well, of the same model. The algorithm has eta = 1.

    Args:
        interval: Virtual time between ticks.
        server_lr: eta.
        server_optimizer: A function of parameters giving an optimizer, in place of `server_lr`.

    Raises:
        ValueError: An argument is outside its range.

    Source: the paper on federated learning under arbitrary communication patterns (Avdiukhin and
    Kasiviswanathan), Algorithm 1 (AsyncCommSGD).

    Example:
        >>> AsyncCommSGD()
        AsyncCommSGD(interval=1)
    """

    def __init__(
        self,
        interval: float = 1.0,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        self.interval: float = check_interval(interval)
        self.server = ServerStep(server_lr, server_optimizer)
        self.buffer = UpdateBuffer(None)

    def setup(self, federation: Federation, state: ServerState) -> None:
        """Start with nothing held."""
        self.buffer.clear()
        self.server.setup(state)
        self._num_clients = federation.num_clients

    def receive(self, update: ClientUpdate) -> bool:
        """Store it until the tick is over."""
        return self.buffer.add(update)

    def step(self, state: ServerState) -> ServerState:
        """The server's line: x moves by the average over all clients of what was sent."""
        updates = self.buffer.drain()
        if not updates:
            return self.server(state, None, ())
        weights = [1 / self._num_clients] * len(updates)
        direction = weighted_sum([update.delta for update in updates], weights)
        return self.server(state, direction, list(map(UsedUpdate, updates, weights)))

    def state_dict(self) -> dict[str, Any]:
        """The server optimizer's state."""
        return {"server": self.server.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the server optimizer's state."""
        self.server.load_state_dict(state["server"])

    def __repr__(self) -> str:
        return f"AsyncCommSGD(interval={self.interval:g})"
