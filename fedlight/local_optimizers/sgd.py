"""Local SGD."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight.checks import Rate, fraction, non_negative, rate
from fedlight.local_optimizers.base import LocalOptimizer, LocalRun, clipped, grad_norm_limit

if TYPE_CHECKING:
    from collections.abc import Sequence


class LocalSGD(LocalOptimizer):
    """y <- y - lr * g, with g the stochastic gradient of f_i at y.

    With momentum b and weight decay d: ``g <- g + d * y; v <- b * v + g``, then
    ``y <- y - lr * v``, or ``y <- y - lr * (g + b * v)`` with Nesterov's momentum. The same rule
    as ``torch.optim.SGD``, with gradients clipped first. Momentum starts at zero in each task.

    Args:
        lr: eta_L, a number or a function of the pulled version.
        momentum: b in [0, 1).
        weight_decay: d, 0 or larger.
        nesterov: Nesterov's momentum; needs a momentum above 0.
        max_grad_norm: Gradients with a larger Euclidean norm are scaled down to it.

    Raises:
        TypeError: An argument is no number.
        ValueError: An argument is outside its range.

    Source: Anarchic Federated Learning, Algorithm 2, worker code, line 2; FedAsync, Algorithm 1.

    Example:
        >>> LocalSGD(lr=0.1)
        LocalSGD(lr=0.1)
    """

    def __init__(
        self,
        lr: Rate,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        max_grad_norm: float | None = None,
    ) -> None:
        self.lr = rate("lr", lr)
        self.momentum = fraction("momentum", momentum)
        if self.momentum == 1:
            raise ValueError("momentum must be smaller than 1, got 1")
        self.weight_decay = non_negative("weight_decay", weight_decay)
        if nesterov and self.momentum == 0:
            raise ValueError("nesterov=True needs a momentum above 0, got momentum=0")
        self.nesterov = bool(nesterov)
        self.max_grad_norm = grad_norm_limit(max_grad_norm)

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """One step of SGD."""
        direction = grads
        if self.max_grad_norm is not None:
            direction = clipped(direction, self.max_grad_norm)
        if self.weight_decay:
            direction = torch._foreach_add(list(direction), run.params, alpha=self.weight_decay)
        if self.momentum:
            velocity = run.remembered("velocity")
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, list(direction))
            if self.nesterov:
                direction = torch._foreach_add(list(direction), velocity, alpha=self.momentum)
            else:
                direction = velocity
        run.descend(direction)

    def __repr__(self) -> str:
        options = {
            "momentum": (self.momentum, 0.0),
            "weight_decay": (self.weight_decay, 0.0),
            "nesterov": (self.nesterov, False),
            "max_grad_norm": (self.max_grad_norm, None),
        }
        given = "".join(f", {name}={v}" for name, (v, default) in options.items() if v != default)
        return f"LocalSGD(lr={self.lr}{given})"
