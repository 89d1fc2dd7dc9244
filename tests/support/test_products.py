"""MKL's reproducibility is switched on by the import, and a process knows whether it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedlight._support.products import dependent_products

ROOT = Path(__file__).parents[2]


def printed(code: str, setting: str | None = None) -> list[str]:
    """The lines that a script prints in a process of its own."""
    env = {k: v for k, v in os.environ.items() if k != "MKL_CBWR"}
    env |= {"PYTHONPATH": str(ROOT)} | ({} if setting is None else {"MKL_CBWR": setting})
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return result.stdout.strip().splitlines()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_products_of_this_process_are_independent(dtype):
    threads = torch.get_num_threads()
    assert dependent_products(dtype) == ""
    assert torch.get_num_threads() == threads


def test_the_import_sets_the_variable_and_respects_a_setting():
    code = "import os, sys, fedlight; print(os.environ['MKL_CBWR'], 'torch' in sys.modules)"
    assert printed(code) == ["AUTO,STRICT False"]
    assert printed(code, "AVX2") == ["AVX2 False"]


# Torch is imported once; each fork then is a process that has made no product.
FORKS = """
import os, torch
if os.fork() == 0:
    torch.ones(9, 64, 64) @ torch.ones(9, 64, 64)
else:
    assert os.wait()[1] == 0
    os.environ["MKL_CBWR"] = "AVX2"
from fedlight._support.products import dependent_products
print(dependent_products(torch.float32), flush=True)
"""


def test_a_product_before_the_import_and_another_setting_are_noticed():
    if dependent_products.__wrapped__(torch.float32):
        pytest.skip("this build of torch has no MKL")
    early, other = printed(FORKS)
    assert "import fedlight first, or set MKL_CBWR=AUTO,STRICT" in early
    assert other.endswith("MKL_CBWR=AVX2; leave that variable unset")
