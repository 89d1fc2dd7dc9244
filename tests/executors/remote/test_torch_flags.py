"""PyTorch's settings in another process."""

import pickle

import pytest
import torch
from torch.backends import cudnn

from fedlight.executors._remote.torch_flags import TorchFlags


def newer() -> None:
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this version of PyTorch has no such setting")
    torch.backends.cuda.matmul.fp32_precision = "tf32"


@pytest.fixture
def before(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    flags = TorchFlags.here()
    yield flags
    flags.apply()
    assert TorchFlags.here() == flags


CHANGES = {
    "none": lambda: None,
    "deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "matmul": lambda: torch.set_float32_matmul_precision("medium"),
    "tf32": lambda: setattr(cudnn, "allow_tf32", False),
    "benchmark": lambda: setattr(cudnn, "benchmark", True),
    "newer": newer,
}


@pytest.mark.parametrize("change", CHANGES)
def test_they_are_sent(before, change) -> None:
    CHANGES[change]()
    changed = TorchFlags.here()
    sent = pickle.dumps(changed)
    before.apply()
    pickle.loads(sent).apply()
    assert TorchFlags.here() == changed
