"""SAM: SGD with the gradient at a nearby point of high loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from fedlight._support.checks import non_negative
from fedlight.local_optimizers.base import LocalRun, client_norms, per_client
from fedlight.local_optimizers.rates import LocalRate
from fedlight.local_optimizers.sgd import LocalSGD, SGDVariant

if TYPE_CHECKING:
    from collections.abc import Sequence


class SAM(SGDVariant):
    """y <- y - lr * (the gradient of f_i at y + rho * g / |g|), both gradients on one batch.

    g is the stochastic gradient of f_i at y, and |g| is its Euclidean norm over all parameters (a
    constant of 1e-12 is added). A step costs two passes over the batch; K counts steps, not passes.
    BatchNorm's statistics are those of the first pass. Weight decay, momentum and clipping act only
    on the second gradient. With `FedAvg` this is FedSAM; with rho = 0 it is `LocalSGD`.

    Args:
        lr: eta_L: a number, a function of the pulled version, or of the steps that the client has
            made (`ByStep`, `WarmupCosine`).
        rho: Distance from y to the point of the second gradient, 0 or larger.
        momentum: As in `LocalSGD`.
        weight_decay: As in `LocalSGD`.
        nesterov: As in `LocalSGD`.
        max_grad_norm: As in `LocalSGD`.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is outside its range.

    Source: Foret, Kleiner, Mobahi, Neyshabur, "Sharpness-Aware Minimization for Efficiently
    Improving Generalization", ICLR 2021, Algorithm 1, https://arxiv.org/abs/2010.01412.

    Example:
        >>> SAM(lr=0.1, rho=0.05)
        SAM(rho=0.05, LocalSGD(lr=0.1))
    """

    def __init__(
        self,
        lr: LocalRate,
        rho: float = 0.05,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(LocalSGD(lr, momentum, weight_decay, nesterov, max_grad_norm))
        self.rho = non_negative("rho", rho)

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """Ascend by a distance of rho, and make a step with the gradient at that point."""
        if self.rho == 0:
            self._sgd.step(run, grads)
            return
        scale = self.rho / (client_norms(grads) + 1e-12)
        pairs = zip(run.params, grads, strict=True)
        climbed = [y + per_client(scale, g) * g for y, g in pairs]
        self._sgd.step(run, run.gradient(at=climbed))
