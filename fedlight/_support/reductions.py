"""Mean, sum, max and min: how several logged values of one name become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from operator import mul
from typing import Any, NamedTuple

import numpy as np


class Reduction(NamedTuple):
    """How values of one name become one.

    Attributes:
        weighted: Whether a value counts by its weight. Then the total that is kept of values is the
            sum of their products with their weights; otherwise it is their reduced value.
        joined: From what a step has logged under the name so far, its next value and the number of
            both together to one value. For tensors, also under ``vmap``.
        over_steps: From the values of several steps and their weights to the total.
        over_runs: From the totals of several local runs to the total of all.
    """

    weighted: bool
    joined: Callable[[Any, Any, int], Any]
    over_steps: Callable[[Sequence[float], Sequence[float]], float]
    over_runs: Callable[[Sequence[float]], float]


REDUCTIONS = {
    "mean": Reduction(
        weighted=True,
        joined=lambda before, value, number: before + (value - before) / number,
        over_steps=lambda values, weights: sum(map(mul, values, weights)),
        over_runs=sum,
    ),
    "sum": Reduction(
        weighted=False,
        joined=lambda before, value, number: before + value,
        over_steps=lambda values, weights: sum(values),
        over_runs=fsum,  # exact, so that the order of clients does not show
    ),
    # numpy's functions pass on a nan, unlike Python's
    "max": Reduction(
        weighted=False,
        joined=lambda before, value, number: before.maximum(value),
        over_steps=lambda values, weights: float(np.max(values)),
        over_runs=lambda totals: float(np.max(totals)),
    ),
    "min": Reduction(
        weighted=False,
        joined=lambda before, value, number: before.minimum(value),
        over_steps=lambda values, weights: float(np.min(values)),
        over_runs=lambda totals: float(np.min(totals)),
    ),
}
"""By their names in ``self.log(…, reduce_fx=)``, which are also those of torch's functions."""
