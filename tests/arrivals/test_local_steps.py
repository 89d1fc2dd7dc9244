from collections import Counter

import numpy as np
import pytest

from fedlight.arrivals import ConstantSteps, LocalEpochs, PerClientSteps, UniformSteps
from fedlight.arrivals.local_steps import as_local_steps
from fedlight.randomness import Concern, stream
from fedlight.types import Federation

RNG = stream(0, Concern.STEPS)


def test_constant(federation):
    assert ConstantSteps(5).draw(RNG, 0, federation(1)) == 5
    assert ConstantSteps(5).expected(federation(2)).tolist() == [5, 5]


def test_uniform(federation):
    policy = UniformSteps(1, 10)
    counts = Counter(policy.draw(RNG, 0, federation(1)) for _ in range(10_000))
    assert set(counts) == set(range(1, 11))
    # Four standard deviations of a count of 1000 are 120.
    assert max(abs(count - 1000) for count in counts.values()) < 120
    assert policy.expected(federation(2)).tolist() == [5.5, 5.5]
    assert UniformSteps(3, 3).draw(RNG, 0, federation(1)) == 3


@pytest.mark.parametrize(
    ("epochs", "sizes", "batch_size", "steps"),
    [
        (1, [6, 5, 1, 4], 2, [3, 3, 1, 2]),
        (2, [5, 3], 2, [5, 3]),  # ceil(2 * 5 / 2), ceil(2 * 3 / 2)
        (0.5, [8, 1], 2, [2, 1]),
        (3, [10, 64], 64, [3, 3]),  # the smaller client's batch is all it has
    ],
)
def test_epochs(epochs, sizes, batch_size, steps):
    federation = Federation(len(sizes), np.array(sizes), batch_size)
    policy = LocalEpochs(epochs)
    assert [policy.draw(RNG, i, federation) for i in range(len(sizes))] == steps
    assert policy.expected(federation).tolist() == steps


def test_per_client(federation):
    policy = PerClientSteps([1, 2, 7])
    assert [policy.draw(RNG, i, federation(3)) for i in range(3)] == [1, 2, 7]
    assert policy.expected(federation(3)).tolist() == [1, 2, 7]
    with pytest.raises(ValueError, match="has 3 numbers, but there are 2 clients"):
        policy.check(federation(2))


def test_numbers_are_constant_steps():
    assert as_local_steps(5).num_steps == 5
    policy = UniformSteps(1, 2)
    assert as_local_steps(policy) is policy


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: ConstantSteps(0), ValueError, "num_steps must be at least 1, got 0"),
        (lambda: ConstantSteps(1.5), TypeError, "num_steps must be an integer"),
        (lambda: UniformSteps(0, 5), ValueError, "low must be at least 1"),
        (lambda: UniformSteps(5, 4), ValueError, "high must be at least low=5, got 4"),
        (lambda: LocalEpochs(0), ValueError, "num_epochs must be larger than 0"),
        (lambda: PerClientSteps([1, 0]), ValueError, r"num_steps\[1\] must be at least 1"),
        (lambda: ConstantSteps(10**20), ValueError, "num_steps must be at most 9007199254740992"),
        (lambda: UniformSteps(1, 10**20), ValueError, "high must be at most 9007199254740992"),
        (lambda: PerClientSteps(5), TypeError, "must be a list of one number for each client, got"),
        (lambda: PerClientSteps({1: 5, 2: 7}), TypeError, "num_steps must be a list, got the mapp"),
        (lambda: PerClientSteps("12"), TypeError, "must be a list of one number for each client"),
        (lambda: PerClientSteps([]), ValueError, "num_steps must hold one number for each client"),
        (lambda: as_local_steps(2.5), TypeError, "an integer, got 2.5; for example"),
        (lambda: as_local_steps(True), TypeError, "an integer, got True; for example"),
        (lambda: as_local_steps(-1), ValueError, "num_steps must be at least 1, got -1"),
    ],
)
def test_bad_arguments(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_epochs_that_cannot_be_counted(federation):
    with pytest.raises(ValueError, match="num_epochs=1e\\+300 gives a client with 6 examples more"):
        LocalEpochs(1e300).check(federation(2))
    LocalEpochs(1e12).check(federation(2))


def test_repr():
    policies = [ConstantSteps(5), UniformSteps(1, 10), LocalEpochs(0.5), PerClientSteps([1, 2])]
    assert [repr(policy) for policy in policies] == [
        "ConstantSteps(5)",
        "UniformSteps(1, 10)",
        "LocalEpochs(0.5)",
        "PerClientSteps([1, 2])",
    ]
