"""How a study was made: its command, settings, seeds and the versions of packages."""

from __future__ import annotations

import inspect
import platform
import re
import shlex
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from textwrap import dedent
from tokenize import TokenError
from types import FunctionType
from typing import TYPE_CHECKING, Any

import lightning
import numpy as np
import torch

from fedlight import __version__
from fedlight._runs.content import content

if TYPE_CHECKING:
    from fedlight.studies.grid import Cell

_LONGEST = 800  # signs of a setting


@dataclass(frozen=True, slots=True)
class Origin:
    """How a study was made, as text.

    Attributes:
        function: The function of fedlight that was called.
        command: The command of the process.
        seeds: The seeds.
        shared: The arguments of all runs by name.
        differing: By axis and name of a value, its arguments by name.
        versions: The versions of packages, and the system.
    """

    function: str
    command: str
    seeds: list[int]
    shared: dict[str, str]
    differing: dict[str, dict[str, dict[str, str]]]
    versions: dict[str, str]

    @classmethod
    def of(
        cls, function: str, cells: Sequence[Cell], seeds: Sequence[int], settings: Mapping[str, Any]
    ) -> Origin:
        """The origin of a study that this process is making.

        Args:
            function: The function that was called.
            cells: The cells of the grid.
            seeds: The seeds.
            settings: Further settings that all runs share; those that are None are left out.
        """
        names = dict.fromkeys(name for cell in cells for name in cell.arguments)
        given = {name: [cell.arguments.get(name) for cell in cells] for name in names}
        same = {name for name, values in given.items() if _all_equal(name, values)}
        shared = {name: given[name][0] for name in names if name in same} | dict(settings)
        differing: dict[str, dict[str, dict[str, str]]] = {}
        for axis in cells[0].names:
            for cell in cells:
                differing.setdefault(axis, {}).setdefault(str(cell.names[axis]), {}).update(
                    (name, _words(name, cell.arguments[name]))
                    for name in cell.arguments
                    if name not in same and _depends(cells, axis, name)
                )
        return cls(
            function,
            shlex.join(sys.orig_argv),
            list(seeds),
            {name: _words(name, each) for name, each in shared.items() if each is not None},
            differing,
            {
                "fedlight": __version__,
                "torch": torch.__version__,
                "lightning": lightning.__version__,
                "numpy": np.__version__,
                "Python": platform.python_version(),
                "system": platform.platform(),
            },
        )

    def to_plain(self) -> dict[str, Any]:
        """The origin as plain data."""
        return asdict(self)


def _all_equal(name: str, values: Sequence[Any]) -> bool:
    """Whether all cells have an argument in common: one object, or equal ones of each cell."""
    if all(value is values[0] for value in values):
        return True
    # Data and weights are not hashed for a report.
    return name not in ("module", "datamodule") and len(set(map(content, values))) == 1


def _depends(cells: Sequence[Cell], axis: str, argument: str) -> bool:
    """Whether an argument is the same in all cells that have the same name on an axis."""
    found: dict[Hashable, Any] = {}
    return all(
        found.setdefault(cell.names[axis], each := cell.arguments.get(argument)) is each
        for cell in cells
    )


def _words(name: str, value: object) -> str:
    """A setting as text: the source of a function, and the repr of anything else."""
    if isinstance(value, partial):
        words = f"partial({_words('', value.func)}, {value.args}, {value.keywords})"
    elif isinstance(value, FunctionType):
        words = _source(name, value)
    elif isinstance(value, type):
        words = value.__qualname__
    else:
        words = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]} …"


def _source(name: str, function: FunctionType) -> str:
    """The source of a function, and the numbers and words of the function that has made it."""
    try:
        source = dedent(inspect.getsource(function)).strip()
        outside = inspect.getclosurevars(function).nonlocals
    except (OSError, TypeError, ValueError, SyntaxError, TokenError):  # typed in, or incomplete
        return function.__qualname__
    words = source.removeprefix(f"{name}=").removesuffix(",")
    known = [
        f"{each}={value!r}"
        for each, value in outside.items()
        if isinstance(value, bool | int | float | str)
    ]
    return f"{words}  # {', '.join(known)}" if known else words
