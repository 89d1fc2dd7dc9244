"""Adam on the client."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight._support.checks import decay_rates, non_negative, one_of, optional, positive
from fedlight._support.memory import sent
from fedlight.local_optimizers.base import LocalOptimizer, LocalRun, clipped, per_client
from fedlight.local_optimizers.rates import LocalRate, local_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class LocalAdam(LocalOptimizer):
    """y <- y - lr * m^ / (sqrt(v^) + eps), with bias-corrected moments m^ and v^ of the gradient g.

    In local step k = 1, 2, ...::

        g  <- g + d * y
        m  <- b1 * m + (1 - b1) * g
        v  <- b2 * v + (1 - b2) * g^2
        m^ =  m / (1 - b1^k)
        v^ =  v / (1 - b2^k)

    g is the stochastic gradient of f_i at y, clipped first if `max_grad_norm` is given. The moments
    m and v and the number k start at zero in each task; with ``keep="client"`` each client goes on
    with those of its last task, as if it had never stopped. Otherwise the rule is that of
    ``torch.optim.Adam``.

    Args:
        lr: eta_L: a number, a function of the pulled version, or of the steps that the client has
            made (`ByStep`, `WarmupCosine`).
        betas: b1 and b2, each in [0, 1).
        eps: A number above 0 that keeps the divisor above 0.
        weight_decay: d, 0 or larger; added to the gradient, not decoupled as in AdamW.
        max_grad_norm: A gradient with a larger Euclidean norm is scaled down to this norm.
        keep: "task" for moments that start anew in each task, "client" for moments that a client
            keeps. Published codes of DiLoCo differ in this.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is outside its range.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, Algorithm 1,
    https://arxiv.org/abs/1412.6980.

    Example:
        >>> LocalAdam(lr=0.001)
        LocalAdam(lr=0.001, betas=(0.9, 0.999))
    """

    _repr_optional = ("eps", "weight_decay", "max_grad_norm", "keep")

    def __init__(
        self,
        lr: LocalRate,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        keep: str = "task",
    ) -> None:
        self.lr: LocalRate = local_rate("lr", lr)
        self.betas = decay_rates("betas", betas)
        self.eps = positive("eps", eps)
        self.weight_decay = non_negative("weight_decay", weight_decay)
        self.max_grad_norm = optional(positive, "max_grad_norm", max_grad_norm)
        self.keep = one_of("keep", keep, ("task", "client"))
        self.kept = ("mean", "square") if self.keep == "client" else ()

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """Make one step of Adam."""
        gradient = list(grads)
        if self.max_grad_norm is not None:
            gradient = list(clipped(gradient, self.max_grad_norm))
        if self.weight_decay:
            gradient = self._decayed(run, gradient)
        k, (b1, b2) = run.step + 1 - run.skipped, self.betas
        mean, square = run.remembered("mean"), run.remembered("square")
        torch._foreach_lerp_(mean, gradient, 1 - b1)
        torch._foreach_mul_(square, b2)
        torch._foreach_addcmul_(square, gradient, gradient, value=1 - b2)
        # sqrt(v^) is computed as sqrt(v) / sqrt(1 - b2^k), as torch.optim.Adam does.
        divisor = list(torch._foreach_sqrt(square))
        if run.kept_steps:
            seen = [before + k for before in run.kept_steps]
            _each(torch._foreach_div_, divisor, [math.sqrt(1 - b2**t) for t in seen])
            torch._foreach_add_(divisor, self.eps)
            _each(torch._foreach_mul_, divisor, [1 - b1**t for t in seen])
        else:
            torch._foreach_div_(divisor, math.sqrt(1 - b2**k))
            torch._foreach_add_(divisor, self.eps)
            torch._foreach_mul_(divisor, 1 - b1**k)
        run.descend(torch._foreach_div(mean, divisor))

    def _decayed(self, run: LocalRun, gradient: list[Tensor]) -> list[Tensor]:
        return list(torch._foreach_add(gradient, run.params, alpha=self.weight_decay))


class LocalAdamW(LocalAdam):
    """y <- (1 - lr * d) * y - lr * m^ / (sqrt(v^) + eps): `LocalAdam` with decoupled weight decay.

    In each local step y is first multiplied by ``1 - lr * d``; the decay does not enter the moments
    m and v of the gradient. The rule is that of ``torch.optim.AdamW``.

    Args:
        lr: eta_L: a number, a function of the pulled version, or of the steps that the client has
            made (`ByStep`, `WarmupCosine`).
        betas: b1 and b2, each in [0, 1).
        eps: A number above 0 that keeps the divisor above 0.
        weight_decay: d, 0 or larger.
        max_grad_norm: A gradient with a larger Euclidean norm is scaled down to this norm.
        keep: "task" for moments that start anew in each task, "client" for moments that a client
            keeps.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is outside its range.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, Algorithm 2,
    https://arxiv.org/abs/1711.05101; the inner optimizer of Douillard et al., "DiLoCo: Distributed
    Low-Communication Training of Language Models", Algorithm 1, https://arxiv.org/abs/2311.08105.

    Example:
        >>> LocalAdamW(lr=0.001, keep="client")
        LocalAdamW(lr=0.001, betas=(0.9, 0.999), weight_decay=0.01, keep='client')
    """

    def __init__(
        self,
        lr: LocalRate,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        max_grad_norm: float | None = None,
        keep: str = "task",
    ) -> None:
        super().__init__(lr, betas, eps, weight_decay, max_grad_norm, keep)

    def _decayed(self, run: LocalRun, gradient: list[Tensor]) -> list[Tensor]:
        if isinstance(run.lr, float):
            torch._foreach_mul_(run.params, 1 - run.lr * self.weight_decay)
        else:
            rates = run.lr.double().tolist()
            _each(torch._foreach_mul_, run.params, [1 - lr * self.weight_decay for lr in rates])
        return gradient


def _each(
    operator: Callable[[list[Tensor], list[Tensor]], object],
    tensors: list[Tensor],
    numbers: Sequence[float],
) -> None:
    """Apply an operator to each client's part of tensors ``[n, *shape]`` and its own number."""
    values = sent(list(numbers), tensors[0].device, tensors[0].dtype)
    operator(tensors, [per_client(values, tensor) for tensor in tensors])
