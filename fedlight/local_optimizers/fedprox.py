"""FedProx: local SGD that is held near the model that was pulled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight.checks import Rate, non_negative
from fedlight.local_optimizers.base import LocalOptimizer, LocalRun
from fedlight.local_optimizers.sgd import LocalSGD

if TYPE_CHECKING:
    from collections.abc import Sequence


class FedProx(LocalOptimizer):
    """y <- y - lr * (g + mu * (y - x_p)), SGD on f_i(y) + mu/2 * |y - x_p|^2.

    The centre x_p is the pulled model, however stale, and stays where it is during the run. The
    proximal term is part of the gradient: clipping and momentum see the sum, as they would had it
    been written into the loss. With mu = 0 this is `LocalSGD`.

    Args:
        lr: eta_L, a number or a function of the pulled version.
        mu: Strength of the proximal term, 0 or larger; the Anarchic FL paper takes 0.1.
        momentum: As in `LocalSGD`.
        weight_decay: As in `LocalSGD`.
        nesterov: As in `LocalSGD`.
        max_grad_norm: As in `LocalSGD`.

    Raises:
        TypeError: An argument is no number.
        ValueError: An argument is outside its range.

    Source: FedAsync (Xie et al.), Algorithm 1, option II, with rho for mu; Anarchic Federated
    Learning, Appendix E.1.

    Example:
        >>> FedProx(lr=0.1, mu=0.1)
        FedProx(mu=0.1, LocalSGD(lr=0.1))
    """

    def __init__(
        self,
        lr: Rate,
        mu: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        max_grad_norm: float | None = None,
    ) -> None:
        self.mu = non_negative("mu", mu)
        self._sgd = LocalSGD(lr, momentum, weight_decay, nesterov, max_grad_norm)
        self.lr = self._sgd.lr

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """One step of SGD on the loss with the proximal term."""
        pull = torch._foreach_sub(run.params, run.pulled)
        self._sgd.step(run, torch._foreach_add(list(grads), pull, alpha=self.mu))

    def __repr__(self) -> str:
        return f"FedProx(mu={self.mu}, {self._sgd})"
