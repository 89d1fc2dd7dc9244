"""Wrong values for every public argument, and what became of a call that got one.

An argument given a wrong value ends in one of four ways: `clear`, an error of ours that names the
argument and shows the value; `obscure`, any other error; `taken`, none at all; `endless`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import signal
import traceback
import types
import warnings
from collections.abc import Callable, Collection, Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import data_partitioners
import fedlight

PACKAGES = (fedlight, data_partitioners)
FOLDERS = tuple(str(Path(package.__file__).parent) for package in PACKAGES)
OURS = tuple(package.__name__ for package in PACKAGES)
WORDS = re.compile(r"\w+")
ENOUGH_SECONDS = 20


def _spent() -> Iterator[int]:
    numbers = iter([1])
    next(numbers)
    return numbers


# Made anew for each case, since some of them are used up.
WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "np.bool_": lambda: np.bool_(True),
    "0": lambda: 0,
    "-1": lambda: -1,
    "-0.5": lambda: -0.5,
    "0.5": lambda: 0.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "tiny": lambda: 1e-300,
    "large": lambda: 1e300,
    "huge": lambda: 10**400,
    "complex": lambda: 1j,
    "Fraction": lambda: Fraction(1, 3),
    "np.int64": lambda: np.int64(2),
    "np.float32 nan": lambda: np.float32("nan"),
    "''": lambda: "",
    "'3'": lambda: "3",
    "unicode": lambda: "größe ☃",
    "bytes": lambda: b"ab",
    "[]": list,
    "[1]": lambda: [1],
    "[nan]": lambda: [float("nan")],
    "['a']": lambda: ["a"],
    "[None]": lambda: [None],
    "[[]]": lambda: [[]],
    "[[1]]": lambda: [[1]],
    "[[[1]]]": lambda: [[[1]]],
    "(-1, 'a')": lambda: (-1, "a"),
    "{}": dict,
    "{0: 1}": lambda: {0: 1},
    "{'a': None}": lambda: {"a": None},
    "set": lambda: {1, "a"},
    "spent iterator": _spent,
    "generator": lambda: (each for each in ("a", None)),
    "np.array": lambda: np.array([1.0, float("nan")]),
    "np.array of objects": lambda: np.array(["a", None], dtype=object),
    "np.array, no axis": lambda: np.array(3),
    "tensor": lambda: torch.tensor([1, 2], dtype=torch.int8),
    "object()": object,
    "a class": lambda: list,
    "a module": lambda: torch,
}


def public() -> dict[str, Any]:
    """All public classes and functions, and alternative constructors, by name."""
    found: dict[int, tuple[str, Any]] = {}
    for package in PACKAGES:
        below = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        for place in (package.__name__, *(each.name for each in below)):
            if any(part.startswith("_") for part in place.split(".")):
                continue
            module = importlib.import_module(place)
            stem = ".".join(place.split(".")[1:])
            for name in getattr(module, "__all__", ()):
                it = getattr(module, name)
                if not (inspect.isclass(it) or inspect.isfunction(it)):
                    continue
                found.setdefault(id(it), (f"{stem}.{name}" if stem else name, it))
    everything = dict(found.values())
    for name, it in [*everything.items()]:
        if inspect.isclass(it):
            for own, value in vars(it).items():
                if isinstance(value, classmethod | staticmethod) and not own.startswith("_"):
                    everything[f"{name}.{own}"] = getattr(it, own)
    return everything


class Method(NamedTuple):
    """A method of a public class, with the class that has it first."""

    owner: str
    name: str
    function: Callable[..., Any]


def methods(everything: dict[str, Any]) -> dict[str, Method]:
    """All public methods with arguments of public classes, those that they inherit once only."""
    found: dict[int, Method] = {}
    for owner, it in everything.items():
        for name in dir(it) if inspect.isclass(it) else ():
            function = inspect.getattr_static(it, name)
            ours = str(getattr(function, "__module__", "")).split(".")[0] in OURS
            if name.startswith("_") or not inspect.isfunction(function) or not ours:
                continue
            parameters = [*inspect.signature(function).parameters]
            if parameters[1:] and (id(function) not in found or not inspect.isabstract(it)):
                first = found.get(id(function))
                if first is None or inspect.isabstract(everything[first.owner]):
                    found[id(function)] = Method(owner, name, function)
    return {f"{each.owner}.{each.name}": each for each in found.values()}


def is_hook(owner: type, method: Method, of_runs: Collection[str]) -> bool:
    """Whether the library or Lightning calls a method, and users only define it.

    Such a method is in a table of the guide for authors, or is one of Lightning's and torch's, or
    has an argument that a run makes and that has no default.

    Args:
        owner: The class.
        method: The method.
        of_runs: Names of the classes whose objects a run makes.
    """
    inherited = [kind for kind in owner.__mro__ if kind.__module__.split(".")[0] not in OURS]
    required = [
        str(each.annotation)
        for each in inspect.signature(method.function).parameters.values()
        if each.default is each.empty
    ]
    words = {word for each in required for word in WORDS.findall(each)}
    return (
        method.name in documented_hooks()
        or any(method.name in vars(kind) for kind in inherited)
        or not words.isdisjoint(of_runs)
    )


@cache
def documented_hooks() -> frozenset[str]:
    """The methods in the tables of the guide for authors."""
    guide = Path(fedlight.__file__).parents[1] / "docs" / "extending.md"
    rows = re.findall(r"^\|(.*)\|", guide.read_text(), re.MULTILINE)
    names = (name for row in rows for name in re.findall(r"`(\w+)\(|`(on_\w+)`", row))
    return frozenset("".join(each) for each in names)


def arguments(it: Callable[..., Any]) -> dict[str, str]:
    """The arguments of a class or function by name, with their annotations as text."""
    try:
        parameters = inspect.signature(it).parameters.values()
    except ValueError:
        return {}
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        each.name: str(getattr(each.annotation, "__forward_arg__", each.annotation))
        for each in parameters
        if each.kind not in several
    }


def shown(value: Any, text: str) -> bool:
    """Whether a text shows a value: in full, shortened, or one of its elements."""
    if isinstance(value, type):
        return value.__name__ in text
    if isinstance(value, types.ModuleType):
        return value.__name__ in text
    if isinstance(value, str | bytes) and value:
        return repr(value) in text or str(value) in text
    kind = type(value)
    if (kind.__module__ != "builtins" or kind is object) and kind.__name__ in text:
        return True
    if isinstance(value, np.ndarray | torch.Tensor) and value.ndim:
        return repr(value) in text or any(shown(each, text) for each in value.tolist())
    if isinstance(value, np.ndarray | np.generic):
        return repr(value) in text or shown(value.item(), text)
    if isinstance(value, list | tuple | set | dict):
        if repr(value) in text or (value and any(shown(each, text) for each in value)):
            return True
        if isinstance(value, dict) and any(shown(each, text) for each in value.values()):
            return True
        return not value and bool(re.search(r"\b(none|no|0)\b|empty|at least 1|\[\]", text))
    if hasattr(value, "__next__"):
        words = (type(value).__name__, "None", "'a'", "none", "[]", "empty")
        return any(each in text for each in words)
    whole = repr(value)
    forms = {whole, whole[:12]} if len(whole) > 12 else {whole}
    if isinstance(value, int | float) and abs(value) < 1e308:
        forms |= {f"{value:g}", repr(float(value))}
    if isinstance(value, Fraction):
        forms.add(repr(float(value)))
    return any(re.search(rf"(?<![\w.-]){re.escape(form)}", text, re.IGNORECASE) for form in forms)


def is_clear(error: BaseException, name: str, value: Any) -> bool:
    """Whether an error is one of ours that names the argument and shows the value."""
    text = str(error)
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return (
        isinstance(error, TypeError | ValueError | OSError)
        and last.startswith(FOLDERS)
        and re.search(rf"\b{re.escape(name)}\b", text) is not None
        and len(text) < 1200
        and shown(value, text)
    )


class Endless(BaseException):
    """A call that takes too long."""


def outcome(
    call: Callable[..., Any],
    given: dict[str, Any],
    name: str,
    value: Any,
    then: Callable[[Any], object] | None,
) -> tuple[str, str]:
    """What became of a call in which one argument has another value, and the words of its error."""

    def stop(*_: object) -> None:
        raise Endless

    # In processor time, which another process does not use up.
    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, ENOUGH_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = call(**{**given, name: value})
            if then is not None:
                then(made)
    except Endless:
        return "endless", ""
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        return "clear" if is_clear(error, name, value) else "obscure", words
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return "taken", ""
