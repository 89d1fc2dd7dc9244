"""FedAT: synchronous tiers, averaged asynchronously with larger weights for slow tiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedlight._support.checks import one_of
from fedlight.aggregators._server_step import next_version, pulled
from fedlight.aggregators.buffered import BufferedAggregator, Updates
from fedlight.parameters import weighted_sum
from fedlight.types import UsedUpdate

if TYPE_CHECKING:
    from fedlight.types import ClientUpdate, Federation, ServerState


class FedAT(BufferedAggregator):
    """x <- sum over the G tiers of (T_{G+1-k} / T) * X_k, whenever a tier ends its round.

    X_k is the model of tier k, the weighted mean of its members' models ``y_i = x_p + delta_i`` in
    its last round. T_k is the number of rounds that the tier has ended, including the current one,
    and T is the sum of all T_k. The tiers of `Tiers` are ordered from the fastest to the slowest.
    Each tier is weighted with the count of the tier at the opposite end, so the weight of the
    slowest is proportional to the number of rounds of the fastest. X_k is the initial model until
    tier k has ended a round. The model thus stays the same until a tier with a positive weight has
    ended one (as written in the paper). Without groups, all clients are one tier, and this is
    FedAvg.

    A recorded weight is the tier's weight times the share of the client in its tier. The paper's
    proximal term is `FedProx`; its compression is left out.

    Args:
        buffer_size: The number of its updates after which a tier steps; None for the end of its
            round.
        client_weights: The shares in a tier: "examples" for ``n_i / sum of n_j``, or "uniform".

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range; or (during the run) an update belongs to no
            tier.

    Source: Chai et al., FedAT: A High-Performance and Communication-Efficient Federated Learning
    System with Asynchronous Tiers, SC 2021, Section 4, https://arxiv.org/abs/2010.05958.

    Example:
        >>> FedAT()
        FedAT(buffer_size=None, client_weights='examples')
    """

    def __init__(self, buffer_size: int | None = None, client_weights: str = "examples") -> None:
        super().__init__(buffer_size)
        self.client_weights = one_of("client_weights", client_weights, ("examples", "uniform"))

    def start(self, federation: Federation, state: ServerState) -> None:
        """All tiers have the initial model."""
        self.groups: tuple[str | None, ...] = federation.groups or (None,)
        # One row for each tier: the parameters, and the floating buffers.
        self.models = state.params.expand(len(self.groups), -1).clone()
        self.buffers = state.buffers.expand(len(self.groups), -1).clone()
        self.counts = [0] * len(self.groups)
        self.due: str | None = self.groups[0]

    def _tier(self, update: ClientUpdate) -> str | None:
        return update.task.tag if len(self.groups) > 1 else self.groups[0]

    def receive(self, update: ClientUpdate) -> bool:
        """Store the update; return True if its tier has enough of them."""
        super().receive(update)
        tier = self._tier(update)
        if tier not in self.groups:
            raise ValueError(
                f"FedAT has the tiers {', '.join(map(str, self.groups))}, but client "
                f"{update.client_id} has the tag {tier!r}; use Tiers(…) as arrivals"
            )
        if self.buffer_size is None:
            return False
        if sum(self._tier(each) == tier for each in self._held) < self.buffer_size:
            return False
        self.due = tier
        return True

    def end_round_of(self, group: str) -> bool:
        """Return True, unless a number of updates (`buffer_size`) makes the step due."""
        if self.needs_rounds:
            self.due = group if len(self.groups) > 1 else self.groups[0]
        return self.needs_rounds

    def drain(self) -> list[ClientUpdate]:
        """Return the updates of the tier that is due; the others stay held."""
        due = [update for update in self._held if self._tier(update) == self.due]
        self._held = [update for update in self._held if self._tier(update) != self.due]
        return due

    def discard(self, failed: Sequence[ClientUpdate]) -> bool:  # type: ignore[override]
        """Forget held updates that failed; return True if the tier still has enough of them."""
        super().discard(failed)
        left = sum(self._tier(each) == self.due for each in self._held)
        return self.buffer_size is not None and left >= self.buffer_size

    def weights(self, updates: Updates, version: int) -> list[float]:
        """The shares of the members in their tier."""
        sizes = [u.num_examples if self.client_weights == "examples" else 1 for u in updates]
        total = sum(sizes)
        return [size / total for size in sizes]

    def step(self, state: ServerState) -> ServerState:
        """Store the tier's new model, and average the models of all tiers."""
        updates = self.drain()
        if not updates:
            return next_version(state, state.params, ())
        place = self.groups.index(self.due)
        shares = self.weights(updates, state.version)
        models = [
            pulled(update, "FedAT averages models and").params + update.delta for update in updates
        ]
        self.models[place] = weighted_sum(models, shares)
        self.buffers[place] = weighted_sum([u.local.buffers for u in updates], shares)
        self.counts[place] += 1
        total = sum(self.counts)
        # T_{G+1-k} / T: each tier has the count of the tier at the opposite end.
        tiers = [count / total for count in reversed(self.counts)]
        used = [
            UsedUpdate(update, tiers[place] * share)
            for update, share in zip(updates, shares, strict=True)
        ]
        new = next_version(state, weighted_sum(list(self.models), tiers), used)
        mean = weighted_sum(list(self.buffers), tiers)
        # Constants (a causal mask with -inf, a table) keep their bits.
        same = (self.buffers == state.buffers).all(dim=0)
        return replace(new, buffers=torch.where(same, state.buffers, mean))
