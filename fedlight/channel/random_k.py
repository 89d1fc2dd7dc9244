"""Random-k: a random choice of an update's numbers is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedlight._support.checks import flag
from fedlight.channel._shares import largest, number_of, share_of
from fedlight.channel.base import Channel, Message, Senders

if TYPE_CHECKING:
    from torch import Tensor


class RandomK(Channel):
    """A random choice of k numbers arrives; the others become 0.

    ``C(u)_j = (P / k) u_j`` for k positions j drawn without replacement, else 0;
    ``k = max(1, round(share * P))``, for P parameters.

    The factor makes it unbiased, ``E C(u) = u``, with the variance
    ``E |C(u) - u|^2 = (P/k - 1) |u|^2``. Without the factor (``scaled=False``) it is biased, with
    the error ``(1 - k/P) |u|^2``. `ErrorFeedback` needs this form and selects it automatically.

    The positions are determined by the seed, the client and its visit, which the server knows. So k
    numbers are sent for each update, without their positions.

    Args:
        share: The share of the parameters that is sent, above 0 and at most 1.
        scaled: Whether the result is multiplied by P / k.

    Raises:
        TypeError: `share` is not a number.
        ValueError: `share` is not in (0, 1].

    Source: Stich, Cordonnier and Jaggi, [Sparsified SGD with
    Memory](https://arxiv.org/abs/1809.07599), Definition 2; with the factor, Wangni et al.,
    [Gradient Sparsification for Communication-Efficient Distributed
    Optimization](https://arxiv.org/abs/1710.09854), for equal probabilities.

    Example:
        >>> RandomK(0.1).nbytes(size=1000, itemsize=4)
        400
    """

    _repr_positional = 1
    _repr_optional = ("scaled",)

    def __init__(self, share: float, scaled: bool = True) -> None:
        self.share = share_of(share)
        self.scaled = flag("scaled", scaled)

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return the updates with k of their numbers."""
        size = updates.shape[1]
        k = number_of(self.share, size)
        if k == size:
            return updates
        sent = updates.where(largest(senders.words(updates), k), 0)
        return sent * (size / k) if self.scaled else sent

    def message(self, message: Message) -> Message:
        """Return k numbers at positions that the server knows."""
        k = number_of(self.share, message.size)
        if k == message.size:
            return message
        return message._replace(numbers=k, index_bits=0)

    def contraction(self) -> RandomK:
        """Return the form without the factor."""
        return RandomK(self.share, scaled=False)
