"""The server's part of FedDyn; `fedlight.local_optimizers.FedDyn` is the clients' part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fedlight._support.checks import positive
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import Federation, ServerState


class FedDynServer(BufferedAggregator):
    """h <- h - (alpha/M) * sum of delta_i; then x <- x + (1/m) * sum of delta_i - h / alpha.

    h is zero at first, and its divisor M is the number of all clients. The m participants have
    equal weights. There is no server rate. The paper is synchronous. Here x + delta_i takes the
    place of the client's model y_i: the two are equal for a fresh update, and this is a reading for
    stale ones.

    Use it with ``local_optimizer=FedDyn(lr, alpha)`` and the same alpha.

    Args:
        alpha: The strength of the clients' dynamic regulariser, above 0.
        buffer_size: m, the number of updates per step; None to step when the process's round ends.

    Raises:
        TypeError: An argument has the wrong type.
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

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1/m."""
        return [1 / len(updates)] * len(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """The mean update, corrected by the new h."""
        mean = super().direction(updates, weights, state)
        # h <- h - (alpha/M) * sum of delta_i, and the sum is m times the mean.
        self.h.add_(mean, alpha=-self.alpha * len(updates) / self.federation.num_clients)
        return mean.sub_(self.h, alpha=1 / self.alpha)
