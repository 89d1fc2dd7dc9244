"""Top-k: only the largest numbers of an update are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedlight.channel._shares import largest, number_of, share_of
from fedlight.channel.base import Channel, Message, Senders

if TYPE_CHECKING:
    from torch import Tensor


class TopK(Channel):
    """The k numbers with the largest absolute values arrive; the others become 0.

    ``C(u)_j = u_j`` for the k largest ``|u_j|``, else 0; ``k = max(1, round(share * P))``, for P
    parameters. Among equal ones, those with the lowest j are chosen.

    It is biased: ``|C(u) - u|^2 <= (1 - k/P) |u|^2``. The other numbers are lost, unless the
    channel is wrapped in error feedback: ``ErrorFeedback(TopK(share))``.

    For numbers of equal absolute value, such as the two columns of a softmax over two classes, the
    last bits decide, and these differ between executors. Runs that otherwise agree to float
    tolerance may then send different coordinates.

    For each update, k numbers and their positions are sent: ``k * (32 + ceil(log2 P))`` bits in
    single precision, and never more than all numbers need without positions.

    Args:
        share: The share of the parameters that is sent, above 0 and at most 1.

    Raises:
        TypeError: `share` is not a number.
        ValueError: `share` is not in (0, 1].

    Source: Stich, Cordonnier and Jaggi, [Sparsified SGD with
    Memory](https://arxiv.org/abs/1809.07599), Definition 2.

    Example:
        >>> import torch
        >>> from fedlight.channel import Senders
        >>> update = torch.tensor([[1.0, -3.0, 0.5, 2.0]])
        >>> TopK(0.5).send(update, Senders([], seed=0)).tolist()
        [[0.0, -3.0, 0.0, 2.0]]
    """

    _repr_positional = 1

    def __init__(self, share: float) -> None:
        self.share = share_of(share)

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return the updates with their k largest numbers."""
        k = number_of(self.share, updates.shape[1])
        if k == updates.shape[1]:
            return updates
        return updates.where(largest(updates.abs(), k), 0)

    def message(self, message: Message) -> Message:
        """Return k numbers with their positions, or all numbers if that takes fewer bytes."""
        k = min(number_of(self.share, message.size), message.numbers)
        if k == message.numbers:
            return message
        # ceil(log2 P) bits for the position of one of P numbers
        places = max(message.index_bits, (message.numbers - 1).bit_length())
        chosen = message._replace(numbers=k, index_bits=places)
        return min(chosen, message, key=lambda each: each.nbytes)
