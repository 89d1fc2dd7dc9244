from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlight.arrivals import (
    ChangingDurations,
    ConstantSteps,
    ContinuousArrivals,
    ExponentialDurations,
    FixedDurations,
    LocalEpochs,
    MixedDurations,
    PerClientSteps,
    StepDurations,
    StepsBySpeed,
    SumDurations,
    UniformSpeeds,
    UniformSteps,
)
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
        (lambda: ConstantSteps(10**20), ValueError, "num_steps must be smaller than 2"),
        (lambda: UniformSteps(1, 10**20), ValueError, "high must be smaller than 2"),
        (lambda: PerClientSteps(5), TypeError, "must be a list of one number for each client, got"),
        (lambda: PerClientSteps({1: 5, 2: 7}), TypeError, "num_steps must be a list, got the mapp"),
        (lambda: PerClientSteps("12"), TypeError, "must be a list of one number for each client"),
        (lambda: PerClientSteps([]), ValueError, "num_steps must hold one number for each client"),
        (lambda: as_local_steps(2.5), TypeError, "an integer, got 2.5; for example"),
        (lambda: as_local_steps(True), TypeError, "an integer, got True; for example"),
        (lambda: as_local_steps(-1), ValueError, "local_steps must be at least 1, got -1"),
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


@pytest.mark.parametrize(
    ("num_steps", "speeds", "least", "steps"),
    [
        # the four islands: 50 / 1.3 = 38.46, 50 / 2.6 = 19.23, 50 / 5.7 = 8.77
        (50, [1.0, 1 / 1.3, 1 / 2.6, 1 / 5.7], 5, [50, 38, 19, 8]),
        (10, [4.0, 1.0, 3.0], 5, [10, 5, 7]),  # 2.5 is raised to 5, 7.5 rounded down
        (10, [4.0, 1.0, 3.0], 1, [10, 2, 7]),
        (10, [4.0, 1.0, 3.0], 10, [10, 10, 10]),
        (100, [0.29, 1.0], 5, [29, 100]),  # 28.999… in binary
        (3, [7.0, 7.0], 1, [3, 3]),
        (1, [1e-9, 1e9], 1, [1, 1]),
    ],
)
def test_steps_by_speed(federation, num_steps, speeds, least, steps):
    policy, clients = StepsBySpeed(num_steps, speeds, least), federation(len(speeds))
    policy.check(clients)
    assert [policy.draw(RNG, i, clients) for i in range(len(speeds))] == steps
    assert policy.expected(clients).tolist() == steps


@given(
    num_steps=st.integers(1, 10**6),
    speeds=st.lists(st.integers(1, 1000), min_size=1, max_size=6),
    data=st.data(),
)
def test_steps_by_speed_are_the_formula_in_exact_numbers(num_steps, speeds, data):
    least = data.draw(st.integers(1, num_steps))
    clients = Federation(len(speeds), np.full(len(speeds), 6), 2)
    expected = [max(num_steps * v // max(speeds), least) for v in speeds]
    assert StepsBySpeed(num_steps, speeds, least).expected(clients).tolist() == expected
    # The unit of the speeds does not matter.
    scaled = [v * 0.1 for v in speeds]
    assert StepsBySpeed(num_steps, scaled, least).expected(clients).tolist() == expected


@pytest.mark.parametrize(
    ("durations", "steps"),
    [
        (StepDurations([0.1, 0.13, 0.26, 0.57]), [50, 38, 19, 8]),
        # 50 steps take 6, 11, 16 and 51: 50 * 6 / 11 = 27.3, 18.75 and 5.88
        (StepDurations([0.1, 0.2, 0.3, 1.0], overhead=1.0), [50, 27, 18, 5]),
        (FixedDurations([2.0, 1.0, 4.0, 3.0]), [25, 50, 12, 16]),
        (UniformSpeeds(0.75), [50, 25, 16, 12]),  # durations of 1/4, 2/4, 3/4 and 1
        (
            SumDurations([StepDurations(0.02), FixedDurations([1.0, 2.0, 3.0, 4.0])]),
            [50, 33, 25, 20],
        ),
        (ExponentialDurations([1.0, 2.0, 2.0, 100.0]), [50, 25, 25, 5]),
    ],
    ids=repr,
)
def test_speeds_of_a_duration_model(federation, durations, steps):
    policy = StepsBySpeed(50, durations)
    policy.check(federation(4))
    assert policy.expected(federation(4)).tolist() == steps


def test_tasks_of_clients_in_proportion_to_their_speeds_arrive_together():
    durations = StepDurations([0.1, 0.2, 0.5])
    arrivals = ContinuousArrivals(durations, local_steps=StepsBySpeed(50, durations))
    table = arrivals.simulate(3, buffer_size=1, max_updates=6)
    assert [(e.client, e.time, e.num_steps) for e in table.events] == [
        (client, 5.0 * turn, steps) for turn in (1, 2) for client, steps in enumerate((50, 25, 10))
    ]
    assert table.durations == [5.0, 5.0, 5.0]


def test_one_policy_for_two_federations(federation):
    """Of each the largest speed is that of its own clients: the classes depend on their number."""
    classes = MixedDurations([(0.5, StepDurations(0.1)), (0.5, StepDurations(0.4))])
    policy = StepsBySpeed(20, classes)
    for _ in range(2):
        assert policy.expected(federation(4)).tolist() == [20, 20, 5, 5]
        assert policy.expected(federation(2)).tolist() == [20, 5]


def test_speeds_that_do_not_fit(federation):
    with pytest.raises(ValueError, match="speeds has 2 numbers, but there are 3 clients"):
        StepsBySpeed(9, [1.0, 2.0]).check(federation(3))
    with pytest.raises(ValueError, match="durations has 2 numbers, but there are 3 clients"):
        StepsBySpeed(9, FixedDurations([1.0, 2.0])).check(federation(3))
    changing = ChangingDurations(FixedDurations([1.0, 2.0]), [(8, 3.0)])
    with pytest.raises(
        ValueError, match=r"speeds=Changing.* does not know the mean durations of i"
    ):
        StepsBySpeed(9, changing).check(federation(2))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: StepsBySpeed(0, [1.0]), ValueError, "num_steps must be at least 1, got 0"),
        (lambda: StepsBySpeed(9.5, [1.0]), TypeError, "num_steps must be an integer"),
        (lambda: StepsBySpeed(9, []), ValueError, "speeds must hold one number for each client"),
        (lambda: StepsBySpeed(9, 2.0), TypeError, r"write speeds=\[1.0\] \* num_clients"),
        (lambda: StepsBySpeed(9, [1.0, -1]), ValueError, r"speeds\[1\] must be larger than 0, got"),
        (lambda: StepsBySpeed(9, [1.0], 0), ValueError, "least must be at least 1, got 0"),
        (lambda: StepsBySpeed(4, [1.0]), ValueError, "least=5 must not be above num_steps=4, the"),
    ],
)
def test_bad_speeds(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_repr_of_steps_by_speed():
    assert repr(StepsBySpeed(50, [1.0, 2.0])) == "StepsBySpeed(50, [1.0, 2.0], least=5)"
    assert repr(StepsBySpeed(50, UniformSpeeds(0.8), 1)) == (
        "StepsBySpeed(50, UniformSpeeds(0.8, slowest=1), least=1)"
    )
