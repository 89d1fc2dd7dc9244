"""Channels: compression, clipping and noise of updates on their way from the client to the server.

``FedTrainer(channel=...)`` takes one channel, or a list of channels that an update passes in turn.
A channel changes only the delta (the parameters of the update); buffers, counters and the state of
a local optimizer are sent unchanged. The server and `UpdateRecord.norm` see the update that
arrives, and ``fed/bytes`` counts the bytes that are sent.

A stack of n clients passes the channel as one block ``[n, P]``, for P parameters. A row of the
result depends only on that row, the seed, the client, the number of its visit and its memory: a
client sends the same bits in a stack, alone, or in a resumed run.
"""

from fedlight.channel.base import Chain, Channel, Message, Senders, as_channel
from fedlight.channel.clip import Clip
from fedlight.channel.error_feedback import ErrorFeedback
from fedlight.channel.gaussian_noise import GaussianNoise
from fedlight.channel.qsgd import QSGD
from fedlight.channel.random_k import RandomK
from fedlight.channel.top_k import TopK

__all__ = [
    "QSGD",
    "Chain",
    "Channel",
    "Clip",
    "ErrorFeedback",
    "GaussianNoise",
    "Message",
    "RandomK",
    "Senders",
    "TopK",
    "as_channel",
]
