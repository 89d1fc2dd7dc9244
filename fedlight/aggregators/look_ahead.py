"""Momentum look-ahead: clients start where the momentum is about to take the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fedlight._support.checks import Rate, below_one, one_of
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import Federation, ServerState


class LookAhead(BufferedAggregator):
    """x <- x + eta * (g * v + delta_i) with v <- g * v + (1 - g) * delta_i, after every update.

    v is zero at first. A client pulls ``x + eta * g * v``, the point to which the momentum alone
    would take the model, and its delta is the change from there. Public codes differ in what they
    send; with ``send="model"`` it is x.

    Args:
        momentum: g in [0, 1).
        server_lr: eta, a number or a function of the version that the step starts from.
        send: "look_ahead" or "model".

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Ajanthan et al., [Momentum Look-Ahead for Asynchronous Distributed Low-Communication
    Training](https://openreview.net/forum?id=4O8nzTkHPI), 2025. Its pseudo-gradient is -delta, its
    momentum is -v.

    Example:
        >>> LookAhead(momentum=0.9, server_lr=0.7)
        LookAhead(momentum=0.9, server_lr=0.7, send='look_ahead')
    """

    speed_counts = True

    def __init__(
        self, momentum: float = 0.9, server_lr: Rate = 1.0, send: str = "look_ahead"
    ) -> None:
        super().__init__(1, server_lr)
        self.momentum = below_one("momentum", momentum)
        self.send = one_of("send", send, ("look_ahead", "model"))

    def start(self, federation: Federation, state: ServerState) -> None:
        """The momentum is zero."""
        self.velocity = torch.zeros_like(state.params)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1 for the one client that has arrived."""
        return [1.0] * len(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """The new momentum, and delta."""
        (delta,) = (update.delta for update in updates)
        self.velocity.mul_(self.momentum).add_(delta, alpha=1 - self.momentum)
        return torch.add(delta, self.velocity, alpha=self.momentum)

    def outgoing(self, state: ServerState) -> Tensor | None:
        """X + eta * g * v, with the eta of the next step."""
        if self.send == "model":
            return None
        eta = self.rates(state.version)["server"]
        return torch.add(state.params, self.velocity, alpha=eta * self.momentum)
