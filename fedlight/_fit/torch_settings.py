"""PyTorch's settings within `fit`, `validate`, `test` and `predict`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedlight._fit.lightning_arguments import LightningSettings
from fedlight._support.garbage_collection import rarer_full_collections

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def torch_settings(settings: LightningSettings) -> Iterator[None]:
    """Apply `deterministic` and `benchmark`, and restore PyTorch's settings on exit.

    Python's full garbage collections are rarer within the context.
    """
    mode = torch.get_deterministic_debug_mode()
    benchmark, workspace = torch.backends.cudnn.benchmark, os.environ.get(_CUBLAS)
    deterministic = settings.deterministic
    try:
        if deterministic is not None:
            torch.use_deterministic_algorithms(
                bool(deterministic), warn_only=deterministic == "warn"
            )
        if deterministic:
            # Without it cuBLAS refuses to be deterministic; it reads it with its first call.
            os.environ.setdefault(_CUBLAS, ":4096:8")
            torch.backends.cudnn.benchmark = False  # it may choose another algorithm each time
        if settings.benchmark is not None:
            torch.backends.cudnn.benchmark = settings.benchmark
        with rarer_full_collections():
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            os.environ.pop(_CUBLAS, None)
