"""Numbers that are functions of their names: the output function of SplitMix64 on a counter.

Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014,
https://doi.org/10.1145/2660193.2660195. On arrays, so that one call names all clients of a stack: a
generator for each client costs more than a local step.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fedlight.randomness import Concern

GAMMA = 0x9E3779B97F4A7C15
"""The step of the counter."""
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
MASK = (1 << 64) - 1


def names(
    seed: int | Sequence[int],
    concern: Concern,
    clients: NDArray[np.int64],
    visits: NDArray[np.int64],
) -> NDArray[np.uint64]:
    """A 64-bit name for each (seed, concern, client, visit), shape ``[n]``; one seed, or n."""
    if isinstance(seed, int):
        base = _base(seed, int(concern))
    else:
        base = np.concatenate([_base(each, int(concern)) for each in seed])
    return mixed(mixed(base ^ clients.view(np.uint64)) ^ visits.view(np.uint64))


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output of SplitMix64 at the states `words`."""
    words = words + np.uint64(GAMMA)  # a new array, so all further operations are in place
    words ^= words >> np.uint64(30)
    words *= np.uint64(FIRST)
    words ^= words >> np.uint64(27)
    words *= np.uint64(SECOND)
    words ^= words >> np.uint64(31)
    return words


# Cached, since each stack and each step of a sequential run asks for the same few.
@lru_cache(maxsize=1024)
def _base(seed: int, concern: int) -> NDArray[np.uint64]:
    # Word by word, as a seed may have more than 64 bits.
    base = np.zeros(1, dtype=np.uint64)
    for word in (seed & MASK, (seed >> 64) & MASK, concern):
        base = mixed(base ^ np.uint64(word))
    return base
