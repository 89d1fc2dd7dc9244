"""FedBuff-MA-Light: coefficients by hand, and momentum without staleness."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlight.aggregators import FedBuff, FedBuffMA


@pytest.fixture
def play(make_update, make_state, make_federation):
    """Give a server buffers of (pulled version, delta); returns the models."""

    def run(aggregator, buffers):
        state, seen = make_state([0.0]), []
        aggregator.setup(make_federation(), state)
        for buffer in buffers:
            for pulled, delta in buffer:
                aggregator.receive(make_update(0, [delta], pulled=pulled))
            state = aggregator.step(state)
            seen.append(state.params.item())
        return seen

    return run


def test_without_staleness_it_is_momentum(play):
    """And that of torch, whose dampening is 1 - u."""
    deltas = [0.5, -1.0, 2.0, 3.0, 0.25]
    param = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    torchs = torch.optim.SGD([param], 0.7, momentum=0.8)
    expected = []
    for delta in deltas:
        param.grad = torch.tensor([-0.2 * delta], dtype=torch.float64)
        torchs.step()
        expected.append(param.item())
    buffers = [[(version, delta)] for version, delta in enumerate(deltas)]
    assert play(FedBuffMA(1, 0.8, 0.7), buffers) == pytest.approx(expected, rel=1e-12)


def test_three_steps_by_hand(play):
    """b = 1/2, one update in a buffer; the versions pulled are 0, 0, 1.

    t = 0: W = (1), wanted (1/2): u = 1/2, v = 0. A = (1/2). m = 4/2 = 2.
    t = 1: W = (1, 0), A = (1/2, 0), wanted (1/4, 1/2): u + v/2 = 1/4, of which the shortest is
    u = 1/5, v = 1/10. A = (1/4, 0). m = 10/5 + 2/10 = 2.2.
    t = 2: W = (0, 1, 0), A = (1/4, 0, 0), wanted (1/8, 1/4, 1/2): u = 1/4, v = 1/2.
    m = 8/4 + 2.2/2 = 3.1.
    """
    found = play(FedBuffMA(1, 0.5), [[(0, 4.0)], [(0, 10.0)], [(1, 8.0)]])
    assert found == pytest.approx([2.0, 4.2, 7.3], rel=1e-12)


def test_the_share_of_a_version_in_the_buffer_counts(play):
    """b = 1/2: after A = (1/2), W = (1/2, 1/2): u/2 + v/2 = 1/4 and u/2 = 1/2, u = 1, v = -1/2."""
    found = play(FedBuffMA(2, 0.5), [[(0, 4.0), (0, 0.0)], [(0, 2.0), (1, 4.0)]])
    assert found == pytest.approx([1.0, 1.0 + 3.0 - 0.5], rel=1e-12)


def test_without_momentum_only_fresh_work_is_wanted(play):
    """b = 0: u * W nearest to (0, ..., 0, 1), so a buffer of old updates is not followed."""
    assert play(FedBuffMA(1, 0.0), [[(0, 4.0)], [(0, 2.0)]]) == pytest.approx([4.0, 4.0])
    fresh = [[(version, 1.0 + version)] for version in range(4)]
    assert play(FedBuffMA(1, 0.0), fresh) == pytest.approx(play(FedBuff(1, None), fresh))


@given(st.data())
def test_the_coefficients_are_the_least_squares_of_the_whole_history(data):
    """Against the definition: a is grown, and a W is made from all rows W that there have been."""
    momentum = data.draw(st.sampled_from([0.3, 0.9]))
    aggregator, size = FedBuffMA(3, momentum), 8
    aggregator.contained = np.zeros(0)
    rows, a = np.zeros((size, size)), np.zeros(size)
    for version in range(size):
        pulled = data.draw(st.lists(st.integers(0, version), min_size=3, max_size=3))
        rows[version] = np.bincount(pulled, minlength=size) / 3
        u, v = aggregator._coefficients([Pulled(each) for each in pulled], version)
        wanted = np.zeros(size)
        wanted[: version + 1] = (1 - momentum) * momentum ** np.arange(version, -1.0, -1.0)
        missing = wanted - u * rows[version] - v * (a @ rows)
        assert abs(missing @ rows[version]) < 1e-9  # orthogonal to both rows
        assert abs(missing @ (a @ rows)) < 1e-9
        a *= v
        a[version] = u
        np.testing.assert_allclose(aggregator.contained, (a @ rows)[: version + 1], atol=1e-9)


class Pulled:
    def __init__(self, version):
        self.pulled_version = version


def test_a_step_without_updates_is_passed_over(play):
    """At a round end without updates the model stays, and so does the momentum."""
    found = play(FedBuffMA(None, 0.5), [[(0, 4.0)], [], [(2, 8.0)]])
    # t = 2: W = (0, 0, 1), A = (1/2, 0, 0), wanted (1/8, 1/4, 1/2): u = 1/2, v = 1/4.
    assert found == pytest.approx([2.0, 2.0, 2.0 + 8 / 2 + 2 / 4], rel=1e-12)


def test_what_is_refused():
    with pytest.raises(ValueError, match="momentum must be smaller than 1, got 1"):
        FedBuffMA(2, momentum=1)
