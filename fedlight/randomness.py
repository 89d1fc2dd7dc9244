"""One stream of random numbers per concern; no global generator is read or changed.

A stream is named by ``(seed, concern, a, b)``. It is a Philox counter stream: the seed is the key
and the name is the upper part of the counter, so any stream can be made at any time, in any order,
in any process, and two names never share a number.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b

import numpy as np

_MASK = (1 << 64) - 1


class Concern(IntEnum):
    """What a stream is for."""

    PARTICIPANTS = 1
    AGES = 2
    STEPS = 3
    DURATIONS = 4
    BATCHES = 5
    TRAINING = 6
    NEXT_CLIENT = 7
    AVAILABILITY = 8
    DROPOUT = 9
    PARTIAL_WORK = 10
    COMMUNICATION = 11
    STARTS = 12


def stream(seed: int, concern: Concern, a: int = 0, b: int = 0) -> np.random.Generator:
    """The stream named ``(seed, concern, a, b)``, at its beginning.

    Example:
        >>> one = stream(7, Concern.BATCHES, 3, 0).integers(100, size=3)
        >>> two = stream(7, Concern.BATCHES, 3, 0).integers(100, size=3)
        >>> bool((one == two).all())
        True
    """
    counter = np.array([0, int(concern), a & _MASK, b & _MASK], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=seed & ((1 << 128) - 1)))


class Streams:
    """The streams ``(seed, concern, a, b)`` of one concern, at a tenth of the cost of `stream`.

    One generator is moved from stream to stream, so what `at` gave holds until it is called again.

    Example:
        >>> streams = Streams(7, Concern.DURATIONS)
        >>> streams.at(3, 1).random() == stream(7, Concern.DURATIONS, 3, 1).random()
        True
    """

    def __init__(self, seed: int, concern: Concern) -> None:
        self._philox = np.random.Philox(
            counter=np.array([0, int(concern), 0, 0], dtype=np.uint64), key=seed & ((1 << 128) - 1)
        )
        self.generator = np.random.Generator(self._philox)
        self._state = self._philox.state
        self._counter = self._state["state"]["counter"]

    def at(self, a: int, b: int = 0) -> np.random.Generator:
        """The stream named ``(seed, concern, a, b)``, at its beginning."""
        self._counter[2] = a & _MASK
        self._counter[3] = b & _MASK
        self._philox.state = self._state
        return self.generator


class Uniforms:
    """A sequence of numbers in [0, 1) for one concern; its state is how many were taken.

    Example:
        >>> one, two = Uniforms(7, Concern.NEXT_CLIENT), Uniforms(7, Concern.NEXT_CLIENT)
        >>> first = one.next()
        >>> two.taken = one.taken
        >>> one.next() == two.next() != first
        True
    """

    _BLOCK = 1024

    def __init__(self, seed: int, concern: Concern) -> None:
        self.taken = 0
        self._streams = Streams(seed, concern)
        self._block = -1
        self._numbers: list[float] = []

    def next(self) -> float:
        """The next number."""
        block, index = divmod(self.taken, self._BLOCK)
        if block != self._block:
            self._block = block
            self._numbers = self._streams.at(block).random(self._BLOCK).tolist()
        self.taken += 1
        return self._numbers[index]


def derived_seed(seed: int, concern: Concern, a: int = 0, b: int = 0) -> int:
    """A 63-bit seed for another library's generator, derived from a stream's name."""
    name = f"{seed} {int(concern)} {a} {b}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest()) >> 1
