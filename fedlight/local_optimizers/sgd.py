"""SGD on the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedlight._support.checks import (
    below_one,
    flag,
    non_negative,
    one_of,
    optional,
    positive,
)
from fedlight._support.strategy import arguments
from fedlight.local_optimizers.base import LocalOptimizer, LocalRun, clipped
from fedlight.local_optimizers.rates import LocalRate, local_rate

if TYPE_CHECKING:
    from collections.abc import Sequence


class LocalSGD(LocalOptimizer):
    """y <- y - lr * g, where g is the stochastic gradient of f_i at y.

    With momentum b and weight decay d::

        g <- g + d * y
        v <- b * v + g
        y <- y - lr * v            (with Nesterov's momentum: y <- y - lr * (g + b * v))

    g is clipped first if `max_grad_norm` is given. The velocity v starts at zero in each task; with
    ``keep="client"`` each client goes on with that of its last task. Otherwise the rule is that of
    ``torch.optim.SGD``.

    Args:
        lr: eta_L: a number, a function of the pulled version, or of the steps that the client has
            made (`ByStep`, `WarmupCosine`).
        momentum: b in [0, 1).
        weight_decay: d, 0 or larger.
        nesterov: Whether to use Nesterov's momentum; needs a momentum above 0.
        max_grad_norm: A gradient with a larger Euclidean norm is scaled down to this norm.
        keep: "task" for a velocity that starts anew in each task, "client" for one that a client
            keeps, which needs a momentum above 0.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is outside its range.

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
    Data", AISTATS 2017, Algorithm 1, ClientUpdate, https://arxiv.org/abs/1602.05629; with
    asynchronous clients in Xie et al., "Asynchronous Federated Optimization", Algorithm 1,
    https://arxiv.org/abs/1903.03934.

    Example:
        >>> LocalSGD(lr=0.1)
        LocalSGD(lr=0.1)
    """

    _repr_optional = ("momentum", "weight_decay", "nesterov", "max_grad_norm", "keep")

    def __init__(
        self,
        lr: LocalRate,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        max_grad_norm: float | None = None,
        keep: str = "task",
    ) -> None:
        self.lr = local_rate("lr", lr)
        self.momentum = below_one("momentum", momentum)
        self.weight_decay = non_negative("weight_decay", weight_decay)
        self.nesterov = flag("nesterov", nesterov)
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov=True needs a momentum above 0, got momentum=0")
        self.max_grad_norm = optional(positive, "max_grad_norm", max_grad_norm)
        self.keep = one_of("keep", keep, ("task", "client"))
        if self.keep == "client":
            if self.momentum == 0:
                raise ValueError('keep="client" needs a momentum above 0, got momentum=0')
            self.kept = ("velocity",)

    def step(self, run: LocalRun, grads: Sequence[Tensor]) -> None:
        """Make one step of SGD."""
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


class SGDVariant(LocalOptimizer):
    """SGD along another direction than the gradient g.

    A subclass defines `step`, which ends with a step of `LocalSGD` along its own direction.

    Args:
        sgd: The steps along the direction.
    """

    def __init__(self, sgd: LocalSGD) -> None:
        self._sgd = sgd
        self.lr = sgd.lr

    def __repr__(self) -> str:
        # The words of checkpoints since 0.2: the arguments of SGD are those of its own repr.
        options = arguments(self._sgd)
        own = [f"{name}={x}" for name, x in arguments(self).items() if name not in options]
        return f"{type(self).__name__}({', '.join([*own, repr(self._sgd)])})"

    def _kept_otherwise(self) -> dict[str, Any]:
        return arguments(self._sgd)
