"""How much less a stale update counts: functions of its staleness, 1 for a fresh one.

Source: Asynchronous Federated Optimization (FedAsync), Section 4; the constant of its Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from fedlight.checks import non_negative, positive

Staleness: TypeAlias = Callable[[int], float]
"""s: a function of the staleness tau (versions, 0 for a fresh update) giving a factor."""


@dataclass(frozen=True, slots=True)
class Constant:
    """s(tau) = 1: stale updates count like fresh ones.

    Example:
        >>> Constant()(7)
        1.0
    """

    def __call__(self, staleness: int) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True, slots=True)
class Linear:
    """s(tau) = 1 / (a * tau + 1).

    Attributes:
        a: Slope, above 0.

    Raises:
        ValueError: `a` is not above 0.

    Example:
        >>> Linear(0.5)(2)
        0.5
    """

    a: float

    def __post_init__(self) -> None:
        """Refuse an `a` that could not be meant."""
        positive("a", self.a)

    def __call__(self, staleness: int) -> float:
        """The factor for a staleness."""
        return 1.0 / (self.a * staleness + 1)


@dataclass(frozen=True, slots=True)
class Polynomial:
    """s(tau) = (tau + 1) ** -a; the paper takes a = 0.5, which is FedBuff's 1 / sqrt(1 + tau).

    Attributes:
        a: Exponent, above 0.

    Raises:
        ValueError: `a` is not above 0.

    Example:
        >>> Polynomial(0.5)(3)
        0.5
    """

    a: float

    def __post_init__(self) -> None:
        """Refuse an `a` that could not be meant."""
        positive("a", self.a)

    def __call__(self, staleness: int) -> float:
        """The factor for a staleness."""
        return float((staleness + 1) ** -self.a)


@dataclass(frozen=True, slots=True)
class Exponential:
    """s(tau) = exp(-a * tau).

    Attributes:
        a: Rate, above 0.

    Raises:
        ValueError: `a` is not above 0.

    Example:
        >>> Exponential(2.0)(0)
        1.0
    """

    a: float

    def __post_init__(self) -> None:
        """Refuse an `a` that could not be meant."""
        positive("a", self.a)

    def __call__(self, staleness: int) -> float:
        """The factor for a staleness."""
        return math.exp(-self.a * staleness)


@dataclass(frozen=True, slots=True)
class Hinge:
    """s(tau) = 1 up to tau = b, then 1 / (a * (tau - b) + 1); the paper takes a = 10, b = 4.

    Attributes:
        a: Slope behind the hinge, above 0.
        b: Largest staleness that still counts in full, 0 or larger.

    Raises:
        ValueError: `a` is not above 0, or `b` is below 0.

    Example:
        >>> Hinge(a=0.5, b=4)(4), round(Hinge(a=0.5, b=4)(5), 3)
        (1.0, 0.667)
    """

    a: float
    b: float

    def __post_init__(self) -> None:
        """Refuse numbers that could not be meant."""
        positive("a", self.a)
        non_negative("b", self.b)

    def __call__(self, staleness: int) -> float:
        """The factor for a staleness."""
        if staleness <= self.b:
            return 1.0
        return 1.0 / (self.a * (staleness - self.b) + 1)


def check_staleness(value: object) -> Staleness:
    """`staleness` as a function; None is `Constant`.

    Raises:
        TypeError: It is no function of an int, or a class that was not called.
    """
    if value is None:
        return Constant()
    if isinstance(value, type) or not callable(value):
        raise TypeError(
            f"staleness must be a function of an integer staleness, got {value!r}; "
            "for example Polynomial(0.5), Hinge(a=10, b=4) or None for no discount"
        )
    return value  # what it returns is checked at each call


def discount(function: Staleness, staleness: int) -> float:
    """s(tau), checked.

    Raises:
        ValueError: The function gave a value that is negative or not finite.
    """
    return non_negative(f"staleness({staleness})", function(staleness))
