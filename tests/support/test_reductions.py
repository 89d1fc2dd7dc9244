import math

import pytest
import torch

from fedlight._support.reductions import REDUCTIONS

VALUES = [1.0, 4.0, -2.0]


@pytest.mark.parametrize("name", REDUCTIONS)
def test_values_of_one_step_are_joined_one_after_another(name):
    joined = torch.tensor(VALUES[0])
    for number, value in enumerate(VALUES[1:], start=2):
        joined = REDUCTIONS[name].joined(joined, torch.tensor(value), number)
    found = getattr(torch, name)(torch.tensor(VALUES))
    torch.testing.assert_close(joined, found)


@pytest.mark.parametrize(
    ("name", "total", "of_runs"),
    [("mean", 2 * 1.0 + 4.0 - 3 * 2.0, 3.0), ("sum", 3.0, 3.0), ("max", 4.0, 4.0), ("min", -2, -2)],
)
def test_totals(name, total, of_runs):
    reduction = REDUCTIONS[name]
    assert reduction.over_steps(VALUES, [2, 1, 3]) == total
    assert reduction.over_runs(VALUES) == of_runs
    assert reduction.weighted == (name == "mean")


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_nan_is_passed_on(name):
    nan, reduction = math.nan, REDUCTIONS[name]
    assert math.isnan(reduction.over_steps([1.0, nan, 3.0], [1, 1, 1]))
    assert math.isnan(reduction.over_runs([1.0, nan, 3.0]))
    assert reduction.joined(torch.tensor(nan), torch.tensor(1.0), 2).isnan()


def test_a_sum_over_runs_does_not_depend_on_their_order():
    assert REDUCTIONS["sum"].over_runs([1e16, 1.0, -1e16]) == 1.0
