"""Error feedback: what one update leaves out is added to the client's next one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedlight.channel.base import Channel, Message, Senders, as_channel

if TYPE_CHECKING:
    from torch import Tensor


class ErrorFeedback(Channel):
    """A client keeps what the channel has not let through, and adds it to its next update.

    ::

        u   = delta_i + e_i
        send  C(u)
        e_i = u - C(u)

    The memory e_i of client i starts at 0, so all that a client has sent and e_i together are the
    sum of all its deltas. The next delta is whatever the client sends next, from whichever version
    it started. The order is that of the arrivals. An update that is larger than
    ``max_update_norm`` or fails does not change e_i. Of one that the server drops
    (`Aggregator.drops`) nothing was used, so all of it stays: ``e_i = u``; it is computed when the
    client's next update is.

    C must be a contraction. `TopK` is one; of `RandomK` the form without its factor is taken, and
    of `QSGD` the form divided by 1 + w.

    The memory costs P numbers for each client that has sent an update. Nothing more is sent than
    by C alone.

    Args:
        channel: C, a channel or several in turn.

    Raises:
        TypeError: It is no channel.
        ValueError: It has error feedback in it already.

    Source: Stich, Cordonnier and Jaggi, [Sparsified SGD with
    Memory](https://arxiv.org/abs/1809.07599), NeurIPS 2018, Algorithm 1; Karimireddy, Rebjock,
    Stich and Jaggi, [Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes](https://arxiv.org/abs/1901.09847), ICML 2019, Algorithm 2.

    Example:
        >>> from fedlight.channel import RandomK
        >>> ErrorFeedback(RandomK(0.1))
        ErrorFeedback(RandomK(0.1, scaled=False))
    """

    remembers = True

    def __init__(self, channel: Channel | Iterable[Channel]) -> None:
        channel = as_channel("channel", channel)
        if channel.remembers:
            raise ValueError(
                f"channel has error feedback in it already, got {channel!r}; write "
                "ErrorFeedback([TopK(0.01), QSGD(8)]) for one memory around both"
            )
        self.channel = channel.contraction()

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return C(delta + e), and leave u - C(u) in the memory."""
        full = updates if senders.memory is None else updates + senders.memory
        sent = self.channel.send(full, senders)
        senders.memory = full - sent
        return sent

    def message(self, message: Message) -> Message:
        """Return the message of C."""
        return self.channel.message(message)

    def __repr__(self) -> str:
        return f"ErrorFeedback({self.channel!r})"
