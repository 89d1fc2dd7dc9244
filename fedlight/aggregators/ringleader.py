"""Ringleader ASGD: every client's mean update counts equally in each step, one step per client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from fedlight._support.checks import Rate, one_of
from fedlight.aggregators._client_memory import ClientMemory
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import ClientUpdate, Federation, ServerState


class Ringleader(BufferedAggregator):
    """x <- x + eta * (1/M) * sum over i of (1/B_i) * sum over j of delta_ij, M times per table.

    delta_ij are the B_i updates of client i in the present table::

        phase 1: collect updates in a new table, until each client has sent one or more;
                 step; S <- all clients but the one that has completed the table
        phase 2: an update of a client in S joins the table; step; the client leaves S
                 any other update waits for the next table
                 when S is empty: phase 1, with the updates that wait

    So the clients weigh the same, regardless of their speeds, each makes one step per table, and
    nothing is dropped. If all clients are at work and go on at once (``resume="on_arrival"``), the
    staleness is at most 2M - 2. With a client that never arrives there is no step at all.

    The recorded weight is 1/M for a client's latest update in a step, and 0 for its earlier ones:
    the mean of its updates in the table has the weight 1/M until its next one comes.

    Args:
        server_lr: eta; gamma of the paper is eta times the clients' rate.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.
        memory_device: Where the table is stored: "model" for the model's device, or "cpu".

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Maranjyan, Richtárik, Ringleader ASGD: The First Asynchronous SGD with Optimal Time
    Complexity under Data Heterogeneity, ICLR 2026, https://arxiv.org/abs/2509.22860, Algorithm 1.

    Example:
        >>> Ringleader()
        Ringleader(memory_device='model')
    """

    remembers = True

    def __init__(
        self,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
        memory_device: str = "model",
    ) -> None:
        super().__init__(None, server_lr, server_optimizer)
        self.needs_rounds = False  # `full` makes a step due, although there is no buffer size
        self.memory_device = one_of("memory_device", memory_device, ("model", "cpu"))

    def start(self, federation: Federation, state: ServerState) -> None:
        """Phase 1, with an empty table."""
        self.to_step: set[int] = set()  # S; empty in phase 1
        self.missing = set(range(federation.num_clients))  # of which no update is held
        self._clear(state)

    def _clear(self, state: ServerState) -> None:
        """Make an empty table of the means of the clients, and of the counts B_i."""
        clients = self.federation.num_clients
        self.table = ClientMemory(clients, state.params, self.memory_device)
        self.counts: Counter[int] = Counter()

    @property
    def full(self) -> bool:
        """Whether a client of S has arrived, or in phase 1 all clients have."""
        if self.to_step:
            return any(update.client_id in self.to_step for update in self.held)
        return not self.missing

    def receive(self, update: ClientUpdate) -> bool:
        """Store the update; return whether it makes a step due."""
        self._held.append(update)
        self.missing.discard(update.client_id)
        return update.client_id in self.to_step if self.to_step else not self.missing

    def discard(self, failed: Collection[ClientUpdate]) -> bool:
        """Forget updates that failed."""
        super().discard(failed)
        self._note_missing()
        return self.full

    def _note_missing(self) -> None:
        held = {update.client_id for update in self.held}
        self.missing = set(range(self.federation.num_clients)) - held

    def drain(self) -> list[ClientUpdate]:
        """Return the updates of this table; those for the next one are still held."""
        updates = super().drain()
        if self.to_step:
            self._held = [u for u in updates if u.client_id not in self.to_step]
            updates = [u for u in updates if u.client_id in self.to_step]
            self.to_step = self.to_step - {u.client_id for u in updates}
        elif updates:
            self.to_step = set(range(self.federation.num_clients)) - {updates[-1].client_id}
            self.counts = Counter()
        self._note_missing()
        return updates

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1/M for each client's latest update."""
        return self.table.shares(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """The mean over the clients of their means in the table, which the updates join."""
        if not self.counts:  # the first step of a table
            self._clear(state)
        for update in updates:
            client = update.client_id
            self.counts[client] += 1
            (mean,) = self.table.recall([client])
            news = mean + (update.delta - mean) / self.counts[client]
            self.table.replace([client], [news])
        return self.table.mean()
