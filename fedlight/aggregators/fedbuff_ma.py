"""FedBuff-MA-Light: a momentum whose coefficients undo what staleness does to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedlight._support.checks import Rate, below_one
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fedlight.types import Federation, ServerState


class FedBuffMA(BufferedAggregator):
    """m <- u * r + v * m, x <- x + eta * m, with r the mean delta of the buffer.

    With stale updates m is not the momentum of synchronous training: what was computed on version s
    enters it later, and with another weight. Let W_s be the share of the buffer that was pulled at
    version s, and A_s the weight in m of all that was pulled at s so far. At version t, u and v are
    the least squares of::

        u * W_s + v * A_s  =  (1 - b) * b^(t - s)    for s = 0, ..., t

    and then ``A <- u * W + v * A``. Without staleness ``u = 1 - b`` and ``v = b``, except v = 0 in
    the first step: the usual momentum. If several (u, v) are equally good, the shortest is taken.
    The coefficients depend on the schedule alone. A is all that they need of the past: one number
    for each version, in double precision.

    Readings: this is the light variant, which keeps m alone in place of all r. Staleness is not
    discounted otherwise. With ``b^(t - s)`` on the right, m would be ``1 / (1 - b)`` times as
    large, which is a matter of eta.

    Args:
        buffer_size: m, the number of updates per step; None to step when the process's round ends.
        momentum: b in [0, 1).
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Yu, Song, Wang, Chitnis, Momentum Approximation in Asynchronous Private Federated
    Learning, 2024, https://arxiv.org/abs/2402.09247.

    Example:
        >>> FedBuffMA(buffer_size=5)
        FedBuffMA(buffer_size=5, momentum=0.9)
    """

    def __init__(
        self,
        buffer_size: int | None = None,
        momentum: float = 0.9,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__(buffer_size, server_lr, server_optimizer)
        self.momentum = below_one("momentum", momentum)

    def start(self, federation: Federation, state: ServerState) -> None:
        """The momentum is zero, and nothing is in it."""
        self.velocity = torch.zeros_like(state.params)
        self.contained: NDArray[np.float64] = np.zeros(0)  # A, by version

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1/m."""
        return [1 / len(updates)] * len(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """The momentum, with the coefficients of this step."""
        mean = super().direction(updates, weights, state)
        u, v = self._coefficients(updates, state.version)
        self.velocity = u * mean + v * self.velocity
        return self.velocity

    def _coefficients(self, updates: Updates, version: int) -> tuple[float, float]:
        """Return u and v, and note what the momentum contains from now on."""
        pulled = [update.pulled_version for update in updates]
        share = np.bincount(pulled, minlength=version + 1) / len(updates)
        before = np.zeros(version + 1)
        before[: len(self.contained)] = self.contained
        wanted = (1 - self.momentum) * self.momentum ** np.arange(version, -1.0, -1.0)
        rows = np.stack([share, before], axis=1)
        u, v = np.linalg.lstsq(rows, wanted, rcond=None)[0].tolist()
        self.contained = u * share + v * before
        return u, v
