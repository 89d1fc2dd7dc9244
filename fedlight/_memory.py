"""Large tensors on the CPU, and small ones on their way to another device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_LARGE = 4 * 2**20
_ALIGNMENT = 64  # as torch aligns its own tensors


def new_tensor(shape: torch.Size | tuple[int, ...], like: Tensor) -> Tensor:
    """Return a contiguous tensor without values, of the type and on the device of another one.

    The C library gives the memory of a large tensor back at once and takes it anew page by page,
    which costs more than the arithmetic on it: 10,000 pages of 4 KiB for ten million numbers. NumPy
    asks the system for large pages, of which twenty are enough.
    """
    size = torch.Size(shape).numel() * like.element_size()
    if like.device.type != "cpu" or size < _LARGE or like.dtype == torch.bfloat16:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    block = np.empty(size + _ALIGNMENT, np.uint8)
    start = -block.ctypes.data % _ALIGNMENT
    kind = torch.empty(0, dtype=like.dtype).numpy().dtype
    # All views are NumPy's, so that the tensor is the base of torch's views of it.
    return torch.from_numpy(block[start : start + size].view(kind).reshape(shape))


def sent(
    values: float | Sequence[float], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Return a number or several as a tensor on a device.

    Unlike ``torch.tensor(values, device=device)``, it does not wait for what the device is doing.
    """
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


def copied(tensor: Tensor) -> Tensor:
    """Return a contiguous copy."""
    return new_tensor(tensor.shape, tensor).copy_(tensor)
