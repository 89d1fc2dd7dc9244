"""DC-ASGD: asynchronous SGD that corrects a stale gradient by a cheap second derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fedlight._support.checks import (
    Rate,
    below_one,
    non_negative,
    optional,
    positive,
    rate,
    rate_at,
)
from fedlight.aggregators._server_step import OptimizerFactory, pulled
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import ClientUpdate, Federation, ServerState


class DCASGD(BufferedAggregator):
    """x <- x + eta * (delta - lam * delta^2 * (x - x_p)), per coordinate, after every update.

    x_p is the model that the client pulled, so a fresh update is not corrected. In the paper, with
    gradients g = -delta / (lr * K), the rule is ``g + lam * g^2 * (x - x_p)``. This is the rule
    above with ``lam / (lr * K)`` as its lam. With `local_lr`, lam is the paper's. Without it, lam
    multiplies delta^2 (a reading), so a suitable value depends on lr. The rule is exact for K = 1,
    as in the paper, and a choice for K > 1.

    With `decay`, lam varies by coordinate (DC-ASGD-a, from the literature): ``lam / sqrt(v + eps)``
    with ``v <- decay * v + (1 - decay) * g^2`` from v = 0; g is delta if `local_lr` is not given.
    Without `decay`, lam is constant (DC-ASGD-c).

    Args:
        lam: lambda, 0 or larger; 0 is asynchronous SGD.
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.
        local_lr: lr, the learning rate of the clients: a number, or a function of the pulled
            version.
        decay: In [0, 1); the paper uses 0.95, with lam = 2.
        eps: A number above 0 that keeps the root above 0.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range; (during the run) `local_lr` returns 0.

    Source: Zheng et al., Asynchronous Stochastic Gradient Descent with Delay Compensation, ICML
    2017, https://arxiv.org/abs/1609.08326.

    Example:
        >>> DCASGD(lam=0.04, local_lr=0.1)
        DCASGD(lam=0.04, local_lr=0.1, decay=None, eps=1e-07)
    """

    def __init__(
        self,
        lam: float,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
        local_lr: Rate | None = None,
        decay: float | None = None,
        eps: float = 1e-7,
    ) -> None:
        super().__init__(1, server_lr, server_optimizer)
        self.lam = non_negative("lam", lam)
        self.local_lr = optional(rate, "local_lr", local_lr)
        self.decay = optional(below_one, "decay", decay)
        self.eps = positive("eps", eps)

    def start(self, federation: Federation, state: ServerState) -> None:
        """The mean square is zero."""
        if self.decay is not None:
            self.mean_square = torch.zeros_like(state.params)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1 for the one client that has arrived."""
        return [1.0] * len(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """Delta with its correction."""
        (update,) = updates
        delta, scale = update.delta, self._scale(update)
        start = pulled(update, "DCASGD corrects by x - x_p and")
        correction = delta.square().mul_(state.params - start.params)
        if self.decay is not None:
            share = (1 - self.decay) / scale**2
            self.mean_square.mul_(self.decay).addcmul_(delta, delta, value=share)
            correction.div_((self.mean_square + self.eps).sqrt_())
        return torch.add(delta, correction, alpha=-self.lam / scale)

    def _scale(self, update: ClientUpdate) -> float:
        """Lr * K, so that delta = -lr * K * g; 1 if lam acts on delta."""
        if self.local_lr is None:
            return 1.0
        lr = rate_at("local_lr", self.local_lr, update.pulled_version)
        # Without a step delta is zero, whatever it is divided by.
        steps = max(1, update.num_steps)
        return positive(f"local_lr(version={update.pulled_version})", lr) * steps
