"""Delayed Nesterov, by hand and against a Nesterov step of torch."""

import pytest
import torch

from fedlight.aggregators import DelayedNesterov


def models(aggregator, deltas, make_update, make_state, make_federation):
    state = make_state([0.0])
    aggregator.setup(make_federation(), state)
    seen = []
    for delta in deltas:
        assert aggregator.receive(make_update(0, [delta]))
        state = aggregator.step(state)
        seen.append(state.params.item())
    return seen


def test_two_periods_by_hand(make_update, make_state, make_federation):
    """N = 2, b = 1/2, eta = 1, c = 0. Deltas 4, 2, -2, 8.

    x1 = 4/2 = 2. v = (4 + 2)/2 = 3; x2 = 2 + v/2 + 2/2 = 4.5. x3 = 4.5 - 2/2 = 3.5.
    v = 3/2 + (-2 + 8)/2 = 4.5; x4 = 3.5 + 4.5/2 + 8/2 = 9.75.
    """
    aggregator = DelayedNesterov(2, momentum=0.5)
    parts = make_update, make_state, make_federation
    assert models(aggregator, [4.0, 2.0, -2.0, 8.0], *parts) == [2.0, 4.5, 3.5, 9.75]


def test_the_momentum_may_be_spread(make_update, make_state, make_federation):
    """The same with c = 1/2: before the N-th c * b * v = v/4, and 1 - 1 + 1/2 at it.

    x1 = 2 (v = 0). v = 3; x2 = 2 + 3/4 + 1 = 3.75. x3 = 3.75 + 3/4 - 1 = 3.5.
    v = 4.5; x4 = 3.5 + 4.5/4 + 4 = 8.625.
    """
    aggregator = DelayedNesterov(2, momentum=0.5, c=0.5)
    parts = make_update, make_state, make_federation
    assert models(aggregator, [4.0, 2.0, -2.0, 8.0], *parts) == [2.0, 3.75, 3.5, 8.625]


def test_a_period_of_one_is_torchs_nesterov(make_update, make_state, make_federation):
    deltas = [0.5, -1.0, 0.25, 3.0]
    aggregator = DelayedNesterov(1, momentum=0.9, server_lr=0.7, c=1.0)
    parts = make_update, make_state, make_federation
    param = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    server = torch.optim.SGD([param], 0.7, momentum=0.9, nesterov=True)
    expected = []
    for delta in deltas:
        param.grad = torch.tensor([-delta], dtype=torch.float64)
        server.step()
        expected.append(param.item())
    assert models(aggregator, deltas, *parts) == pytest.approx(expected, rel=1e-12)


def test_without_momentum_it_is_the_mean(make_update, make_state, make_federation):
    parts = make_update, make_state, make_federation
    found = models(DelayedNesterov(4, momentum=0.0), [1.0, 2.0, 3.0, 4.0, 5.0], *parts)
    assert found == [0.25, 0.75, 1.5, 2.5, 3.75]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"period": 0}, "period must be at least 1, got 0"),
        ({"period": 2, "momentum": 1}, "momentum must be smaller than 1, got 1"),
        ({"period": 2, "c": 0.6}, "c must lie between 0 and 1/period = 0.5, got 0.6"),
        ({"period": 2, "c": -0.1}, "c must lie between 0 and 1/period = 0.5, got -0.1"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        DelayedNesterov(**arguments)
