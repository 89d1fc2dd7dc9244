"""What is wrong with the labels if a loss or an embedding finds an index out of range."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOST_ROWS = 10_000
# torch's words: of `gather` (stacked clients), of `cross_entropy`, of an embedding
_OUT_OF_RANGE = re.compile(r"index (-?\d+) is out of bounds|Target (-?\d+) is out of bounds")
_SIZE = re.compile(r"with size (\d+)")


def out_of_range(error: BaseException, examples: Any, rows: NDArray[np.int64]) -> str:
    """A hint about integers in a client's data, or "" if the error is of another kind.

    Args:
        error: What the local step raised.
        examples: The examples of all clients.
        rows: The client's rows.
    """
    message = str(error)
    found = _OUT_OF_RANGE.search(message)
    if found is None and "index out of range" not in message:
        return ""
    try:
        batch = examples.gather(torch.from_numpy(rows[:_MOST_ROWS]))
    except Exception:  # a hint must not hide the error that it explains
        return ""
    ranges = [
        (_where(path), int(part.min()), int(part.max()), part.dim() == 1)
        for path, part in tree_flatten_with_path(batch)[0]
        if isinstance(part, Tensor) and part.numel() and _is_integer(part)
    ]
    if not ranges:
        return ""
    words = ", ".join(f"{where} from {least} to {most}" for where, least, most, _ in ranges)
    hint = f". The client's integers are {words}"
    label = [each for each in ranges if each[3]][-1:]
    if found is not None and label:
        where, least, most, _ = label[0]
        index = int(found[1] or found[2])
        size = _SIZE.search(message)
        classes = int(size[1]) if size else most if index == most and least == 1 else None
        if index in (least, most) and classes is not None:
            hint += (
                f"; {classes} classes have the labels 0 … {classes - 1}, so {where} holds labels "
                "outside of them"
            )
            if least == 1 and most == classes:
                hint += ": subtract 1 from each"
        elif index in (least, most):
            hint += f"; labels must be 0 … C - 1 for C classes, but {where} holds {index}"
    return hint


def _is_integer(part: Tensor) -> bool:
    return part.dtype != torch.bool and not part.is_floating_point() and not part.is_complex()


def _where(path: Any) -> str:
    """The place in the batch, as one would index it."""
    return "batch" + "".join(str(key) for key in path)
