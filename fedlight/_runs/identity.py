"""The identity of a run: its strategies in words, and as columns.

Both go through the constructor's `arguments`. They differ in what they are for:

- `in_words` is text that a person can read. A checkpoint knows by it whether a run resumes under
  its own settings, so it is the same at any time of a run, and in every process.
- `columns` are the arguments as plain values by name, for a table such as TensorBoard's *HParams*.

The key of a run in a study is a hash of everything that defines it; see `fedlight._runs.content`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from fedlight._runs.content import content
from fedlight._support.strategy import Strategy, arguments, digest

Plain: TypeAlias = bool | int | float | str

_DEPTH = 3


# In words.


def in_words(value: object, depth: int = _DEPTH) -> str:
    """Return a strategy in words, without the addresses of the objects in it.

    A repr does not identify a function, a tensor, or an object of a class without a repr of its
    own. Those among the arguments are named after it, at any depth: of a function the code and the
    values that it uses count, of a tensor all numbers, of an object its constructor's arguments.
    """
    if isinstance(value, FunctionType):
        used = map(_plainly, _from_definition(value))
        return f"{value.__name__} {digest([*_of_code(value.__code__), *used])}"
    if isinstance(value, Tensor | np.ndarray):  # the repr of a large one has an ellipsis
        return f"{type(value).__name__} {content(value)}"
    words = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    if isinstance(value, type) or not depth:
        return words
    if _has_no_words(value):
        told = [f"{name}={in_words(each, depth - 1)}" for name, each in arguments(value).items()]
        return f"{type(value).__qualname__}({', '.join(told)})"
    return " ".join([words, *_untold(value, depth)])


def _untold(value: object, depth: int) -> Iterator[str]:
    """The arguments that a repr does not identify, also those of strategies within."""
    for name, each in arguments(value).items():
        if _has_no_words(each):
            yield f"{name}={in_words(each, depth - 1)}"
        for inner in _strategies(each):
            yield from _untold(inner, depth)


def _strategies(value: object) -> Iterator[Strategy]:
    """The strategies in an argument, which may be a list, a tuple or a dict."""
    if isinstance(value, Strategy):
        yield value
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strategies(each)


def _has_no_words(value: object) -> bool:
    untold = isinstance(value, FunctionType | Tensor | np.ndarray)
    return untold or type(value).__repr__ is object.__repr__


def _plainly(value: object) -> str:
    """A value that a function uses, if it is plain data; else its kind, as it may change."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_plainly, value))})"
    if isinstance(value, FunctionType):
        return repr(_of_code(value.__code__))
    return type(value).__qualname__


# As columns.


def columns(name: str, strategy: object, depth: int = _DEPTH) -> dict[str, Plain]:
    """Return the class of a strategy and each of its arguments, those of strategies within it too.

    Args:
        name: The first part of the columns' names.
        strategy: The strategy.
        depth: How deep strategies within strategies are looked at.

    Example:
        >>> from fedlight.aggregators import FedAsync
        >>> columns("aggregator", FedAsync(alpha=0.6))["aggregator.alpha"]
        0.6
    """
    found: dict[str, Plain] = {name: type(strategy).__name__}
    for argument, value in arguments(strategy).items():
        column = f"{name}.{argument}"
        if isinstance(value, bool | int | float | str):
            found[column] = value
        elif depth > 1 and (isinstance(value, Strategy) or arguments(value)):
            found.update(columns(column, value, depth - 1))
        else:
            found[column] = in_words(value)
    return found


# Functions and code.


def _from_definition(function: FunctionType) -> list[Any]:
    """The values that a function has from its definition: defaults and closure."""
    found = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    return found


def _of_code(code: CodeType) -> list[Any]:
    """The instructions, constants and names of a function, but not its place in a file."""
    constants: list[Any] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_of_code(constant))
        elif isinstance(constant, frozenset):  # in an order that differs between processes
            constants.append(f"frozenset({{{', '.join(sorted(map(repr, constant)))}}})")
        else:
            constants.append(repr(constant))
    return [code.co_code, constants, code.co_names]
