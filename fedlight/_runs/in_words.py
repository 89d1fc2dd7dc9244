"""Strategies in words: a checkpoint knows by them whether a run goes on under its own settings."""

from __future__ import annotations

import hashlib
import re
from inspect import signature
from types import CodeType, FunctionType
from typing import Any


def in_words(value: object, depth: int = 2) -> str:
    """A strategy in words, without the addresses of the objects in it.

    A class of one's own seldom has a repr: its constructor's arguments that it keeps are named, as
    a run must not go on under others. Of a function the code and the values that it uses count.
    """
    if isinstance(value, FunctionType):
        content = repr([*_of_code(value.__code__), *(_plainly(each) for each in _used(value))])
        return f"{value.__name__} {hashlib.blake2b(content.encode(), digest_size=4).hexdigest()}"
    words = _without_addresses(repr(value))
    if not hasattr(value, "__dict__") or isinstance(value, type) or not depth:
        return words
    kept, plain = vars(value), _has_no_words(value)
    try:
        names = list(signature(type(value)).parameters)
    except (TypeError, ValueError):  # a class written in C
        return words
    told = [
        f"{name}={in_words(kept[name], depth - 1)}"
        for name in names
        if name in kept and (plain or _has_no_words(kept[name]))
    ]
    return f"{type(value).__qualname__}({', '.join(told)})" if plain else " ".join([words, *told])


def _has_no_words(value: object) -> bool:
    return isinstance(value, FunctionType) or type(value).__repr__ is object.__repr__


def _of_code(code: CodeType) -> list[Any]:
    """What a function does; not where it is written."""
    constants = [_of_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code, constants, code.co_names]


def _used(function: FunctionType) -> list[Any]:
    """The values that a function has from its definition: defaults and closure."""
    defaults = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    for cell in function.__closure__ or ():
        try:
            defaults.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    return defaults


def _plainly(value: object) -> str:
    """A value that a function uses, if it is plain data; else its kind, as it may change."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_plainly, value))})"
    if isinstance(value, FunctionType):
        return repr(_of_code(value.__code__))
    return type(value).__qualname__


def _without_addresses(words: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", words)
