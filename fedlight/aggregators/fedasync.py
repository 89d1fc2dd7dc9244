"""FedAsync: the server mixes in each client's model as it arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedlight._support.checks import Rate, fraction, non_negative_int, optional, rate, rate_at
from fedlight._support.memory import new_tensor
from fedlight.aggregators._server_step import next_version, pulled
from fedlight.aggregators.buffered import BufferedAggregator, Updates
from fedlight.aggregators.staleness import Staleness, check_staleness, discount
from fedlight.types import UsedUpdate

if TYPE_CHECKING:
    from fedlight.types import ServerState


class FedAsync(BufferedAggregator):
    """x <- (1 - a) * x + a * y with a = alpha_t * s(tau), after every update.

    y = x_p + delta is the client's *model*, trained from the version p that it pulled. tau =
    version - p, so a fresh update has staleness 0 (a reading: the paper's Algorithm 1 counts from
    the version being made, which would give 1). An update with a staleness above `max_staleness` is
    dropped and makes no version (a reading). Floating buffers are mixed with the same a.

    Args:
        alpha: alpha_t in (0, 1], a number or a function of the version that the update is applied
            to: "decays by 0.5 at the 800th epoch" is
            ``lambda version: 0.6 if version + 1 < 800 else 0.3``.
        staleness: s, a function of tau that returns a factor; None for 1.
        max_staleness: Largest tau (versions) that is used; None for any.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Xie, Koyejo, Gupta, Asynchronous Federated Optimization, 2019, Algorithm 1 and
    Section 4, https://arxiv.org/abs/1903.03934.

    Example:
        >>> from fedlight.aggregators.staleness import Polynomial
        >>> FedAsync(alpha=0.6, staleness=Polynomial(0.5), max_staleness=4)
        FedAsync(alpha=0.6, staleness=Polynomial(a=0.5), max_staleness=4)
    """

    def __init__(
        self, alpha: Rate, staleness: Staleness | None = None, max_staleness: int | None = None
    ) -> None:
        super().__init__(1)
        self.alpha = rate("alpha", alpha)
        if not callable(self.alpha):
            fraction("alpha", self.alpha)
        self.staleness = check_staleness(staleness)
        self.max_staleness = optional(non_negative_int, "max_staleness", max_staleness)

    def rates(self, version: int) -> dict[str, float]:
        """alpha_t, before any factor for staleness."""
        return {"alpha": rate_at("alpha", self.alpha, version)}

    def weights(self, updates: Updates, version: int) -> list[float]:
        """The share a = alpha_t * s(tau)."""
        alpha = fraction(f"alpha(version={version})", rate_at("alpha", self.alpha, version))
        tau = updates[0].staleness(version)
        return [fraction(f"alpha * staleness({tau})", alpha * discount(self.staleness, tau))]

    def step(self, state: ServerState) -> ServerState:
        """Updater thread: x_t = (1 - alpha_t) * x_{t-1} + alpha_t * x_new."""
        # It mixes models, and the buffers with them, so this is no step along a direction.
        (update,) = updates = self.drain()
        start = pulled(update, "FedAsync mixes models and")
        (a,) = self.weights(updates, state.version)
        # In one new tensor, first the client's model and then the mixture.
        params = new_tensor(state.params.shape, state.params)
        torch.add(start.params, update.delta, out=params)
        torch.lerp(state.params, params, a, out=params)
        return next_version(state, params, [UsedUpdate(update, a)], keep=1 - a)
