"""Loggers of a run: its points, hyper-parameters, end, and continuation after a resume."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from inspect import signature
from itertools import count
from pathlib import Path
from typing import Any

from lightning import Fabric, LightningModule
from lightning.fabric.loggers.csv_logs import CSVLogger
from lightning.fabric.loggers.tensorboard import TensorBoardLogger
from lightning.pytorch.loggers import TensorBoardLogger as PytorchTensorBoardLogger

from fedlight._runs.describe import numbers
from fedlight._runs.identity import columns, in_words
from fedlight._runs.setting import Setting
from fedlight.local_optimizers import LocalOptimizer, ModuleOptimizer
from fedlight.types import Federation, RoundRecord

_NOT_OF_THE_MODULE = ("fed/", "clients/", "lr/")


class CellLogger(PytorchTensorBoardLogger):
    """The logger of a run of a study.

    Its version is ``seed=<seed>``, and open until the run writes: a resumed run continues in the
    folder that its checkpoint names. Another run renames the folder of the superseded one, so that
    TensorBoard no longer shows it.

    Args:
        cell: The names of the run's values by axis, which are columns of TensorBoard's page
            HParams; an axis that is called like an argument is the column of the argument.
        seed: The seed of the run.
        shows_data: Whether the pictures of its data are drawn here; of several runs with the same
            data, one draws them.
        *args: As for Lightning's logger.
        **kwargs: As for Lightning's logger.
    """

    def __init__(
        self,
        cell: Mapping[str, Hashable],
        seed: int,
        shows_data: bool,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.cell, self.seed, self.shows_data = dict(cell), seed, shows_data

    @property
    def version(self) -> int | str:
        """The name of the folder of the run."""
        if self._version is None:
            self._version = f"seed={self.seed}"
            _set_aside(Path(self.root_dir, self._version))
        return self._version

    @property
    def event_file(self) -> str:
        """The name of the first event file, which tells this run's folder from a later run's."""
        return min((file.name for file in Path(self.log_dir).glob("*tfevents*")), default="")


def _set_aside(folder: Path) -> None:
    """Rename the folder of a superseded run, and the files by whose names TensorBoard finds it."""
    if not folder.exists():
        return
    names = (folder.with_name(f"{folder.name}-superseded-{number}") for number in count(1))
    aside = folder.rename(next(name for name in names if not name.exists()))
    for file in aside.rglob("*tfevents*"):
        file.rename(file.with_name(file.name.replace("tfevents", "superseded")))


def left_open(loggers: Sequence[Any]) -> list[Any]:
    """The loggers whose version the user has left open, so that each run gets one of its own."""
    kinds = (TensorBoardLogger, CSVLogger)
    return [each for each in loggers if isinstance(each, kinds) and each._version is None]


def open_again(loggers: Sequence[Any]) -> None:
    """Let loggers take a new version, so that the files of an earlier `fit` stay unchanged.

    Args:
        loggers: Those that `left_open` gave before the first fit.
    """
    for logger in loggers:
        logger._version = logger._experiment = None


def log_points(fabric: Fabric, record: RoundRecord) -> None:
    """Send the logged values of a round to the loggers; its version is the step of the points."""
    fabric.log_dict(record.metrics.logged(), step=record.version)
    for logger in fabric.loggers:
        log_first_cards(logger, record)


def log_first_cards(logger: Any, record: RoundRecord) -> None:
    """Log the module's own metrics once more for the top of TensorBoard's first page.

    TensorBoard sorts cards by their tags, capital letters first, and opens the first two groups: a
    group is the part of a tag before its first slash. A file cannot pin a card, since pins are kept
    by the browser. So the copies are ``Evaluation/val_acc``, ``Training/train_loss`` and so on.
    """
    if isinstance(logger, TensorBoardLogger):
        cards = {
            f"{'Evaluation' if name.startswith('val') else 'Training'}/{name}": value
            for name, value in record.metrics.logged().items()
            if not name.startswith(_NOT_OF_THE_MODULE)
        }
        logger.log_metrics(cards, step=record.version)


def log_hyperparams(
    loggers: Sequence[Any], module: LightningModule, setting: Setting, federation: Federation
) -> None:
    """Log the module's hyper-parameters, and the settings of the federation under ``fed/``.

    TensorBoard's page *HParams* gets those that have an effect: without those of an optimizer of
    the module that another local optimizer replaces; and a column for each argument of each
    strategy, such as ``aggregator.alpha``, and for ``seed``. Lightning's logger fills the page only
    if it also draws its constant ``hp_metric``; for others it is done here.

    Args:
        loggers: The loggers; those that cannot log hyper-parameters are left out.
        module: The module. Its hyper-parameters are left out after
            ``save_hyperparameters(logger=False)``.
        setting: The setting of the run.
        federation: The clients.
    """
    if not loggers:
        return
    own = dict(module.hparams) if module._log_hyperparams else {}
    known = numbers(federation)
    words = {name: in_words(each) for name, each in setting.strategies.items()}
    of_federation = {f"fed/{name}": value for name, value in (words | known).items()}
    arguments: dict[str, Any] = {}
    for name, strategy in setting.strategies.items():
        arguments |= columns(name, strategy)
    arguments |= known
    for logger in loggers:
        if hasattr(logger, "log_hyperparams"):
            logger.log_hyperparams({**own, **of_federation})
        if isinstance(logger, TensorBoardLogger) and not logger._default_hp_metric:
            replaced = not isinstance(setting.local_optimizer, ModuleOptimizer)
            idle = _of_optimizer(module, setting.local_optimizer) if replaced else ()
            shown = {name: value for name, value in own.items() if name not in idle}
            shown = {f"module.{k}" if k in arguments else k: v for k, v in shown.items()}
            cell = logger.cell if isinstance(logger, CellLogger) else {}
            _show(logger, {**cell, **shown, **arguments})


def _of_optimizer(module: LightningModule, optimizer: LocalOptimizer) -> set[str]:
    """Names of hyper-parameters of an optimizer: those that ``configure_optimizers`` reads."""
    names = set(signature(type(optimizer)).parameters)
    method = module.configure_optimizers
    code = getattr(method, "__code__", None)
    if code is not None:  # as attributes, or as keys of ``self.hparams``
        names.update(code.co_names, (each for each in code.co_consts if isinstance(each, str)))
    return names


def _show(logger: TensorBoardLogger, values: Mapping[str, Any]) -> None:
    """Put values on the page HParams, which takes the curves of the run as its metrics."""
    from torch.utils.tensorboard.summary import hparams

    plain = {
        str(name): value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in values.items()
    }
    _, start, _ = hparams(plain, {})  # type: ignore[no-untyped-call]
    logger.experiment._get_file_writer().add_summary(start)


def finalize(loggers: Sequence[Any], status: str) -> None:
    """Finalize the loggers with the status "success" or "failed"."""
    for logger in loggers:
        if hasattr(logger, "finalize"):
            logger.finalize(status)


def position(logger: Any) -> dict[str, Any]:
    """Return the place where a logger writes, after writing everything logged so far."""
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.flush()
        place = {"root_dir": str(logger.root_dir), "version": logger.version}
        return place | ({"file": logger.event_file} if isinstance(logger, CellLogger) else {})
    if hasattr(logger, "save"):
        logger.save()
    if isinstance(logger, CSVLogger):
        return {"root_dir": str(logger.root_dir), "version": logger.version}
    return {}


def go_on(logger: Any, place: dict[str, Any], history: Sequence[RoundRecord]) -> None:
    """Let a logger continue in the same place, without its points later than the checkpoint.

    Args:
        logger: A logger that has not written anything yet.
        place: The `position` from the checkpoint.
        history: The rounds up to the checkpoint.
    """
    if not isinstance(logger, TensorBoardLogger | CSVLogger) or logger._experiment is not None:
        return
    if str(logger.root_dir) != place["root_dir"]:
        return
    if isinstance(logger, CellLogger):  # another run of that name may have superseded this one
        file = Path(place["root_dir"], str(place["version"]), place.get("file", ""))
        if not file.exists():
            return
    if logger._version is None:  # the user left it open
        logger._version = place["version"]
    if logger._version != place["version"]:
        return
    if isinstance(logger, CSVLogger):
        Path(logger.log_dir, "metrics.csv").unlink(missing_ok=True)
        with warnings.catch_warnings():
            # The logger warns that it deletes existing rows; they are written again below.
            warnings.filterwarnings("ignore", ".*exists and is not empty.*", UserWarning)
            logger.experiment  # noqa: B018  # reading it creates the writer
        for record in history:
            logger.log_metrics(dict(record.metrics.logged()), step=record.version)
        return
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    start = Event(session_log=SessionLog(status=SessionLog.START))
    for _ in range(2):  # a running TensorBoard takes the first one for the beginning of the run
        logger.experiment._get_file_writer().add_event(start, step=len(history) + 1)
