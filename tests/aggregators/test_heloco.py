"""HeLoCo, layer by layer, with vectors whose angles are known."""

import numpy as np
import pytest
import torch

from fedlight._support.flat_layout import FlatLayout
from fedlight.aggregators import HeLoCo
from fedlight.types import Federation, ServerState
from tests.boring import Boring, classes, fitted

# Three layers of two numbers; the first update makes the momentum (1, 0) / 2 in each.
LAYOUT = FlatLayout(("a", "b", "c"), (torch.Size([2]),) * 3, torch.float64)
FEDERATION = Federation(2, np.array([4, 4]), 2, layout=LAYOUT)
FIRST = [1.0, 0.0] * 3


def two_steps(aggregator, second, make_update):
    params = torch.zeros(6, dtype=torch.float64)
    state = ServerState(0, params, params.new_empty(0), torch.empty(0, dtype=torch.int64))
    aggregator.setup(FEDERATION, state)
    for delta in (FIRST, second):
        aggregator.receive(make_update(0, delta))
        state = aggregator.step(state)
    return state, aggregator


def test_each_layer_by_hand(make_update):
    """mu = 1/2, eta = 1, r = 1; v = (1/2, 0) and x = (5/4, 0) after the first update.

    a: d = (3, 4), c = 0.6 >= c_ok = 0.5: G = d.
    b: d = (-3, 4), c = -0.6, beta = 1: G = d + 0.6 * 5 * (1, 0) = (0, 4).
    c: d = (0, 2), c = 0, q = 1/2: u = (1/2, 1/2), G = 2 * (1, 1) / sqrt(2).
    v = v/2 + G/2, x = 5/4 + G + v/2.
    """
    aggregator = HeLoCo(0.5, c_ok=0.5, turn=0.5)
    state, aggregator = two_steps(aggregator, [3.0, 4.0, -3.0, 4.0, 0.0, 2.0], make_update)
    g = np.array([3.0, 4.0, 0.0, 4.0, 2**0.5, 2**0.5])
    v = np.array([0.5, 0.0] * 3) / 2 + g / 2
    x = np.array([1.25, 0.0] * 3) + g + v / 2
    np.testing.assert_allclose(state.params, x, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(aggregator.outgoing(state), x + v / 2, rtol=1e-12, atol=1e-15)


def test_beta_and_turn_may_be_zero(make_update):
    """Then every update is used as it is: plain momentum."""
    second = [3.0, 4.0, -3.0, 4.0, 0.0, 2.0]
    aggregator = HeLoCo(0.5, c_ok=1.0, beta=0.0, turn=0.0, send="model", weight=0.5, server_lr=2.0)
    state, aggregator = two_steps(aggregator, second, make_update)
    first, g = np.array(FIRST) / 2, np.array(second) / 2
    v1 = first / 2
    v2 = v1 / 2 + g / 2
    x = 2 * (first + v1 / 2) + 2 * (g + v2 / 2)
    np.testing.assert_allclose(state.params, x, rtol=1e-12, atol=1e-15)
    assert aggregator.outgoing(state) is None


def test_a_layer_that_does_not_move_stays(make_update):
    """d = 0 has no direction, and where the momentum is 0 there is nothing to turn to."""
    state, _ = two_steps(HeLoCo(0.5, turn=1.0), [0.0] * 6, make_update)
    np.testing.assert_allclose(state.params, np.array([1.25, 0.0] * 3) + [0.125, 0.0] * 3)


def test_an_opposing_layer_keeps_no_part_against_the_momentum(make_update):
    random = np.random.default_rng(0)
    for _ in range(20):
        second = random.normal(size=6).tolist()
        aggregator = HeLoCo(0.5, c_ok=0.0, turn=0.0)
        aggregator.setup(FEDERATION, two_steps(aggregator, second, make_update)[0])
        v = torch.tensor(FIRST, dtype=torch.float64) / 2
        for d, part in zip(LAYOUT.views(torch.tensor(second)), LAYOUT.views(v), strict=True):
            found = aggregator._corrected(d.double(), part)
            assert float(found @ part) >= -1e-15


def test_a_run_uses_the_layers_of_the_module():
    run = fitted(Boring(), classes(), aggregator=HeLoCo(0.8, server_lr=0.5), max_rounds=4)
    assert set(run.aggregator.federation.layers(run.aggregator.velocity)) == {
        "net.weight",
        "net.bias",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": 1.0}, "momentum must be smaller than 1"),
        ({"c_ok": 1.5}, "c_ok must lie between 0 and 1, got 1.5"),
        ({"beta": -1}, "beta must lie between 0 and 1, got -1"),
        ({"turn": 2}, "turn must lie between 0 and 1, got 2"),
        ({"weight": 0}, "weight must be larger than 0, got 0"),
        ({"send": "x"}, "send must be one of 'look_ahead', 'model', got 'x'"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        HeLoCo(**arguments)
