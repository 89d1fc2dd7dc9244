"""Loggers of a run that goes on: they write on in the same place, behind the checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric.loggers.csv_logs import CSVLogger
from lightning.fabric.loggers.tensorboard import TensorBoardLogger
from tensorboard.compat.proto.event_pb2 import Event, SessionLog

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.types import RoundRecord


def log_hyperparams(
    loggers: Sequence[Any], module: LightningModule, strategies: Mapping[str, str]
) -> None:
    """Log the module's hyper-parameters, and the strategies under ``fed/``.

    Args:
        loggers: The loggers; some cannot log hyper-parameters.
        module: The module; its own are logged unless ``save_hyperparameters(logger=False)``.
        strategies: The strategies in words, by the names of the trainer's arguments.
    """
    values = dict(module.hparams) if module._log_hyperparams else {}
    values |= {f"fed/{name}": value for name, value in strategies.items()}
    for logger in loggers:
        if hasattr(logger, "log_hyperparams"):
            logger.log_hyperparams(values)


def finalize(loggers: Sequence[Any], status: str) -> None:
    """Tell the loggers that the run is over: "success" or "failed"."""
    for logger in loggers:
        if hasattr(logger, "finalize"):
            logger.finalize(status)


def position(logger: Any) -> dict[str, Any]:
    """Where a logger writes; everything logged so far is on the disk afterwards."""
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.flush()
        return {"root_dir": str(logger.root_dir), "version": logger.version}
    if hasattr(logger, "save"):
        logger.save()
    if isinstance(logger, CSVLogger):
        return {"root_dir": str(logger.root_dir), "version": logger.version}
    return {}


def go_on(logger: Any, place: dict[str, Any], history: Sequence[RoundRecord]) -> None:
    """Let a logger write on in the same place; points later than the checkpoint are struck out.

    Args:
        logger: A logger that has not written anything yet.
        place: The `position` that the checkpoint holds.
        history: The rounds up to the checkpoint.
    """
    if not isinstance(logger, TensorBoardLogger | CSVLogger) or logger._experiment is not None:
        return
    if str(logger.root_dir) != place["root_dir"]:
        return
    if logger._version is None:  # the user left it open
        logger._version = place["version"]
    if logger._version != place["version"]:
        return
    if isinstance(logger, CSVLogger):
        Path(logger.log_dir, "metrics.csv").unlink(missing_ok=True)
        with warnings.catch_warnings():
            # It warns that it will delete what is there; the rows are written again below.
            warnings.filterwarnings("ignore", ".*exists and is not empty.*", UserWarning)
            logger.experiment  # noqa: B018  # made here
        for record in history:
            logger.log_metrics(dict(record.metrics.logged()), step=record.version)
        return
    start = Event(session_log=SessionLog(status=SessionLog.START))
    for _ in range(2):  # a running TensorBoard takes the first one as the run's beginning
        logger.experiment._get_file_writer().add_event(start, step=len(history) + 1)
