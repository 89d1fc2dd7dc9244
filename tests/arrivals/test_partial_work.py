from collections import Counter

import numpy as np
import pytest

from fedlight.arrivals import (
    ConstantSteps,
    ContinuousArrivals,
    PartialWork,
    UniformArrivals,
    UniformSpeeds,
)
from fedlight.events import Kind


def clock(steps=10):
    return ContinuousArrivals(UniformSpeeds(0), local_steps=ConstantSteps(steps))


def test_fewer_steps_take_less_time(drive):
    _, tasks = drive(lambda: PartialWork(clock(), 1.0), 100, buffer_size=1, num_events=5000)
    counts = Counter(task.num_steps for task in tasks)
    assert set(counts) == set(range(1, 10))  # evenly from 1..9 of 10
    mean = len(tasks) / 9
    assert max(abs(count - mean) for count in counts.values()) < 5 * mean**0.5
    for task in tasks:
        assert task.arrives_at - task.dispatched_at == pytest.approx(task.num_steps / 10)


def test_only_some_stop_early(drive):
    _, tasks = drive(lambda: PartialWork(clock(), 0.25), 100, interval=1.0, num_events=5000)
    assert abs(np.mean([task.num_steps < 10 for task in tasks]) - 0.25) < 0.03


def test_the_least_share(drive):
    _, tasks = drive(lambda: PartialWork(clock(), least=0.75), 10, buffer_size=1, num_events=500)
    assert {task.num_steps for task in tasks} == {8, 9}
    for make in [
        lambda: PartialWork(clock(), least=1.0),
        lambda: PartialWork(clock(), probability=0.0),
        lambda: PartialWork(clock(steps=1)),
    ]:
        _, tasks = drive(make, 10, buffer_size=1)
        assert {task.num_steps for task in tasks} <= {10, 1}
        assert {task.arrives_at - task.dispatched_at for task in tasks} == {1.0}


def test_rounds_keep_their_times(drive):
    """Those of a round arrive at its end, however little they did."""

    def make():
        return PartialWork(UniformArrivals(3, max_staleness=2, local_steps=10))

    lines, tasks = drive(make, 5, num_events=100)
    assert all(line.now == int(line.now) for line in lines)
    assert Counter(line.now for line in lines if line.kind is Kind.ARRIVAL) == {
        float(t): 3 for t in range(1, 26)
    }
    assert {task.num_steps for task in tasks} == set(range(1, 10))


def test_expected_durations(federation):
    for arrivals, known in [
        (PartialWork(clock()), False),
        (PartialWork(clock(), 0.0), True),
    ]:
        arrivals.setup(federation(2))
        assert (arrivals.expected_durations() is not None) is known


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"arrivals": 1}, TypeError, "arrivals must be an arrival process, got 1"),
        ({"probability": 2}, ValueError, "probability must lie between 0 and 1, got 2"),
        ({"least": -1}, ValueError, "least must lie between 0 and 1, got -1"),
    ],
)
def test_bad_arguments(arguments, error, says):
    with pytest.raises(error, match=says):
        PartialWork(**{"arrivals": clock(), **arguments})


def test_repr():
    assert repr(PartialWork(UniformArrivals(2), 0.5)).endswith(", probability=0.5, least=0)")
