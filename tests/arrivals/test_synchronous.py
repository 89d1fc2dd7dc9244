import numpy as np
import pytest

from fedlight.arrivals import FixedDurations, StepDurations, SynchronousArrivals, UniformSteps
from fedlight.events import Kind


def test_a_round_ends_with_its_slowest(drive):
    lines, tasks = drive(
        lambda: SynchronousArrivals(durations=FixedDurations([1.0, 0.3, 0.5])), 3, max_time=2.0
    )
    assert [(x.now, x.kind.name, x.task and x.task.client_id, x.version) for x in lines] == [
        (0.3, "ARRIVAL", 1, 0),
        (0.5, "ARRIVAL", 2, 0),
        (1.0, "ARRIVAL", 0, 0),
        (1.0, "ROUND_END", None, 1),
        (1.3, "ARRIVAL", 1, 1),
        (1.5, "ARRIVAL", 2, 1),
        (2.0, "ARRIVAL", 0, 1),
        (2.0, "ROUND_END", None, 2),
    ]
    assert all(task.pulled_version == task.dispatched_at for task in tasks)


def test_the_slowest_of_those_who_take_part(drive):
    lines, tasks = drive(
        lambda: SynchronousArrivals(2, FixedDurations([0.25, 0.5, 1.0, 2.0])), 4, num_events=300
    )
    ends = [0.0] + [line.now for line in lines if line.kind is Kind.ROUND_END]
    for number in range(len(ends) - 1):
        taking_part = [t for t in tasks if t.pulled_version == number]
        assert len({task.client_id for task in taking_part}) == 2
        assert {task.dispatched_at for task in taking_part} == {ends[number]}
        assert max(task.arrives_at for task in taking_part) == ends[number + 1]
    counts = np.bincount([task.client_id for task in tasks])
    assert counts.min() > 35


def test_by_default_a_round_lasts_one_unit(drive):
    lines, _ = drive(lambda: SynchronousArrivals(), 3, max_time=3.0)
    assert [line.now for line in lines if line.kind is Kind.ROUND_END] == [1.0, 2.0, 3.0]


def test_durations_of_the_steps(drive):
    _, tasks = drive(
        lambda: SynchronousArrivals(2, StepDurations(0.1), UniformSteps(1, 10)), 5, num_events=60
    )
    for task in tasks:
        assert task.arrives_at - task.dispatched_at == pytest.approx(task.num_steps / 10)
    assert len({task.num_steps for task in tasks}) > 5


def test_expected_durations(federation):
    arrivals = SynchronousArrivals()
    arrivals.setup(federation(2))
    assert arrivals.expected_durations().tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"per_round": 0}, ValueError, "per_round must be at least 1"),
        ({"durations": [1.0]}, TypeError, r"durations must be a duration model, got \[1.0\]"),
        ({"local_steps": "1"}, TypeError, "local_steps must be"),
    ],
)
def test_bad_arguments(arguments, error, says):
    with pytest.raises(error, match=says):
        SynchronousArrivals(**arguments)


def test_what_must_fit(federation):
    with pytest.raises(ValueError, match="per_round=5 is more than the 4 clients"):
        SynchronousArrivals(5).setup(federation(4))
    with pytest.raises(ValueError, match="has 1 numbers, but there are 2 clients"):
        SynchronousArrivals(None, FixedDurations([1.0])).setup(federation(2))


def test_repr():
    assert repr(SynchronousArrivals(2)) == (
        "SynchronousArrivals(per_round=2, durations=None, local_steps=LocalEpochs(1))"
    )
