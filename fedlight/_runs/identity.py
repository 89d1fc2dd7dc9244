"""The identity of a run: its strategies in words, as columns, and by content.

All three go through the constructor's `arguments`. They differ in what they are for:

- `in_words` is text that a person can read. A checkpoint knows by it whether a run resumes under
  its own settings, so it is the same at any time of a run, and in every process.
- `columns` are the arguments as plain values by name, for a table such as TensorBoard's *HParams*.
- `content` is a hash of everything that a value holds, with the code of the user's classes and
  functions and the values that they use. It is taken before a run, for the key of a study.
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache, lru_cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fedlight._support.strategy import Strategy, arguments, digest

Plain: TypeAlias = bool | int | float | str

_DEPTH = 3
_LIBRARIES = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib")
)
_CACHED = type(lru_cache(len))
# The kinds of values outside a function that count if it uses them, in addition to those of the
# user's classes. Others, such as an open file or a lock, have no content that could be compared.
_COUNTED = (
    *(type(None), bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset),
    *(Tensor, nn.Module, np.ndarray, np.generic, SimpleNamespace, argparse.Namespace),
    *(FunctionType, MethodType, partial, _CACHED, type),
)


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


# By content.


def content(value: object) -> str:
    """Return sixteen hexadecimal digits of all that a value holds: equal for equal content.

    A strategy of the library is its arguments. Of functions and classes of the user the code
    counts, too, and what they use; those of libraries are known by their names.
    """
    hashed = hashlib.blake2b(digest_size=8)
    for part in _Content().parts(value):
        hashed.update(part)
    return hashed.hexdigest()


class _Content:
    """Visits each object in a value once; a second reference to one is named by its number."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []  # so that no address is used again

    def parts(self, value: object) -> Iterable[bytes]:
        if type(value) is float and value.is_integer():
            value = int(value)  # max_time=40 and 40.0 are one limit
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            yield f"{type(value).__name__}:{value!r};".encode()
            return
        if id(value) in self._seen:
            yield f"again:{self._seen[id(value)]};".encode()
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        yield from self._new(value)

    def _new(self, value: Any) -> Iterable[bytes]:
        if isinstance(value, Tensor):
            yield f"tensor:{value.dtype}{tuple(value.shape)}{value.requires_grad}".encode()
            flat = value.detach().cpu().contiguous().reshape(-1)
            yield flat.view(torch.uint8).numpy().tobytes()
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biufcSU":
            yield f"array:{value.dtype.str}{value.shape}".encode() + value.tobytes()
        elif isinstance(value, np.generic):
            yield f"{value.dtype.str}:{value!r};".encode()
        elif isinstance(value, list | tuple):
            yield f"{type(value).__qualname__}{len(value)}".encode()
            for each in value:
                yield from self.parts(each)
        elif isinstance(value, Set):
            yield from sorted(content(each).encode() for each in value)
        elif isinstance(value, Mapping):
            yield f"{type(value).__qualname__}{len(value)}".encode()
            for key, each in value.items():
                yield from self.parts(key)
                yield from self.parts(each)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, _CACHED):
            yield from self.parts(value.__wrapped__)
        elif isinstance(value, MethodType):
            yield from self.parts([value.__func__, value.__self__])
        elif isinstance(value, partial):
            yield from self.parts([partial, value.func, value.args, value.keywords])
        elif isinstance(value, ModuleType):
            yield value.__name__.encode()
        elif isinstance(value, torch.Generator):
            yield from self.parts(value.get_state())
        else:
            yield from self._object(value)

    def _object(self, value: Any) -> Iterable[bytes]:
        kind = type(value)
        yield from self.parts(kind)
        if isinstance(value, Strategy) and not _of_the_user(kind.__module__):
            yield from self.parts(arguments(value))
            return
        slots = [vars(each).get("__slots__", ()) for each in kind.__mro__]
        names = [name for s in slots for name in ([s] if isinstance(s, str) else s)]
        held = {name: getattr(value, name) for name in names if hasattr(value, name)}
        held.pop("__dict__", None)
        held.pop("__weakref__", None)
        held.update(getattr(value, "__dict__", {}))
        if held:
            yield from self.parts(held)
            return
        try:  # written in another language, as a table of arrow is
            yield pickle.dumps(value)
        except Exception:
            yield kind.__qualname__.encode()

    def _class(self, kind: type) -> Iterable[bytes]:
        yield f"{kind.__module__}.{kind.__qualname__}".encode()
        for each in kind.__mro__:
            if _of_the_user(each.__module__):
                for name, value in sorted(vars(each).items(), key=lambda item: item[0]):
                    if not name.startswith("__") or isinstance(value, FunctionType):
                        yield name.encode()
                        yield from self.parts(_plain_function(value))

    def _function(self, function: FunctionType) -> Iterable[bytes]:
        yield function.__qualname__.encode()
        if not _of_the_user(function.__module__):
            return
        code = function.__code__
        # A call by keyword depends on the names of the parameters.
        taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        yield repr([_of_code(code), taken]).encode()
        yield from self.parts(_from_definition(function))
        # The modules are for imports within the function.
        for used in _outside(_names(code), {**sys.modules, **function.__globals__}, set()):
            yield from self.parts(used)


def _outside(names: list[str], space: Mapping[str, Any], passed: set[str]) -> Iterator[Any]:
    """The values of names in a module, and in the modules of the user that are among them."""
    for name in names:
        used = space.get(name)
        if isinstance(used, ModuleType):
            if _of_the_user(used.__name__) and used.__name__ not in passed:
                passed.add(used.__name__)
                yield from _outside(names, vars(used), passed)
        elif name in space and (isinstance(used, _COUNTED) or _of_the_user(type(used).__module__)):
            yield used


def _plain_function(value: Any) -> Any:
    """The function within a property, a class method or a static method; else the value."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, classmethod | staticmethod):
        return value.__func__
    return value


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


def _names(code: CodeType) -> list[str]:
    """The names that a function uses, those of functions within it too."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return [*code.co_names, *(name for each in inner for name in _names(each))]


@cache
def _of_the_user(module: str) -> bool:
    """Whether a module is neither part of fedlight nor of an installed library."""
    top = module.split(".")[0]
    if top in ("fedlight", "data_partitioners", "builtins"):
        return False
    if top == "__main__":
        return True
    file = getattr(sys.modules.get(module) or sys.modules.get(top), "__file__", None)
    if file is None:
        return top not in sys.stdlib_module_names
    return not str(Path(file).resolve()).startswith(_LIBRARIES)
