"""One stream of random numbers per concern; no global generator is read or changed.

A stream is named by ``(seed, concern, a, b)``. It is a Philox counter stream: the seed is the key
and the name is the upper part of the counter, so any stream can be made at any time, in any order,
in any process, and two names never share a number.
"""

from __future__ import annotations

from enum import IntEnum

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


def derived_seed(seed: int, concern: Concern, a: int = 0, b: int = 0) -> int:
    """A 63-bit seed for another library's generator, derived from a stream's name."""
    return int(stream(seed, concern, a, b).integers(1 << 63))
