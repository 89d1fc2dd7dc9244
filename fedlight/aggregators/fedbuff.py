"""FedBuff: asynchronous clients, and a server that steps after so many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.server import OptimizerFactory, ServerStep, UpdateBuffer, weighted_sum
from fedlight.aggregators.staleness import Polynomial, Staleness, check_staleness, discount
from fedlight.checks import Rate, one_of, positive_int
from fedlight.types import UsedUpdate

if TYPE_CHECKING:
    from fedlight.types import ClientUpdate, Federation, ServerState


class FedBuff(Aggregator):
    """x <- x + eta * (1/m) * sum of s(tau_i) * delta_i, after every m updates.

    delta_i is taken against the version that client i pulled. The divisor is m whatever the
    staleness, so that stale updates make a smaller step.

    Args:
        buffer_size: m.
        staleness: s, a function of tau giving a factor: 1 / sqrt(1 + tau) by default; None for 1.
        server_lr: eta.
        normalize: The divisor: "buffer" for m, "weights" for the sum of the s(tau_i), "none" for 1.
        server_optimizer: A function of parameters giving an optimizer, in place of `server_lr`.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: An argument is outside its range.

    Source: Federated Learning with Buffered Asynchronous Aggregation (Nguyen et al., 2022),
    Algorithm 1; the FedFix paper (Fraboni et al.), Section 4.5.

    Example:
        >>> FedBuff(buffer_size=10)
        FedBuff(buffer_size=10, staleness=Polynomial(a=0.5), normalize='buffer')
    """

    def __init__(
        self,
        buffer_size: int,
        staleness: Staleness | None = Polynomial(0.5),
        server_lr: Rate = 1.0,
        normalize: str = "buffer",
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        self.buffer = UpdateBuffer(positive_int("buffer_size", buffer_size))
        self.staleness = check_staleness(staleness)
        self.normalize = one_of("normalize", normalize, ("buffer", "weights", "none"))
        self.server = ServerStep(server_lr, server_optimizer)

    def setup(self, federation: Federation, state: ServerState) -> None:
        """Start with an empty buffer."""
        self.buffer.clear()
        self.server.setup(state)

    def receive(self, update: ClientUpdate) -> bool:
        """Store it; due when the buffer is full."""
        return self.buffer.add(update)

    def step(self, state: ServerState) -> ServerState:
        """The discounted mean of the buffer."""
        updates = self.buffer.drain()
        factors = [discount(self.staleness, u.staleness(state.version)) for u in updates]
        divisors = {"buffer": len(updates), "weights": sum(factors), "none": 1}
        # Where every factor is 0 there is nothing to normalise, and nothing moves.
        divisor = divisors[self.normalize] or 1
        weights = [factor / divisor for factor in factors]
        direction = weighted_sum([update.delta for update in updates], weights)
        return self.server(state, direction, list(map(UsedUpdate, updates, weights)))

    def state_dict(self) -> dict[str, Any]:
        """The server optimizer's state."""
        return {"server": self.server.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the server optimizer's state."""
        self.server.load_state_dict(state["server"])

    def __repr__(self) -> str:
        return (
            f"FedBuff(buffer_size={self.buffer.size}, staleness={self.staleness}, "
            f"normalize={self.normalize!r}{self.server})"
        )
