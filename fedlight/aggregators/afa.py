"""AFA-CD and AFA-CS, the two algorithms of Anarchic Federated Learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.server import (
    OptimizerFactory,
    ServerStep,
    UpdateBuffer,
    weighted_sum,
)
from fedlight.types import UsedUpdate

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.checks import Schedule
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

    Source: Anarchic Federated Learning, Algorithm 2 (AFA-CD).
    """

    def __init__(
        self,
        buffer_size: int | None = None,
        server_lr: Schedule = 1.0,
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

    @property
    def held(self) -> list[ClientUpdate]:
        """Updates waiting for the buffer to fill."""
        return self.buffer.updates

    def state_dict(self) -> dict[str, Any]:
        """The server optimizer's state."""
        return {"server": self.server.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the server optimizer's state."""
        self.server.load_state_dict(state["server"])

    def __repr__(self) -> str:
        return f"AFACD(buffer_size={self.buffer.size})"


class AFACS(Aggregator):
    """memory_i <- delta_i / K_i for each arrival; then x <- x + eta * (1/M) * sum over all memory.

    The memory of all M clients starts at zero and the divisor is M from the first round on (a
    reading). The sum is kept and corrected by what changed, so a step costs m * P numbers, not
    M * P; it is added up anew once every M updates, which holds its rounding errors down.

    Args:
        buffer_size: m, step after so many updates; None for the end of the process's round.
        server_lr: eta.
        server_optimizer: A function of parameters giving an optimizer, in place of `server_lr`.

    Source: Anarchic Federated Learning, Algorithm 3 (AFA-CS).
    """

    def __init__(
        self,
        buffer_size: int | None = None,
        server_lr: Schedule = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        self.buffer = UpdateBuffer(buffer_size)
        self.server = ServerStep(server_lr, server_optimizer)
        self.needs_rounds = buffer_size is None

    def setup(self, federation: Federation, state: ServerState) -> None:
        """Start with memory at zero: one block ``[M, P]``."""
        self.buffer.clear()
        self.server.setup(state)
        self.num_clients = federation.num_clients
        self.memory = state.params.new_zeros(federation.num_clients, state.params.numel())
        self.total = torch.zeros_like(state.params)
        self._replaced = 0

    def receive(self, update: ClientUpdate) -> bool:
        """Line 1: collect m local updates."""
        return self.buffer.add(update)

    def end_round(self) -> bool:
        """Due, unless the aggregator counts updates."""
        return self.needs_rounds

    def step(self, state: ServerState) -> ServerState:
        """Lines 2 and 3: update the memory, then aggregate over all clients."""
        updates = self.buffer.drain()
        latest = {update.client_id: update for update in updates}
        if latest:
            self._remember(list(latest), [u.delta / u.num_steps for u in latest.values()])
        used = [
            UsedUpdate(u, 1 / self.num_clients if latest[u.client_id] is u else 0.0)
            for u in updates
        ]
        return self.server(state, self.total / self.num_clients, used)

    def _remember(self, clients: list[int], news: list[Tensor]) -> None:
        rows = torch.tensor(clients, device=self.memory.device)
        block = torch.stack(news)
        self.total += (block - self.memory[rows]).sum(dim=0)
        self.memory[rows] = block
        self._replaced += len(clients)
        if self._replaced >= self.num_clients:
            torch.sum(self.memory, dim=0, out=self.total)
            self._replaced = 0

    @property
    def held(self) -> list[ClientUpdate]:
        """Updates waiting for the buffer to fill."""
        return self.buffer.updates

    def state_dict(self) -> dict[str, Any]:
        """The memory, its sum and the server optimizer's state."""
        return {
            "server": self.server.state_dict(),
            "memory": self.memory,
            "total": self.total,
            "replaced": self._replaced,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the memory, its sum and the server optimizer's state."""
        self.server.load_state_dict(state["server"])
        self.memory.copy_(state["memory"])
        self.total.copy_(state["total"])
        self._replaced = state["replaced"]

    def __repr__(self) -> str:
        return f"AFACS(buffer_size={self.buffer.size})"
