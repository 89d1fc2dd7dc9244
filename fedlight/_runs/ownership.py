"""Whose code a module is: the user's, which may change from run to run, or a library's."""

from __future__ import annotations

import json
import site
import sys
import sysconfig
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path

_NEVER = ("fedlight", "data_partitioners", "builtins", "torch", "lightning", "numpy")
_LIBRARIES = tuple(
    Path(folder).resolve()
    for folder in (
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        site.getusersitepackages(),
    )
)


@cache
def of_the_user(module: object) -> bool:
    """Return whether a module is neither part of fedlight nor of an installed library.

    A package that was installed from a folder of this machine (``pip install .``) is the user's.

    Args:
        module: Its name; None for code that was typed in. A class written in C may have another
            object in the place of its module's name.
    """
    if module is None:
        return True
    if not isinstance(module, str):
        return False
    top = module.split(".")[0]
    if top in _NEVER:
        return False
    if top == "__main__":
        return True
    file = getattr(sys.modules.get(module) or sys.modules.get(top), "__file__", None)
    if file is None:
        # Typed in, or made while the program runs, unless it is of Python or Cython.
        return not top.startswith("_cython") and top not in sys.stdlib_module_names
    return is_users_file(file) or top in _from_folders()


def is_users_file(file: str) -> bool:
    """Return whether a file lies outside the folders of installed libraries."""
    place = Path(file).resolve()
    return not any(place.is_relative_to(each) for each in _LIBRARIES)


@cache
def _from_folders() -> frozenset[str]:
    """The packages that were installed from a folder, by the record of their installer."""
    tops: set[str] = set()
    for each in distributions():
        try:
            folder = "dir_info" in json.loads(each.read_text("direct_url.json") or "{}")
        except (OSError, ValueError):
            continue
        if folder:
            tops.update(_tops(each))
    return frozenset(tops)


def _tops(distribution: Distribution) -> set[str]:
    found = (Path(str(each)) for each in distribution.files or ())
    return {each.parts[0].removesuffix(".py") for each in found if each.suffix == ".py"}
