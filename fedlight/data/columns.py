"""A column of examples as a compact tensor, and how batches are made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

LEAF_ALPHABET = (
    "\n !\"&'(),-."
    "0123456789:;>?"
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ[]"
    "abcdefghijklmnopqrstuvwxyz}"
)  # fmt: skip
"""The 80 characters of LEAF's Shakespeare task; a character's position is its token.

Source: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018,
https://arxiv.org/abs/1812.01097.
"""

_CHUNK = 10_000  # rows that are converted at a time


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a table: a stored value per row, and how a batch of values is converted.

    A batch is `values[rows]` as `dtype`. If there is a scale, it is `batch * scale + shift`.

    Args:
        values: The stored values, `[rows, ...]`, in the smallest type that can hold them.
        dtype: Type of the batches.
        scale: Factor, broadcast against one example; None for no conversion.
        shift: Addend of the same shape as `scale`.

    Example:
        >>> pixels = Column(torch.tensor([[0], [51]], dtype=torch.uint8), torch.float32)
        >>> pixels.normalized(mean=[0.1], std=[0.4], unit=255).take(torch.tensor([1, 0]))
        tensor([[ 0.2500],
                [-0.2500]])
    """

    values: Tensor
    dtype: torch.dtype
    scale: Tensor | None = None
    shift: Tensor | None = None

    def normalized(self, mean: Sequence[float], std: Sequence[float], unit: float = 1) -> Column:
        """The column whose batches are `(values / unit - mean) / std`, per channel.

        Args:
            mean: One number per channel (dimension 1 of a batch), or one for all channels.
            std: As many numbers as `mean`.
            unit: The stored value that represents 1.
        """
        shape = [len(mean)] + [1] * (self.values.dim() - 2) if len(mean) > 1 else []
        mean_, std_ = (torch.tensor(s, dtype=torch.float64).reshape(shape) for s in (mean, std))
        dtype = self.dtype if self.dtype.is_floating_point else torch.get_default_dtype()
        return Column(self.values, dtype, scale=1 / (unit * std_), shift=-mean_ / std_)

    def to(self, device: torch.device | str, dtype: torch.dtype | None) -> Column:
        """The column on a device, its floating-point batches of `dtype` (None keeps their type)."""
        out = dtype if dtype is not None and self.dtype.is_floating_point else self.dtype
        return Column(
            self.values.to(device, out if self.values.is_floating_point() else None),
            out,
            None if self.scale is None else self.scale.to(device, out),
            None if self.shift is None else self.shift.to(device, out),
        )

    def take(self, rows: Tensor) -> Tensor:
        """The batch of the rows given: `[b, ...]` for `rows` of shape `[b]`."""
        batch = self.values.index_select(0, rows)
        if batch.dtype != self.dtype:
            batch = batch.to(self.dtype)
        if self.scale is None or self.shift is None:
            return batch
        if self._factor is not None:
            # One pass, in place: `batch` is a new tensor. torch.addcmul takes three times as long.
            return torch.add(self.shift, batch, alpha=self._factor, out=batch)
        return batch.mul_(self.scale).add_(self.shift)

    def converted(self) -> Column:
        """The column that stores what `take` returns, to the bit: more memory and less time."""
        if self.values.dtype == self.dtype and self.scale is None:
            return self
        values = torch.empty(self.values.shape, dtype=self.dtype, device=self.values.device)
        for start in range(0, len(values), _CHUNK):
            rows = torch.arange(start, min(start + _CHUNK, len(values)), device=values.device)
            values[start : start + _CHUNK] = self.take(rows)
        return Column(values, self.dtype)

    @cached_property
    def _factor(self) -> float | None:
        """The scale if it is a single number on the CPU, else None."""
        scale = self.scale
        one = scale is not None and scale.dim() == 0 and scale.device.type == "cpu"
        return scale.item() if scale is not None and one else None
