"""Clipping: long updates are scaled down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedlight._support.checks import positive
from fedlight.channel._draws import row_norms
from fedlight.channel.base import Channel, Message, Senders
from fedlight.parameters import shrinking

if TYPE_CHECKING:
    from torch import Tensor


class Clip(Channel):
    """An update with a norm above `norm` is scaled down to that norm.

    ``C(u) = u * min(1, norm / |u|)``, with the Euclidean norm over all P parameters.

    All P numbers are sent. ``FedTrainer(max_update_norm=norm)`` does the same before the channel,
    and also records the original norm in the history.

    Args:
        norm: The largest norm, in the unit of the parameters.

    Raises:
        TypeError: `norm` is not a number.
        ValueError: `norm` is not above 0.

    Source: Abadi et al., [Deep Learning with Differential
    Privacy](https://arxiv.org/abs/1607.00133), Algorithm 1, for gradients; McMahan et al.,
    [Learning Differentially Private Recurrent Language Models](https://arxiv.org/abs/1710.06963),
    for updates of clients.

    Example:
        >>> Clip(10.0).nbytes(size=1000, itemsize=4)
        4000
    """

    _repr_positional = 1

    def __init__(self, norm: float) -> None:
        self.norm = positive("norm", norm)

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return the updates, scaled down if their norm is too large."""
        return updates * shrinking(row_norms(updates), self.norm)

    def message(self, message: Message) -> Message:
        """Return the same message."""
        return message
