import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlight.randomness import Concern, Streams, Uniforms, derived_seed, stream

WORDS = st.integers(0, 2**64 - 1)


@given(st.integers(-(2**63), 2**63), st.sampled_from(list(Concern)), WORDS, WORDS)
def test_moved_streams_are_the_same(seed, concern, a, b):
    streams = Streams(seed, concern)
    streams.at(1, 2).standard_normal(3)
    streams.at(3).integers(5, dtype=np.int32)  # leaves half a word behind
    moved = streams.at(a, b)
    fresh = stream(seed, concern, a, b)
    for _ in range(2):
        assert moved.integers(10, dtype=np.int32) == fresh.integers(10, dtype=np.int32)
        assert (moved.random(9) == fresh.random(9)).all()


def test_every_part_of_the_name_counts():
    names = [(0, 4, 1, 2), (1, 4, 1, 2), (0, 5, 1, 2), (0, 4, 2, 2), (0, 4, 1, 3), (0, 4, 2, 1)]
    firsts = [stream(seed, Concern(c), a, b).integers(1 << 62) for seed, c, a, b in names]
    assert len(set(firsts)) == len(names)


def test_known_value():
    """Streams are part of the format of runs: the same names give the same numbers for ever."""
    assert stream(7, Concern.BATCHES, 3, 1).integers(1000, size=4).tolist() == [231, 678, 403, 374]


def test_the_global_generator_is_left_alone():
    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    stream(0, Concern.STEPS).random(100)
    Uniforms(0, Concern.NEXT_CLIENT).next()
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_derived_seeds():
    assert derived_seed(3, Concern.TRAINING, 1, 2) == derived_seed(3, Concern.TRAINING, 1, 2)
    assert derived_seed(3, Concern.TRAINING, 1, 2) != derived_seed(3, Concern.TRAINING, 1, 3)
    assert 0 <= derived_seed(3, Concern.TRAINING) < 2**63


@pytest.mark.parametrize("taken", [0, 1, 1023, 1024, 1025, 3000])
def test_uniforms_go_on_anywhere(taken):
    one = Uniforms(5, Concern.NEXT_CLIENT)
    numbers = [one.next() for _ in range(taken + 3)]
    two = Uniforms(5, Concern.NEXT_CLIENT)
    two.taken = taken
    assert [two.next() for _ in range(3)] == numbers[taken:]


def test_uniforms_are_uniform():
    uniforms = Uniforms(0, Concern.STARTS)
    numbers = np.array([uniforms.next() for _ in range(20_000)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    # Standard errors: 0.29 / sqrt(20000) = 0.002 for the mean, 44 for a decile of 2000.
    assert abs(numbers.mean() - 0.5) < 0.008
    assert np.abs(np.histogram(numbers, bins=10, range=(0, 1))[0] - 2000).max() < 180
