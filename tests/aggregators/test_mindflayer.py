"""MindFlayer and Vecna, by hand."""

import math

import pytest

from fedlight import methods
from fedlight.aggregators import FedAvg, MindFlayer
from fedlight.arrivals import (
    FixedDurations,
    HalfNormalDurations,
    LogNormalDurations,
    UniformDurations,
)

DELTAS = [(0, 2.0), (0, 4.0), (1, 3.0)]


@pytest.fixture
def step(make_update, make_state, make_federation):
    def run(aggregator, deltas=DELTAS):
        state = make_state([1.0])
        aggregator.setup(make_federation([1, 1]), state)
        for client, delta in deltas:
            assert not aggregator.receive(make_update(client, [delta]))
        assert aggregator.end_round()
        return aggregator.step(state)

    return run


def test_the_sum_over_the_expected_number(step):
    """B = 1/2 * 4 + 1 * 4 = 6 although three have come: 1 + 9/6."""
    after = step(MindFlayer([4, 4], [0.5, 1.0]))
    assert after.params.item() == pytest.approx(2.5, rel=1e-12)
    assert [each.weight for each in after.used] == pytest.approx([1 / 6] * 3)


def test_all_clients_count_the_same(step):
    """Vecna: 1 + 6 / (2 * 2) + 3 / (2 * 4)."""
    after = step(MindFlayer([4, 4], [0.5, 1.0], equal="clients"))
    assert after.params.item() == pytest.approx(1 + 6 / 4 + 3 / 8, rel=1e-12)


def test_the_number_received_gives_means(step):
    received = step(MindFlayer([4, 4], [0.5, 1.0], divisor="received"))
    assert received.params.item() == pytest.approx(4.0, rel=1e-12)
    assert received.params.item() == step(FedAvg(client_weights="uniform")).params.item()
    vecna = step(MindFlayer([4, 4], [0.5, 1.0], "clients", "received"))
    assert vecna.params.item() == pytest.approx(1 + (3 + 3) / 2, rel=1e-12)


def test_if_every_trial_succeeds_both_divisors_are_the_same(step):
    for equal in ("trials", "clients"):
        one, two = (
            step(MindFlayer([2, 1], 1.0, equal, each)).params for each in ("expected", "received")
        )
        assert one.item() == two.item()


def test_a_round_without_success_changes_nothing(step):
    after = step(MindFlayer(2, 0.1), [])
    assert (after.version, after.params.item()) == (1, 1.0)


def test_the_probabilities_of_the_method():
    def p(durations, allotted):
        made = methods.mindflayer(lr=0.1, allotted=allotted, trials=1, durations=durations)
        return made["aggregator"].probabilities

    assert p(None, math.log(2)) == pytest.approx(0.5)
    assert p(UniformDurations(1.0, 3.0), [0.5, 1.5, 3.0]) == pytest.approx((0.0, 0.25, 1.0))
    # By the tables of the normal distribution: P(z <= 1) = 0.841345, P(z <= -2) = 0.022750,
    # P(|z| <= 1) = 0.682689, P(|z| <= 2) = 0.954500.
    half = p(HalfNormalDurations([2.0, 1.0]), 2.0)
    assert half == pytest.approx((0.682689, 0.954500), abs=1e-6)
    assert p(LogNormalDurations(3.0, 0.7), 3.0) == pytest.approx(0.5)
    long = p(LogNormalDurations(1.0, 2.0), [math.exp(2), math.exp(-4)])
    assert long == pytest.approx((0.841345, 0.022750), abs=1e-6)
    assert p(LogNormalDurations([1.0, 2.0], 0.0), 1.0) == (1.0, 0.0)
    with pytest.raises(ValueError, match=r"must be given for FixedDurations.*probabilities=0\.5"):
        p(FixedDurations([1.0, 2.0]), 1.0)


@pytest.mark.parametrize(
    ("aggregator", "says"),
    [
        (MindFlayer([0, 3], [1.0, 0.0]), "above 0 for at least one client"),
        (MindFlayer([1, 3], [1.0, 0.0], "clients"), "above 0 for every client, got trials="),
        (MindFlayer([1, 3, 1], 1.0), "trials has 3 numbers, but there are 2 clients"),
    ],
)
def test_what_does_not_fit_the_federation(step, aggregator, says):
    with pytest.raises(ValueError, match=says):
        step(aggregator)
