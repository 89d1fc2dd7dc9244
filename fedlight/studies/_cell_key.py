"""What defines a run, as the name of the file that keeps it.

Two runs with the same key have the same result: the key is a hash of the arguments (with the code
of the user's own classes and functions), the seed, the weights at the start, the data and the
version of fedlight. Names of cells are no part of it, so a cell may be renamed.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedlight import __version__
from fedlight._runs.data_fingerprint import data_fingerprint
from fedlight.data.examples import ExampleList, ExampleTable

if TYPE_CHECKING:
    from fedlight.data import FederatedDataModule

_LIBRARIES = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib")
)
# What a function may use of the values beside it; those of the user's own classes count, too.
_PLAIN = (
    *(type(None), bool, int, float, str, tuple, list, dict, set, frozenset),
    *(Tensor, np.ndarray, FunctionType, type),
)


def cell_key(parts: Mapping[str, str]) -> str:
    """Sixteen hexadecimal digits of what defines a run: content by name, in any order."""
    digest = hashlib.blake2b(__version__.encode(), digest_size=8)
    for name in sorted(parts):
        digest.update(f"\0{name}\0{parts[name]}".encode())
    return digest.hexdigest()


def data_content(data: FederatedDataModule) -> str:
    """The content of the data of a run, which are set up already: clients, and validation."""
    partition = data.partition
    parts = []
    for examples in (data.train_data, *data.evaluation_data("validation")):
        parts += [data_fingerprint(partition, examples), content(_held(examples))]
    return " ".join([*parts, str(data.batch_size), str(data.eval_batch_size)])


def _held(examples: ExampleTable | ExampleList) -> list[Any]:
    """All that examples are made of. None is asked for: that may draw random numbers."""
    if isinstance(examples, ExampleTable):
        return [column.values for column in examples.columns]
    library = sys.modules.get("datasets")
    hub: Any = () if library is None else library.Dataset  # such a data set knows its content
    return [each._fingerprint if isinstance(each, hub) else each for each in examples.datasets]


def content(value: object) -> str:
    """Sixteen hexadecimal digits of all that a value holds: equal for equal content.

    Of functions and classes of the user the code counts, too, and what they use; those of
    libraries are known by their names.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in _Content().parts(value):
        digest.update(part)
    return digest.hexdigest()


class _Content:
    """Goes through a value once; what it meets again is named by its number."""

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
        elif isinstance(value, list | tuple):
            yield f"{type(value).__qualname__}{len(value)}".encode()
            for each in value:
                yield from self.parts(each)
        elif isinstance(value, set | frozenset):
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
        elif isinstance(value, MethodType):
            yield from self.parts(value.__func__)
            yield from self.parts(value.__self__)
        elif isinstance(value, partial):
            yield b"partial"
            yield from self.parts([value.func, value.args, value.keywords])
        elif isinstance(value, ModuleType):
            yield value.__name__.encode()
        elif isinstance(value, torch.Generator):
            yield from self.parts(value.get_state())
        else:
            yield from self._object(value)

    def _object(self, value: Any) -> Iterable[bytes]:
        kind = type(value)
        yield from self.parts(kind)
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
        yield from _code(function.__code__)
        yield from self.parts([function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            try:
                yield from self.parts(cell.cell_contents)
            except ValueError:  # not assigned yet
                continue
        names = _names(function.__code__)
        for name in names:
            used = function.__globals__.get(name)
            if isinstance(used, ModuleType):
                if _of_the_user(used.__name__):
                    held = vars(used)
                    yield from self.parts([held[each] for each in names if each in held])
            elif isinstance(used, _PLAIN) or _of_the_user(type(used).__module__):
                yield from self.parts(used)


def _plain_function(value: Any) -> Any:
    """The function within a property, a class method or a static method; else the value."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, classmethod | staticmethod):
        return value.__func__
    return value


def _code(code: CodeType) -> Iterable[bytes]:
    """What a function does; not where it is written."""
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        elif isinstance(constant, frozenset):  # in an order that differs between processes
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()


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
