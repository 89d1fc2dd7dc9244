"""The models of a stack as blocks of memory, of which clients and results are rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlight._support.memory import copied
from fedlight.types import LocalResult, LoggedValue, Measured

if TYPE_CHECKING:
    from fedlight._support.flat_layout import FlatLayout

_SHARED_BYTES = 16 * 2**20


def stacked(rows: Sequence[Tensor]) -> Tensor:
    """Stack rows to a block; if all rows are one tensor, it is expanded, not copied."""
    if all(row is rows[0] for row in rows):
        return rows[0].expand(len(rows), -1)
    return torch.stack(list(rows))


def filled(layout: FlatLayout, pulled: Tensor) -> list[Tensor]:
    """The parameters of a stack at its start, ``[n, *shape]`` each.

    On a CPU they are views of one block. The fused kernels of other devices, which change all
    parameters in one launch, take tensors without gaps only.
    """
    if pulled.device.type == "cpu":
        return layout.views(copied(pulled))
    return [view.clone(memory_format=torch.contiguous_format) for view in layout.views(pulled)]


def moved(layout: FlatLayout, params: list[Tensor], pulled: Tensor) -> Tensor:
    """How far the parameters of a stack have moved, ``[n, P]``; they are overwritten."""
    base = params[0]._base
    return (layout.flatten(params, leading=1) if base is None else base).sub_(pulled)


def pieces(layout: FlatLayout, flat: Sequence[Tensor]) -> list[Tensor]:
    """Split n flat vectors into one block ``[n, *shape]`` per tensor of the layout."""
    if not layout.names:
        return []
    return [view.contiguous() for view in layout.views(torch.stack(list(flat)))]


def joined(layout: FlatLayout, blocks: list[Tensor], n: int, device: torch.device) -> Tensor:
    """Join the blocks of the first n clients to vectors again, ``[n, Q]``."""
    if not blocks:
        return torch.empty(n, 0, dtype=layout.dtype, device=device)
    return layout.flatten([block[:n] for block in blocks], leading=1)


def rows_of(block: Tensor, apart: bool | None = None) -> list[Tensor]:
    """The rows of a block, as views of it or as copies.

    Args:
        block: The block.
        apart: Whether to copy; None for only if the block is large, as a view keeps all of it
            alive. Copies of small rows would cost more than the memory that they free.
    """
    apart = block.nbytes > _SHARED_BYTES if apart is None else apart
    return [row.clone() for row in block] if apart and len(block) > 1 else list(block.unbind())


def results_of(
    deltas: Tensor,
    norms: Sequence[float],
    buffers: Tensor,
    counters: Tensor,
    clients: Tensor | None,
    metrics: Sequence[Mapping[str, LoggedValue]],
) -> list[LocalResult]:
    """Make a result of each row."""
    rows = zip(
        rows_of(deltas),
        norms,
        rows_of(buffers) if buffers.numel() else repeat(buffers[0]),
        counters.unbind() if counters.numel() else repeat(counters[0]),
        metrics,
        repeat(None) if clients is None else [row.clone() for row in clients],
        strict=False,  # some repeat for ever
    )
    return [
        LocalResult(
            delta, own, counts, logged, client, measured=Measured(delta, delta._version, norm)
        )
        for delta, norm, own, counts, logged, client in rows
    ]
