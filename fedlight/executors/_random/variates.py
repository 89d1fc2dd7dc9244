"""Random numbers of the usual distributions, made of the bits of a stream (`streams`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedlight.executors._random.streams import Streams

DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""The binary digits of a significand."""

_LARGEST = (1 << 63) - 1


class Uncovered(Exception):
    """A call that the streams do not cover, and in what way."""


def uniform(draw: Streams, shape: Sequence[int], dtype: torch.dtype, device: Any) -> Tensor:
    """Uniform numbers in [0, 1): the multiples of 2^-d, for a significand of d binary digits."""
    if dtype not in DIGITS:
        raise Uncovered(f"of {dtype}")
    digits = DIGITS[dtype]
    words, kind = (64, torch.int64) if digits > 32 else (32, torch.int32)
    drawn = (draw.bits(shape, device, kind) >> (words - digits)) & ((1 << digits) - 1)
    return drawn.to(dtype) * 0.5**digits


def below(draw: Streams, shape: Sequence[int], p: float, device: Any) -> Tensor:
    """Whole numbers, 1 with probability p (rounded to a multiple of 2^-32) and 0 otherwise."""
    if math.isnan(p) or not 0 <= p <= 1:
        raise Uncovered(f"with the probability {p}")
    if p in (0, 1):
        return torch.full(torch.Size(shape), int(p), device=device)
    # Sixteen bits are half the work, and exact for the probabilities that allow them.
    digits, kind = (16, torch.int16) if (p * 2**16).is_integer() else (32, torch.int32)
    limit = min(round(p * 2**digits), 2**digits - 1) - 2 ** (digits - 1)
    limit = max(limit, 1 - 2 ** (digits - 1))
    # This is `bits < limit`. The comparison itself is slow: a CPU converts between numbers and
    # booleans one at a time.
    drawn: Tensor = limit - draw.bits(shape, device, kind).clamp(limit - 1, limit)
    return drawn


def whole(draw: Streams, low: int, high: int, shape: Sequence[int], device: Any) -> Tensor:
    """Whole numbers from `low` to `high` - 1. The remainder of 63 bits leaves no visible bias."""
    if low >= high:
        raise Uncovered(f"from {low} to {high}")
    drawn = draw.bits(shape, device, torch.int64) & _LARGEST
    return drawn % min(high - low, _LARGEST) + low


def quantiles(
    draw: Streams, name: str, shape: Sequence[int], dtype: torch.dtype, device: Any
) -> Tensor:
    """Numbers of a continuous distribution: "normal", "exponential" or "cauchy".

    Inversion of a 32-bit uniform number u, piecewise linear. The pieces are narrow where the
    quantile function is steep: each octave [2^-k, 2^(1-k)) of u and of 1 - u has 256, so that the
    first bits of u as a floating number are the number of its piece. (Cheung, Lee, Luk and
    Villasenor, "Hardware generation of arbitrary random number distributions from uniform
    distributions via the inversion method", 2007, https://doi.org/10.1109/TVLSI.2007.900748.) The
    error is some 10^-6. A product and a sum are exact to the bit everywhere; a logarithm is not.
    """
    if dtype not in DIGITS:
        raise Uncovered(f"of {dtype}")
    offsets, slopes = _table(name, torch.device(device))
    drawn = draw.bits(shape, device, torch.int32)
    distance = (drawn & 0x7FFFFFFF).to(torch.float32) + 0.5  # to 0 or to 1, as a multiple of 2^-32
    piece = (distance.view(torch.int32) >> 15) - (_LOWEST << 8)
    piece = piece + (drawn < 0).to(torch.int32) * _PIECES
    return (distance * slopes[piece] + offsets[piece]).to(dtype)


_LOWEST = 126  # the exponent of 0.5 as IEEE 754 stores it
_PIECES = 32 * 256 + 1

_QUANTILES: dict[str, Callable[[float, bool], float]] = {
    # of u, or with True of 1 - u, for 0 < u <= 1/2
    "normal": lambda u, upper: NormalDist().inv_cdf(u) * (-1 if upper else 1),
    "exponential": lambda u, upper: -math.log(u) if upper else -math.log1p(-u),
    "cauchy": lambda u, upper: (1 if upper else -1) / math.tan(math.pi * u),
}


@lru_cache(maxsize=16)
def _table(name: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """The offset and the slope of each piece, for u and then for 1 - u."""
    ends = [0.5 * 2.0 ** (k // 256) * (1 + k % 256 / 256) for k in range(_PIECES + 1)]
    quantile = _QUANTILES[name]
    parts = []
    for upper in (False, True):
        # The last piece is one number, 1/2.
        values = np.array([quantile(min(end * 0.5**32, 0.5), upper) for end in ends])
        slope = np.diff(values) / np.diff(ends)
        parts.append((values[:-1] - slope * np.array(ends[:-1]), slope))
    numbers = np.concatenate(parts, axis=1).astype(np.float32)
    offsets, slopes = torch.from_numpy(numbers).to(device)
    return offsets, slopes
