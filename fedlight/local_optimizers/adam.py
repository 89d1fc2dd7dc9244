"""Adam on the client."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight._support.checks import Rate, decay_rates, non_negative, optional, positive, rate
from fedlight.local_optimizers.base import LocalOptimizer, LocalRun, clipped

if TYPE_CHECKING:
    from collections.abc import Sequence


class LocalAdam(LocalOptimizer):
    """y <- y - lr * m^ / (sqrt(v^) + eps), with bias-corrected moments m^ and v^ of the gradient g.

    In local step k = 1, 2, ...::

        g  <- g + d * y
        m  <- b1 * m + (1 - b1) * g
        v  <- b2 * v + (1 - b2) * g^2
        m^ =  m / (1 - b1^k)
        v^ =  v / (1 - b2^k)

    g is the stochastic gradient of f_i at y, clipped first if `max_grad_norm` is given. The moments
    m and v start at zero in each task. Otherwise the rule is that of ``torch.optim.Adam``.

    Args:
        lr: eta_L, a number or a function of the pulled version.
        betas: b1 and b2, each in [0, 1).
        eps: A number above 0 that keeps the divisor above 0.
        weight_decay: d, 0 or larger; added to the gradient, not decoupled as in AdamW.
        max_grad_norm: A gradient with a larger Euclidean norm is scaled down to this norm.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is outside its range.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, Algorithm 1,
    https://arxiv.org/abs/1412.6980.

    Example:
        >>> LocalAdam(lr=0.001)
        LocalAdam(lr=0.001, betas=(0.9, 0.999))
    """

    _repr_optional = ("eps", "weight_decay", "max_grad_norm")

    def __init__(
        self,
        lr: Rate,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
    ) -> None:
        self.lr: Rate = rate("lr", lr)
        self.betas = decay_rates("betas", betas)
        self.eps = positive("eps", eps)
        self.weight_decay = non_negative("weight_decay", weight_decay)
        self.max_grad_norm = optional(positive, "max_grad_norm", max_grad_norm)

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """Make one step of Adam."""
        gradient = list(grads)
        if self.max_grad_norm is not None:
            gradient = list(clipped(gradient, self.max_grad_norm))
        if self.weight_decay:
            gradient = list(torch._foreach_add(gradient, run.params, alpha=self.weight_decay))
        k, (b1, b2) = run.step + 1 - run.skipped, self.betas
        mean, square = run.remembered("mean"), run.remembered("square")
        torch._foreach_lerp_(mean, gradient, 1 - b1)
        torch._foreach_mul_(square, b2)
        torch._foreach_addcmul_(square, gradient, gradient, value=1 - b2)
        # sqrt(v^) is computed as sqrt(v) / sqrt(1 - b2^k), as torch.optim.Adam does.
        divisor = torch._foreach_sqrt(square)
        torch._foreach_div_(divisor, math.sqrt(1 - b2**k))
        torch._foreach_add_(divisor, self.eps)
        torch._foreach_mul_(divisor, 1 - b1**k)
        run.descend(torch._foreach_div(mean, divisor))
