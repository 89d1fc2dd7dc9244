"""`python -m fedlight.conformance`: plays the cases and prints a table of verdicts."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedlight.conformance.adapter import Adapter
from fedlight.conformance.case import load_cases
from fedlight.conformance.verdict import Result, Verdict, check

STYLES: dict[Verdict, str] = {
    "agrees": "green",
    "another reading": "yellow",
    "differs": "bold red",
    "not implemented": "dim",
    "failed": "bold red",
}


def load_adapter(path: str) -> Adapter:
    """Return the adapter at "module:name": an instance, or a class or function that makes one.

    Raises:
        ValueError: The path has no colon, its module cannot be imported or does not have the name,
            the adapter cannot be made, or it is not an `Adapter`.

    Example:
        >>> load_adapter("fedlight.conformance.ours:Fedlight").name
        'fedlight'
    """
    module, colon, name = path.partition(":")
    if not colon or not name:
        raise ValueError(f"adapter must be MODULE:NAME, got {path!r}")
    # The code belongs to somebody else, so importing or calling it may raise anything.
    try:
        loaded = import_module(module)
    except Exception as error:
        raise ValueError(f"cannot import {module!r}: {_in_one_line(error)}") from error
    if not hasattr(loaded, name):
        raise ValueError(f"the module {module!r} has no {name!r}")
    found = getattr(loaded, name)
    try:
        adapter: Adapter = found() if callable(found) else found
    except Exception as error:
        raise ValueError(
            f"cannot make the adapter {path}: {_in_one_line(error)}; "
            "name an adapter, or a class or function that makes one without arguments"
        ) from error
    for needed in ("name", "version", "precision", "play"):
        if not hasattr(adapter, needed):
            raise ValueError(
                f"the adapter {path} has no {needed!r}; it is of type {type(adapter).__name__}"
            )
    if not callable(adapter.play):
        raise ValueError(f"play of the adapter {path} must be a method, got {adapter.play!r}")
    if adapter.precision not in ("float64", "float32"):
        raise ValueError(
            f'precision of the adapter {path} must be "float64" or "float32", '
            f"got {adapter.precision!r}"
        )
    return adapter


def _in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def table(adapter: Adapter, results: Sequence[Result]) -> Table:
    """The verdicts as a table."""
    shown = Table(title=f"{adapter.name} {adapter.version}, {adapter.precision}")
    for name in ("case", "method", "deviation", "verdict"):
        shown.add_column(name, justify="right" if name == "deviation" else "left", no_wrap=True)
    shown.add_column("detail")
    for result in results:
        deviation = "" if result.deviation is None else f"{result.deviation:.1e}"
        shown.add_row(
            result.case,
            result.method,
            deviation,
            Text(result.verdict, style=STYLES[result.verdict]),
            Text(result.detail),
        )
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 1 if a verdict is "differs" or "failed"."""
    parser = argparse.ArgumentParser(
        prog="python -m fedlight.conformance",
        description="Plays small federations with known models and says whether they come out.",
    )
    parser.add_argument(
        "--adapter",
        metavar="MODULE:NAME",
        default="fedlight.conformance.ours:Fedlight",
        help="the code to try; fedlight itself by default",
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        nargs="+",
        default=[],
        help="methods, or parts of names of cases",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--strict",
        action="store_true",
        help='count "another reading" and "not implemented" as failures, too',
    )
    options = parser.parse_args(arguments)
    try:
        adapter, cases = load_adapter(options.adapter), load_cases(options.only)
    except ValueError as error:
        parser.error(str(error))
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    # Its advice is for somebody who trains a model.
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        results = [check(adapter, case) for case in cases]
    log.setLevel(level)
    if options.json:
        document: dict[str, Any] = {
            name: getattr(adapter, name) for name in ("name", "version", "precision")
        }
        # JSON has no infinity.
        finite = [
            replace(each, deviation=None) if each.deviation == math.inf else each
            for each in results
        ]
        document["results"] = list(map(asdict, finite))
        print(json.dumps(document, indent=1))
    else:
        # Wide enough for whole names if the output is no terminal.
        console = Console(width=None if sys.stdout.isatty() else 140)
        console.print(table(adapter, results))
        counts = Counter(result.verdict for result in results)
        console.print(", ".join(f"{counts[verdict]} {verdict}" for verdict in STYLES))
    if options.strict:
        return int(any(result.verdict != "agrees" for result in results))
    return int(any(result.failed for result in results))


if __name__ == "__main__":
    sys.exit(main())
