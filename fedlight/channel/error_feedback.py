"""Error feedback: the part that one update leaves out is added to the client's next one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedlight._support.checks import fraction
from fedlight.channel.base import Chain, Channel, Message, Senders, as_channel

if TYPE_CHECKING:
    from torch import Tensor


class ErrorFeedback(Channel):
    """A client keeps the part that the channel has left out, and adds it to its next update.

    ::

        u   = delta_i + decay * e_i
        send  C(u)
        e_i = u - C(u)

    The memory e_i of client i starts at 0. Without decay (1, the default) the sum of all that a
    client has sent plus e_i equals the sum of all its deltas. The next delta is the client's next
    update, regardless of the version that it started from. The order is that of the arrivals. An
    update that is larger than ``max_update_norm`` or fails does not change e_i. If the server drops
    an update (`Aggregator.drops`), nothing of it was used, so all of it is kept: ``e_i = u``. It is
    then computed together with the client's next update.

    With a decay b below 1, what is left out loses the factor b with each later update of the
    client, whether it is used or dropped, but not with updates that fail: e_i is a momentum of
    what has not been sent, which SparseLoCo has in place of the server's momentum. With b = 0
    what is left out is lost, as with C alone.

    C must be a contraction. `TopK` is one. For `RandomK` the form without its factor is used, and
    for `QSGD` the form divided by 1 + w.

    The memory costs P numbers for each client that has sent an update. The same number of bytes is
    sent as with C alone.

    Args:
        channel: C, a channel or a list of channels.
        decay: b, the factor of the memory at each update, from 0 to 1; 1 for none.

    Raises:
        TypeError: `channel` is not a channel, or `decay` is not a number.
        ValueError: `channel` already contains error feedback, or `decay` is not from 0 to 1.

    Source: Stich, Cordonnier and Jaggi, [Sparsified SGD with
    Memory](https://arxiv.org/abs/1809.07599), NeurIPS 2018, Algorithm 1; Karimireddy, Rebjock,
    Stich and Jaggi, [Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes](https://arxiv.org/abs/1901.09847), ICML 2019, Algorithm 2; the decay, Sarfi et al.,
    [Communication Efficient LLM Pre-training with SparseLoCo](https://arxiv.org/abs/2508.15706).

    Example:
        >>> from fedlight.channel import RandomK
        >>> ErrorFeedback(RandomK(0.1))
        ErrorFeedback(RandomK(0.1, scaled=False))
        >>> ErrorFeedback(RandomK(0.1), decay=0.95)
        ErrorFeedback(RandomK(0.1, scaled=False), decay=0.95)
    """

    _repr_positional = 1
    _repr_optional = ("decay",)
    remembers = True

    def __init__(self, channel: Channel | Iterable[Channel], decay: float = 1.0) -> None:
        channel = as_channel("channel", channel)
        if isinstance(channel, Chain) and not channel.channels:
            raise ValueError(
                "channel must hold at least one channel, got none: nothing is left out, so that "
                "there is nothing to remember; for example ErrorFeedback(TopK(0.01))"
            )
        if channel.remembers:
            raise ValueError(
                f"channel must not contain error feedback already, got {channel!r}; write "
                "ErrorFeedback([TopK(0.01), QSGD(8)]) for one memory around both"
            )
        self.channel = channel.contraction()
        self.decay = self.memory_decay = fraction("decay", decay)

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return C(delta + decay * e), and store u - C(u) in the memory."""
        full = updates
        if senders.memory is not None:
            # In two operations: a fused one rounds once, and not on every device.
            full = updates + (senders.memory if self.decay == 1 else self.decay * senders.memory)
        sent = self.channel.send(full, senders)
        senders.memory = full - sent
        return sent

    def message(self, message: Message) -> Message:
        """Return the message of C."""
        return self.channel.message(message)
