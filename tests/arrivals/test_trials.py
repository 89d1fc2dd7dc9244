"""Rounds of trials, by hand."""

import pytest

from fedlight import participation_report
from fedlight.aggregators import MindFlayer
from fedlight.arrivals import ExponentialDurations, FixedDurations, TrialRounds
from fedlight.arrivals.durations import DurationModel
from fedlight.events import Kind


class Listed(DurationModel):
    """Each client's durations, one after another; a new run starts with the first."""

    uses_rng = False

    def __init__(self, *durations):
        self.durations = durations

    def check(self, federation):
        self._left = [list(each) for each in self.durations]

    def draw(self, rng, client_id, num_steps, federation, starts_at):
        return self._left[client_id].pop(0)


def test_two_rounds_by_hand(drive):
    """Client 0: 3 trials of at most 1; client 1: one of at most 2.5, which ends the first round."""
    lines, tasks = drive(
        lambda: TrialRounds(
            Listed([0.5, 1.5, 1.0, 2.0, 2.0, 0.25, 1, 1, 1], [2.0, 3.0, 1]), [1.0, 2.5], [3, 1], 4
        ),
        2,
        max_time=5.0,
    )
    assert [(t.client_id, t.dispatched_at, t.arrives_at, t.lost) for t in tasks[:8]] == [
        # The duration of the third is its allotted time: in time.
        *[(0, 0.0, 0.5, False), (1, 0.0, 2.0, False)],
        *[(0, 0.5, 1.5, True), (0, 1.5, 2.5, False)],
        # The round of 2.5 is over; all three are of version 1.
        *[(0, 2.5, 3.5, True), (1, 2.5, 5.0, True), (0, 3.5, 4.5, True), (0, 4.5, 4.75, False)],
    ]
    assert [t.pulled_version for t in tasks[:8]] == [0] * 4 + [1] * 4
    ends = [line.now for line in lines if line.kind is Kind.ROUND_END]
    assert ends == [2.5, 5.0]  # at 5.0 the arrivals at that time come first


def test_a_round_does_not_wait_for_heavy_tails(drive):
    lines, _ = drive(
        lambda: TrialRounds(ExponentialDurations(100.0), 0.5, 2), 3, num_events=60, max_time=20.0
    )
    ends = [line.now for line in lines if line.kind is Kind.ROUND_END]
    assert len(ends) > 0
    assert all(b - a <= 1.0 + 1e-9 for a, b in zip([0.0, *ends], ends, strict=False))


def test_given_up_trials_are_waste():
    """Four units of work, one of them given up in each round."""
    process = TrialRounds(FixedDurations([1.0, 5.0]), [1.0, 1.0], [3, 1])
    report = participation_report(process, MindFlayer([3, 1], [1, 0]), num_clients=2, max_rounds=4)
    assert report.goodput == pytest.approx(0.75)
    assert report.arrivals.tolist() == [12, 0]


def test_one_number_for_each_client(federation):
    with pytest.raises(ValueError, match="trials has 2 numbers, but there are 3 clients"):
        TrialRounds(ExponentialDurations(1.0), 1.0, [1, 2]).setup(federation(3))
    with pytest.raises(ValueError, match="allotted must be at least 1e-9 of virtual time"):
        TrialRounds(ExponentialDurations(1.0), 1e-12, 1)
