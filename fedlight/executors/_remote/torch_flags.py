"""Settings of PyTorch that decide the bits of results, sent to another process."""

from __future__ import annotations

import os
from functools import reduce
from typing import Any, NamedTuple

import torch

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"

# The older names first: where a script uses those, the newer ones follow from them.
_OF_BACKENDS = (
    *("cuda.matmul.allow_tf32", "cudnn.allow_tf32", "cudnn.benchmark"),
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    *("fp32_precision", "cuda.matmul.fp32_precision", "cudnn.fp32_precision"),
    *("cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision", "mkldnn.fp32_precision"),
    *("mkldnn.matmul.fp32_precision", "mkldnn.conv.fp32_precision", "mkldnn.rnn.fp32_precision"),
)


class TorchFlags(NamedTuple):
    """PyTorch's settings of a process: determinism, types of numbers and precision of products.

    Attributes:
        dtype: The type of floating-point tensors for which none is named.
        debug_mode: Whether algorithms that are not deterministic are refused.
        workspace: cuBLAS's workspace, or None.
        matmul: The precision of matrix products; None if a script has set that by a newer name.
        of_backends: Settings in `torch.backends` by name; without those that this version of
            PyTorch lacks, or does not tell.
    """

    dtype: torch.dtype
    debug_mode: int
    workspace: str | None
    matmul: str | None
    of_backends: dict[str, Any]

    @classmethod
    def here(cls) -> TorchFlags:
        """Those of this process."""
        found = {}
        for name in _OF_BACKENDS:
            try:
                owner, attribute = _owner(name)
                found[name] = getattr(owner, attribute)
            except (AttributeError, RuntimeError):  # no such name; or a newer one is in use
                continue
        try:
            matmul = torch.get_float32_matmul_precision()
        except RuntimeError:
            matmul = None
        mode = torch.get_deterministic_debug_mode()
        return cls(torch.get_default_dtype(), mode, os.environ.get(_CUBLAS), matmul, found)

    def apply(self) -> None:
        """Set those of this process."""
        now = TorchFlags.here()
        if now == self:
            return
        torch.set_default_dtype(self.dtype)
        torch.set_deterministic_debug_mode(self.debug_mode)
        if self.workspace is not None:
            os.environ[_CUBLAS] = self.workspace
        if self.matmul is not None and self.matmul != now.matmul:
            torch.set_float32_matmul_precision(self.matmul)
        for name, value in self.of_backends.items():
            owner, attribute = _owner(name)
            try:
                differs = getattr(owner, attribute) != value
            except RuntimeError:
                differs = True
            if differs:
                setattr(owner, attribute, value)


def _owner(name: str) -> tuple[Any, str]:
    """The object in `torch.backends` that has a setting, and the name that it has there."""
    *path, attribute = name.split(".")
    return reduce(getattr, path, torch.backends), attribute
