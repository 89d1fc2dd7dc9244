"""Polls: who is asked when, and how many steps have been made by then."""

import numpy as np
import pytest

from fedlight.arrivals import (
    DistributionDurations,
    ExponentialDurations,
    FixedDurations,
    PolledArrivals,
    StepDurations,
)
from fedlight.randomness import Concern, Streams


def rows(table):
    return [
        (e.client, e.dispatched_at, e.time, e.num_steps, e.pulled_version) for e in table.events
    ]


def test_steps_up_to_the_poll():
    """Steps of 0.3: two by 0.7, of which 0.1 is lost; then four by 2.1, but three are the most."""
    process = PolledArrivals([[0], [1], [0, 1]], 0.7, [0.3, 0.7], max_steps=3)
    assert rows(process.simulate(num_clients=2)) == [
        (0, 0.0, 0.7, 2, 0),
        (1, 0.0, 1.4, 2, 0),  # the second step ends exactly at the poll
        (0, 0.7, 2.1, 3, 1),
        (1, 1.4, 2.1, 1, 2),
    ]


class Halves:
    """A distribution of one number."""

    def rvs(self, random_state):
        return 0.5

    def mean(self):
        return 0.5


def test_a_drawn_step_that_ends_at_the_poll_counts():
    process = PolledArrivals([[0], [0]], 1.0, DistributionDurations(Halves()), max_steps=9)
    assert rows(process.simulate(num_clients=1)) == [(0, 0.0, 1.0, 2, 0), (0, 1.0, 2.0, 2, 1)]


def test_no_rounding_of_the_clock():
    """Ten polls every 0.1 are 1.0, and a step of 0.3 ends at the third, sixth and ninth."""
    process = PolledArrivals([[]] * 8 + [[0]], 0.1, [0.3], max_steps=9)
    assert rows(process.simulate(num_clients=1)) == [(0, 0.0, 0.9, 3, 0)]
    assert process.simulate(num_clients=1).round_ends == [round(0.1 * k, 1) for k in range(1, 10)]


def test_a_limit_for_each_client():
    process = PolledArrivals([[0, 1]], 1.0, [0.1, 0.1], max_steps=[2, 5])
    assert [row[3] for row in rows(process.simulate(num_clients=2))] == [2, 5]
    process = PolledArrivals(1, 1.0, FixedDurations([0.1] * 3), max_steps=[2, 5])
    with pytest.raises(ValueError, match="max_steps has 2 numbers, but there are 3 clients"):
        process.simulate(num_clients=3, max_rounds=1)


def test_each_step_has_a_time_of_its_own():
    process = PolledArrivals([[0]], 2.0, ExponentialDurations(0.5), max_steps=100)
    (row,) = rows(process.simulate(num_clients=1, seed=4))
    rng = Streams(4, Concern.DURATIONS).at(0, 0)
    ends = np.cumsum([rng.exponential(0.5) for _ in range(100)])
    assert row[3] == (ends <= 2.0).sum() > 1


def test_as_many_clients_as_asked_are_drawn_at_each_poll():
    process = PolledArrivals(3, 1.0, StepDurations(0.4), max_steps=2)
    table = process.simulate(num_clients=8, max_rounds=400)
    polls = {}
    for event in table.events:
        polls.setdefault(event.time, []).append(event.client)
    assert {len(set(clients)) for clients in polls.values()} == {3}
    counts = np.bincount([event.client for event in table.events])
    # 400 polls with probability 3/8: 150 with a standard deviation of 9.7.
    assert (abs(counts - 150) < 45).all()
    assert process.expected_durations().tolist() == [8 / 3] * 8


def test_the_list_ends_the_process():
    process = PolledArrivals([[0], [1]], 1.0, [0.4, 0.4], max_steps=2)
    assert process.finite
    assert process.expected_durations() is None
    assert len(process.simulate(num_clients=2).round_ends) == 2
    assert not PolledArrivals(1, 1.0, [0.4], max_steps=2).finite


def test_clients_that_do_not_exist():
    with pytest.raises(ValueError, match=r"per_poll\[1\] names client 2, but there are only 2"):
        PolledArrivals([[0], [2]], 1.0, [0.4, 0.4], 2).simulate(num_clients=2)
    with pytest.raises(ValueError, match="per_poll=3 is more than the 2 clients"):
        PolledArrivals(3, 1.0, [0.4, 0.4], 2).simulate(num_clients=2, max_rounds=1)
