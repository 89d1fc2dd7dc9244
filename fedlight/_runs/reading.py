"""What the code of a function reads outside itself, found without calling it.

The names of globals are followed through modules to the values they stand for: of `pkg.sub.rule()`
that is the function `rule`, and a module that is passed on counts as a whole. What depends on a
name or a file that only the call knows cannot be found, and is reported as `Hidden`.
"""

from __future__ import annotations

import builtins
import dis
import importlib
import importlib.util
import inspect
import os
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from fedlight._runs.code import instructions
from fedlight._runs.ownership import is_users_file, of_the_user

_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_ROOTS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK")
_CELLS = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS")
_STORES = ("STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL", "STORE_FAST_LOAD_FAST")
_WRITES = ("w", "a", "x", "wb", "ab", "xb", "wt", "at", "w+", "a+", "wb+", "ab+")
_READERS = (open, np.load, np.loadtxt, np.genfromtxt, np.fromfile, np.memmap, torch.load)
# Methods, and functions of libraries by their names.
_READING = (
    *("read_text", "read_bytes", "open", "iterdir", "listdir", "scandir", "glob", "rglob"),
    *("iglob", "imread", "read_image", "loadmat", "load_file", "ZipFile", "getline", "run_path"),
)
# Attributes by which code reads itself, or names that only the call knows.
_DESCRIBING = ("__annotations__", "__doc__", "__globals__", "f_globals", "f_locals")
_BY_NAME = (
    *(globals, eval, exec, os.path.expandvars, vars(sys)["_getframe"], inspect.currentframe),
    *(inspect.stack, inspect.getsource, inspect.getdoc, inspect.get_annotations),
    typing.get_type_hints,
)
_IMPORTERS = (importlib.import_module, builtins.__import__)
_COMMANDS = (os.system, os.popen)
_OTHER_PROGRAMS = ("subprocess", "urllib", "requests", "httpx", "socket", "http")
_CONSUMERS = ("BINARY_OP", "BINARY_SUBSCR", "CONTAINS_OP", "STORE_SUBSCR", "DELETE_SUBSCR")
_FAR = 12  # instructions between a function and its constant argument


@dataclass(frozen=True, slots=True)
class Value:
    """A value that a function reads, by the name that it has there."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable that a function reads."""

    name: str


@dataclass(frozen=True, slots=True)
class Hidden:
    """Something that a function reads and that cannot be found.

    Attributes:
        what: It, in words.
        file: Whether it is a file that the function opens.
    """

    what: str
    file: bool = False


Read = Value | Variable | Hidden


def reads_of(function: FunctionType) -> Iterator[Read]:
    """Yield what a function and the functions within it read, in the order of the code."""
    space = dict(vars(builtins)) | function.__globals__ | closure_of(function)
    yield from _Reader(space, function.__globals__).reads(function.__code__)


def closure_of(function: FunctionType) -> dict[str, Any]:
    """The values that a function has from the one that made it, as far as they are assigned."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


class _Reader:
    """Follows the names of one function in the space of its globals, builtins and closure."""

    def __init__(self, space: Mapping[str, Any], module: Mapping[str, Any]) -> None:
        self._space = space
        self._module = module
        self._imported: dict[str, Any] = {}  # by imports within the function

    def reads(self, code: CodeType) -> Iterator[Read]:
        given = instructions(code)
        # All imports first: a function within this one may use what is imported after it.
        for at, each in enumerate(given):
            if each.opname == "IMPORT_NAME":
                yield from self._import(at, given)
        for at, each in enumerate(given):
            if each.opcode in dis.hasconst and isinstance(each.argval, CodeType):
                yield from self.reads(each.argval)
            elif each.opname in _ATTRIBUTES and each.argval in _READING:
                if each.argval != "open" or not _writes(at + 1, given):
                    yield Hidden("a file", file=True)
            elif each.opname in _ATTRIBUTES and each.argval in _DESCRIBING:
                yield Hidden(f"what {each.argval} holds")
            elif each.opname in _ROOTS or each.opname in _CELLS:
                local = each.opname.startswith("LOAD_FAST")
                space = self._imported if local else {**self._space, **self._imported}
                if each.argval in space:
                    yield from self._chain(at, given, space[each.argval])

    def _chain(self, at: int, given: list[dis.Instruction], value: Any) -> Iterator[Read]:
        """What ``name.attribute.attribute`` reads."""
        first, root, names = at, value, [str(given[at].argval)]
        at += 1
        while isinstance(value, ModuleType) and at < len(given) and given[at].opname in _ATTRIBUTES:
            attribute = given[at].argval
            try:
                # Only a module of the user may compute its attributes: a library may load others.
                own = of_the_user(value.__name__)
                value = getattr(value, attribute) if own else vars(value)[attribute]
            except Exception:
                return
            names.append(attribute)
            at += 1
        inside = value is not root and _is_of_a_library(root)
        for each in self._meaning(".".join(names), value, first, at, given):
            # What a library holds is known by its name, which is in the code.
            if not (inside and isinstance(each, Value) and each.value is value is not sys.argv):
                yield each

    def _meaning(
        self, name: str, value: Any, first: int, after: int, given: list[dis.Instruction]
    ) -> Iterator[Read]:
        if value is os.environ or value is os.getenv or value is getattr(os, "environb", None):
            yield from self._variable(first, after, given)
        elif value is sys.argv:
            yield Value("sys.argv", sys.argv)
        elif _is_one_of(value, _READERS) or _reads_table(value) or _opens(value):
            if not _writes(after, given, after_name=True):
                yield Hidden("a file", file=True)
        elif _is_one_of(value, _BY_NAME) or value is sys.modules:
            yield Hidden(f"what {name} finds")
        elif _is_one_of(value, _IMPORTERS):
            module = self._constant(after, given)
            if isinstance(module, str) and not module.startswith("."):
                yield from self._module_named(module)
            else:
                yield Hidden(f"what {name} finds")
        elif _asks_others(value):
            yield Hidden(f"what {name} answers")
        elif isinstance(value, ModuleType):
            if of_the_user(value.__name__):
                yield Value(name, value)
        else:
            yield Value(name, value)

    def _variable(self, first: int, after: int, given: list[dis.Instruction]) -> Iterator[Read]:
        """The environment variable that is read, by its name in the code."""
        if after < len(given) and given[after].opname in _ATTRIBUTES:  # environ.get
            after += 1
        if after < len(given) and given[after].opname == "CONTAINS_OP":
            after = first - 1
        name = self._constant(after, given)
        if not isinstance(name, str | bytes) or _is_part_of_a_name(after, given):
            yield Hidden("an environment variable whose name is computed")
        elif after + 1 >= len(given) or given[after + 1].opname != "STORE_SUBSCR":
            yield Variable(os.fsdecode(name))

    def _constant(self, at: int, given: list[dis.Instruction]) -> Any:
        """The constant that an instruction loads, also as a global; None for anything else."""
        while 0 <= at < len(given) and given[at].opname == "PUSH_NULL":
            at += 1
        if not 0 <= at < len(given):
            return None
        each = given[at]
        if each.opcode in dis.hasconst:
            return each.argval
        known = each.opname in ("LOAD_GLOBAL", *_CELLS)
        return self._space.get(each.argval) if known else None

    def _import(self, at: int, given: list[dis.Instruction]) -> Iterator[Read]:
        """What an import within a function reads; what it names is followed from there."""
        level, names = given[at - 2].argval, given[at - 1].argval
        path = given[at].argval
        if level:
            package = str(self._module.get("__package__") or "")
            path = f"{'.' * level}{path}"
            try:
                path = importlib.util.resolve_name(path, package)
            except ImportError:
                yield Hidden(f"the module {path}")
                return
        module, failed = _imported(path)
        if module is None:
            if failed:
                yield Hidden(f"the module {path}, which cannot be imported")
            return
        if names == ("*",):
            yield from self._module_named(path)
        elif names:  # from path import name as other
            places = [k for k in range(at, len(given)) if given[k].opname == "IMPORT_FROM"]
            for each, after in ((given[k], given[k + 1]) for k in places[: len(names)]):
                value = getattr(module, each.argval, None)
                if value is None and _imported(f"{path}.{each.argval}")[0] is not None:
                    value = sys.modules[f"{path}.{each.argval}"]
                if after.opname in _STORES:
                    self._imported[_stored(after)] = value
                if not isinstance(value, ModuleType) and not _is_of_a_library(module):
                    yield Value(each.argval, value)
        else:
            after = given[at + 1]
            if after.opname in _STORES:  # import a.b binds a
                self._imported[_stored(after)] = sys.modules[path.split(".")[0]]
            else:  # import a.b as c
                stored = next((x for x in given[at + 1 :] if x.opname in _STORES), None)
                if stored is not None:
                    self._imported[_stored(stored)] = module

    def _module_named(self, path: str) -> Iterator[Read]:
        module, failed = _imported(path)
        if failed:
            yield Hidden(f"the module {path}, which cannot be imported")
        elif module is not None and of_the_user(path):
            yield Value(path, module)


def _stored(each: dis.Instruction) -> str:
    return each.argval if isinstance(each.argval, str) else each.argval[0]


def _imported(path: str) -> tuple[ModuleType | None, bool]:
    """A module, and whether it is the user's and cannot be imported.

    The function would import it, too. A library is not loaded for this.
    """
    if path in sys.modules:
        return sys.modules[path], False
    try:
        top = path.split(".")[0]
        spec = importlib.util.find_spec(top)
        file = None if spec is None else spec.origin
        library = top not in sys.modules and file is not None and not is_users_file(file)
        if spec is None or library or not of_the_user(path):
            return None, False
        return importlib.import_module(path), False
    except Exception:
        return None, True


def _is_of_a_library(value: Any) -> bool:
    return isinstance(value, ModuleType) and not of_the_user(value.__name__)


def _is_one_of(value: Any, known: tuple[Any, ...]) -> bool:
    return any(value is each for each in known)


def _reads_table(value: Any) -> bool:
    """Whether a value is a function of pandas, polars, … that reads a file."""
    name, module = getattr(value, "__name__", ""), getattr(value, "__module__", "")
    reads = isinstance(name, str) and name.startswith(("read_", "scan_"))
    return reads and str(module).split(".")[0] in ("pandas", "polars", "pyarrow")


def _opens(value: Any) -> bool:
    """Whether a value is a function or class of a library that opens a file, by its name."""
    name, module = getattr(value, "__name__", None), getattr(value, "__module__", None)
    return name in _READING and callable(value) and not of_the_user(module or "builtins")


def _is_part_of_a_name(at: int, given: list[dis.Instruction]) -> bool:
    """Whether a name that is loaded is combined with others before it is used.

    Of ``environ[NAME + "_0"]`` the loaded value is consumed by an addition, of ``getenv(NAME, "")``
    by the call.
    """
    while given[at].opname == "PUSH_NULL":
        at += 1
    depth = 1  # of the stack, counted from the name
    for each in given[at + 1 :]:
        if each.opname in _CONSUMERS:
            operands = 2
        elif each.opname.startswith("CALL"):
            operands = (each.arg or 0) + 1
        elif each.opname.startswith(("FORMAT_", "LOAD_METHOD", "LOAD_ATTR", "UNARY_")):
            operands = 1
        else:
            operands = 0
        if operands >= depth:
            return each.opname == "BINARY_OP" or (operands == 1 and "CALL" not in each.opname)
        argument = each.arg if each.opcode >= dis.HAVE_ARGUMENT else None
        depth += dis.stack_effect(each.opcode, argument, jump=False)
        if depth < 1:
            return False
    return False


def _asks_others(value: Any) -> bool:
    """Whether a value is a function or class that asks another program or a server."""
    if not callable(value):
        return False
    if _is_one_of(value, _COMMANDS):
        return True
    return str(getattr(value, "__module__", "")).split(".")[0] in _OTHER_PROGRAMS


def _writes(after: int, given: list[dis.Instruction], after_name: bool = False) -> bool:
    """Whether the call of `open` that follows has a mode of writing."""
    while given[after].opname == "PUSH_NULL":
        after += 1
    after += after_name
    for each in given[after : after + _FAR]:
        if each.opname.startswith("CALL"):
            return False
        if each.opcode in dis.hasconst and each.argval in _WRITES:
            return True
    return False
