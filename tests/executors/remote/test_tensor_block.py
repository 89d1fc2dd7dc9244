"""Tensors in a block of bytes."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlight.executors._remote.tensor_block import BlockLayout, Marks, Packed

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
tensors = st.lists(
    st.none() | st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
    max_size=5,
)


@given(tensors, st.integers(0, 99))
def test_what_was_packed_is_there_again(wanted, seed) -> None:
    torch.manual_seed(seed)
    given_ones = [
        None if each is None else (9 * torch.rand(each[1])).to(each[0]) for each in wanted
    ]
    packed = pickle.loads(pickle.dumps(Packed.of(given_ones)))
    for one, other in zip(given_ones, packed.tensors(), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert torch.equal(one, other)


def test_tensors_begin_at_multiples_of_64_bytes() -> None:
    layout = BlockLayout.of([torch.zeros(3), torch.zeros(17), torch.zeros(0), torch.zeros(1)])
    assert [begin for *_, begin in layout.parts] == [0, 64, 192, 192]
    assert layout.nbytes == 256


def test_what_lies_in_read_only_memory_is_copied() -> None:
    packed = Packed.of([torch.arange(3.0)])
    packed.block.flags.writeable = False
    (mine,) = packed.tensors()
    mine.add_(1.0)
    (again,) = packed.tensors()
    assert again.tolist() == [0.0, 1.0, 2.0]


def test_a_row_does_not_take_its_block_along() -> None:
    assert Packed.of([torch.zeros(1000, 4)[3]]).block.nbytes == 64


def test_marks_tell_tensors_from_others_and_from_what_they_were() -> None:
    tensor, other = torch.zeros(2), torch.zeros(2)
    marks = Marks([tensor, None])
    assert marks.hold([tensor, None])
    assert not marks.hold([other, None])
    assert not marks.hold([tensor, other])
    assert not marks.hold([None, None])
    tensor.add_(1.0)
    assert not marks.hold([tensor, None])
    assert not marks.is_gone
    del tensor
    assert marks.is_gone


def test_tensors_of_inference_have_marks_too() -> None:
    with torch.inference_mode():
        tensor = torch.zeros(2)
    assert Marks([tensor]).hold([tensor])


@pytest.mark.parametrize("size", [0, 5])
def test_a_block_without_tensors_is_one_all_the_same(size) -> None:
    packed = Packed.of([torch.zeros(size)[:0], None])
    assert packed.shape.nbytes == 0
    assert packed.block.dtype == np.uint8
    assert [None if each is None else each.shape for each in packed.tensors()] == [(0,), None]
