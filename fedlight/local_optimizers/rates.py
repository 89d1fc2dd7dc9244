"""Learning rates that depend on the local steps that a client has made."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from fedlight._support.checks import (
    Rate,
    non_negative,
    non_negative_int,
    positive,
    positive_int,
    shown,
)
from fedlight._support.checks import rate as rate_of
from fedlight._support.strategy import Strategy

if TYPE_CHECKING:
    from fedlight.types import Task


class ByStep(Strategy):
    """A local learning rate that is a function of the steps that the client has made.

    ::

        eta = rate(n + k)

    n is the number of local steps of the client's earlier tasks that had arrived when this one was
    dispatched, whether or not the server used them (`Task.steps_before`); k = 0, 1, ..., K - 1 is
    the step in this task. n follows from the schedule alone. Tasks that are lost or cancelled do
    not count, and one that is cut counts the steps that it has made. One whose local run fails
    counts, although what the client keeps (`LocalOptimizer.kept`) has not seen its steps.

    Args:
        rate: A function of the number of steps that returns a number of at least 0.

    Raises:
        TypeError: `rate` is not a function, or (during the run) it returns no number.
        ValueError: (During the run) it returns a number below 0.

    Source: a schedule over all inner steps of an island, as in Douillard et al., [DiLoCo:
    Distributed Low-Communication Training of Language
    Models](https://arxiv.org/abs/2311.08105), Section 3.

    Example:
        >>> from fedlight.local_optimizers import ByStep, LocalSGD
        >>> LocalSGD(lr=ByStep(lambda step: 0.1 / (1 + step))).lr.at(4)
        0.02
    """

    _repr_positional = 1

    def __init__(self, rate: Callable[[int], float]) -> None:
        if isinstance(rate, type) or not callable(rate):
            raise TypeError(
                f"rate must be a function of the number of steps, got {shown(rate)}; a number is "
                "given as it is, such as LocalSGD(lr=0.1)"
            )
        self.rate = rate

    def at(self, step: int) -> float:
        """The rate after so many steps.

        Raises:
            TypeError: `step` is not an integer.
            ValueError: It is negative.
        """
        step = non_negative_int("step", step)
        return non_negative(f"rate(step={step})", self.rate(step))


class WarmupCosine(ByStep):
    """A rate that rises linearly, and then falls along half a cosine.

    ::

        s < warmup:           eta = peak * (s + 1) / warmup
        warmup <= s < total:  eta = floor + (peak - floor) * (1 + cos(pi * q)) / 2,
                              q = (s - warmup) / (total - warmup)
        total <= s:           eta = floor

    s is the number of steps that the client has made (`ByStep`).

    Args:
        peak: The largest rate.
        warmup: Number of steps of the rise; 0 for none.
        total: Number of steps until the smallest rate, more than `warmup`.
        floor: The smallest rate, from 0 to `peak`.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is outside its range.

    Source: Loshchilov and Hutter, [SGDR: Stochastic Gradient Descent with Warm
    Restarts](https://arxiv.org/abs/1608.03983), ICLR 2017, Equation 5, without a restart.

    Example:
        >>> rate = WarmupCosine(0.1, warmup=10, total=110)
        >>> rate.at(0), rate.at(9), rate.at(60), rate.at(200)
        (0.01, 0.1, 0.05, 0.0)
    """

    _repr_positional = 1
    _repr_optional = ("floor",)

    def __init__(self, peak: float, warmup: int, total: int, floor: float = 0.0) -> None:
        self.peak = positive("peak", peak)
        self.warmup = non_negative_int("warmup", warmup)
        self.total = positive_int("total", total)
        if self.total <= self.warmup:
            raise ValueError(f"total must be larger than warmup={self.warmup}, got {self.total}")
        self.floor = non_negative("floor", floor)
        if self.floor > self.peak:
            raise ValueError(f"floor must be at most peak={self.peak}, got {self.floor}")

    def at(self, step: int) -> float:
        """The rate after so many steps.

        Raises:
            TypeError: `step` is not an integer.
            ValueError: It is negative.
        """
        step = non_negative_int("step", step)
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        part = min(1.0, (step - self.warmup) / (self.total - self.warmup))
        return self.floor + (self.peak - self.floor) * (1 + math.cos(math.pi * part)) / 2


LocalRate: TypeAlias = Rate | ByStep
"""A number, a function of the pulled version, or a function of the steps made (`ByStep`)."""


def local_rate(name: str, value: object) -> LocalRate:
    """Return `value` as a learning rate of a local optimizer.

    Raises:
        TypeError: It is neither a number nor a function nor a `ByStep`.
        ValueError: The number is not above 0.
    """
    return value if isinstance(value, ByStep) else rate_of(name, value)


def rate_in_step(rate: ByStep, task: Task, k: int) -> float:
    """The rate of a task in its step k."""
    return rate.at(task.steps_before + k)
