"""The interface of channels, and chains of several channels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedlight._support.checks import items, shown
from fedlight._support.strategy import Strategy
from fedlight.channel._draws import keys_of, normal, uniform, words

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import Task


class Message(NamedTuple):
    """The size of the message for one update; it does not depend on the values.

    Attributes:
        size: P, the number of parameters.
        numbers: The number of values that are sent.
        bits: Bits of each of them.
        index_bits: Bits that give the parameter a value belongs to; 0 if the server knows it.
        extra_bits: Bits that are sent once per update, such as a norm.
    """

    size: int
    numbers: int
    bits: float
    index_bits: int = 0
    extra_bits: float = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the message, rounded up."""
        return math.ceil((self.numbers * (self.bits + self.index_bits) + self.extra_bits) / 8)


class Senders:
    """The clients whose updates go through a channel together.

    Args:
        tasks: Their n tasks.
        seed: The seed of the fit.
        memory: The memory of error feedback for each client, ``[n, P]``, or None.

    Attributes:
        memory: The same; a channel that `remembers` replaces it with the new memory.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, memory: Tensor | None = None) -> None:
        self.memory = memory
        self._keys = keys_of(tasks, seed)
        self._calls = 0

    def uniform(self, like: Tensor) -> Tensor:
        """Independent uniform numbers in [0, 1), with the shape ``[n, P]`` and the dtype of `like`.

        A row is a function of the seed, the client, its visit and the number of the call.
        """
        return uniform(self._next(), like)

    def normal(self, like: Tensor) -> Tensor:
        """Independent standard normal numbers, with the shape ``[n, P]`` and the dtype of `like`.

        They are drawn on the CPU, so that each device gets the same ones.
        """
        return normal(self._next(), like)

    def words(self, like: Tensor) -> Tensor:
        """Independent random integers of 64 bits, with the shape ``[n, P]`` of `like`."""
        return words(self._next(), like.shape[1], like.device)

    def _next(self) -> list[int]:
        self._calls += 1
        return [key + self._calls for key in self._keys]


class Channel(Strategy, ABC):
    """A transformation of updates on their way to the server.

    A subclass defines `send` and `message`. Each row of the result of `send` must be a function of
    only that row, its random numbers (`Senders`) and its memory, to the bit: no sum over rows, and
    no reduction whose order depends on the number of rows (`row_norms`).
    """

    remembers: bool = False
    """Whether it keeps a memory of each client between updates, in `Senders.memory`."""

    memory_decay: float = 1.0
    """The factor of the memory when an update is added to it that the server has dropped."""

    noise_multiplier: float | None = None
    """z, if it clips each update to a norm C and adds Gaussian noise of the deviation z * C."""

    @abstractmethod
    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return the updates that arrive at the server.

        Args:
            updates: The updates of n clients, ``[n, P]``; do not change them in place.
            senders: The clients, with their random numbers and their memory.
        """

    @abstractmethod
    def message(self, message: Message) -> Message:
        """Return the size of the message for one update, given that of the channel's input."""

    def contraction(self) -> Channel:
        """Return the form of this channel that error feedback needs.

        C is a contraction if ``E |C(u) - u|^2 <= (1 - a) |u|^2`` for some a > 0. Channels that are
        unbiased but have a larger variance return a scaled form.
        """
        return self

    def nbytes(self, size: int, itemsize: int) -> int:
        """Return the bytes sent for one update of `size` numbers with `itemsize` bytes each."""
        return self.message(Message(size, size, 8 * itemsize)).nbytes


class Chain(Channel):
    """Several channels in turn.

    ``C(u) = C_k(... C_2(C_1(u)))``

    Args:
        channels: C_1, C_2, ..., with at most one `ErrorFeedback`. With an empty list, updates
            arrive unchanged.

    Raises:
        TypeError: One of them is not a channel.
        ValueError: More than one keeps a memory.

    Example:
        >>> from fedlight.channel import Chain, Clip, QSGD, TopK
        >>> Chain([Clip(10.0), TopK(0.01), QSGD(4)]).nbytes(size=10_000, itemsize=4)
        229
    """

    def __init__(self, channels: Iterable[Channel]) -> None:
        self.channels = _only_channels("channels", channels)
        if sum(each.remembers for each in self.channels) > 1:
            raise ValueError(
                f"a channel can have one ErrorFeedback, got {self!r}; write "
                "ErrorFeedback([TopK(0.01), QSGD(8)]) for one memory around both"
            )
        self.remembers = any(each.remembers for each in self.channels)
        decays = (each.memory_decay for each in self.channels if each.remembers)
        self.memory_decay = next(decays, 1.0)
        # Each noisy channel protects by itself what came before it; the largest noise counts.
        noises = [each.noise_multiplier for each in self.channels if each.noise_multiplier]
        self.noise_multiplier = max(noises, default=None)

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return the updates after all channels."""
        for each in self.channels:
            updates = each.send(updates, senders)
        return updates

    def message(self, message: Message) -> Message:
        """Return the message after the last channel."""
        for each in self.channels:
            message = each.message(message)
        return message

    def contraction(self) -> Channel:
        """Return the chain of the contractions."""
        return Chain([each.contraction() for each in self.channels])

    def __repr__(self) -> str:
        return repr(self.channels)


def as_channel(name: str, value: object) -> Channel:
    """Return a channel unchanged, and several channels as a `Chain`.

    Raises:
        TypeError: `value` is neither a channel nor an iterable of channels.
    """
    if isinstance(value, Channel):
        return value
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | dict):
        return Chain(_only_channels(name, value))
    hint = "for example TopK(0.01) or [Clip(10.0), QSGD(8)]"
    if isinstance(value, type):
        hint = f"write {value.__name__}(…)"
    raise TypeError(f"{name} must be a channel or a list of channels, got {shown(value)}; {hint}")


def _only_channels(name: str, value: Iterable[Channel]) -> list[Channel]:
    channels = items(name, value)
    for each in channels:
        if not isinstance(each, Channel):
            raise TypeError(
                f"{name} must hold channels only, got {shown(each)}; for example "
                "[Clip(10.0), TopK(0.01)]"
            )
    return channels
