"""The grid of a study: axes, each of which names values, become cells, each of which is a run."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from inspect import isfunction, signature
from itertools import islice, product
from typing import Any, TypeAlias

import numpy as np
from lightning import LightningModule

from fedlight._fit.lightning_arguments import ARGUMENTS, LightningArguments
from fedlight._support.checks import integer, shown
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess
from fedlight.arrivals.durations import DurationModel
from fedlight.data import FederatedDataModule
from fedlight.executors import Executor
from fedlight.local_optimizers import LocalOptimizer
from fedlight.methods import Method
from fedlight.plot import X_AXES
from fedlight.trainer import FedTrainer

Axes: TypeAlias = Mapping[str, Mapping[Hashable, Any] | Iterable[Any]]
"""The axes of a grid by name, each with its values by name or in a list."""

MOST_RUNS = 100_000  # more are a mistake, and a list of 10^12 seeds would fill the memory

_KINDS: Mapping[type, str] = {
    FederatedDataModule: "datamodule",
    ArrivalProcess: "arrivals",
    Aggregator: "aggregator",
    LocalOptimizer: "local_optimizer",
    LightningModule: "module",
    Executor: "executor",
}
_OWN = {
    "seed": "write seeds=",
    "logger": "write logger_dir=",
    "default_root_dir": "write path= and logger_dir=",
    "on_interrupt": "Ctrl-C ends a study, and what is finished is kept",
    "enable_progress_bar": "it belongs to the whole study",
}
"""Arguments of `FedTrainer` that the study sets for each run itself."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A point of the grid.

    Attributes:
        names: The name of its value on each axis.
        arguments: The arguments of its runs, by name.
    """

    names: dict[str, Hashable]
    arguments: dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return ", ".join(f"{axis}={name}" for axis, name in self.names.items()) or "the only cell"


def known_arguments() -> set[str]:
    """The arguments that an axis may have: of `FedTrainer`, and the two of ``fit``."""
    refused = {name for name, each in ARGUMENTS.items() if each.status == "refused"}
    names = {*signature(FedTrainer).parameters, *LightningArguments.__annotations__}
    return (names - refused - {"lightning", *_OWN}) | {"module", "datamodule"}


def refuse_own(arguments: Iterable[str], where: str) -> None:
    """Refuse arguments that a study sets for each run itself, and unknown ones.

    Raises:
        TypeError: There is one.
    """
    known = known_arguments()
    for name in arguments:
        if name in _OWN:
            raise TypeError(f"{where} cannot have {name!r}: {_OWN[name]}")
        if name in ARGUMENTS and name not in known:
            raise TypeError(
                f"{where} cannot have {name!r}: {ARGUMENTS[name].text.format(value='…')}"
            )
        if name == "lr":
            raise TypeError(
                f"{where} has 'lr', which is an argument of a local optimizer: write "
                "local_optimizer=LocalSGD(lr=…), or a module with another rate"
            )
        if name not in known:
            raise TypeError(
                f"{where} has {name!r}, which is no argument of FedTrainer or fit; there are "
                f"{', '.join(sorted(known))}"
            )


def cells_of(over: Axes | None, fixed: Mapping[str, Any]) -> list[Cell]:
    """The cells of a grid, with the last axis varying fastest.

    Args:
        over: The axes. The values of an axis are a mapping of names to values, or a list, of which
            each value gives its own name. A value is one argument, or several: a dict of arguments
            by name, or a method of `fedlight.methods`. A single argument is the one that the axis
            is called after. If the axis has another name, its type decides (an `Aggregator` is
            ``aggregator``).
        fixed: The arguments of all cells; an axis may replace them, but for a method.

    Raises:
        TypeError: An axis is of the wrong kind, or a value is no argument.
        ValueError: An axis is empty, two axes give the same argument, a method gives a fixed one,
            two values of an axis have the same name, or a value in a list has none.
    """
    over = {} if over is None else over
    if not isinstance(over, Mapping):
        raise TypeError(
            f'over must map each axis to its values, such as {{"aggregator": {{"AFA-CD": AFACD()}}'
            f"}}, got {over!r}"
        )
    taken = {name for name, value in fixed.items() if value is not None}
    axes = {axis: _values(axis, given, taken) for axis, given in over.items()}
    givers: dict[str, str] = {}
    for axis, values in axes.items():
        for name in {each for arguments in values.values() for each in arguments}:
            if name in givers:
                both = (*axes[givers[name]].values(), *values.values())
                methods = any(isinstance(each, Method) for each in both)
                remedy = (
                    "write lr=None in the methods, which then give none, or "
                    if methods and name == "local_optimizer"
                    else ""
                )
                raise ValueError(
                    f"the axes {givers[name]!r} and {axis!r} both give {name}; {remedy}put what "
                    "goes together into one axis, each of whose values is a dict of several "
                    "arguments"
                )
            givers[name] = axis
    cells = []
    for chosen in product(*(values.items() for values in axes.values())):
        arguments = dict(fixed)
        for _, given in chosen:
            arguments.update(given)
        names = dict(zip(axes, (name for name, _ in chosen), strict=True))
        cells.append(Cell(names, arguments))
    return cells


def _values(axis: object, given: object, taken: Set[str]) -> dict[Hashable, Mapping[str, Any]]:
    """The values of an axis by name, each as arguments by name; `taken` are those of all cells."""
    if not isinstance(axis, str) or not axis.strip():
        raise TypeError(f"the name of an axis in over must be a word, got {axis!r}")
    if axis == "seed" or axis in _OWN:
        raise TypeError(f"over cannot have the axis {axis!r}: {_OWN[axis]}")
    if axis in X_AXES:
        raise ValueError(f"over cannot have the axis {axis!r}, as each figure has one of that name")
    if not isinstance(given, Mapping):
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise TypeError(
                f"over[{axis!r}] must be a mapping of names to values, or a list, got {given!r}"
            )
        listed = list(islice(given, MOST_RUNS + 1))
        if len(listed) > MOST_RUNS:
            raise ValueError(f"over[{axis!r}] may have {MOST_RUNS:,} values, got {given!r}")
        named = [(_own_name(axis, value), value) for value in listed]
    else:
        named = [(_python_number(name), value) for name, value in given.items()]
    if not named:
        raise ValueError(f"over[{axis!r}] must have one or more values, got none")
    values: dict[Hashable, Mapping[str, Any]] = {}
    words: dict[str, Hashable] = {}
    for name, value in named:
        if str(name) in words or name in values:  # a list may hold 1 and True
            raise ValueError(
                f"over[{axis!r}] has two values called {name!s}; names must differ: write a dict "
                "of names to values"
            )
        words[str(name)] = name
        where = f"over[{axis!r}][{name!r}]"
        values[name] = _arguments(axis, value, where)
        refuse_own(values[name], where)
        if isinstance(value, Method) and (both := sorted(taken & values[name].keys())):
            raise ValueError(
                f"{where} is the method {value.name}, which gives {' and '.join(both)}, and so "
                f"does sweep({', '.join(f'{each}=…' for each in both)}); leave that out, or write "
                f"{{**methods.…(…), {both[0]!r}: …}} to replace what the method gives"
            )
    return values


def _python_number(name: Any) -> Any:
    """A name that is a scalar of NumPy as Python's own, which prints as the number alone."""
    if not isinstance(name, np.generic):
        return name
    # Through its digits, since float(np.float32(0.1)) is 0.10000000149011612.
    plain = float(str(name)) if isinstance(name, np.floating) else name.item()
    return plain if isinstance(plain, bool | int | float | str) else str(name)


def _own_name(axis: str, value: object) -> Hashable:
    value = _python_number(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Method):
        return value.name
    if isinstance(value, type) or (isfunction(value) and value.__name__ != "<lambda>"):
        return value.__name__
    name = repr(value)
    if " at 0x" in name:  # another one in each process: a table of them says nothing
        raise ValueError(
            f"over[{axis!r}] lists {name}, which has no name of its own; write a dict of names to "
            f'values, such as {{"first": …, "second": …}}'
        )
    return name


def _arguments(axis: str, value: Any, where: str) -> Mapping[str, Any]:
    """A value of an axis as arguments by name."""
    if isinstance(value, Method):
        return value
    if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        return dict(value)
    if axis in known_arguments():
        return {axis: value}
    for kind, name in _KINDS.items():
        if isinstance(value, kind):
            return {name: value}
    raise TypeError(
        f"{where} is {value!r}, of which the study cannot tell which argument it is: "
        f"{_what_to_write(axis, value)}"
    )


def _what_to_write(axis: str, value: Any) -> str:
    """A remedy for a value of an axis that could be anything."""
    if isinstance(value, type) and issubclass(value, tuple(_KINDS)):
        return f"it is a class; write an object, {value.__name__}(…)"
    if isinstance(value, DurationModel):
        return f"write the arrivals that draw from it, ContinuousArrivals({value!r}, …)"
    if isinstance(value, bool | int | float):
        return (
            f"write the argument that it is for, such as {{'max_rounds': {value!r}}}, or an object "
            f"of it, such as LocalSGD(lr={value!r})"
        )
    if isinstance(value, str):
        return "it is a word; write the object that it stands for, such as FedAsync(0.6)"
    return (
        "write it by the name of its argument, such as {'local_optimizer': …}; a function that "
        "makes the module of a value is {'module': lambda: …}"
    )


def seeds_of(seeds: object, most: int = MOST_RUNS) -> list[int]:
    """The seeds of a study, of which there may be so many.

    Raises:
        TypeError: They are no integers.
        ValueError: There are none, too many, or some twice.
    """
    if not isinstance(seeds, Iterable) or isinstance(seeds, str | bytes | Mapping):
        several = f"range({seeds if isinstance(seeds, int) else 5})"
        raise TypeError(f"seeds must be several, such as {several}, got {seeds!r}")
    try:
        chosen = list(islice(seeds, most + 1))
    except TypeError:
        raise TypeError(f"seeds must be several integers, got {shown(seeds)}") from None
    if len(chosen) > most:
        raise ValueError(f"seeds must be at most {most:,}, got {seeds!r}")
    found = [integer("seeds", seed) for seed in chosen]
    if not found or len(set(found)) < len(found):
        raise ValueError(f"seeds must be one or more different integers, got {found}")
    return found
