"""Large tensors on the CPU."""

import gc

import numpy as np
import pytest
import torch

from fedlight._support.memory import BLOCKS, Blocks, copied, new_tensor
from tests.boring import Boring, classes, fitted

LARGE = 2_000_000  # numbers of four bytes
FLOAT = np.dtype(np.float32)


@pytest.fixture
def _no_blocks():
    gc.collect()
    BLOCKS.end_run()
    yield
    BLOCKS.end_run()


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


@pytest.mark.usefixtures("_no_blocks")
@pytest.mark.parametrize(
    "keeps",
    [
        lambda tensor: tensor[1],
        lambda tensor: tensor.view(-1).detach()[5:],
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.numpy()[1][3:],
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: torch.nn.Parameter(tensor),
        lambda tensor: (tensor.requires_grad_() * tensor).sum(),  # saved for its backward pass
    ],
    ids=["row", "view", "array", "view of an array", "storage", "parameter", "graph"],
)
def test_a_block_is_used_again_once_nothing_of_it_is_left(keeps):
    like = torch.empty(1)
    first = new_tensor((2, LARGE), like)
    place = first.data_ptr()
    kept = keeps(first)
    del first
    second = new_tensor((2, LARGE), like)
    assert second.data_ptr() != place
    del kept
    assert BLOCKS.free == 2 * LARGE * 4
    assert new_tensor((2 * LARGE,), like).data_ptr() == place  # whatever its shape


@pytest.mark.usefixtures("_no_blocks")
def test_a_block_in_use_at_the_end_of_a_run_goes_back_to_the_system():
    tensor, other = (new_tensor((LARGE,), torch.empty(1)) for _ in range(2))
    del other
    assert BLOCKS.free == LARGE * 4
    BLOCKS.end_run()
    assert BLOCKS.free == 0
    del tensor
    assert BLOCKS.free == 0


def test_as_much_is_given_back_as_is_taken_anew():
    blocks = Blocks(most=100)
    arrays = [blocks.array((size,), np.dtype(np.uint8)) for size in (10, 20, 30)]
    arrays.clear()
    assert blocks.free == 60
    kept = blocks.array((25,), np.dtype(np.uint8))  # in place of those of 10 and 20
    assert blocks.free == 30
    del kept
    assert blocks.free == 55


def test_only_so_many_bytes_are_kept():
    blocks = Blocks(most=50)
    arrays = [blocks.array((5,), FLOAT) for _ in range(4)]
    arrays.clear()
    assert blocks.free == 40


@pytest.mark.usefixtures("_no_blocks")
def test_a_fit_leaves_no_block_behind():
    class Asks(Boring):
        def training_step(self, batch, batch_idx):
            new_tensor((LARGE,), torch.empty(1))
            seen.append(BLOCKS.free)
            return super().training_step(batch, batch_idx)

    seen = []
    fitted(Asks(), classes(), executor="sequential")
    assert seen[-1] == LARGE * 4
    assert BLOCKS.free == 0
