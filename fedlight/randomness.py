"""Named streams of random numbers; no global generator is read or changed.

`generator` and `torch_generator` are for authors of arrival processes, aggregators, local
optimizers and callbacks, who name their streams by strings. The rest is used by fedlight itself,
whose streams are numbered: `Concern`.

A stream is a function of its name and the run's seed. It is a Philox counter stream: the seed is
the key and the name is the upper part of the counter, so any stream can be made at any time, in any
order and in any process. The built-in names ``(concern, a, b)`` are counters themselves, so two of
them never share a number. An author's name is hashed into the counter, with the highest bit of its
first word set; no `Concern` has that bit, so authors' streams and built-in ones never meet.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b
from operator import index
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

_MASK = (1 << 64) - 1
_KEY_MASK = (1 << 128) - 1
_AUTHORS = np.uint64(1 << 63)


def generator(seed: int, name: str, *key: int) -> np.random.Generator:
    """Make the random generator that is named ``(seed, name, *key)``, at its beginning.

    It is a function of its arguments: the same name gives the same numbers in any process, in any
    order of calls and after a resume, so there is no state to store. Draw what belongs to one
    event from one generator, and put the event into the key; a second call with the same key
    starts from the first number again.

    Args:
        seed: The run's seed: ``federation.seed`` in `setup`, ``trainer.seed`` in a callback.
        name: The purpose of the numbers, for example ``"drift"``. Streams of different names share
            no numbers, neither with each other nor with those that fedlight draws itself.
        key: Whole numbers that tell the draws of one name apart, for example the client and its
            ``task.visit``, or the server's version.

    Raises:
        TypeError: `name` is not a string, or a part of `key` is not a whole number.

    Example:
        >>> generator(7, "drift", 3, 0).integers(100, size=3)
        array([80, 81, 45])
    """
    words = np.frombuffer(_digest(name, key, size=24), dtype="<u8")
    return np.random.Generator(_philox(_whole(seed), words[0] | _AUTHORS, words[1], words[2]))


def torch_generator(seed: int, name: str, *key: int) -> torch.Generator:
    """Make the generator that is named ``(seed, name, *key)`` for torch's functions, on the CPU.

    Arguments and errors are those of `generator`, which is the better choice for many streams:
    torch's CPU generator keeps 32 bits of its seed, so two of 10,000 streams coincide with a
    probability of about 1 in 100. Draw on the CPU and move the numbers to the device, since a
    generator on a GPU gives other numbers.

    Example:
        >>> import torch
        >>> one, two = torch_generator(7, "noise", 3), torch_generator(7, "noise", 3)
        >>> torch.equal(torch.randn(4, generator=one), torch.randn(4, generator=two))
        True
    """
    import torch  # arrival processes work without it

    words = _digest(name, (_whole(seed), *key), size=8)
    # NumPy's and torch's streams of one name differ anyway: the algorithms do.
    return torch.Generator().manual_seed(int.from_bytes(words, "little") >> 1)


def _digest(name: str, key: tuple[int, ...], size: int) -> bytes:
    """Hash a name and a key, so that different pairs have different hashes."""
    if not isinstance(name, str):
        raise TypeError(
            f"name must be a string that says what the numbers are for, got {name!r}; "
            'for example generator(seed, "drift", client_id)'
        )
    # The numbers come first because they hold no line break: no name can look like name and key.
    text = " ".join(str(_whole(part)) for part in key) + "\n" + name
    return blake2b(text.encode(), digest_size=size).digest()


def _philox(seed: int, *name: int) -> np.random.Philox:
    """The bit generator at the beginning of a stream, whose name is up to three words."""
    counter = np.zeros(4, dtype=np.uint64)
    counter[1 : 1 + len(name)] = name
    return np.random.Philox(counter=counter, key=seed & _KEY_MASK)


def _whole(value: int) -> int:
    try:
        return index(value)
    except TypeError:
        raise TypeError(
            f"seed and key must be whole numbers such as client_id and task.visit, got {value!r}"
        ) from None


class Concern(IntEnum):
    """The purpose of a built-in stream."""

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
    TIERS = 13
    FAILURES = 14
    SELECTION = 16
    CHANNEL = 20
    PRIVACY = 21


def stream(seed: int, concern: Concern, a: int = 0, b: int = 0) -> np.random.Generator:
    """Make the stream named ``(seed, concern, a, b)``, at its beginning.

    Example:
        >>> one = stream(7, Concern.BATCHES, 3, 0).integers(100, size=3)
        >>> two = stream(7, Concern.BATCHES, 3, 0).integers(100, size=3)
        >>> bool((one == two).all())
        True
    """
    return np.random.Generator(_philox(seed, int(concern), a & _MASK, b & _MASK))


class Streams:
    """The streams ``(seed, concern, a, b)`` of one concern, at a tenth of the cost of `stream`.

    One generator is moved from stream to stream, so the generator that `at` returns is valid until
    the next call of `at`.

    Example:
        >>> streams = Streams(7, Concern.DURATIONS)
        >>> streams.at(3, 1).random() == stream(7, Concern.DURATIONS, 3, 1).random()
        True
    """

    def __init__(self, seed: int, concern: Concern) -> None:
        self._philox = _philox(seed, int(concern))
        self.generator = np.random.Generator(self._philox)
        self._state = self._philox.state
        self._counter = self._state["state"]["counter"]

    def at(self, a: int, b: int = 0) -> np.random.Generator:
        """Move to the stream named ``(seed, concern, a, b)``, at its beginning."""
        self._counter[2] = a & _MASK
        self._counter[3] = b & _MASK
        self._philox.state = self._state
        return self.generator


class Uniforms:
    """A sequence of numbers in [0, 1) for one concern; its state is the count of numbers taken.

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
        """Return the next number."""
        block, index = divmod(self.taken, self._BLOCK)
        if block != self._block:
            self._block = block
            self._numbers = self._streams.at(block).random(self._BLOCK).tolist()
        self.taken += 1
        return self._numbers[index]


def derived_seed(seed: int, concern: Concern, a: int = 0, b: int = 0) -> int:
    """Derive a 63-bit seed for another library's generator from a stream's name."""
    name = f"{seed} {int(concern)} {a} {b}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest()) >> 1
