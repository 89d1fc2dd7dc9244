"""The latest contribution of each client, and the sum of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fedlight._support.memory import copied
from fedlight.parameters import weighted_sum

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import ClientUpdate

_GROUP = 64 * 2**20  # bytes of rows that are added up at once


class ClientMemory:
    """One row h_i of P numbers for each of M clients, zero at first, with the sum over all rows.

    Rows are created when a client first contributes, so memory is O(clients seen) and M may be
    large. A change of m rows costs O(m * P). The sum is updated by differences, and is recomputed
    each time M rows have been replaced, so that rounding errors do not accumulate.

    Args:
        num_clients: M.
        like: A vector ``[P]`` with the dtype of the rows; the sum is on its device.
        device: Where the rows are stored: "model" for the device of `like`, "cpu" for main memory.

    Attributes:
        rows: The contributions, by client, shape ``[P]`` each; a client without one counts as 0.
        total: Their sum, shape ``[P]``.
    """

    def __init__(self, num_clients: int, like: Tensor, device: str = "model") -> None:
        self._num_clients = num_clients
        self._place = like.device if device == "model" else torch.device("cpu")
        self._zero = torch.zeros_like(like, device=self._place)
        self.rows: dict[int, Tensor] = {}
        self.total = torch.zeros_like(like)
        self._replaced = 0

    def mean(self) -> Tensor:
        """h, the mean over all M clients, shape ``[P]``."""
        return self.total / self._num_clients

    def shares(self, updates: Sequence[ClientUpdate]) -> list[float]:
        """1/M for the latest update of each client, which is remembered, and 0 for the others."""
        latest = {update.client_id: update for update in updates}
        return [(latest[u.client_id] is u) / self._num_clients for u in updates]

    def recall(self, clients: Sequence[int]) -> Tensor:
        """The rows of some clients as one block, shape ``[m, P]``, on the device of the sum."""
        rows = [self.rows.get(client, self._zero) for client in clients]
        return torch.stack(rows).to(self.total.device)

    def replace(self, clients: Sequence[int], news: Sequence[Tensor]) -> Tensor:
        """Replace the rows of some clients, each named once.

        Returns:
            The change of the sum, shape ``[P]``.
        """
        block = torch.stack(list(news))
        known = self.recall(clients)
        change = torch.sub(block, known, out=known).sum(dim=0)
        self.total += change
        for client, row in zip(clients, block.to(self._place), strict=True):
            if client in self.rows:
                self.rows[client].copy_(row)
            else:  # a copy of its own, as a view would keep the whole block
                self.rows[client] = copied(row)
        self._replaced += len(clients)
        if self._replaced >= self._num_clients:
            self._add_up()
        return change

    def remember(self, updates: Sequence[ClientUpdate]) -> None:
        """h_i <- delta_i; if a client has two updates, the later delta is kept."""
        latest = {update.client_id: update.delta for update in updates}
        self.replace(list(latest), list(latest.values()))

    def corrected(
        self, updates: Sequence[ClientUpdate], weights: Sequence[float], beta: float
    ) -> Tensor:
        """Return beta * h + sum of w_i * (delta_i - beta * h_i), and remember the updates.

        All h_i and their mean h are those from before the call, even if a client has two updates.

        Args:
            updates: The updates.
            weights: w_i, one for each.
            beta: The factor of the memory, in [0, 1]; with 0, nothing is remembered.
        """
        direction = weighted_sum([update.delta for update in updates], weights)
        if beta == 0:
            return direction
        known = self.recall([update.client_id for update in updates])
        direction.add_(weighted_sum(list(known), weights), alpha=-beta)
        direction.add_(self.mean(), alpha=beta)
        self.remember(updates)
        return direction

    def _add_up(self) -> None:
        """Recompute the sum, in the order of the client indices."""
        # Over all M, in groups: the order of the additions depends only on M and P.
        size = max(1, _GROUP // max(self._zero.nbytes, 1))
        total = torch.zeros_like(self._zero)
        for start in range(0, self._num_clients, size):
            group = range(start, min(start + size, self._num_clients))
            rows = [self.rows.get(client, self._zero) for client in group]
            if any(row is not self._zero for row in rows):
                total += torch.stack(rows).sum(dim=0)
        self.total.copy_(total)
        self._replaced = 0

    def state_dict(self) -> dict[str, Any]:
        """The rows of the clients that have one, and their sum."""
        clients = sorted(self.rows)
        rows = torch.stack([self.rows[client] for client in clients]) if clients else None
        return {
            "clients": clients,
            "rows": rows,
            "total": self.total,
            "replaced": self._replaced,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the rows and their sum."""
        rows = () if state["rows"] is None else state["rows"].unbind()
        self.rows = {
            client: copied(row.to(self._place))
            for client, row in zip(state["clients"], rows, strict=True)
        }
        self.total.copy_(state["total"])
        self._replaced = state["replaced"]
