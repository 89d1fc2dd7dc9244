"""A share of the parameters: its number and its choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedlight._support.checks import number

if TYPE_CHECKING:
    from torch import Tensor


def share_of(value: object) -> float:
    """Return `value` as a float above 0 and at most 1.

    Raises:
        TypeError: It is not a number.
        ValueError: It is outside (0, 1].
    """
    share = number("share", value)
    if not 0 < share <= 1:
        raise ValueError(
            f"share must be above 0 and at most 1, got {value!r}; it is a share of the parameters, "
            "for example 0.01 for one in a hundred"
        )
    return share


def number_of(share: float, size: int) -> int:
    """k, the number of parameters in a share of all `size` parameters."""
    return max(1, round(share * size))


def largest(values: Tensor, k: int) -> Tensor:
    """A mask of the k largest numbers of each row; the first ones among equal numbers.

    ``topk`` itself may choose any of equal numbers, and not the same ones on every device.
    """
    threshold = values.topk(k, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
    above, equal = values > threshold, values == threshold
    left = k - above.sum(dim=1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=1) <= left))
