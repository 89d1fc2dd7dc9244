"""Discounts for stale updates: functions of the staleness, 1 for a fresh update.

Source: Asynchronous Federated Optimization (FedAsync), Section 4; the constant from its
Algorithm 1. The source of `DelayAdaptive` is given in its docstring.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from fedlight._support.checks import non_negative, positive, shown
from fedlight._support.strategy import Strategy


class Discount(Strategy, ABC):
    """A function of the staleness; equal to another of the same class with the same numbers."""

    @abstractmethod
    def __call__(self, staleness: int) -> float:
        """The factor for a staleness."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).items()))


Staleness: TypeAlias = Discount | Callable[[int], float]
"""s: a function of the staleness tau (versions, 0 for a fresh update) that returns a factor."""


class Constant(Discount):
    """s(tau) = 1: stale updates count like fresh ones.

    Example:
        >>> Constant()(7)
        1.0
    """

    def __call__(self, staleness: int) -> float:
        """1."""
        return 1.0


class Linear(Discount):
    """s(tau) = 1 / (a * tau + 1).

    Args:
        a: Slope, above 0.

    Raises:
        ValueError: `a` is not above 0.

    Example:
        >>> Linear(0.5)(2)
        0.5
    """

    def __init__(self, a: float) -> None:
        self.a = positive("a", a)

    def __call__(self, staleness: int) -> float:
        """The factor for a staleness."""
        return 1.0 / (self.a * staleness + 1)


class Polynomial(Discount):
    """s(tau) = (tau + 1) ** -a; the paper uses a = 0.5, which is FedBuff's 1 / sqrt(1 + tau).

    Args:
        a: Exponent, above 0.

    Raises:
        ValueError: `a` is not above 0.

    Example:
        >>> Polynomial(0.5)(3)
        0.5
    """

    def __init__(self, a: float) -> None:
        self.a = positive("a", a)

    def __call__(self, staleness: int) -> float:
        """The factor for a staleness."""
        return float((staleness + 1) ** -self.a)


class Exponential(Discount):
    """s(tau) = exp(-a * tau).

    Args:
        a: Rate, above 0.

    Raises:
        ValueError: `a` is not above 0.

    Example:
        >>> Exponential(2.0)(0)
        1.0
    """

    def __init__(self, a: float) -> None:
        self.a = positive("a", a)

    def __call__(self, staleness: int) -> float:
        """The factor for a staleness."""
        return math.exp(-self.a * staleness)


class Hinge(Discount):
    """s(tau) = 1 up to tau = b, then 1 / (a * (tau - b) + 1); the paper uses a = 10, b = 4.

    Args:
        a: Slope beyond the hinge, above 0.
        b: Largest staleness that still counts in full, 0 or larger.

    Raises:
        ValueError: `a` is not above 0, or `b` is below 0.

    Example:
        >>> Hinge(a=0.5, b=4)(4), round(Hinge(a=0.5, b=4)(5), 3)
        (1.0, 0.667)
    """

    def __init__(self, a: float, b: float) -> None:
        self.a = positive("a", a)
        self.b = non_negative("b", b)

    def __call__(self, staleness: int) -> float:
        """The factor for a staleness."""
        if staleness <= self.b:
            return 1.0
        return 1.0 / (self.a * (staleness - self.b) + 1)


class DelayAdaptive(Discount):
    """s(tau) = min(1, c / max(tau, 1)): full steps up to a delay of c, then smaller ones.

    ``FedBuff(1, staleness=DelayAdaptive(c))`` is delay-adaptive asynchronous SGD. In the paper, c
    is the number of clients in flight, and beyond it any rate of at most ``1 / (4 * L * tau)`` is
    allowed; ``c / tau`` is a reading that does not need the smoothness L.

    Args:
        c: The largest delay (versions) that still counts in full, above 0; in the paper, the number
            of clients in flight at a time.

    Raises:
        ValueError: `c` is not above 0.

    Source: Koloskova, Stich, Jaggi, Sharper Convergence Guarantees for Asynchronous SGD for
    Distributed and Federated Learning, NeurIPS 2022, https://arxiv.org/abs/2206.08307; Mishchenko,
    Bach, Even, Woodworth, Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays, NeurIPS
    2022, https://arxiv.org/abs/2206.07638. The rule was checked against public code, the papers'
    constants were not.

    Example:
        >>> DelayAdaptive(2)(0), DelayAdaptive(2)(2), DelayAdaptive(2)(4)
        (1.0, 1.0, 0.5)
    """

    def __init__(self, c: float) -> None:
        self.c = positive("c", c)

    def __call__(self, staleness: int) -> float:
        """The factor for a staleness."""
        return min(1.0, self.c / max(staleness, 1))


def check_staleness(value: object, name: str = "staleness") -> Staleness:
    """Return `staleness` as a function; None means `Constant`.

    Raises:
        TypeError: It is not a function of an int, or it is a class instead of an instance.
    """
    if value is None:
        return Constant()
    if isinstance(value, type) or not callable(value):
        raise TypeError(
            f"{name} must be a function of an integer staleness, got {shown(value)}; "
            "for example Polynomial(0.5), Hinge(a=10, b=4) or None for no discount"
        )
    return value  # `discount` checks its values


def discount(function: Staleness, staleness: int) -> float:
    """s(tau), checked.

    Raises:
        ValueError: The function returned a value that is negative or not finite.
    """
    value: object = function(staleness)
    if isinstance(value, float) and 0 <= value < math.inf:
        return value
    return non_negative(f"staleness({staleness})", value)
