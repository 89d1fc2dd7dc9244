"""Random numbers of a stream: their distributions, and that they are the same bits everywhere."""

import math

import numpy as np
import pytest
import torch
from torch.func import vmap

from fedlight.executors._random.streams import Streams, step_keys
from fedlight.executors._random.variates import Uncovered, below, quantiles, uniform, whole
from fedlight.types import Task

KEY = 0x1234_5678_9ABC_DEF0
MANY = 1 << 16
CPU = torch.device("cpu")


def drawn(function, *args, key=KEY, calls=1):
    """What a function draws in the last of some calls within a step."""
    with Streams(stacked=False).at(key) as stream:
        return [function(stream, *args) for _ in range(calls)][-1]


def task(client, visit=0):
    return Task(client, 0, 0.0, 1.0, num_steps=1, serial=0, visit=visit)


def even(values, cells=256):
    """Whether numbers in [0, 1) fall into equal cells as chance would have it (chi-square)."""
    counts = np.bincount((np.asarray(values) * cells).astype(int), minlength=cells)
    expected = len(values) / cells
    statistic = ((counts - expected) ** 2 / expected).sum()
    return abs(statistic - (cells - 1)) < 5 * math.sqrt(2 * (cells - 1))


def bits_of(words):
    """The bits of 64-bit words, one row each."""
    return np.unpackbits(words.numpy().view(np.uint8).reshape(-1, 8), axis=1)


def splitmix(state):
    mask = (1 << 64) - 1
    z = state & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)


def test_words_are_splitmix64_on_a_counter():
    words = drawn(lambda stream: stream.bits((5,), CPU, torch.int64))
    expected = [splitmix(KEY + i * 0x9E3779B97F4A7C15) for i in range(1, 6)]
    assert [word & ((1 << 64) - 1) for word in words.tolist()] == expected
    # the first output of SplitMix64 from the seed 0, as published
    first = drawn(lambda stream: stream.bits((1,), CPU, torch.int64), key=0)
    assert first.item() & ((1 << 64) - 1) == 0xE220A8397B1DCDAF


def test_calls_of_a_step_share_no_numbers():
    """Call k begins k·c further on, which is no small multiple of the counter's own step."""
    step, call = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95
    inverse = pow(step, -1, 1 << 64)
    for number in range(1, 4096):
        ahead = number * call * inverse % (1 << 64)
        assert min(ahead, (1 << 64) - ahead) > 1 << 40


@pytest.mark.parametrize("along", ["elements", "calls", "steps", "clients", "visits"])
def test_bits_are_even_and_independent(along):
    count = 4096

    def word(stream):
        return stream.bits((1,), CPU, torch.int64)

    if along == "elements":
        words = drawn(lambda stream: stream.bits((count,), CPU, torch.int64))
    elif along == "calls":
        with Streams(stacked=False).at(KEY) as stream:
            words = torch.cat([word(stream) for _ in range(count)])
    else:
        keys = {
            "steps": lambda: step_keys(3, [task(0)], range(count))[:, 0],
            "clients": lambda: step_keys(3, [task(c) for c in range(count)], [0])[0],
            "visits": lambda: step_keys(3, [task(0, v) for v in range(count)], [0])[0],
        }[along]()
        words = torch.cat([drawn(word, key=key) for key in keys.tolist()])
    bits = bits_of(words).astype(float) - 0.5
    # 64 means of 4096 bits, and the correlations of each bit with each bit of the same and of the
    # next word: all within five standard deviations
    limit = 5 * 0.5 / math.sqrt(count)
    assert np.abs(bits.mean(0)).max() < limit
    same = bits.T @ bits / count - 0.25 * np.eye(64)
    following = bits[:-1].T @ bits[1:] / count
    assert np.abs(same).max() < 2.5 * limit / 2
    assert np.abs(following).max() < 2.5 * limit / 2
    assert len(set(words.tolist())) == count


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_uniform_numbers(dtype):
    values = drawn(uniform, (MANY,), dtype, CPU)
    assert values.dtype == dtype
    assert values.min() >= 0
    assert values.max() < 1
    assert even(values.double())


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.1, 0.25, 0.5, 0.7, 1 - 1e-6, 1.0])
def test_coins_have_their_probability(p):
    count = 1 << 20
    ones = drawn(below, (count,), p, CPU)
    assert set(ones.unique().tolist()) <= {0, 1}
    assert abs(ones.double().mean().item() - p) <= 5 * math.sqrt(p * (1 - p) / count)


def test_a_probability_outside_of_its_range_is_left_to_torch():
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(Uncovered):
            drawn(below, (3,), p, CPU)


def test_whole_numbers():
    values = drawn(whole, -3, 4, (MANY,), CPU)
    assert (values.min(), values.max()) == (-3, 3)
    assert even((values.double() + 3.5) / 7, cells=7)


CDF = {
    "normal": torch.special.ndtr,
    "exponential": lambda x: -torch.expm1(-x),
    "cauchy": lambda x: 0.5 + torch.atan(x) / math.pi,
}


@pytest.mark.parametrize("name", CDF)
def test_quantiles_follow_their_distribution(name):
    values = drawn(quantiles, name, (16 * MANY,), torch.float64, CPU)
    assert even(CDF[name](values).numpy(), cells=1024)
    # and far out in the tails, where a thousandth lies
    share = CDF[name](values)
    for tail in (share, 1 - share):
        few = tail[tail < 1e-3] * 1e3
        assert abs(len(few) - 16 * MANY * 1e-3) < 5 * math.sqrt(16 * MANY * 1e-3)
        assert even(few.clamp(0, 1 - 1e-9).numpy(), cells=16)
    if name == "exponential":
        assert values.min() >= 0
    if name == "normal":
        assert abs(values.mean()) < 5 / math.sqrt(16 * MANY)
        assert abs(values.square().mean() - 1) < 5 * math.sqrt(2 / (16 * MANY))


def test_quantiles_are_those_of_the_uniform_number():
    """The 32 bits that make a number say which u it belongs to."""
    bits = drawn(lambda stream: stream.bits((4096,), CPU, torch.int32)).double()
    distance = (bits + (bits < 0) * 2.0**31 + 0.5) / 2**32
    u = torch.where(bits < 0, 1 - distance, distance)
    expected = {
        "normal": torch.special.ndtri(u),
        "exponential": -torch.log1p(-u),
        "cauchy": -1 / torch.tan(math.pi * u),
    }
    for name, values in expected.items():
        found = drawn(quantiles, name, (4096,), torch.float64, CPU)
        torch.testing.assert_close(found, values, rtol=1e-5, atol=1e-5)


KINDS = {
    "uniform": lambda draw, n: uniform(draw, (n,), torch.float32, CPU),
    "double": lambda draw, n: uniform(draw, (n,), torch.float64, CPU),
    "coins": lambda draw, n: below(draw, (n,), 0.3, CPU),
    "half": lambda draw, n: below(draw, (n,), 0.5, CPU),
    "whole": lambda draw, n: whole(draw, 0, 1000, (n,), CPU),
    "normal": lambda draw, n: quantiles(draw, "normal", (n,), torch.float32, CPU),
    "exponential": lambda draw, n: quantiles(draw, "exponential", (n,), torch.float32, CPU),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_is_the_same_bits_in_a_tensor_of_any_size_and_in_any_stack(kind):
    """So vector instructions with their remainders change nothing."""
    function = KINDS[kind]
    longest = drawn(function, 67)
    for n in (*range(1, 40), 63, 64, 65):
        assert torch.equal(drawn(function, n), longest[:n])
    for size in (1, 3, 8, 17):
        keys = torch.arange(size) * 77 + KEY
        stream = Streams(stacked=True)

        def client(key, stream=stream):
            with stream.at(key):
                return function(stream, 37)

        rows = vmap(client, randomness="error")(keys)
        for row, key in zip(rows, keys.tolist(), strict=True):
            assert torch.equal(row, drawn(function, 37, key=key))
