"""Malenia SGD: updates of the latest model are collected until every client has sent enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from fedlight._support.checks import Rate, optional, positive
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from fedlight.types import ClientUpdate, Federation, ServerState


class Malenia(BufferedAggregator):
    """x <- x + eta * (1/M) * sum over i of (1/B_i) * sum over j of delta_ij, with tau = 0.

    B_i is the number of updates of client i since the last step, and j counts them. All start from
    the latest model; other updates are dropped. Each client thus has the same weight, regardless of
    its speed. The server steps as soon as the harmonic mean of all B_i is at least S / M. With
    S = M, as in the authors' code, it steps as soon as each client has sent one update. (The
    condition for larger S is taken from the literature.) In this variant, clients finish tasks that
    the server will ignore.

    Args:
        batch_size: S, above 0; None for M.
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Tyurin, Richtárik, Optimal Time Complexities of Parallel Stochastic Optimization Methods
    Under a Fixed Computation Model, NeurIPS 2023, https://arxiv.org/abs/2305.12387.

    Example:
        >>> Malenia()
        Malenia(batch_size=None)
    """

    max_staleness = 0

    def __init__(
        self,
        batch_size: float | None = None,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__(None, server_lr, server_optimizer)
        self.needs_rounds = False  # `full` makes a step due, although there is no buffer size
        self.batch_size = optional(positive, "batch_size", batch_size)

    def start(self, federation: Federation, state: ServerState) -> None:
        """All counts are zero."""
        self.counts: Counter[int] = Counter()

    @property
    def full(self) -> bool:
        """Whether the harmonic mean of the B_i has reached S / M."""
        clients = self.federation.num_clients
        if len(self.counts) < clients:
            return False
        wanted = 1.0 if self.batch_size is None else self.batch_size / clients
        return clients / sum(1 / count for count in self.counts.values()) >= wanted

    def receive(self, update: ClientUpdate) -> bool:
        """Count the client's update."""
        self.counts[update.client_id] += 1
        return super().receive(update)

    def discard(self, failed: Collection[ClientUpdate]) -> bool:
        """Forget updates that failed, and count the others."""
        super().discard(failed)
        self.counts = Counter(update.client_id for update in self.held)
        return self.full

    def drain(self) -> list[ClientUpdate]:
        """Return the held updates, and reset the counts."""
        self.counts = Counter()
        return super().drain()

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1 / (M * B_i)."""
        counts = Counter(update.client_id for update in updates)
        return [1 / (self.federation.num_clients * counts[u.client_id]) for u in updates]
