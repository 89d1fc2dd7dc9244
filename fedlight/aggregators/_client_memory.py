"""The newest contribution of each client, and the sum of them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fedlight._memory import sent

if TYPE_CHECKING:
    from torch import Tensor


class ClientMemory:
    """One row of P numbers for each of M clients, zero at first, with the sum over all rows.

    A change of m rows costs O(m * P). The sum is kept up by differences, and is taken afresh each
    time M rows were replaced, so that rounding does not pile up.

    Args:
        num_clients: M.
        like: A vector ``[P]`` with the dtype of the rows; the sum lies on its device.
        device: Where the rows lie: "model" for the device of `like`, "cpu" for main memory.

    Attributes:
        rows: The contributions, shape ``[M, P]``.
        total: Their sum, shape ``[P]``.
    """

    def __init__(self, num_clients: int, like: Tensor, device: str = "model") -> None:
        place = like.device if device == "model" else torch.device("cpu")
        self.rows = torch.zeros((num_clients, like.numel()), dtype=like.dtype, device=place)
        self.total = torch.zeros_like(like)
        self._replaced = 0

    def mean(self) -> Tensor:
        """The mean over all M clients, shape ``[P]``."""
        return self.total / len(self.rows)

    def replace(self, clients: Sequence[int], news: Sequence[Tensor]) -> None:
        """Put new rows in place of those of some clients, each named once."""
        which = sent(clients, self.rows.device)
        block = torch.stack(list(news))
        self.total += (block - self.rows[which].to(block.device)).sum(dim=0)
        self.rows[which] = block.to(self.rows.device)
        self._replaced += len(clients)
        if self._replaced >= len(self.rows):
            self.total.copy_(self.rows.sum(dim=0))
            self._replaced = 0

    def state_dict(self) -> dict[str, Any]:
        """The rows and their sum."""
        return {"rows": self.rows, "total": self.total, "replaced": self._replaced}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the rows and their sum."""
        self.rows.copy_(state["rows"])
        self.total.copy_(state["total"])
        self._replaced = state["replaced"]
