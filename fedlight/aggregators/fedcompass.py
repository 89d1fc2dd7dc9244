"""FedCompass: groups of clients that the server plans to arrive together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlight._support.checks import Rate, one_of
from fedlight.aggregators._server_step import OptimizerFactory, pulled
from fedlight.aggregators.buffered import BufferedAggregator, Updates
from fedlight.aggregators.staleness import Polynomial, Staleness, check_staleness, discount

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import ClientUpdate, Federation, ServerState


class FedCompass(BufferedAggregator):
    """x <- x + eta * sum of p_i * s(tau_i) * delta_i over a group of clients that has ended.

    The groups are those of `CompassArrivals`, which are numbered. An update whose group had ended
    before it arrived waits in a general buffer, and is used with the next numbered group that ends.
    A client's first task is a group of its own, which takes nothing from the general buffer. If no
    member of a group has arrived at its end, there is no step.

    Args:
        buffer_size: The number of updates after which the server steps, whatever their groups; None
            for the ends of groups.
        staleness: s, a function of tau that returns a factor: 1 / sqrt(1 + tau) by default; None
            for 1.
        server_lr: eta.
        client_weights: p_i: "examples" for n_i / (sum of all n), or "uniform" for 1/M.
        average: What is averaged: "deltas", each relative to the version that its client pulled;
            or "models", so that ``x <- x + eta * sum of p_i * s(tau_i) * (y_i - x)``.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Li et al., FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client
    Devices Using a Computing Power-Aware Scheduler, ICLR 2024, Algorithm 2,
    https://arxiv.org/abs/2309.14675. The authors' code (APPFL) averages models by default and
    deltas in their example, with eta = 0.9 and 1/M.

    Example:
        >>> FedCompass()
        FedCompass(staleness=Polynomial(a=0.5), client_weights='examples', average='deltas')
    """

    _repr_optional = ("buffer_size", "server_lr", "server_optimizer")

    def __init__(
        self,
        buffer_size: int | None = None,
        staleness: Staleness | None = Polynomial(a=0.5),
        server_lr: Rate = 1.0,
        client_weights: str = "examples",
        average: str = "deltas",
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__(buffer_size, server_lr, server_optimizer)
        self.staleness = check_staleness(staleness)
        self.client_weights = one_of("client_weights", client_weights, ("examples", "uniform"))
        self.average = one_of("average", average, ("deltas", "models"))

    def start(self, federation: Federation, state: ServerState) -> None:
        """No group has ended."""
        self.due: str | None = None
        # The groups that have ended: all below `open`, and those listed.
        self.open, self.ended = 0, set[int]()

    def receive(self, update: ClientUpdate) -> bool:
        """Store the update; return True if the buffer is full."""
        full = super().receive(update)
        if full:
            self.due = None
        return full

    def end_round(self) -> bool:
        """All updates are due: the process has no groups."""
        self.due = None
        return self.needs_rounds

    def end_round_of(self, group: str) -> bool:
        """Return True if a member of the group has arrived."""
        self.due = group
        if group.isdecimal():
            self.ended.add(int(group))
        while self.open in self.ended:
            self.ended.remove(self.open)
            self.open += 1
        return self.needs_rounds and self._is_due

    def drain(self) -> list[ClientUpdate]:
        """Return the updates of the group, and with a numbered one those that came late."""
        if self.due is None:
            return super().drain()
        tags = [update.task.tag for update in self._held]
        use = [tag == self.due or (self.due.isdecimal() and self._late(tag)) for tag in tags]
        due = [update for update, used in zip(self._held, use, strict=True) if used]
        self._held = [update for update, used in zip(self._held, use, strict=True) if not used]
        return due

    def discard(self, failed: Sequence[ClientUpdate]) -> bool:  # type: ignore[override]
        """Forget held updates that failed; return True if one of the group is left."""
        full = super().discard(failed)
        return full if self.due is None else self._is_due

    def weights(self, updates: Updates, version: int) -> list[float]:
        """p_i * s(tau_i)."""
        return [
            self.importance(u.client_id) * discount(self.staleness, u.staleness(version))
            for u in updates
        ]

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """The weighted sum of the deltas, or of y_i - x."""
        total = super().direction(updates, weights, state)
        if self.average == "models":
            for update, weight in zip(updates, weights, strict=True):
                start = pulled(update, "FedCompass averages models and")
                total.add_(start.params - state.params, alpha=weight)
        return total

    @property
    def _is_due(self) -> bool:
        return any(update.task.tag == self.due for update in self._held)

    def _late(self, tag: str | None) -> bool:
        """Whether an update's group has ended."""
        if tag is None or not tag.isdecimal():
            return False
        return int(tag) < self.open or int(tag) in self.ended
