"""FedNova: updates with unequal numbers of local steps are normalised before they are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlight._support.checks import (
    Rate,
    below_one,
    fraction,
    non_negative,
    one_of,
    optional,
    rate,
    rate_at,
)
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates
from fedlight.parameters import weighted_sum

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import ClientUpdate, ServerState


class FedNova(BufferedAggregator):
    """x <- x + eta * tau_eff * sum of w_i * delta_i / a_i, with tau_eff = sum of w_i * a_i.

    a_i is the total weight of all gradients in delta_i, which is K_i for plain SGD. w_i is n_i
    divided by the sum of n over the participants (a reading; in the paper all clients take part).
    If the clients use another local rule, give its argument:

    - `momentum` rho: a_i = (K_i - rho * (1 - rho^K_i) / (1 - rho)) / (1 - rho);
    - `mu` of FedProx: a_i = (1 - (1 - lr * mu)^K_i) / (lr * mu), and tau_eff = sum of w_i * K_i.

    Args:
        buffer_size: m, the number of updates per step; None to step when the process's round ends.
        server_lr: eta.
        client_weights: w_i: "examples", or "uniform" for 1/m.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.
        momentum: rho, the momentum of the clients, in [0, 1).
        mu: The proximal strength of the clients, 0 or larger; needs `local_lr`.
        local_lr: lr, the learning rate of the clients: a number, or a function of the pulled
            version.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range, or both `momentum` and `mu` are given, for
            which the paper has no a_i.

    Source: Wang, Liu, Liang, Joshi, Poor, Tackling the Objective Inconsistency Problem in
    Heterogeneous Federated Optimization, NeurIPS 2020, https://arxiv.org/abs/2007.07481, and the
    authors' code.

    Example:
        >>> FedNova(buffer_size=10)
        FedNova(buffer_size=10, client_weights='examples', momentum=0.0, mu=0.0, local_lr=None)
    """

    def __init__(
        self,
        buffer_size: int | None = None,
        server_lr: Rate = 1.0,
        client_weights: str = "examples",
        server_optimizer: OptimizerFactory | None = None,
        momentum: float = 0.0,
        mu: float = 0.0,
        local_lr: Rate | None = None,
    ) -> None:
        super().__init__(buffer_size, server_lr, server_optimizer)
        self.client_weights = one_of("client_weights", client_weights, ("examples", "uniform"))
        self.momentum = below_one("momentum", momentum)
        self.mu = non_negative("mu", mu)
        if self.mu and self.momentum:
            raise ValueError(
                f"give momentum ({momentum!r}) or mu ({mu!r}), not both: the paper has no a_i for "
                "both together"
            )
        self.local_lr = optional(rate, "local_lr", local_lr)
        if self.mu and self.local_lr is None:
            raise ValueError(f"mu={mu!r} needs local_lr, the learning rate of the clients")

    def weights(self, updates: Updates, version: int) -> list[float]:
        """w_i, normalised over the participants."""
        sizes = [u.num_examples if self.client_weights == "examples" else 1 for u in updates]
        total = sum(sizes)
        return [size / total for size in sizes]

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """tau_eff times the mean of the normalised updates."""
        norms = [self._steps(update) for update in updates]
        counted = [u.num_steps for u in updates] if self.mu else norms
        tau_eff = sum(w * each for w, each in zip(weights, counted, strict=True))
        # A client that was polled before its first step has no a_i, and no delta.
        shares = [tau_eff * w / a if a else 0.0 for w, a in zip(weights, norms, strict=True)]
        return weighted_sum([update.delta for update in updates], shares)

    def _steps(self, update: ClientUpdate) -> float:
        """a_i."""
        steps, rho = update.num_steps, self.momentum
        if rho:
            return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        if not self.mu or self.local_lr is None:
            return float(steps)
        version = update.pulled_version
        lr = rate_at("local_lr", self.local_lr, version)
        shrink = fraction(f"local_lr(version={version}) * mu", lr * self.mu)
        return (1 - (1 - shrink) ** steps) / shrink if shrink else float(steps)
