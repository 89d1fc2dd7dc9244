"""Distributions, classes of clients, sums, transfers, and durations that change over time."""

import math
import re

import numpy as np
import pytest

from fedlight.arrivals import (
    ChangingDurations,
    ContinuousArrivals,
    DistributionDurations,
    ExponentialDurations,
    ExponentialStepDurations,
    FixedDurations,
    HalfNormalDurations,
    LogNormalRates,
    MixedDurations,
    ParetoDurations,
    ShiftedExponentialDurations,
    StepDurations,
    SumDurations,
    TransferDurations,
    UniformDurations,
    UniformSpeeds,
)
from fedlight.types import Federation

FEDERATION = Federation(4, np.array([3, 5, 20, 8]), batch_size=4, seed=7)


class Gamma:
    """Has the two methods of scipy's frozen distributions."""

    def rvs(self, random_state):
        return random_state.standard_gamma(2.0)

    def mean(self):
        return 2.0

    def __repr__(self):
        return "gamma(2.0)"


class Endless(Gamma):
    def mean(self):
        return math.inf


def draws(model, client, number=20_000, num_steps=3, starts_at=0.0):
    rng = np.random.default_rng(client)
    return np.array(
        [model.draw(rng, client, num_steps, FEDERATION, starts_at) for _ in range(number)]
    )


MODELS = [
    ShiftedExponentialDurations(1.0, [0.5, 1.0, 2.0, 3.0]),
    ExponentialStepDurations([1.0, 2.0, 3.0, 4.0]),
    ParetoDurations(2.0, shape=4.0),
    UniformDurations(3.0, 5.0),
    DistributionDurations(Gamma(), scale=[1.0, 2.0, 3.0, 4.0]),
    MixedDurations([(0.5, UniformDurations(1, 2)), (0.5, ExponentialDurations(9.0))]),
    MixedDurations([(0.5, UniformDurations(1, 2)), (0.5, ExponentialDurations(9.0))], drawn=True),
    LogNormalRates(1.0, rate=0.5),
    SumDurations([StepDurations(0.1), HalfNormalDurations(1.0), FixedDurations([1, 2, 3, 4])]),
    TransferDurations(100.0, [1.0, 2.0, 4.0, 8.0], latency=0.5),
]


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_the_mean_is_the_expected_one(model) -> None:
    model.check(FEDERATION)
    expected = model.expected(FEDERATION, np.full(4, 3.0))
    for client in range(4):
        found = draws(model, client)
        assert (found > 0).all()
        spread = found.std() / math.sqrt(len(found))
        assert found.mean() == pytest.approx(expected[client], abs=5 * spread + 1e-9)
        assert model.uses_rng or spread < 1e-12


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_a_schedule_is_the_same_again(model) -> None:
    runs = [
        ContinuousArrivals(model, local_steps=2).simulate(4, buffer_size=1, max_updates=20, seed=s)
        for s in (1, 1, 2)
    ]
    assert runs[0].events == runs[1].events
    assert (runs[0].events != runs[2].events) == (model.uses_rng)


def test_numbers_by_hand() -> None:
    assert TransferDurations(6.0, [2.0, 3.0], latency=1.0).draw(None, 1, 1, FEDERATION, 0.0) == 3.0
    both = SumDurations([StepDurations(0.5, overhead=1.0), TransferDurations(6.0, 2.0)])
    assert both.draw(None, 0, 4, FEDERATION, 10.0) == 6.0
    assert LogNormalRates(0.0, rate=4.0).expected(FEDERATION).tolist() == [0.25] * 4
    shares = draws(ParetoDurations(1.0, 1.5), 0, 40_000)
    assert shares.min() >= 1.0
    assert (shares > 4.0).mean() == pytest.approx(4**-1.5, abs=0.01)
    # the sum of K exponential times has the variance K * mean^2
    assert draws(ExponentialStepDurations(2.0), 0).var() == pytest.approx(3 * 4, rel=0.1)


def test_the_first_clients_are_of_the_first_class() -> None:
    def classes(share: float, clients: int) -> list[int]:
        model = MixedDurations([(share, UniformSpeeds(0)), (1 - share, UniformSpeeds(0))])
        federation = Federation(clients, np.ones(clients), 1)
        return [model.class_of(client, federation) for client in range(clients)]

    assert classes(0.3, 10) == [0] * 3 + [1] * 7  # 0.3 * 10 is above 3 in binary
    assert classes(0.3, 4) == [0, 0, 1, 1]  # ceil(1.2)


def test_drawn_classes_have_their_shares_and_stay() -> None:
    model = MixedDurations([(0.2, UniformSpeeds(0)), (0.8, UniformSpeeds(0))], drawn=True)
    big = Federation(5000, np.ones(5000), 1, seed=3)
    first = [model.class_of(client, big) for client in range(5000)]
    assert first == [model.class_of(client, big) for client in range(5000)]
    assert first.count(0) == pytest.approx(1000, abs=5 * math.sqrt(5000 * 0.16))
    other = Federation(5000, np.ones(5000), 1, seed=4)
    assert first != [model.class_of(client, other) for client in range(5000)]


def test_durations_change_at_the_given_times_and_repeat() -> None:
    model = ChangingDurations(FixedDurations([1.0] * 4), [(2, 3.0), (5, 0.5)], period=10)
    times = [0, 1.999, 2, 4.9, 5, 9.9, 10, 12, 25]
    found = [model.draw(None, 0, 1, FEDERATION, time) for time in times]
    assert found == [1, 1, 3, 3, 0.5, 0.5, 1, 3, 0.5]
    once = ChangingDurations(FixedDurations([1.0] * 4), [(2, 3.0)])
    assert [once.draw(None, 0, 1, FEDERATION, time) for time in (1, 2, 100)] == [1, 3, 3]
    assert model.expected(FEDERATION) is None


def test_unknown_means_are_none() -> None:
    assert ParetoDurations(1.0, 1.0).expected(FEDERATION) is None
    assert DistributionDurations(Endless()).expected(FEDERATION) is None
    assert SumDurations([ParetoDurations(1, 0.5), UniformSpeeds(0)]).expected(FEDERATION) is None
    assert ExponentialStepDurations(1.0).expected(FEDERATION) is None
    assert max(draws(ParetoDurations(1.0, 1e-3), 0, 100)) <= 9_007_200


def test_a_frozen_distribution_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")

    model = DistributionDurations(stats.weibull_min(0.7, scale=2.0))
    assert "0x" not in repr(model)
    assert draws(model, 0).mean() == pytest.approx(model.expected(FEDERATION)[0], rel=0.1)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ShiftedExponentialDurations(-1, 1), ValueError, "shift must be 0 or larger"),
        (lambda: ParetoDurations(1, 0), ValueError, "shape must be larger than 0"),
        (lambda: UniformDurations(3, 2), ValueError, "high must be at least low=3, got 2"),
        (lambda: DistributionDurations(Gamma), TypeError, "must have the method rvs"),
        (lambda: DistributionDurations(3.0), TypeError, "method rvs(random_state=…), got 3.0"),
        (lambda: MixedDurations([(0.5, UniformSpeeds(0))]), ValueError, "add up to 1, got 0.5"),
        (lambda: MixedDurations([(1.0, 2.0)]), TypeError, "must be a duration model"),
        (lambda: MixedDurations({1.0: 2}), TypeError, "classes must be a list of pairs"),
        (lambda: SumDurations([]), ValueError, "at least one duration model"),
        (lambda: TransferDurations(1, 0), ValueError, "bandwidth must be larger than 0"),
        (lambda: ChangingDurations(UniformSpeeds(0), [(2, 1), (1, 1)]), ValueError, "increase"),
        (
            lambda: ChangingDurations(UniformSpeeds(0), [(12, 1)], period=10),
            ValueError,
            "must be below period=10, got 12",
        ),
    ],
)
def test_bad_input(make, error, words) -> None:
    with pytest.raises(error, match=re.escape(words)):
        make()
