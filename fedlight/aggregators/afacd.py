"""AFA-CD: anarchic federated averaging for data that may differ from client to client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlight.aggregators.buffered import BufferedAggregator, Updates
from fedlight.parameters import weighted_sum

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import ServerState


class AFACD(BufferedAggregator):
    """x <- x + eta * (1/m) * sum over the m updates of delta_i / K_i.

    ``-delta_i / K_i`` is eta_L times the mean gradient of the K_i local steps. The paper's
    algorithm omits eta_L and its proofs include it. Here it is included (a reading), which
    reproduces the paper's tables. The rule does not use n_i.

    Args:
        buffer_size: m, the number of updates per step; None to step when the process's round ends.
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.
        interval: Virtual time between deadlines, at which the server also steps.

    Raises:
        ValueError: An argument is outside its range.

    Source: Yang et al., Anarchic Federated Learning, 2022, Algorithm 2 (AFA-CD),
    https://arxiv.org/abs/2108.09875.

    Example:
        >>> AFACD(buffer_size=5)
        AFACD(buffer_size=5)
    """

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1/m."""
        return [1 / len(updates)] * len(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """Line 2: the mean of delta_i / K_i."""
        shares = [weight / max(1, u.num_steps) for u, weight in zip(updates, weights, strict=True)]
        return weighted_sum([update.delta for update in updates], shares)
