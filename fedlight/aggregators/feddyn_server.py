"""The server's half of FedDyn; `fedlight.local_optimizers.FedDyn` is the clients'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fedlight._checks import positive
from fedlight.aggregators.buffered import BufferedAggregator

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import ClientUpdate, Federation, ServerState


class FedDynServer(BufferedAggregator):
    """h <- h - (alpha/M) * sum of delta_i; then x <- x + (1/m) * sum of delta_i - h / alpha.

    h is zero at first, and its divisor M counts all clients, not the m participants, which have
    equal weights. There is no server rate. The paper is synchronous: x + delta_i stands for the
    client's model y_i, which it is for a fresh update (a reading for stale ones).

    Use it with ``local_optimizer=FedDyn(lr, alpha)`` of the same alpha.

    Args:
        alpha: The strength of the clients' dynamic regulariser, above 0.
        buffer_size: m, step after so many updates; None for the end of the process's round.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: An argument is outside its range.

    Source: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1,
    https://arxiv.org/abs/2111.04263. The authors' code scales alpha by 1 / (M * n_i / n) for each
    client; here alpha is the same for all.

    Example:
        >>> FedDynServer(alpha=0.1, buffer_size=10)
        FedDynServer(alpha=0.1, buffer_size=10)
    """

    def __init__(self, alpha: float, buffer_size: int | None = None) -> None:
        super().__init__(buffer_size)
        self.alpha = positive("alpha", alpha)

    def start(self, federation: Federation, state: ServerState) -> None:
        """H = 0."""
        self.h = torch.zeros_like(state.params)

    def weights(self, updates: Sequence[ClientUpdate], version: int) -> list[float]:
        """1/m."""
        return [1 / len(updates)] * len(updates)

    def direction(
        self, updates: Sequence[ClientUpdate], weights: Sequence[float], state: ServerState
    ) -> Tensor:
        """The mean update, corrected by the new h."""
        mean = super().direction(updates, weights, state)
        self.h.add_(mean, alpha=-self.alpha * len(updates) / self.federation.num_clients)
        return mean.sub_(self.h, alpha=1 / self.alpha)
