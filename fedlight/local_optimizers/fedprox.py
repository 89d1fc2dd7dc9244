"""FedProx: SGD with a proximal term that pulls towards the pulled model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight._support.checks import non_negative
from fedlight.local_optimizers.base import LocalRun
from fedlight.local_optimizers.rates import LocalRate
from fedlight.local_optimizers.sgd import LocalSGD, SGDVariant

if TYPE_CHECKING:
    from collections.abc import Sequence


class FedProx(SGDVariant):
    """y <- y - lr * (g + mu * (y - x_p)): SGD on f_i(y) + mu/2 * |y - x_p|^2.

    g is the stochastic gradient of f_i at y. The centre x_p is the pulled model, however stale, and
    does not move during the run. The proximal term is part of the gradient, so clipping and
    momentum act on the sum. With mu = 0 this is `LocalSGD`.

    Args:
        lr: eta_L: a number, a function of the pulled version, or of the steps that the client has
            made (`ByStep`, `WarmupCosine`).
        mu: Strength of the proximal term, 0 or larger; the AFL paper uses 0.1.
        momentum: As in `LocalSGD`.
        weight_decay: As in `LocalSGD`.
        nesterov: As in `LocalSGD`.
        max_grad_norm: As in `LocalSGD`.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is outside its range.

    Source: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2,
    https://arxiv.org/abs/1812.06127; with asynchronous clients in Xie et al., "Asynchronous
    Federated Optimization", Algorithm 1, option II, which writes rho for mu,
    https://arxiv.org/abs/1903.03934, and in Yang et al., "Anarchic Federated Learning" (AFL),
    ICML 2022, Appendix E.1, https://arxiv.org/abs/2108.09875.

    Example:
        >>> FedProx(lr=0.1, mu=0.1)
        FedProx(mu=0.1, LocalSGD(lr=0.1))
    """

    def __init__(
        self,
        lr: LocalRate,
        mu: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(LocalSGD(lr, momentum, weight_decay, nesterov, max_grad_norm))
        self.mu = non_negative("mu", mu)

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """Make one step of SGD on the loss with the proximal term."""
        pull = torch._foreach_sub(run.params, run.pulled)
        self._sgd.step(run, torch._foreach_add(list(grads), pull, alpha=self.mu))
