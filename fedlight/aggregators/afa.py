"""AFA-CD and AFA-CS, the two algorithms of Anarchic Federated Learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.client_memory import ClientMemory
from fedlight.aggregators.server import (
    OptimizerFactory,
    ServerStep,
    UpdateBuffer,
    weighted_sum,
)
from fedlight.types import UsedUpdate

if TYPE_CHECKING:
    from fedlight.checks import Rate
    from fedlight.types import ClientUpdate, Federation, ServerState


class AFACD(Aggregator):
    """x <- x + eta * (1/m) * sum over the m updates of delta_i / K_i.

    ``-delta_i / K_i`` is eta_L times the mean gradient of the K_i local steps. The algorithm's box
    leaves eta_L out and the proofs keep it; kept (a reading), the paper's tables are met. There is
    no n_i in it.

    Args:
        buffer_size: m, step after so many updates; None for the end of the process's round.
        server_lr: eta.
        server_optimizer: A function of parameters giving an optimizer, in place of `server_lr`.

    Raises:
        ValueError: An argument is outside its range.

    Source: Anarchic Federated Learning, Algorithm 2 (AFA-CD).

    Example:
        >>> AFACD(buffer_size=5)
        AFACD(buffer_size=5)
    """

    def __init__(
        self,
        buffer_size: int | None = None,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        self.buffer = UpdateBuffer(buffer_size)
        self.server = ServerStep(server_lr, server_optimizer)
        self.needs_rounds = buffer_size is None

    def setup(self, federation: Federation, state: ServerState) -> None:
        """Start with an empty buffer."""
        self.buffer.clear()
        self.server.setup(state)

    def receive(self, update: ClientUpdate) -> bool:
        """Line 1: collect m local updates."""
        return self.buffer.add(update)

    def end_round(self) -> bool:
        """Due, unless the aggregator counts updates."""
        return self.needs_rounds

    def step(self, state: ServerState) -> ServerState:
        """Line 2: aggregate and update."""
        updates = self.buffer.drain()
        if not updates:
            return self.server(state, None, ())
        weight = 1 / len(updates)
        direction = weighted_sum(
            [update.delta for update in updates], [weight / u.num_steps for u in updates]
        )
        return self.server(state, direction, [UsedUpdate(u, weight) for u in updates])

    def state_dict(self) -> dict[str, Any]:
        """The server optimizer's state."""
        return {"server": self.server.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the server optimizer's state."""
        self.server.load_state_dict(state["server"])

    def __repr__(self) -> str:
        return f"AFACD(buffer_size={self.buffer.size}{self.server})"


class AFACS(Aggregator):
    """memory_i <- delta_i / K_i for each arrival; then x <- x + eta * (1/M) * sum over all memory.

    The memory of all M clients starts at zero and the divisor is M from the first round on (a
    reading). Where one buffer holds a client twice, the later update is what the memory keeps, and
    the earlier one is recorded with weight 0. The sum is kept and corrected by what changed, so a
    step costs m * P numbers, not M * P; it is added up anew once every M updates, which holds its
    rounding errors down. The memory takes M * P numbers.

    Args:
        buffer_size: m, step after so many updates; None for the end of the process's round.
        server_lr: eta.
        server_optimizer: A function of parameters giving an optimizer, in place of `server_lr`.
        memory_device: Where the memory lies: "model" for the model's device, or "cpu", which saves
            memory on a GPU and costs the transfer of 2 * m * P numbers a step.

    Raises:
        ValueError: An argument is outside its range.

    Source: Anarchic Federated Learning, Algorithm 3 (AFA-CS).

    Example:
        >>> AFACS(buffer_size=5, memory_device="cpu")
        AFACS(buffer_size=5, memory_device='cpu')
    """

    remembers = True

    def __init__(
        self,
        buffer_size: int | None = None,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
        memory_device: str = "model",
    ) -> None:
        self.buffer = UpdateBuffer(buffer_size)
        self.server = ServerStep(server_lr, server_optimizer)
        self.memory = ClientMemory(memory_device)
        self.needs_rounds = buffer_size is None

    def setup(self, federation: Federation, state: ServerState) -> None:
        """Start with memory at zero."""
        self.buffer.clear()
        self.server.setup(state)
        self.memory.setup(federation, state)
        self._num_clients = federation.num_clients

    def receive(self, update: ClientUpdate) -> bool:
        """Line 1: collect m local updates."""
        return self.buffer.add(update)

    def end_round(self) -> bool:
        """Due, unless the aggregator counts updates."""
        return self.needs_rounds

    def step(self, state: ServerState) -> ServerState:
        """Lines 2 and 3: update the memory, then aggregate over all clients."""
        updates = self.buffer.drain()
        if not updates:
            return self.server(state, None, ())
        latest = {update.client_id: update for update in updates}
        news = [update.delta / update.num_steps for update in latest.values()]
        self.memory.replace(list(latest), news)
        weight = 1 / self._num_clients
        used = [UsedUpdate(u, weight if latest[u.client_id] is u else 0.0) for u in updates]
        return self.server(state, self.memory.mean(), used)

    def state_dict(self) -> dict[str, Any]:
        """The memory and the server optimizer's state."""
        return {"server": self.server.state_dict(), "memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the memory and the server optimizer's state."""
        self.server.load_state_dict(state["server"])
        self.memory.load_state_dict(state["memory"])

    def __repr__(self) -> str:
        device = self.memory.device
        return f"AFACS(buffer_size={self.buffer.size}, memory_device={device!r}{self.server})"
