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
        joined: From the value of a name so far, its next value in the step, and their number, to
            one value. For tensors, also under ``vmap``.
        over_steps: From the values of several steps and their weights to the total.
        over_runs: From the totals of several local runs to the total of all.
    """

    weighted: bool
    joined: Callable[[Any, Any, int], Any]
    over_steps: Callable[[Sequence[float], Sequence[float]], float]
    over_runs: Callable[[Sequence[float]], float]


def _extreme(joined: str, of_all: Callable[[Sequence[float]], Any]) -> Reduction:
    """The largest or the smallest value.

    Args:
        joined: The method of a tensor that gives it for two tensors.
        of_all: NumPy's function for several numbers; unlike Python's, it passes on a nan.
    """
    return Reduction(
        weighted=False,
        joined=lambda before, value, number: getattr(before, joined)(value),
        over_steps=lambda values, weights: float(of_all(values)),
        over_runs=lambda totals: float(of_all(totals)),
    )


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
    "max": _extreme("maximum", np.max),
    "min": _extreme("minimum", np.min),
}
"""By their names in ``self.log(…, reduce_fx=)``, which are also those of torch's functions."""
