import math
from functools import partial

import pytest

from fedlight.aggregators import FedAsync, FedBuff
from fedlight.aggregators.staleness import Constant, Exponential, Hinge, Linear, Polynomial


@pytest.mark.parametrize(
    ("function", "tau", "factor"),
    [
        (Constant(), 9, 1.0),
        (Linear(0.5), 1, 1 / 1.5),
        (Linear(2), 3, 1 / 7),
        (Polynomial(0.5), 1, 1 / math.sqrt(2)),
        (Polynomial(0.5), 8, 1 / 3),
        (Polynomial(2), 3, 1 / 16),
        (Exponential(0.5), 2, math.exp(-1)),
        (Hinge(0.5, 4), 4, 1.0),
        (Hinge(0.5, 4), 5, 1 / 1.5),
        (Hinge(10, 4), 6, 1 / 21),
        (Hinge(10, 0), 1, 1 / 11),
    ],
)
def test_factors(function, tau, factor):
    assert function(tau) == pytest.approx(factor, rel=1e-15)


@pytest.mark.parametrize(
    "function", [Constant(), Linear(3), Polynomial(3), Exponential(3), Hinge(3, 0)]
)
def test_a_fresh_update_counts_in_full_and_older_ones_never_more(function):
    factors = [function(tau) for tau in range(20)]
    assert factors[0] == 1.0
    assert factors == sorted(factors, reverse=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(0), "a must be larger than 0, got 0"),
        (lambda: Polynomial(-0.5), "a must be larger than 0, got -0.5"),
        (lambda: Exponential(math.inf), "a must be finite, got inf"),
        (lambda: Hinge(0, 4), "a must be larger than 0, got 0"),
        (lambda: Hinge(10, -1), "b must be 0 or larger, got -1"),
    ],
    ids=range(5),
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_word_is_no_number():
    with pytest.raises(TypeError, match="a must be a number, got 'half'"):
        Polynomial("half")


@pytest.mark.parametrize("value", ["poly", Polynomial, 0.5])
@pytest.mark.parametrize(
    "make", [partial(FedAsync, 0.5), partial(FedBuff, 2)], ids=["async", "buff"]
)
def test_what_is_no_function_is_refused(make, value):
    with pytest.raises(TypeError, match=r"staleness must be a function of an integer staleness"):
        make(value)


def test_a_function_of_ones_own(make_update, make_state, make_federation):
    aggregator = FedBuff(1, staleness=lambda tau: 0.25 if tau else 1.0)
    aggregator.setup(make_federation(), make_state())
    aggregator.receive(make_update(0, [8.0]))
    after = aggregator.step(make_state(version=3))
    assert after.params.tolist() == [2.0]


def test_what_a_function_gives_is_checked(make_update, make_state, make_federation):
    aggregator = FedBuff(1, staleness=lambda tau: -1.0)
    aggregator.setup(make_federation(), make_state())
    aggregator.receive(make_update(0, [8.0]))
    with pytest.raises(ValueError, match=r"staleness\(3\) must be 0 or larger, got -1.0"):
        aggregator.step(make_state(version=3))
