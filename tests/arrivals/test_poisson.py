from itertools import pairwise

import numpy as np
import pytest

from fedlight.arrivals import FixedDurations, PoissonArrivals, UniformSpeeds


def test_starts_are_those_of_a_poisson_process(drive):
    _, tasks = drive(
        lambda: PoissonArrivals(5.0, UniformSpeeds(0)),
        1000,
        buffer_size=1,
        max_time=2000.0,
        num_events=10**6,
    )
    starts = np.array([task.dispatched_at for task in tasks])
    # 10,000 expected, with a standard deviation of 100.
    assert abs(len(starts) - 10_000) < 400
    gaps = np.diff(starts)
    assert abs(gaps.mean() - 0.2) < 0.008
    assert abs(gaps.std() - 0.2) < 0.012
    in_one_unit = np.bincount(starts.astype(int), minlength=2000)
    assert abs(in_one_unit.var() / in_one_unit.mean() - 1) < 0.15
    clients = np.bincount([task.client_id for task in tasks], minlength=1000)
    assert abs(clients.var() / clients.mean() - 1) < 0.2


def test_the_server_does_not_matter(drive):
    def tasks(**server):
        _, tasks = drive(
            lambda: PoissonArrivals(2.0, UniformSpeeds(0.5)),
            5,
            max_time=50.0,
            num_events=10**6,
            **server,
        )
        return [(t.client_id, t.dispatched_at, t.arrives_at) for t in tasks]

    assert tasks(buffer_size=1) == tasks(buffer_size=7) == tasks(interval=3.0)


def test_where_all_are_at_work_nobody_starts(drive):
    """Two clients, tasks of 10, a hundred starts per unit: one task each in 10 units."""
    _, tasks = drive(
        lambda: PoissonArrivals(100.0, FixedDurations([10.0, 10.0])),
        2,
        buffer_size=1,
        max_time=39.0,
    )
    assert len(tasks) == 8
    for client in (0, 1):
        own = [task for task in tasks if task.client_id == client]
        for one, two in pairwise(own):
            assert 0 <= two.dispatched_at - one.arrives_at < 0.2


def test_expected_durations(federation):
    arrivals = PoissonArrivals(1.0, UniformSpeeds(0.8))
    arrivals.setup(federation(3))
    assert arrivals.expected_durations().tolist() == [0.2, 0.6, 1.0]
    assert repr(arrivals).startswith("PoissonArrivals(rate=1, durations=UniformSpeeds(0.8")
    assert not arrivals.by_rounds
    assert not arrivals.finite


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"rate": 0}, ValueError, "rate must be larger than 0, got 0"),
        (
            {"rate": 1e-300},
            ValueError,
            "rate must be between 1.1e-07 and 1e.09 starts .* got 1e-3",
        ),
        ({"rate": 1e300}, ValueError, "rate must be between 1.1e-07 and 1e.09 starts .* got 1e.3"),
        ({"rate": "a"}, TypeError, "rate must be a number, got 'a'"),
        ({"durations": None}, TypeError, "durations must be a duration model, got None"),
        ({"local_steps": None}, TypeError, "local_steps must be a LocalSteps policy"),
    ],
)
def test_bad_arguments(arguments, error, says):
    with pytest.raises(error, match=says):
        PoissonArrivals(**{"rate": 1.0, "durations": UniformSpeeds(0), **arguments})
