"""The threads of operators, and of products alone."""

import pytest
import torch

from fedlight._support.threads import one_thread, products_on, threads_for_copies


@pytest.fixture
def three():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_one_thread_within_and_all_of_them_for_copies(three):
    with one_thread() as outside:
        assert (outside, torch.get_num_threads()) == (3, 1)
        with threads_for_copies(outside):
            assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 1
        with one_thread() as inside:
            assert inside == 1
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("threads", [2, 3])
def test_products_have_the_bits_of_one_thread(threads, dtype):
    numbers = torch.Generator().manual_seed(0)
    with one_thread():
        for batch, inputs, outputs in [(30, 20, 2), (33, 64, 10), (6, 784, 10), (16, 20, 300)]:
            x = torch.randn(7, batch, inputs, generator=numbers, dtype=dtype)
            w = torch.randn(7, outputs, inputs, generator=numbers, dtype=dtype)
            one = x @ w.mT
            for part in (slice(0, threads), slice(1, 2 + threads), slice(0, 7)):
                with products_on(threads):
                    assert torch.equal(x[part].clone() @ w[part].clone().mT, one[part])
