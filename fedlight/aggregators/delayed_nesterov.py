"""Asynchronous Local-SGD with a delayed Nesterov momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fedlight._support.checks import Rate, below_one, number, positive_int
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import Federation, ServerState


class DelayedMomentum:
    """The momentum of one server, which changes after every N-th delta.

    Args:
        like: A vector ``[P]`` with the dtype and the device of the momentum.
        period: N.
        momentum: b.
        c: How the momentum is spread over the N deltas.

    Attributes:
        velocity: v, zero at first.
        total: The sum of the deltas since v was renewed.
        count: Their number.
    """

    def __init__(self, like: Tensor, period: int, momentum: float, c: float = 0.0) -> None:
        self._period, self._momentum, self._c = period, momentum, c
        self.velocity, self.total = torch.zeros_like(like), torch.zeros_like(like)
        self.count = 0

    def direction(self, delta: Tensor) -> Tensor:
        """Take one delta; return the part of the momentum, and delta / N."""
        self.total += delta
        self.count += 1
        share = self._c
        if self.count == self._period:
            self.velocity.mul_(self._momentum).add_(self.total, alpha=1 / self._period)
            self.total.zero_()
            self.count, share = 0, 1 - self._c * self._period + self._c
        return torch.add(self.velocity * (share * self._momentum), delta, alpha=1 / self._period)

    def reset(self) -> None:
        """Forget all deltas."""
        self.velocity.zero_()
        self.total.zero_()
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        return {"velocity": self.velocity, "total": self.total, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.velocity.copy_(state["velocity"])
        self.total.copy_(state["total"])
        self.count = state["count"]


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
        self.server = DelayedMomentum(state.params, self.period, self.momentum, self.c)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1/N."""
        return [1 / self.period] * len(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """The part of the momentum, and delta / N."""
        (delta,) = (update.delta for update in updates)
        return self.server.direction(delta)
