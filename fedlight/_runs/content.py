"""A value by all that it holds, as a hash, with the code of the user and what that code reads.

Every object is visited once, along a stack of its own, so that neither cycles nor depth nor shared
parts cost more than their size. A part that has no content, such as an open file, counts by its
kind, and is named among the hidden ones.
"""

from __future__ import annotations

import builtins
import copyreg
import dataclasses
import hashlib
import io
import logging
import os
import random
import sys
import threading
import warnings
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache, partial
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlight._runs.code import constants, text_of
from fedlight._runs.files import Files
from fedlight._runs.ownership import of_the_user
from fedlight._runs.reading import Hidden, Variable, closure_of, reads_of
from fedlight._support.strategy import Strategy, arguments

_CACHED = type(lru_cache(len))
_METHODS = (FunctionType, classmethod, staticmethod, property)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_ITEMS = (dict, OrderedDict, MappingProxyType, defaultdict)
# Known by their kind: they hold nothing that a result could depend on.
_EMPTY = (
    *(logging.Logger, logging.Handler, weakref.ProxyType, threading.Thread),
    *(type(threading.Lock()), type(threading.RLock()), threading.Condition),
)
# `random.random` and `scipy.stats.norm` hold them; their state is another one in each process.
_GLOBAL_GENERATORS = (
    getattr(random.random, "__self__", None),
    getattr(np.random.random, "__self__", None),
    torch.default_generator,
)
# Parts of a class that follow from others, or describe it.
_OF_A_CLASS = {
    *("__doc__", "__module__", "__dict__", "__weakref__", "__qualname__", "__annotations__"),
    *("__annotate__", "__annotate_func__", "__annotations_cache__", "__firstlineno__"),
    *("__static_attributes__", "__dataclass_fields__", "__dataclass_params__", "__parameters__"),
    *("__abstractmethods__", "_abc_impl", "__orig_bases__", "__classdictcell__"),
    "__slotnames__",  # kept there by pickling
}


@dataclass(frozen=True, slots=True)
class Content:
    """What a value holds.

    Attributes:
        digest: Sixteen hexadecimal digits, equal for equal content, in every process.
        hidden: What the digest does not have, in words; each once.
    """

    digest: str
    hidden: tuple[str, ...]


def content(value: object) -> str:
    """Return sixteen hexadecimal digits of all that a value holds: equal for equal content.

    A strategy of the library is its arguments. Of functions and classes of the user the code
    counts, too, and what they read; those of libraries are known by their names.
    """
    return content_of(value, "the value").digest


def content_of(value: object, name: str, files: bool = False) -> Content:
    """Return the content of a value, and what cannot be seen of it.

    Args:
        value: The value.
        name: Its name, for what cannot be seen.
        files: Whether files count that the value names.
    """
    walk = _Walk(Files() if files else None)
    digest = walk.digest(value, name)
    return Content(digest, tuple(walk.hidden))


@dataclass(frozen=True, slots=True)
class _Part:
    """A value on the way: its name, and the function or the argument that reads it."""

    value: Any
    name: str
    reader: str = ""

    def of(self, value: Any) -> _Part:
        """A value in this one that has no name."""
        return _Part(value, self.name, self.reader)

    def at(self, name: str, value: Any) -> _Part:
        return _Part(value, f"{self.name}.{name}", self.reader)


class _Walk:
    """Goes through a value; a second reference to an object is named by its number.

    Args:
        files: Collects the files that are named, or None.
        sorting: The sets, by identity, whose elements are being sorted.
    """

    def __init__(self, files: Files | None, sorting: frozenset[int] = frozenset()) -> None:
        self.hidden: dict[str, None] = {}  # in the order of their first mention
        self._files = files
        self._opened: list[tuple[str, str]] = []  # by functions of data: files that may be named
        self._sorting = sorting
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []  # so that no address is used again

    def digest(self, value: object, name: str) -> str:
        hashed = hashlib.blake2b(digest_size=8)
        stack: list[Iterator[Any]] = [iter([_Part(value, name)])]
        while stack:
            for each in stack[-1]:
                if isinstance(each, _Part):
                    stack.append(iter(self._parts(each)))
                    break
                hashed.update(each)
            else:
                stack.pop()
        if self._files is not None:
            for text in self._files.parts():
                hashed.update(text)
            for each in self._files.hidden:
                self._note(each, name)
            for what, reader in self._opened if not self._files.found else ():
                self._note(what, "", reader)
        return hashed.hexdigest()

    def _parts(self, part: _Part) -> Iterable[Any]:
        value = part.value
        kind = type(value)
        if kind is str or isinstance(value, os.PathLike):
            number = None if self._files is None else self._files.number(value, part.name)
            if number is not None:
                return [f"path:{number};".encode()]
        if kind in _PLAIN:
            return [_plain(value)]
        if kind is tuple and all(type(each) in _PLAIN for each in value):
            # Equal constants may be one object or several, as the compiler likes.
            return self._sequence(part)
        if id(value) in self._seen:
            return [f"again:{self._seen[id(value)]};".encode()]
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return self._new(part)

    def _new(self, part: _Part) -> Iterable[Any]:
        value = part.value
        kind = type(value)
        if isinstance(value, Tensor):
            return self._tensor(part)
        if isinstance(value, np.ndarray):
            return self._array(part)
        if isinstance(value, np.generic):
            return [f"{value.dtype.str}:".encode(), value.tobytes()]
        if kind in (list, tuple):
            return self._sequence(part)
        if kind in (set, frozenset):
            return self._set(part, value)
        if kind in _ITEMS:
            return self._items(part, value)
        if isinstance(value, Enum):
            return [part.of(kind), value.name.encode(), part.of(value.value)]
        if isinstance(value, type):
            return self._class(part)
        if isinstance(value, FunctionType):
            return self._function(part)
        if isinstance(value, CodeType):
            return [text_of(value).encode()]
        if isinstance(value, _CACHED):
            return [part.of(value.__wrapped__)]
        if isinstance(value, MethodType):
            return [b"method;", part.of(value.__func__), part.of(value.__self__)]
        if isinstance(value, partial):
            held = [partial, value.func, value.args, value.keywords]
            return [*map(part.of, held)]
        if isinstance(value, ModuleType):
            return self._module(part)
        if isinstance(value, property):
            return [b"property;", *map(part.of, (value.fget, value.fset, value.fdel))]
        if isinstance(value, classmethod | staticmethod):
            return [kind.__name__.encode(), part.of(value.__func__)]
        if isinstance(value, cached_property):
            return [b"cached;", part.of(value.func)]
        if isinstance(value, weakref.ref):
            return [b"reference;", part.of(value())]
        if any(value is each for each in _GLOBAL_GENERATORS):
            return [b"global generator;"]  # a run has its own state of it
        if isinstance(value, torch.Generator):
            return [b"generator;", part.of(value.get_state())]
        if value is os.environ:
            return self._hide(part, "the whole environment")
        if isinstance(value, io.IOBase):
            return self._hide(part)
        if isinstance(value, weakref.WeakSet):
            return self._set(part, set(value))
        if isinstance(value, weakref.WeakKeyDictionary | weakref.WeakValueDictionary):
            return [f"{kind.__qualname__};".encode(), part.of(dict(value))]
        if isinstance(value, _EMPTY):
            own = of_the_user(kind.__module__)
            return self._hide(part) if own else [f"{kind.__qualname__};".encode()]
        return self._object(part)

    # Collections and numbers.

    def _sequence(self, part: _Part) -> Iterator[Any]:
        yield f"{type(part.value).__name__}{len(part.value)}:".encode()
        for each in part.value:
            if type(each) in _PLAIN and (self._files is None or type(each) is not str):
                yield _plain(each)
            else:
                yield part.of(each)

    def _items(self, part: _Part, items: Mapping[Any, Any]) -> Iterator[Any]:
        yield f"{type(items).__name__}{len(items)}:".encode()
        if isinstance(items, defaultdict):
            yield part.of(items.default_factory)
        for key, each in list(items.items()):
            plain = type(key) in _PLAIN and (self._files is None or type(key) is not str)
            yield _plain(key) if plain else part.of(key)
            yield part.at(key, each) if type(key) is str else part.of(each)

    def _set(self, part: _Part, values: Set[Any]) -> Iterator[Any]:
        """Elements in an order of their contents, as their own differs between processes."""
        yield f"set{len(values)}:".encode()
        names = {_name_to_sort_by(each): each for each in values}
        if None not in names and len(names) == len(values):
            for _, each in sorted(names.items(), key=lambda item: str(item[0])):
                yield part.of(each)
        elif id(part.value) not in self._sorting:  # not within an element of itself
            sorting = self._sorting | {id(part.value)}
            digests = []
            for each in values:
                walk = _Walk(None if self._files is None else Files(), sorting)
                digests.append(walk.digest(each, part.name).encode())
                self.hidden |= walk.hidden
            yield from sorted(digests)

    def _tensor(self, part: _Part) -> Iterator[Any]:
        value: Tensor = part.value.detach()
        kind = "" if type(part.value) in (Tensor, nn.Parameter) else type(part.value).__qualname__
        yield f"tensor:{kind}{value.dtype}{tuple(value.shape)}{part.value.requires_grad}".encode()
        yield from self._of_a_tensor(part)
        if value.is_meta:
            return
        if value.layout is not torch.strided:
            dense = value.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
            yield part.of(dense.indices())
            yield part.of(dense.values())
            return
        try:
            # A number that stands at many places is taken once.
            for axis, stride in enumerate(value.stride()):
                if stride == 0 and value.shape[axis] > 1:
                    value = value.narrow(axis, 0, 1)
            flat = value.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            yield flat.view(torch.uint8).numpy()
        except (RuntimeError, NotImplementedError):  # quantized, or of a wrapper
            yield from self._object(part)

    def _of_a_tensor(self, part: _Part) -> Iterator[Any]:
        """Attributes that the user has set, and hooks."""
        for name, each in sorted(vars(part.value).items()):
            yield name.encode()
            yield part.at(name, each)
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            hooks = getattr(part.value, name, None)
            if hooks:
                yield part.at(name, list(hooks.values()))

    def _array(self, part: _Part) -> Iterator[Any]:
        value: np.ndarray[Any, Any] = part.value
        kind = "" if type(value) is np.ndarray else type(value).__qualname__
        texts = self._files is not None and value.dtype.kind == "U"  # they may name files
        dtype = "texts" if texts else value.dtype.descr if value.dtype.fields else value.dtype.str
        yield f"array:{kind}{dtype}".encode()
        yield str(value.shape).encode()
        if kind and not isinstance(value, np.memmap | np.ma.MaskedArray):
            yield part.of(dict(vars(value)))
        if value.dtype.hasobject or texts:
            yield part.of(value.tolist())
            return
        for axis, stride in enumerate(value.strides):
            if stride == 0 and value.shape[axis] > 1:
                value = value[(slice(None),) * axis + (slice(0, 1),)]
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        if isinstance(part.value, np.ma.MaskedArray):
            yield part.of(np.ma.getmaskarray(part.value))

    # Code.

    def _function(self, part: _Part) -> Iterator[Any]:
        function: FunctionType = part.value
        yield f"function {function.__qualname__};".encode()
        inside = _Part(None, "", function.__qualname__)
        own = of_the_user(function.__module__)
        if not own and "<locals>" not in function.__qualname__:
            yield f"{function.__module__};".encode()
            return
        # What wraps a function of the user may be a library's.
        for name, value in closure_of(function).items():
            if not isinstance(value, ModuleType):  # whose names are followed
                yield _Part(value, name, function.__qualname__)
        if not own or not of_the_user(function.__globals__.get("__name__")):
            return
        yield text_of(function.__code__).encode()
        yield inside.of([function.__defaults__, function.__kwdefaults__, vars(function)])
        for each in reads_of(function):
            if isinstance(each, Variable):
                value = os.environ.get(each.name)
                yield f"environment {each.name}={value!r};".encode()
            elif isinstance(each, Hidden):
                if each.file and self._files is not None:
                    self._opened.append((each.what, function.__qualname__))
                else:
                    self._note(each.what, "", function.__qualname__)
            else:
                yield f"{each.name}=".encode()
                yield _Part(each.value, each.name, function.__qualname__)
        if self._files is not None:
            for constant in constants(function.__code__):
                if type(constant) is str:
                    yield inside.of(constant)

    def _class(self, part: _Part) -> Iterator[Any]:
        kind: type = part.value
        for each in kind.__mro__:
            yield f"{each.__module__}.{each.__qualname__};".encode()
        if isinstance(kind, type) and of_the_user(type(kind).__module__):
            yield part.of(type(kind))
        members: Mapping[str, Enum] = {}
        if issubclass(kind, Enum):
            members = kind.__members__
            for name, member in members.items():
                yield name.encode()
                yield part.at(name, member.value)
        for each in kind.__mro__:
            if not of_the_user(each.__module__):
                continue
            for name, value in sorted(vars(each).items(), key=lambda item: item[0]):
                of_enum = members and (name in members or (name[0] == name[-1] == "_"))
                if name in _OF_A_CLASS or (of_enum and not isinstance(value, _METHODS)):
                    continue
                yield name.encode()
                yield _Part(value, f"{each.__qualname__}.{name}", f"the class {each.__qualname__}")
            if dataclasses.is_dataclass(each):
                yield repr(each.__dataclass_params__).encode()  # type: ignore[attr-defined]
                yield part.of({field.name: field.metadata for field in dataclasses.fields(each)})

    def _module(self, part: _Part) -> Iterator[Any]:
        """The name of a library's module; of one of the user, all that it holds."""
        module: ModuleType = part.value
        yield f"module {module.__name__};".encode()
        if of_the_user(module.__name__):
            for name, value in sorted(vars(module).items()):
                if not name.startswith("__") and name != "annotations":
                    yield name.encode()
                    yield part.at(name, value)

    # Other objects.

    def _object(self, part: _Part) -> Iterator[Any]:
        value, kind = part.value, type(part.value)
        yield part.of(kind)
        own = of_the_user(kind.__module__)
        if isinstance(value, Strategy) and not own:
            for name, each in arguments(value).items():
                yield name.encode()
                yield part.at(name, each)
            return
        held = _attributes(value)
        reduced = _reduced(value)
        if isinstance(reduced, str):
            yield f"{getattr(value, '__module__', None)}.{kind.__module__}.{reduced};".encode()
        elif reduced is None:
            if not held:
                yield from self._hide(part)
        elif isinstance(value, set | frozenset):
            yield from self._set(part, value)
        else:
            made, given, state, items, pairs = (*reduced, None, None, None)[:5]
            yield part.of(made)
            yield part.of(tuple(each for each in given or () if each is not kind))
            yield part.of(list(items or ()))
            yield part.of([list(pair) for pair in pairs or ()])
            if not (own or isinstance(value, nn.Module)) and _has_own_state(kind):
                yield part.of(state)
                return
        if self._files is not None and _in_memory(value):
            # The rows are there: the folder from which they were read does not count any more.
            named = {n for n, each in held.items() if isinstance(each, str | os.PathLike)}
            held = {n: each for n, each in held.items() if n not in named}
        for name, each in held.items():
            yield name.encode()
            if "_hooks" in name and isinstance(each, dict):  # numbered over the whole process
                each = list(each.values())
            yield part.at(name, each)

    def _hide(self, part: _Part, what: str = "") -> Iterator[bytes]:
        kind = type(part.value).__qualname__
        self._note(what or f"{part.name} ({kind})", part.name, part.reader)
        yield f"{kind};".encode()

    def _note(self, what: str, name: str, reader: str = "") -> None:
        """Keep a sentence about what the digest does not have."""
        by = f"read by {reader}" if reader else f"held by {name.split('.')[0]}"
        self.hidden[f"{what} is {by} and is not part of the key"] = None


def _plain(value: Any) -> bytes:
    if type(value) is float and value.is_integer() and repr(value) != "-0.0":
        value = int(value)  # max_time=40 and 40.0 are one limit
    return f"{type(value).__name__}:{value!r};".encode()


def _name_to_sort_by(value: Any) -> str | None:
    """A name that tells plain values, classes and functions apart; None for others."""
    if type(value) in _PLAIN:
        return _plain(value).decode()
    if isinstance(value, type | FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if type(value) is tuple and all(type(each) in _PLAIN for each in value):
        return repr(value)
    return None


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object, those in slots too."""
    held = {}
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{kind.__name__.lstrip('_')}{name}"
            if hasattr(value, name):
                held[name] = getattr(value, name)
    held.update(getattr(value, "__dict__", {}))
    for name in ("__dict__", "__weakref__", "__doc__"):
        held.pop(name, None)
    return held


def _has_own_state(kind: type) -> bool:
    """Whether a class says itself of what its objects consist."""
    names = ("__reduce__", "__reduce_ex__", "__getstate__")
    return any(getattr(kind, each, None) is not getattr(object, each, None) for each in names)


def _reduced(value: Any) -> tuple[Any, ...] | str | None:
    """What makes an object again, as for pickling; the name of a global; None if it has neither."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            special = copyreg.dispatch_table.get(type(value))
            reduced = value.__reduce_ex__(4) if special is None else special(value)
    except Exception:
        return None
    if isinstance(reduced, str):
        module = getattr(value, "__module__", None)
        spaces = (sys.modules.get(module) if isinstance(module, str) else None, builtins, np, torch)
        names = reduced.split(".")
        return reduced if any(_found(each, names) is value for each in spaces) else None
    return reduced if isinstance(reduced, tuple) and callable(reduced[0]) else None


def _found(space: Any, names: list[str]) -> Any:
    for name in names:
        space = getattr(space, name, None)
    return space


def _in_memory(value: Any) -> bool:
    """Whether a data set of a library holds its rows in an array, as those of torchvision do."""
    of = next((each for each in type(value).__mro__ if "__getitem__" in vars(each)), None)
    rows = getattr(value, "__dict__", {}).get("data")
    return (
        of is not None and not of_the_user(of.__module__) and isinstance(rows, Tensor | np.ndarray)
    )
