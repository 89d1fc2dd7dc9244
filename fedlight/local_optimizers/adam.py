"""Local Adam."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight.checks import Rate, fraction, non_negative, positive, rate
from fedlight.local_optimizers.base import LocalOptimizer, LocalRun, clipped, grad_norm_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning import LightningModule


class LocalAdam(LocalOptimizer):
    """y <- y - lr * m^ / (sqrt(v^) + eps), with the bias-corrected moments m^ and v^ of g.

    ``g <- g + d * y; m <- b1 * m + (1 - b1) * g; v <- b2 * v + (1 - b2) * g^2``, then
    ``m^ = m / (1 - b1^k)`` and ``v^ = v / (1 - b2^k)`` in local step k. The same rule as
    ``torch.optim.Adam``, with gradients clipped first. The moments start at zero in each task.

    Args:
        lr: eta_L, a number or a function of the pulled version.
        betas: b1 and b2 in [0, 1).
        eps: Keeps the divisor above 0.
        weight_decay: d, 0 or larger (added to the gradient).
        max_grad_norm: Gradients with a larger Euclidean norm are scaled down to it.

    Raises:
        TypeError: An argument is no number.
        ValueError: An argument is outside its range.

    Source: Adam (Kingma and Ba, 2015), Algorithm 1.

    Example:
        >>> LocalAdam(lr=0.001)
        LocalAdam(lr=0.001, betas=(0.9, 0.999))
    """

    def __init__(
        self,
        lr: Rate,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
    ) -> None:
        self.lr: Rate = rate("lr", lr)
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise TypeError(f"betas must be two numbers such as (0.9, 0.999), got {betas!r}")
        self.betas = (fraction("betas[0]", betas[0]), fraction("betas[1]", betas[1]))
        if 1 in self.betas:
            raise ValueError(f"betas must be smaller than 1, got {betas!r}")
        self.eps = positive("eps", eps)
        self.weight_decay = non_negative("weight_decay", weight_decay)
        self.max_grad_norm = grad_norm_limit(max_grad_norm)

    def begin(self, run: LocalRun, module: LightningModule) -> None:
        """Start to count the steps, on the CPU, where reading the count does not wait for a GPU."""
        run.memory["step"] = [torch.zeros(len(run.num_steps))]

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """One step of Adam."""
        gradient = list(grads)
        if self.max_grad_norm is not None:
            gradient = list(clipped(gradient, self.max_grad_norm))
        if self.weight_decay:
            gradient = list(torch._foreach_add(gradient, run.params, alpha=self.weight_decay))
        (count,) = run.memory["step"]
        count += 1
        k, (b1, b2) = int(count[0]), self.betas
        mean, square = run.remembered("mean"), run.remembered("square")
        torch._foreach_lerp_(mean, gradient, 1 - b1)
        torch._foreach_mul_(square, b2)
        torch._foreach_addcmul_(square, gradient, gradient, value=1 - b2)
        divisor = torch._foreach_sqrt(square)
        torch._foreach_div_(divisor, math.sqrt(1 - b2**k))
        torch._foreach_add_(divisor, self.eps)
        torch._foreach_mul_(divisor, 1 - b1**k)
        run.descend(torch._foreach_div(mean, divisor))

    def __repr__(self) -> str:
        return f"LocalAdam(lr={self.lr}, betas={self.betas})"
