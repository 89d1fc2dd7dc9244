"""FADAS: an adaptive server that slows down after large delays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fedlight._support.checks import (
    Rate,
    decay_rates,
    flag,
    non_negative_int,
    one_of,
    positive,
    positive_int,
)
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import Federation, ServerState


class FADAS(BufferedAggregator):
    """x <- x + eta_t * u / (sqrt(w_max) + eps): AMSGrad on the mean D of every m updates.

    Per coordinate, starting from u = w = w_max = 0::

        u = b1 * u + (1 - b1) * D
        w = b2 * w + (1 - b2) * D**2
        w_max = max(w_max, w)

    Let T be the largest staleness in the buffer. As long as T <= tau_c, eta_t = eta. For larger T,
    eta_t depends on `delay`:

    - "reciprocal": min(eta, 1/T), the paper's rule, which has no effect while eta <= 1/T;
    - "divided": eta / T, the rule of the authors' code;
    - "none": eta, which is FADAS without delay-adaptive rates.

    The paper's rule has no bias correction. The authors' code divides u by ``1 - b1^t`` and
    sqrt(w_max) by ``sqrt(1 - b2^t)`` in step t = 1, 2, ...; `bias_correction` does the same.

    Args:
        buffer_size: m.
        server_lr: eta.
        betas: b1 and b2, each in [0, 1).
        eps: A number above 0 that keeps the divisor above 0.
        tau_c: The largest staleness (versions) that does not reduce the rate.
        delay: "reciprocal", "divided" or "none".
        bias_correction: Whether to correct both moments as Adam does.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Wang, Wang, Lu, Chen, FADAS: Towards Federated Adaptive Asynchronous Optimization, ICML
    2024, https://arxiv.org/abs/2407.18365, and the authors' code, whose defaults are used.

    Example:
        >>> FADAS(buffer_size=5, server_lr=0.001, delay="none").delay
        'none'
    """

    def __init__(
        self,
        buffer_size: int,
        server_lr: Rate = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        tau_c: int = 1,
        delay: str = "reciprocal",
        bias_correction: bool = False,
    ) -> None:
        super().__init__(positive_int("buffer_size", buffer_size), server_lr)
        self.betas = decay_rates("betas", betas)
        self.eps = positive("eps", eps)
        self.tau_c = non_negative_int("tau_c", tau_c)
        self.delay = one_of("delay", delay, ("reciprocal", "divided", "none"))
        self.bias_correction = flag("bias_correction", bias_correction)

    def start(self, federation: Federation, state: ServerState) -> None:
        """Both moments and the maximum are zero."""
        self.u, self.w, self.w_max = (torch.zeros_like(state.params) for _ in range(3))
        self.t = 0

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1/m."""
        return [1 / len(updates)] * len(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """AMSGrad's direction, damped after a delay of more than tau_c."""
        mean = super().direction(updates, weights, state)
        b1, b2 = self.betas
        self.t += 1
        self.u.mul_(b1).add_(mean, alpha=1 - b1)
        self.w.mul_(b2).addcmul_(mean, mean, value=1 - b2)
        torch.maximum(self.w_max, self.w, out=self.w_max)
        first, second = 1.0, 1.0
        if self.bias_correction:
            first, second = 1 - b1**self.t, math.sqrt(1 - b2**self.t)
        divisor = self.w_max.sqrt().div_(second).add_(self.eps)
        staleness = max(update.staleness(state.version) for update in updates)
        return self.u / divisor * (self._damping(staleness, state.version) / first)

    def _damping(self, staleness: int, version: int) -> float:
        """eta_t / eta."""
        if self.delay == "none" or staleness <= self.tau_c:
            return 1.0
        if self.delay == "divided":
            return 1 / staleness
        return 1 / max(1.0, self.rates(version)["server"] * staleness)  # min(eta, 1/T) / eta
