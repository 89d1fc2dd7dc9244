"""Channels: what an update goes through on its way from the client to the server.

``FedTrainer(channel=...)`` takes one channel, or several in a list, which an update goes through in
turn. The channel changes the delta (the parameters of the update) alone: buffers, counters and the
state of a local optimizer travel as they are. The server and `UpdateRecord.norm` see what has
arrived, and ``fed/bytes`` counts what was sent.

A stack of n clients goes through the channel as one block ``[n, P]``, for P parameters. A row of
the result depends on nothing but that row, the client, and the number of its visit: stacked, alone,
or in a resumed run, a client sends the same bits.
"""

from fedlight.channel.base import Chain, Channel, Message, Senders, as_channel
from fedlight.channel.clip import Clip
from fedlight.channel.error_feedback import ErrorFeedback
from fedlight.channel.qsgd import QSGD
from fedlight.channel.random_k import RandomK
from fedlight.channel.top_k import TopK

__all__ = [
    "QSGD",
    "Chain",
    "Channel",
    "Clip",
    "ErrorFeedback",
    "Message",
    "RandomK",
    "Senders",
    "TopK",
    "as_channel",
]
