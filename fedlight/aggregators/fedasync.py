"""FedAsync: the server mixes in each client's model as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.server import UpdateBuffer, next_version
from fedlight.aggregators.staleness import Staleness, check_staleness, discount
from fedlight.checks import Rate, fraction, non_negative_int, rate, rate_at
from fedlight.types import UsedUpdate

if TYPE_CHECKING:
    from fedlight.types import ClientUpdate, Federation, ServerState


class FedAsync(Aggregator):
    """x <- (1 - a) * x + a * y with a = alpha_t * s(tau), after every update.

    y = x_p + delta is the client's *model*, trained from the version p that it pulled. tau =
    version - p, so a fresh update has staleness 0 (a reading: its Algorithm 1 counts from the
    version being made, which would be 1). An update staler than `max_staleness` is dropped and
    makes no version (a reading). Floating buffers are mixed with the same a.

    Args:
        alpha: alpha_t in (0, 1], a number or a function of the version that the update is applied
            to: "decays by 0.5 at the 800th epoch" is
            ``lambda version: 0.6 if version + 1 < 800 else 0.3``.
        staleness: s, a function of tau giving a factor; None for 1.
        max_staleness: Largest tau (versions) that is used; None for any.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: An argument is outside its range.

    Source: Asynchronous Federated Optimization (Xie et al.), Algorithm 1 and Section 4.

    Example:
        >>> from fedlight.aggregators.staleness import Polynomial
        >>> FedAsync(alpha=0.6, staleness=Polynomial(0.5), max_staleness=4)
        FedAsync(alpha=0.6, staleness=Polynomial(a=0.5), max_staleness=4)
    """

    def __init__(
        self,
        alpha: Rate,
        staleness: Staleness | None = None,
        max_staleness: int | None = None,
    ) -> None:
        self.alpha = rate("alpha", alpha)
        if not callable(self.alpha):
            fraction("alpha", self.alpha)
        self.staleness = check_staleness(staleness)
        self.max_staleness = (
            None if max_staleness is None else non_negative_int("max_staleness", max_staleness)
        )
        self.buffer = UpdateBuffer(1)

    def setup(self, federation: Federation, state: ServerState) -> None:
        """Start with nothing held."""
        self.buffer.clear()

    def accepts(self, update: ClientUpdate, version: int) -> bool:
        """Whether it is no staler than `max_staleness`."""
        return self.max_staleness is None or update.staleness(version) <= self.max_staleness

    def receive(self, update: ClientUpdate) -> bool:
        """Updater thread: receive the pair (x_new, tau); each one is used at once."""
        return self.buffer.add(update)

    def step(self, state: ServerState) -> ServerState:
        """Updater thread: x_t = (1 - alpha_t) * x_{t-1} + alpha_t * x_new."""
        (update,) = self.buffer.drain()
        if update.pulled is None:
            raise ValueError(
                "FedAsync mixes models and needs the version that the client pulled: "
                "ClientUpdate(…, pulled=state)"
            )
        a = self._mixing(update, state.version)
        client_model = update.pulled.params + update.delta
        params = torch.lerp(state.params, client_model, a)
        return next_version(state, params, [UsedUpdate(update, a)], keep=1 - a)

    def _mixing(self, update: ClientUpdate, version: int) -> float:
        alpha = self.alpha
        if callable(alpha):
            alpha = fraction(f"alpha(version={version})", rate_at("alpha", alpha, version))
        tau = update.staleness(version)
        a = alpha * discount(self.staleness, tau)
        return a if 0 <= a <= 1 else fraction(f"alpha * staleness({tau})", a)

    def __repr__(self) -> str:
        return (
            f"FedAsync(alpha={self.alpha}, staleness={self.staleness}, "
            f"max_staleness={self.max_staleness})"
        )
