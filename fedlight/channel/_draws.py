"""Random numbers of a channel, and norms of rows: the same bits for one client and for many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedlight.randomness import Concern, derived_seed

if TYPE_CHECKING:
    from fedlight.types import Task

# The output function of SplitMix64 on a counter: Steele, Lea and Flood, "Fast splittable
# pseudorandom number generators", 2014, https://doi.org/10.1145/2660193.2660195. The constants as
# signed numbers, since torch has no unsigned arithmetic.
_MASK = (1 << 64) - 1
_GAMMA, _FIRST, _SECOND = (
    word - (1 << 64) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def keys_of(tasks: Sequence[Task], seed: int) -> list[int]:
    """A 63-bit key for each (seed, client, visit)."""
    return [derived_seed(seed, Concern.CHANNEL, task.client_id, task.visit) for task in tasks]


def words(keys: Sequence[int], count: int, device: torch.device) -> Tensor:
    """Random words of 64 bits, ``[n, count]``; a row is a function of only its key."""
    starts = [_signed(_mixed(key)) for key in keys]
    counter = torch.arange(1, count + 1, device=device) * _GAMMA
    if device.type != "cpu":
        return _mix_(torch.tensor(starts, device=device)[:, None] + counter)
    # A row at a time stays in the cache of a CPU.
    rows = torch.empty(len(keys), count, dtype=torch.int64)
    for row, start in zip(rows, starts, strict=True):
        _mix_(torch.add(counter, start, out=row))
    return rows


def uniform(keys: Sequence[int], like: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), with the shape ``[n, P]`` and the dtype of `like`.

    They are multiples of 2^-53 in double precision and of 2^-24 in other precisions.
    """
    count, device = like.shape[1], like.device
    if like.dtype == torch.float64:
        drawn = words(keys, count, device)
        return ((drawn >> 11) & ((1 << 53) - 1)).to(like.dtype).mul_(0.5**53)
    halves = words(keys, -(-count // 2), device).view(torch.int32)[:, :count]
    return ((halves >> 8) & ((1 << 24) - 1)).to(torch.float32).mul_(0.5**24)


def normal(keys: Sequence[int], like: Tensor) -> Tensor:
    """Standard normal numbers, with the shape ``[n, P]`` and the dtype of `like`.

    A row is a Philox stream of its key.
    """
    double = like.dtype == torch.float64
    rows = torch.empty(len(keys), like.shape[1], dtype=torch.float64 if double else torch.float32)
    for key, row in zip(keys, rows.numpy(), strict=True):
        drawn = np.random.Generator(np.random.Philox(key=key))
        drawn.standard_normal(dtype=row.dtype, out=row)
    return rows.to(like.device, like.dtype)


def row_norms(rows: Tensor) -> Tensor:
    """The Euclidean norms of rows, ``[n, 1]``.

    Each row is summed separately, since the order of a reduction over one dimension of a block may
    depend on the number of rows.
    """
    norms: Sequence[Tensor] = torch._foreach_norm(list(rows.unbind()), 2)
    return torch.stack(list(norms))[:, None]


def _mix_(words: Tensor) -> Tensor:
    """The output of SplitMix64 at the states `words`, in place."""
    # torch shifts the sign in: the masks keep it out
    words ^= (words >> 30) & (_MASK >> 30)
    words *= _FIRST
    words ^= (words >> 27) & (_MASK >> 27)
    words *= _SECOND
    words ^= (words >> 31) & (_MASK >> 31)
    return words


def _mixed(word: int) -> int:
    """The same for one number: consecutive keys get distant starts."""
    word = (word + _GAMMA) & _MASK
    word = ((word ^ (word >> 30)) * _FIRST) & _MASK
    word = ((word ^ (word >> 27)) * _SECOND) & _MASK
    return word ^ (word >> 31)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
