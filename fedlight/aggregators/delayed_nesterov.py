"""Asynchronous Local-SGD with a delayed Nesterov momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fedlight._support.checks import Rate, below_one, number, positive_int
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import Federation, ServerState


class DelayedNesterov(BufferedAggregator):
    """x <- x + eta * (a * b * v + delta_i / N), after every update; v changes after every N-th.

    v is zero at first. Of N updates in a row, the last one first renews v by the mean of all N::

        updates 1 to N - 1:  a = c
        update N:            v <- b * v + (1/N) * (sum of the N deltas);  a = 1 - c * N + c

    So the momentum is as old as a buffer, and its share of N updates is ``b * v`` in total: with
    c = 0 it moves the model once, at the N-th update; with c = 1/N an equal part at each of them.

    Args:
        period: N.
        momentum: b in [0, 1).
        server_lr: eta, a number or a function of the version that the step starts from.
        c: From 0 to 1/N, how the momentum is spread over the N updates.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Liu et al., [Asynchronous Local-SGD Training for Language
    Modeling](https://arxiv.org/abs/2401.09135), 2024, Algorithm 3. Its pseudo-gradient is -delta,
    its m is -v.

    Example:
        >>> DelayedNesterov(period=4, momentum=0.9, server_lr=0.7)
        DelayedNesterov(period=4, momentum=0.9, server_lr=0.7, c=0.0)
    """

    speed_counts = True

    def __init__(
        self, period: int, momentum: float = 0.9, server_lr: Rate = 1.0, c: float = 0.0
    ) -> None:
        super().__init__(1, server_lr)
        self.period = positive_int("period", period)
        self.momentum = below_one("momentum", momentum)
        self.c = number("c", c)
        if not 0 <= self.c <= 1 / self.period:
            raise ValueError(f"c must lie between 0 and 1/period = {1 / self.period}, got {c!r}")

    def start(self, federation: Federation, state: ServerState) -> None:
        """The momentum and the sum are zero."""
        self.velocity, self.total = (torch.zeros_like(state.params) for _ in range(2))
        self.count = 0

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1/N."""
        return [1 / self.period] * len(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """The part of the momentum, and delta / N."""
        (delta,) = (update.delta for update in updates)
        self.total += delta
        self.count += 1
        share = self.c
        if self.count == self.period:
            self.velocity.mul_(self.momentum).add_(self.total, alpha=1 / self.period)
            self.total.zero_()
            self.count, share = 0, 1 - self.c * self.period + self.c
        return torch.add(self.velocity * (share * self.momentum), delta, alpha=1 / self.period)
