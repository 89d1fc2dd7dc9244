"""Numbers that are sent as places in a lattice, near a vector that the receiver has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlight._support.checks import positive, positive_int

# A number of a float32 model divided by the side, and 2^bits times the side, stay finite.
_FINEST, _COARSEST = 1e-30, 1e30


@dataclass(frozen=True)
class Lattice:
    """The quantizer of QuAFL: each number is sent in b bits, as its place in a lattice modulo 2^b.

    ``e = round(v / g) mod q`` is sent, with q = 2^b; a receiver that has a key k near v decodes
    ``q * g * round(k / (q * g) - e / q) + g * e``. Rounding is deterministic. The error is at most
    g / 2 as long as ``|v - k| < g * (q - 1) / 2``; a number that is further from its key is
    decoded as another number.

    Args:
        side: g, the distance of two points.
        bits: b.

    Raises:
        TypeError: An argument is not a number.
        ValueError: `side` is not between 1e-30 and 1e30, or `bits` is not between 1 and 32.

    Source: Davies et al., New Bounds for Distributed Mean Estimation and Variance Reduction,
    https://arxiv.org/abs/2002.09268; in this form in the code of Zakerinia et al., QuAFL,
    https://arxiv.org/abs/2206.10032.

    Example:
        >>> Lattice(side=0.5, bits=3).sent(torch.tensor([1.2, -0.6]), key=torch.tensor([1.0, 0.0]))
        tensor([ 1.0000, -0.5000])
    """

    side: float = 1e-4
    bits: int = 14

    def __post_init__(self) -> None:
        side, bits = positive("side", self.side), positive_int("bits", self.bits)
        if bits > 32:
            raise ValueError(f"bits must be at most 32, got {bits}")
        if not _FINEST <= side <= _COARSEST:
            raise ValueError(
                f"side must lie between {_FINEST:g} and {_COARSEST:g}, got {self.side!r}: places "
                "in a finer or coarser lattice are not exact in double precision"
            )
        # Both may have been numbers of NumPy.
        object.__setattr__(self, "side", side)
        object.__setattr__(self, "bits", bits)

    def nbytes(self, size: int) -> int:
        """Return the bytes of `size` numbers of b bits."""
        return -(-size * self.bits // 8)

    def sent(self, value: Tensor, key: Tensor) -> Tensor:
        """Return the vector that a receiver decodes; of the shape and dtype of `value`.

        Args:
            value: The vector that is sent.
            key: A vector near it, which the receiver has.
        """
        # In double precision, since places in the lattice are large numbers.
        points, g = float(2**self.bits), self.side
        code = torch.remainder(torch.round(value.double() / g), points)
        whole = torch.round(key.double() / (points * g) - code / points)
        return (points * g * whole + g * code).to(value.dtype)


def as_quantizer(value: object) -> Lattice | None:
    """Return `value` if it is a lattice or None.

    Raises:
        TypeError: It is something else.
    """
    if value is None or isinstance(value, Lattice):
        return value
    raise TypeError(
        f"quantizer must be a Lattice or None, got {value!r}; for example "
        "Lattice(side=1e-4, bits=14)"
    )
