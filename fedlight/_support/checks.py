"""Checks of arguments.

Each error names the argument, shows its value and says what is allowed. The functions return the
value in the type that the library uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Rate: TypeAlias = float | Callable[[int], float]
"""A number, or a function that returns one for each version of the server's model."""


def positive_int(name: str, value: object) -> int:
    """Return `value` as an int of at least 1.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is below 1.
    """
    number = integer(name, value)
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number


def optional(check: Callable[[str, object], T], name: str, value: object) -> T | None:
    """Return None for None, and what `check` returns for any other value."""
    return None if value is None else check(name, value)


def non_negative_int(name: str, value: object) -> int:
    """Return `value` as an int of at least 0.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is below 0.
    """
    number = integer(name, value)
    if number < 0:
        raise ValueError(f"{name} must be 0 or larger, got {number}")
    return number


def integer(name: str, value: object) -> int:
    """Return `value` as an int.

    Raises:
        TypeError: It is not an integer; bools and floats are refused.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r} ({type(value).__name__})")
    return int(value)


def number(name: str, value: object) -> float:
    """Return `value` as a finite float.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not finite.
    """
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return float(value)


def positive(name: str, value: object) -> float:
    """Return `value` as a finite float above 0.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not above 0.
    """
    result = number(name, value)
    if result <= 0:
        raise ValueError(f"{name} must be larger than 0, got {value!r}")
    return result


def non_negative(name: str, value: object) -> float:
    """Return `value` as a finite float of at least 0.

    Raises:
        TypeError: It is not a number.
        ValueError: It is below 0.
    """
    result = number(name, value)
    if result < 0:
        raise ValueError(f"{name} must be 0 or larger, got {value!r}")
    return result


def fraction(name: str, value: object) -> float:
    """Return `value` as a float in [0, 1].

    Raises:
        TypeError: It is not a number.
        ValueError: It is outside [0, 1].
    """
    result = number(name, value)
    if not 0 <= result <= 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {value!r}")
    return result


def below_one(name: str, value: object) -> float:
    """Return `value` as a float in [0, 1).

    Raises:
        TypeError: It is not a number.
        ValueError: It is outside [0, 1).
    """
    result = fraction(name, value)
    if result == 1:
        raise ValueError(f"{name} must be smaller than 1, got {value!r}")
    return result


def decay_rates(name: str, value: object) -> tuple[float, float]:
    """Return `value` as the two decay rates of Adam's moments, each in [0, 1).

    Raises:
        TypeError: It is not a pair of numbers.
        ValueError: One of them is outside [0, 1).
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} must be two numbers such as (0.9, 0.999), got {value!r}")
    rates = fraction(f"{name}[0]", value[0]), fraction(f"{name}[1]", value[1])
    if 1 in rates:
        raise ValueError(f"{name} must be smaller than 1, got {value!r}")
    return rates


def rate(name: str, value: object) -> Rate:
    """Return `value` as a learning rate: a number above 0, or a function of the version.

    Raises:
        TypeError: It is neither a number nor callable.
        ValueError: The number is not above 0.
    """
    if callable(value):
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"{name} must be a number or a function of the version, "
            f"got {value!r} ({type(value).__name__})"
        )
    return positive(name, value)


def rate_at(name: str, value: Rate, version: int) -> float:
    """Return the value of a rate at a version.

    Raises:
        TypeError: The function did not return a number.
        ValueError: The function returned a value that is negative or not finite.
    """
    if not callable(value):
        return value
    return non_negative(f"{name}(version={version})", value(version))


def names(name: str, value: Iterable[str]) -> list[str]:
    """Return `value` as a list of names.

    Raises:
        TypeError: It is a string, whose letters would be taken for names, or it is not iterable.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of names, such as [{value!r}], got {value!r}")
    return list(value)


def one_of(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`.

    Raises:
        ValueError: It is none of them.
    """
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, got {value!r}")
    return str(value)
