"""QSGD: numbers are randomly rounded to a few levels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedlight._support.checks import flag, integer
from fedlight.channel._draws import row_norms
from fedlight.channel.base import Channel, Message, Senders

if TYPE_CHECKING:
    from torch import Tensor


class QSGD(Channel):
    """Each number is randomly rounded, up or down, to a multiple of 1 / s of the norm.

    ``C(u)_j = |u| * sign(u_j) * l_j / s`` with the level ``l_j = floor(r) + (1 with probability
    r - floor(r))``, ``r = s |u_j| / |u|``, where |u| is the Euclidean norm over all P parameters
    and ``s = 2**(bits - 1) - 1``.

    It is unbiased, ``E C(u) = u``, with the variance ``E |C(u) - u|^2 <= w |u|^2``,
    ``w = min(P / s^2, sqrt(P) / s)``. Error feedback uses ``C / (1 + w)``, with P replaced by the
    number of nonzero values in the update.

    For each update, `bits` bits per number (sign and level) and the norm are sent. The paper's
    Elias code would need fewer bits for large s, but their number would depend on the values.

    Args:
        bits: Bits of each number, from 2 (levels -1, 0 and 1) to 16.
        scaled: Whether the result is divided by 1 + w.

    Raises:
        TypeError: `bits` is not an integer.
        ValueError: `bits` is not from 2 to 16.

    Source: Alistarh, Grubic, Li, Tomioka and Vojnovic, [QSGD: Communication-Efficient SGD via
    Gradient Quantization and Encoding](https://arxiv.org/abs/1610.02132), NeurIPS 2017, Section
    3.1. The factor for error feedback: Basu et al., [Qsparse-local-SGD](https://arxiv.org/abs/1906.02367).

    Example:
        >>> QSGD(8).nbytes(size=1000, itemsize=4)
        1004
    """

    _repr_positional = 1
    _repr_optional = ("scaled",)

    def __init__(self, bits: int, scaled: bool = False) -> None:
        self.bits = integer("bits", bits)
        if not 2 <= self.bits <= 16:
            raise ValueError(
                f"bits must be from 2 to 16, got {bits!r}: one for the sign, the others for the "
                "level; for example QSGD(8)"
            )
        self.scaled = flag("scaled", scaled)

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return the updates with each number rounded to a level."""
        levels = 2 ** (self.bits - 1) - 1
        # half precision has too few digits for the levels
        wide = updates.to(torch.promote_types(updates.dtype, torch.float32))
        norm = row_norms(wide)
        exact = wide.abs() / norm.where(norm > 0, 1) * levels
        level = exact.floor()
        level += senders.uniform(wide) < exact - level
        level.clamp_(max=levels)  # the computed norm may be smaller than the largest number
        sent: Tensor = wide.sign() * level * (norm / levels)
        if self.scaled:
            sent /= 1 + _variance(wide, levels)
        return sent.to(updates.dtype)

    def message(self, message: Message) -> Message:
        """Return the same numbers with fewer bits, and the norm."""
        extra = message.extra_bits + message.bits
        return message._replace(bits=min(self.bits, message.bits), extra_bits=extra)

    def contraction(self) -> QSGD:
        """Return the form that is divided by 1 + w."""
        return QSGD(self.bits, scaled=True)


def _variance(updates: Tensor, levels: int) -> Tensor:
    """The factor w of each row, ``[n, 1]``: numbers that are 0 stay 0 and do not count."""
    size = (updates != 0).sum(dim=1, keepdim=True).to(updates.dtype)
    return torch.minimum(size / levels**2, size.sqrt() / levels)
