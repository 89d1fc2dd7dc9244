"""FedAvg, as the synchronous baseline of all papers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.server import (
    OptimizerFactory,
    ServerStep,
    UpdateBuffer,
    check_client_weights,
    weighted_sum,
)
from fedlight.types import UsedUpdate

if TYPE_CHECKING:
    from fedlight.checks import Rate
    from fedlight.types import ClientUpdate, Federation, ServerState


class FedAvg(Aggregator):
    """x <- x + eta * sum over S of w_i * delta_i, with weights that sum to 1 over S.

    S are the participants of the step; ``w_i = n_i / sum over S of n_j`` by examples (a reading),
    or ``w_i = 1 / |S|``.

    Args:
        buffer_size: |S|, step after so many updates; None for the end of the process's round.
        client_weights: "examples" or "uniform".
        server_lr: eta.
        server_optimizer: A function of parameters giving an optimizer, in place of `server_lr`.

    Raises:
        ValueError: An argument is outside its range.

    Source: the FedFix paper (Fraboni et al.), Section 4.2; the FedAsync paper (Xie et al.),
    Algorithm 2.

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
        self.buffer = UpdateBuffer(buffer_size)
        self.client_weights = check_client_weights(client_weights)
        self.server = ServerStep(server_lr, server_optimizer)
        self.needs_rounds = buffer_size is None

    def setup(self, federation: Federation, state: ServerState) -> None:
        """Start with an empty buffer."""
        self.buffer.clear()
        self.server.setup(state)

    def receive(self, update: ClientUpdate) -> bool:
        """Store it; due when the buffer is full."""
        return self.buffer.add(update)

    def end_round(self) -> bool:
        """Due, unless the aggregator counts updates."""
        return self.needs_rounds

    def step(self, state: ServerState) -> ServerState:
        """The weighted mean of what arrived."""
        updates = self.buffer.drain()
        if not updates:
            return self.server(state, None, ())
        sizes = [u.num_examples if self.client_weights == "examples" else 1 for u in updates]
        total = sum(sizes)
        weights = [size / total for size in sizes]
        direction = weighted_sum([update.delta for update in updates], weights)
        return self.server(state, direction, list(map(UsedUpdate, updates, weights)))

    def state_dict(self) -> dict[str, Any]:
        """The server optimizer's state."""
        return {"server": self.server.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the server optimizer's state."""
        self.server.load_state_dict(state["server"])

    def __repr__(self) -> str:
        weights = self.client_weights
        return f"FedAvg(buffer_size={self.buffer.size}, client_weights={weights!r}{self.server})"
