import numpy as np
import pytest

from fedlight.arrivals import (
    ContinuousArrivals,
    DropOut,
    FixedDurations,
    UniformArrivals,
    UniformSpeeds,
)
from fedlight.events import Kind


def test_the_share_that_is_lost(drive):
    _, tasks = drive(
        lambda: DropOut(ContinuousArrivals(UniformSpeeds(0)), 0.3),
        1000,
        interval=1.0,
        max_time=10,
        num_events=10**6,
    )
    lost = np.array([task.lost for task in tasks])
    # 11,000 tasks: four standard deviations of the share are 0.0175.
    assert abs(lost.mean() - 0.3) < 0.0175


def test_the_server_never_hears_of_a_lost_task(drive):
    lines, tasks = drive(
        lambda: DropOut(ContinuousArrivals(FixedDurations([1.0])), 0.5),
        1,
        buffer_size=1,
        max_time=20.0,
    )
    arrived = [line.task.serial for line in lines]
    assert arrived == [task.serial for task in tasks[:20] if not task.lost]
    assert 3 < len(arrived) < 17
    # Lost or not, the client is free again when it is done, and pulls what is newest then.
    assert [task.dispatched_at for task in tasks] == [float(t) for t in range(21)]
    assert [task.visit for task in tasks] == list(range(21))
    version = 0
    for task in tasks:
        assert task.pulled_version == version
        version += not task.lost


def test_rounds_end_all_the_same(drive):
    lines, tasks = drive(
        lambda: DropOut(UniformArrivals(per_round=4, max_staleness=2), 0.5), 10, num_events=200
    )
    ends = [line.now for line in lines if line.kind is Kind.ROUND_END]
    assert ends == [float(t) for t in range(1, len(ends) + 1)]
    assert 0.4 < np.mean([task.lost for task in tasks]) < 0.6


def test_nothing_is_lost_at_probability_0(drive):
    def plain():
        return ContinuousArrivals(UniformSpeeds(0.5), concurrency=3)

    assert drive(plain, 5, buffer_size=2) == drive(lambda: DropOut(plain(), 0), 5, buffer_size=2)


def test_losses_of_a_client_do_not_depend_on_the_server(drive):
    def lost(**server):
        _, tasks = drive(
            lambda: DropOut(ContinuousArrivals(UniformSpeeds(0.5)), 0.4),
            4,
            num_events=300,
            **server,
        )
        return {(task.client_id, task.visit): task.lost for task in tasks}

    one, two = lost(buffer_size=1), lost(interval=2.0)
    common = one.keys() & two.keys()
    assert len(common) > 100
    assert all(one[key] == two[key] for key in common)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((None, 0.5), TypeError, "arrivals must be an arrival process, got None"),
        ((UniformArrivals, 0.5), TypeError, "arrivals must be an arrival process, got the class"),
        ((UniformArrivals(1), 1.0), ValueError, "probability must be below 1"),
        ((UniformArrivals(1), -0.1), ValueError, "probability must lie between 0 and 1, got -0.1"),
    ],
)
def test_bad_arguments(arguments, error, says):
    with pytest.raises(error, match=says):
        DropOut(*arguments)


def test_it_says_what_it_wraps(federation):
    rounds = DropOut(UniformArrivals(2), 0.1)
    assert rounds.by_rounds
    assert repr(rounds).startswith("DropOut(UniformArrivals(per_round=2")
    clock = DropOut(ContinuousArrivals(UniformSpeeds(0.5)), 0.1)
    assert not clock.by_rounds
    clock.setup(federation(3))
    assert clock.expected_durations().tolist() == [0.5, 0.75, 1.0]
