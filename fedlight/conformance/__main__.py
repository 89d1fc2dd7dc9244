"""`python -m fedlight.conformance`: plays the cases and prints a table of verdicts."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module

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
        ValueError: The path has no colon, or what it names has no method `play` or needs arguments.

    Example:
        >>> load_adapter("fedlight.conformance.ours:Fedlight").name
        'fedlight'
    """
    module, colon, name = path.partition(":")
    if not colon or not name:
        raise ValueError(f"adapter must be MODULE:NAME, got {path!r}")
    found = getattr(import_module(module), name)
    try:
        adapter: Adapter = found() if callable(found) else found
    except TypeError as error:
        raise ValueError(f"the adapter {path} cannot be made without arguments: {error}") from error
    for needed in ("name", "version", "precision", "play"):
        if not hasattr(adapter, needed):
            raise ValueError(f"the adapter {path} has no {needed!r}")
    return adapter


def table(adapter: Adapter, results: Sequence[Result]) -> Table:
    """The verdicts as a table."""
    shown = Table(title=f"{adapter.name} {adapter.version}, {adapter.precision}")
    shown.add_column("case", no_wrap=True)
    shown.add_column("method", no_wrap=True)
    shown.add_column("deviation", justify="right", no_wrap=True)
    shown.add_column("verdict", no_wrap=True)
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


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the advice that is for somebody who trains a model; here nobody does."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


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
    except (ValueError, ImportError, AttributeError) as error:
        parser.error(str(error))
    with _quiet():
        results = [check(adapter, case) for case in cases]
    if options.json:
        rows = [asdict(result) for result in results]
        for row in rows:
            if row["deviation"] is not None and not math.isfinite(row["deviation"]):
                row["deviation"] = None
        document = {
            "name": adapter.name,
            "version": adapter.version,
            "precision": adapter.precision,
            "results": rows,
        }
        print(json.dumps(document, indent=1))
    else:
        # Wide enough for whole names where the output is no terminal.
        console = Console(width=None if sys.stdout.isatty() else 140)
        console.print(table(adapter, results))
        counts = Counter(result.verdict for result in results)
        console.print(", ".join(f"{counts[verdict]} {verdict}" for verdict in STYLES))
    if options.strict:
        return int(any(result.verdict != "agrees" for result in results))
    return int(any(result.failed for result in results))


if __name__ == "__main__":
    sys.exit(main())
