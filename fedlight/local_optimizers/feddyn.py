"""FedDyn: SGD on a loss whose regulariser is adjusted to each client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight._support.checks import positive
from fedlight.local_optimizers.base import LocalRun
from fedlight.local_optimizers.rates import LocalRate
from fedlight.local_optimizers.sgd import LocalSGD, SGDVariant

if TYPE_CHECKING:
    from collections.abc import Sequence


class FedDyn(SGDVariant):
    """y <- y - lr * (g - h_i + alpha * (y - x_p)); after the task h_i <- h_i - alpha * (y - x_p).

    g is the stochastic gradient of f_i at y. h_i is the client's state, zero at first: an estimate
    of the gradient of f_i at the solution. `fedlight.aggregators.FedDynServer` with the same alpha
    is the server's part. With both, the fixed point is the minimum of the mean of all f_i, even if
    clients differ and make many steps. In a client's first task, the rule is `FedProx` with
    mu = alpha. Momentum and clipping act on the sum in brackets.

    The paper is synchronous. Here a client stores h_i when its update arrives, even if the server
    drops the update.

    Args:
        lr: eta_L: a number, a function of the pulled version, or of the steps that the client has
            made (`ByStep`, `WarmupCosine`).
        alpha: Strength of the regulariser, above 0; the authors' code uses 0.01.
        momentum: As in `LocalSGD`.
        weight_decay: As in `LocalSGD`.
        nesterov: As in `LocalSGD`.
        max_grad_norm: As in `LocalSGD`.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is outside its range.

    Source: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021,
    Algorithm 1, https://arxiv.org/abs/2111.04263.

    Example:
        >>> FedDyn(lr=0.1, alpha=0.1)
        FedDyn(alpha=0.1, LocalSGD(lr=0.1))
    """

    client_state = True

    def __init__(
        self,
        lr: LocalRate,
        alpha: float = 0.01,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(LocalSGD(lr, momentum, weight_decay, nesterov, max_grad_norm))
        self.alpha = positive("alpha", alpha)

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """Make one step of SGD on the regularised loss."""
        direction = torch._foreach_sub(list(grads), run.client)
        pull = torch._foreach_sub(run.params, run.pulled)
        torch._foreach_add_(direction, pull, alpha=self.alpha)
        self._sgd.step(run, direction)

    def finish(self, run: LocalRun) -> list[Tensor]:
        """Return the new h_i."""
        moved = torch._foreach_sub(run.params, run.pulled)
        return list(torch._foreach_sub(run.client, moved, alpha=self.alpha))
