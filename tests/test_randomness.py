import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlight.randomness import (
    Concern,
    Streams,
    Uniforms,
    derived_seed,
    generator,
    stream,
    torch_generator,
)

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


# --- streams of authors ---

NAMES = st.text(max_size=8)
KEYS = st.lists(st.integers(-(2**70), 2**70), max_size=3)


def test_known_values_of_named_streams():
    """They are part of the format of runs, as the built-in streams are."""
    assert generator(7, "drift", 3, 1).integers(1000, size=4).tolist() == [500, 511, 525, 535]
    assert torch_generator(7, "drift", 3, 1).initial_seed() == 1952555553431681526


@given(st.integers(-(2**63), 2**63), NAMES, KEYS)
def test_a_named_stream_is_a_function_of_its_name(seed, name, key):
    first = generator(seed, name, *key)
    generator(seed, name, *key).random(5)
    assert (first.random(9) == generator(seed, name, *key).random(9)).all()


@given(st.tuples(NAMES, KEYS), st.tuples(NAMES, KEYS))
def test_no_two_names_share_a_stream(one, two):
    starts = {
        tuple(generator(0, name, *key).bit_generator.state["state"]["counter"].tolist())
        for name, key in (one, two)
    }
    assert len(starts) == len({(name, *key) for name, key in (one, two)})


@given(NAMES, KEYS, st.sampled_from(list(Concern)))
def test_named_streams_never_meet_the_built_in_ones(name, key, concern):
    """The second word of the counter tells them apart; what is drawn counts in the first."""
    named = generator(3, name, *key).bit_generator.state["state"]
    built_in = stream(3, concern).bit_generator.state["state"]
    assert (named["key"] == built_in["key"]).all()
    assert named["counter"][1] >= 2**63 > built_in["counter"][1]


def test_every_part_of_an_authors_name_counts():
    calls = [
        (0, "drift"),
        (1, "drift"),
        (0, "drifts"),
        (0, "drift", 0),
        (0, "drift", 0, 0),
        (0, "drift", 1, 2),
        (0, "drift", 2, 1),
        (0, "drift", 12),
        (0, "1\ndrift", 2),
        (0, "\ndrift", 1, 2),
    ]
    assert len({generator(*call).integers(1 << 62) for call in calls}) == len(calls)
    assert len({torch_generator(*call).initial_seed() for call in calls}) == len(calls)


def test_numbers_of_any_kind_name_the_same_stream():
    one = generator(7, "drift", 3).random()
    assert generator(np.int64(7), "drift", np.int32(3)).random() == one


def test_named_generators_leave_the_global_ones_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    generator(0, "drift").random(100)
    torch.randn(100, generator=torch_generator(0, "drift"))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


@pytest.mark.parametrize("make", [generator, torch_generator])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 3), r"name must be a string .* got 3; for example generator\(seed, \"drift\""),
        ((0, Concern.BATCHES), "name must be a string"),
        ((0, "drift", 1.0), r"seed and key must be whole numbers .* got 1\.0"),
        ((0, "drift", "client"), "got 'client'"),
        ((None, "drift"), "got None"),
    ],
    ids=str,
)
def test_other_names_are_refused(make, arguments, message):
    with pytest.raises(TypeError, match=message):
        make(*arguments)
