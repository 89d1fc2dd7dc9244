import math
import warnings

import numpy as np
import pytest

from fedlight._support.bootstrap import bootstrap, bootstrap_band, mean_of, std_of


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [
        ([1.0, 2.0, 6.0], 3.0, math.sqrt(7.0)),
        ([1.5], 1.5, math.nan),
        ([], math.nan, math.nan),
        ([1.0, math.inf], math.inf, math.nan),
        ([1.0, -math.inf], -math.inf, math.nan),
        ([math.inf, -math.inf], math.nan, math.nan),
        ([1.0, math.nan], math.nan, math.nan),
        ([1.7e308, 1.7e308], math.inf, 0.0),
    ],
)
def test_means_and_deviations_of_any_values(values, mean, std):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [mean_of(values), std_of(values)]
        assert found == pytest.approx([mean, std], nan_ok=True)
        if values:
            assert bootstrap(values).mean == pytest.approx(mean, nan_ok=True)


@pytest.mark.parametrize("seeds", [2, 5])
def test_a_band_has_the_interval_of_each_place(seeds):
    values = np.random.default_rng(0).normal(size=(seeds, 450))  # more than are taken at once
    low, high = bootstrap_band(values, 0.9)
    for place in (0, 199, 200, 449):
        told = bootstrap(values[:, place], 0.9)
        assert (low[place], high[place]) == pytest.approx((told.low, told.high))
