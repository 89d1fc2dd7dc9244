"""Products of matrices that have the same bits in any company, by a switch of MKL."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_SWITCH, _STRICT = "MKL_CBWR", "AUTO,STRICT"

# Batch, inputs and outputs. Without the switch most of these depend on the place in the stack.
_SHAPES = ((30, 20, 2), (7, 5, 3), (33, 64, 10), (64, 784, 10), (4, 37, 19))
_MATRICES = 9
_PARTS = (slice(0, 2), slice(1, 9), slice(3, 6), slice(7, 9))


def make_reproducible() -> None:
    """Ask MKL for its strict conditional numerical reproducibility.

    Without it, the sums of a matrix in a batched product are taken in an order that depends on
    where the matrix lies in memory. MKL reads the variable at its first product, so it may be set
    after torch is imported. Processes that are started later inherit it. A setting of the user's
    own stays.
    """
    os.environ.setdefault(_SWITCH, _STRICT)


@cache
def dependent_products(dtype: torch.dtype) -> str:
    """Why batched products of this process depend on company, in words; "" if they do not.

    A few small products on one thread are computed in stacks of several sizes, once per process
    and dtype (2 ms).
    """
    import torch

    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return "products of this build of torch, which has no MKL"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    setting = os.environ.get(_SWITCH, "")
    try:
        # Other settings may pass: they ask for rows that are aligned, which small tests may have.
        if "STRICT" in setting.upper() and all(map(torch.equal, *_halves(dtype))):
            return ""
    finally:
        torch.set_num_threads(threads)
    if setting != _STRICT:
        return f"products under {_SWITCH}={setting}; leave that variable unset"
    return (
        f"products, since torch has multiplied matrices before fedlight was imported; import "
        f"fedlight first, or set {_SWITCH}={_STRICT} before the script starts"
    )


def _halves(dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Rows of products of whole stacks, and the products of the same rows as other stacks."""
    import torch

    generator = torch.Generator().manual_seed(0)
    rows, apart = [], []
    with torch.no_grad():
        for batch, inputs, outputs in _SHAPES:
            x = torch.randn(_MATRICES, batch, inputs, generator=generator, dtype=torch.float64)
            w = torch.randn(_MATRICES, outputs, inputs, generator=generator, dtype=torch.float64)
            x, w = x.to(dtype), w.to(dtype)
            whole = _products(x, w)
            for part in _PARTS:
                apart += _products(x[part].clone(), w[part].clone())
                rows += [each[part] for each in whole]
    return rows, apart


def _products(x: Tensor, w: Tensor) -> list[Tensor]:
    """Those of a linear layer: forward and backward."""
    y = x @ w.mT
    return [y, w @ x.mT, y.mT @ x, y @ w]
