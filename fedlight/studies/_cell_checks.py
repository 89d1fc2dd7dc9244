"""Checks of the arguments of a study, before its first run."""

from __future__ import annotations

from inspect import signature
from typing import Any

from lightning import LightningModule

from fedlight._fit.argument_checks import as_module, check_data
from fedlight.studies.grid import Cell
from fedlight.studies.one_run import trainer_options
from fedlight.trainer import FedTrainer


def check_cell(cell: Cell) -> None:
    """Check the arguments of a cell before the first run.

    Raises:
        TypeError: One is of the wrong kind.
        ValueError: One is outside its range, or they do not fit together.
    """
    arguments = cell.arguments
    module, data = arguments["module"], arguments["datamodule"]
    other_class = isinstance(module, type) and not issubclass(module, LightningModule)
    if isinstance(module, LightningModule) or not callable(module) or other_class:
        as_module(module)
    else:
        _takes("module", module, (), "lambda: LogisticRegression(784, 10)")
    if callable(data) and not isinstance(data, type):
        _takes("datamodule", data, (0,), "lambda seed: data.repartition(partitioner, seed)")
    else:
        check_data(data)
    check_callbacks(arguments.get("callbacks"))
    options = trainer_options(arguments, copies=False)
    FedTrainer(**options, logger=False, enable_progress_bar=False)


def check_callbacks(callbacks: object) -> None:
    """Check that the argument is a function that makes callbacks.

    Raises:
        TypeError: It is no function without arguments.
    """
    if callbacks is None:
        return
    if not callable(callbacks):
        raise TypeError(
            "callbacks must be a function that returns new ones for each run, such as "
            f"lambda: [ClientEvaluation()], got {callbacks!r}"
        )
    _takes("callbacks", callbacks, (), "lambda: [ClientEvaluation()]")


def _takes(name: str, function: Any, given: tuple[Any, ...], example: str) -> None:
    """Check that a function can be called as the study will call it."""
    try:
        signature(function).bind(*given)
    except TypeError as error:
        words = "the seed alone" if given else "no arguments"
        raise TypeError(
            f"{name} must be a function of {words}, such as {example}, got {function!r} ({error})"
        ) from None
    except ValueError:  # written in another language: it has no signature
        return
