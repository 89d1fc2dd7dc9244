"""Checks of arguments.

Each error names the argument, shows its value and says what is allowed. The functions return the
value in the type that the library uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from numbers import Integral, Real
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import numpy as np

T = TypeVar("T")

Rate: TypeAlias = float | Callable[[int], float]
"""A number, or a function that returns one for each version of the server's model."""

_LARGEST = 2**63 - 1  # of the numbers that arrays and generators take
_MOST_CLIENTS = 10**8  # each array of a number for each client then has 0.8 GB
_MOST_LETTERS = 120


def shown(value: object) -> str:
    """Return the words for a value in a message: its repr, shortened, or the name of a class."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    try:
        text = repr(value)
    except Exception:  # an integer of more digits than Python writes, or a repr that fails
        return f"an object of {type(value).__name__}"
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"


def described(value: object) -> str:
    """Return the words for a value that may be large: plain values as they are, others by kind."""
    plain = (int, float, complex, str, bytes, list, tuple, dict, set, type, ModuleType, np.generic)
    return shown(value) if value is None or isinstance(value, plain) else type(value).__name__


def _of_kind(value: object) -> str:
    """A value of the wrong kind, with its kind."""
    words = shown(value)
    return words if isinstance(value, type) else f"{words} ({type(value).__name__})"


def positive_int(name: str, value: object) -> int:
    """Return `value` as an int of at least 1.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is below 1, or has more than 63 bits.
    """
    return _count(name, value, 1, "at least 1")


def client_count(name: str, value: object) -> int:
    """Return `value` as a number of clients, from 1 to 10^8.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is below 1, or so large that no memory holds a number for each client.
    """
    number = positive_int(name, value)
    if number > _MOST_CLIENTS:
        raise ValueError(f"{name} must be at most {_MOST_CLIENTS:,} clients, got {number}")
    return number


def optional(check: Callable[[str, object], T], name: str, value: object) -> T | None:
    """Return None for None, and what `check` returns for any other value."""
    return None if value is None else check(name, value)


def non_negative_int(name: str, value: object) -> int:
    """Return `value` as an int of at least 0.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is below 0, or has more than 63 bits.
    """
    return _count(name, value, 0, "0 or larger")


def _count(name: str, value: object, least: int, words: str) -> int:
    number = integer(name, value)
    if number < least:
        raise ValueError(f"{name} must be {words}, got {shown(number)}")
    if number > _LARGEST:
        raise ValueError(f"{name} must be smaller than 2**63, got {shown(number)}")
    return number


def index_below(name: str, value: object, count: int) -> int:
    """Return `value` as an int from 0 to `count` - 1, such as the number of a client.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is outside this range.
    """
    number = integer(name, value)
    if not 0 <= number < count:
        raise ValueError(f"{name} must be an integer from 0 to {count - 1}, got {shown(number)}")
    return number


def integer(name: str, value: object) -> int:
    """Return `value` as an int.

    Raises:
        TypeError: It is not an integer; bools and floats are refused.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {_of_kind(value)}")
    return int(value)


def number(name: str, value: object) -> float:
    """Return `value` as a finite float.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not finite.
    """
    if type(value) is float and math.isfinite(value):
        return value
    result = real(name, value)
    if not math.isfinite(result):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return result


def real(name: str, value: object) -> float:
    """Return `value` as a float, which may be infinite or nan.

    Raises:
        TypeError: It is not a number.
        ValueError: It is an integer beyond the largest float.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {_of_kind(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be smaller than 1e308, got {shown(value)}") from None


def positive(name: str, value: object) -> float:
    """Return `value` as a finite float above 0.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not above 0.
    """
    result = number(name, value)
    if result <= 0:
        raise ValueError(f"{name} must be larger than 0, got {shown(value)}")
    return result


def non_negative(name: str, value: object) -> float:
    """Return `value` as a finite float of at least 0.

    Raises:
        TypeError: It is not a number.
        ValueError: It is below 0.
    """
    result = number(name, value)
    if result < 0:
        raise ValueError(f"{name} must be 0 or larger, got {shown(value)}")
    return result


def fraction(name: str, value: object) -> float:
    """Return `value` as a float in [0, 1].

    Raises:
        TypeError: It is not a number.
        ValueError: It is outside [0, 1].
    """
    result = number(name, value)
    if not 0 <= result <= 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {shown(value)}")
    return result


def below_one(name: str, value: object) -> float:
    """Return `value` as a float in [0, 1).

    Raises:
        TypeError: It is not a number.
        ValueError: It is outside [0, 1).
    """
    result = fraction(name, value)
    if result == 1:
        raise ValueError(f"{name} must be smaller than 1, got {shown(value)}")
    return result


def decay_rates(name: str, value: object) -> tuple[float, float]:
    """Return `value` as the two decay rates of Adam's moments, each in [0, 1).

    Raises:
        TypeError: It is not a pair of numbers.
        ValueError: One of them is outside [0, 1).
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} must be two numbers such as (0.9, 0.999), got {shown(value)}")
    rates = fraction(f"{name}[0]", value[0]), fraction(f"{name}[1]", value[1])
    if 1 in rates:
        raise ValueError(f"{name} must be smaller than 1, got {shown(value)}")
    return rates


def rate(name: str, value: object) -> Rate:
    """Return `value` as a learning rate: a number above 0, or a function of the version.

    Raises:
        TypeError: It is neither a number nor callable.
        ValueError: The number is not above 0.
    """
    if callable(value) and not isinstance(value, type):
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"{name} must be a number or a function of the version, got {_of_kind(value)}"
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
        TypeError: It is a string, whose letters would be taken for names, it is not iterable, or
            it holds something else.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise TypeError(
            f"{name} must be a list of names, such as [{shown(value)}], got {shown(value)}"
        )
    return [text(f"{name}[{place}]", each) for place, each in enumerate(items(name, value))]


def mapping(name: str, value: object, words: str) -> Mapping[Any, Any]:
    """Return `value` if it is a mapping.

    Args:
        name: Name of the argument.
        value: Its value.
        words: What it maps, for the error, such as "names to numbers".

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must map {words}, got {_of_kind(value)}")
    return value


def function(name: str, value: object, words: str) -> Callable[..., Any]:
    """Return `value` if it is a function; a class is none.

    Args:
        name: Name of the argument.
        value: Its value.
        words: Its arguments and result, for the error.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(value, type) or not callable(value):
        raise TypeError(f"{name} must be a function of {words}, got {shown(value)}")
    return value


def items(name: str, value: Iterable[T]) -> list[T]:
    """Return `value` as a list; it is read once, so that it may be a generator.

    Raises:
        TypeError: It is not iterable, a string, whose letters would be taken for its items, or a
            mapping or a set.
    """
    if isinstance(value, str | bytes | Mapping | Set):  # which have no order, or hold other things
        raise TypeError(f"{name} must be a list, got {shown(value)}")
    try:
        return list(value)
    except TypeError:
        raise TypeError(f"{name} must be a list, got {_of_kind(value)}") from None


def pairs(name: str, value: object, words: str) -> list[tuple[str, tuple[Any, Any]]]:
    """Return `value` as a list of pairs, each with its name.

    Args:
        name: Name of the argument.
        value: Its value.
        words: What a pair holds, for the error.

    Raises:
        TypeError: It is no list, or holds something other than pairs.
    """
    if isinstance(value, str | bytes | Mapping | Set) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of pairs {words}, got {_of_kind(value)}")
    found = []
    for place, each in enumerate(items(name, value)):
        single = isinstance(each, str | bytes | Mapping | Set) or not isinstance(each, Iterable)
        pair = () if single or not getattr(each, "shape", (1,)) else tuple(each)
        if len(pair) != 2:
            raise TypeError(f"{name}[{place}] must be a pair {words}, got {shown(each)}")
        found.append((f"{name}[{place}]", pair))
    return found


def text(name: str, value: object) -> str:
    """Return `value` if it is a string.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {_of_kind(value)}")
    return value


def word(name: str, value: object) -> str:
    """Return `value` if it is a string that is not empty.

    Raises:
        TypeError: It is no string.
        ValueError: It is empty.
    """
    if not text(name, value):
        raise ValueError(f"{name} must be a name, got {value!r}")
    return str(value)


def flag(name: str, value: object) -> bool:
    """Return `value` if it is True or False; "no" and 0 are neither.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {_of_kind(value)}")
    return bool(value)


def one_of(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`.

    Raises:
        ValueError: It is none of them.
    """
    # The kind first: an array compares element by element.
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, got {shown(value)}")
    return str(value)
