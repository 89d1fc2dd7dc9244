"""Large tensors on the CPU."""

import pytest
import torch

from fedlight._memory import copied, new_tensor


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64]
)
@pytest.mark.parametrize("shape", [(3, 5), (3, 1_000_001), (4_200_000,), (0,)])
def test_a_new_tensor_is_like_one_of_torch(shape, dtype):
    like = torch.ones(2, dtype=dtype)
    made = new_tensor(shape, like)
    assert made.shape == shape
    assert made.dtype == dtype
    assert made.is_contiguous()
    assert made._base is None  # it is the base of its own views
    assert made.numel() == 0 or made.data_ptr() % 64 == 0
    assert made.fill_(3)[..., -1:].eq(3).all()


def test_a_copy_of_an_expanded_row_is_a_block():
    row = torch.arange(2_000_000, dtype=torch.float32)
    block = copied(row.expand(2, -1))
    block[0, 0] = 7
    assert block[1, 0] == 0
    assert torch.equal(block[1], row)
    assert block.view(-1)[:3]._base is block
