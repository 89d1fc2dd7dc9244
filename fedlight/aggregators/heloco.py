"""HeLoCo: each layer of a late update is turned towards the server's momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.linalg import vector_norm

from fedlight._support.checks import Rate, below_one, fraction, one_of, positive
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import Federation, ServerState


class HeLoCo(BufferedAggregator):
    """x <- x + eta * (r * G + mu * v) with v <- mu * v + (1 - mu) * r * G, after every update.

    G is the update delta_i, corrected layer by layer. Let d and v_b be the parts of delta_i and of
    the momentum v in a layer b, and c the cosine of the angle between them::

        c >= c_ok:       G_b = d
        c < 0:           G_b = d - beta * c * |d| * v_b / |v_b|
        0 <= c < c_ok:   G_b = |d| * u / |u|,  u = (1 - q) * d / |d| + q * v_b / |v_b|

    So with beta = 1 the part that opposes the momentum is removed, and an update that is nearly
    across it is turned towards it, at equal length. v is zero at first, and a layer in which d or
    v_b is zero stays as it is. A client pulls ``x + eta * mu * v`` (``send="look_ahead"``).

    How far an update is turned, q, is a reading; with q = 0 it is not.

    Args:
        momentum: mu in [0, 1).
        server_lr: eta, a number or a function of the version that the step starts from.
        weight: r, the weight of an update.
        c_ok: The smallest cosine of a layer that is left as it is, from 0 to 1.
        beta: The share of the opposing part that is removed, from 0 to 1.
        turn: q, from 0 to 1.
        send: "look_ahead", or "model" for x.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: [HeLoCo](https://arxiv.org/abs/2606.00271), 2026. Its pseudo-gradient is -delta, its
    momentum is -v.

    Example:
        >>> HeLoCo(momentum=0.9, server_lr=0.7, c_ok=0.2, send="model").beta
        1.0
    """

    speed_counts = True

    def __init__(
        self,
        momentum: float = 0.9,
        server_lr: Rate = 1.0,
        weight: float = 1.0,
        c_ok: float = 0.1,
        beta: float = 1.0,
        turn: float = 0.5,
        send: str = "look_ahead",
    ) -> None:
        super().__init__(1, server_lr)
        self.momentum = below_one("momentum", momentum)
        self.weight = positive("weight", weight)
        self.c_ok = fraction("c_ok", c_ok)
        self.beta = fraction("beta", beta)
        self.turn = fraction("turn", turn)
        self.send = one_of("send", send, ("look_ahead", "model"))

    def start(self, federation: Federation, state: ServerState) -> None:
        """The momentum is zero."""
        self.velocity = torch.zeros_like(state.params)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """The weight r of the one client that has arrived."""
        return [self.weight] * len(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """The corrected update, and the new momentum."""
        (update,), layers = updates, self.federation.layers
        corrected = update.delta.clone()
        pairs = zip(layers(corrected).values(), layers(self.velocity).values(), strict=True)
        for part, momentum in pairs:
            part.copy_(self._corrected(part, momentum))
        corrected.mul_(self.weight)
        self.velocity.mul_(self.momentum).add_(corrected, alpha=1 - self.momentum)
        return torch.add(corrected, self.velocity, alpha=self.momentum)

    def _corrected(self, d: Tensor, v: Tensor) -> Tensor:
        """G of a layer."""
        length: Tensor = vector_norm(d)
        size: Tensor = vector_norm(v)
        if not length or not size:
            return d
        c: Tensor = (d * v).sum() / (length * size)
        if c >= self.c_ok:
            return d
        if c < 0:
            return d - self.beta * c * length * (v / size)
        turned: Tensor = (1 - self.turn) * (d / length) + self.turn * (v / size)
        scale: Tensor = length / vector_norm(turned)
        return turned * scale

    def outgoing(self, state: ServerState) -> Tensor | None:
        """X + eta * mu * v, with the eta of the next step."""
        if self.send == "model":
            return None
        eta = self.rates(state.version)["server"]
        return torch.add(state.params, self.velocity, alpha=eta * self.momentum)
