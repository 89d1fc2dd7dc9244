"""The attributes of ``self.trainer``: a table of their values and their meanings in a federation.

`ModuleTrainer`, `ActorTrainer`, `FedTrainer` and the page ``docs/lightning.md`` read this table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning import LightningModule
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor

from fedlight._fit.callback_adapters import as_given
from fedlight._fit.trainer_strategy import INSTEAD, OneDevice
from fedlight._module.current_stage import Moment, moment_of
from fedlight._module.evaluation_batches import number_of_batches
from fedlight.callbacks import EarlyStopping, FedCheckpoint, ProgressBar


class Asked(NamedTuple):
    """A trainer whose attribute is read, and the moment.

    Attributes:
        trainer: The `FedTrainer`. Only its public attributes are read.
        module: Its module.
        function: The method that runs: "fit", "validate", "test" or "predict".
        ckpt_path: The argument of this name of that method.
        moment: The stage, and the local runs that are being computed.
    """

    trainer: Any
    module: LightningModule
    function: str
    ckpt_path: str | Path | None
    moment: Moment


class Attribute(NamedTuple):
    """An attribute of ``self.trainer``.

    Attributes:
        read: Reads its value.
        meaning: Its meaning in a federation.
        live: Whether it changes during a run, or from task to task.
        of_task: The field of a task that it is in a local run, or None. Time in a local run is the
            version that was pulled: the result is the same no matter when it is computed.
        settable: Whether it can be set, on the trainer.
    """

    read: Callable[[Asked], Any]
    meaning: str
    live: bool = False
    of_task: str | None = None
    settable: bool = False


def answer(name: str, asked: Asked) -> Any:
    """The value of an attribute of the table.

    Raises:
        RuntimeError: It differs between the clients of a stack, which the executor then splits.
    """
    attribute, moment = ATTRIBUTES[name], asked.moment
    if attribute.of_task is not None and moment.tasks:
        return of_tasks(name, attribute.of_task, moment)
    if attribute.live:
        moment.ask(name)
    return attribute.read(asked)


def of_tasks(name: str, field: str, moment: Moment) -> Any:
    """The value of an attribute in a local run: a field of the tasks being computed.

    Raises:
        RuntimeError: It differs between the clients of a stack, which the executor then splits.
    """
    moment.ask(name)
    return moment.common(name, [getattr(task, field) for task in moment.tasks])


def answer_of_trainer(name: str, trainer: Any, module: LightningModule | None) -> Any:
    """The value of an attribute that is read from `FedTrainer` instead of ``self.trainer``.

    Raises:
        AttributeError: There is no such attribute, or no module yet.
    """
    if name not in ATTRIBUTES:
        words = f"FedTrainer has no attribute {name!r}"
        raise AttributeError(words + (f": {INSTEAD[name]}" if name in INSTEAD else ""))
    if module is None:
        if name == "sanity_checking":
            return False
        raise AttributeError(f"FedTrainer has no {name!r} before it has a module: call fit")
    return answer(name, Asked(trainer, module, "fit", None, moment_of(module)))


def as_tensors(metrics: Mapping[str, float]) -> dict[str, Tensor]:
    """Metrics as tensors, the type that they have in Lightning."""
    return {name: torch.tensor(value) for name, value in metrics.items()}


def log_dir_of(trainer: Any) -> str:
    """Where the first logger of a trainer writes; ``default_root_dir`` if there is none."""
    first: Any = trainer.logger
    if isinstance(first, TensorBoardLogger | CSVLogger):
        return str(first.log_dir)
    return str(getattr(first, "save_dir", None) or os.path.abspath(trainer.default_root_dir))


# ---------------------------------------------------------------- how a value is read


def _path(path: str, otherwise: Any = None) -> Callable[[Asked], Any]:
    """An attribute of the trainer, by its path; `otherwise` in place of None."""
    read = attrgetter(path)

    def value(asked: Asked) -> Any:
        found = read(asked.trainer)
        return otherwise if found is None else found

    return value


def _is(value: Any, meaning: str) -> Attribute:
    """A constant."""
    return Attribute(lambda asked: value, meaning)


def _of(path: str, meaning: str, otherwise: Any = None) -> Attribute:
    """An attribute of the trainer that is fixed for a run."""
    return Attribute(_path(path, otherwise), meaning)


def _live(path: str, meaning: str, settable: bool = False) -> Attribute:
    """An attribute of the trainer that changes during a run."""
    return Attribute(_path(path), meaning, live=True, settable=settable)


def _task(field: str, elsewhere: Callable[[Asked], Any], meaning: str) -> Attribute:
    """A field of the task in a local run; elsewhere the value that `elsewhere` reads."""
    return Attribute(elsewhere, meaning, live=True, of_task=field)


def _stage(meaning: str, *stages: str) -> Attribute:
    """Whether one of the stages is running."""
    return Attribute(lambda asked: asked.moment.stage in stages, meaning)


def _every(kind: type, meaning: str) -> Attribute:
    """The callbacks of a kind."""
    return Attribute(
        lambda asked: [each for each in asked.trainer.callbacks if isinstance(each, kind)], meaning
    )


def _first(kind: type, meaning: str) -> Attribute:
    """The first callback of a kind, or None."""
    every = _every(kind, meaning).read
    return Attribute(lambda asked: next(iter(every(asked)), None), meaning)


def optimizers_of(moment: Moment) -> list[torch.optim.Optimizer]:
    """The optimizers that ``self.trainer.optimizers`` shows."""
    return [] if moment.native is None else moment.native.optimizers


def schedulers_of(moment: Moment) -> list[LRSchedulerConfig]:
    """The schedulers that ``self.trainer.lr_scheduler_configs`` and ``self.lr_schedulers`` show."""
    return [] if moment.native is None else moment.native.lr_scheduler_configs


def _state(asked: Asked) -> TrainerState:
    stage = asked.moment.stage
    running = None if stage is None else RunningStage(stage)
    return TrainerState(TrainerStatus.RUNNING, TrainerFn(asked.function), running)


def _save_checkpoint(asked: Asked) -> Callable[[str | Path], None]:
    # Lightning's name of the argument is `filepath`.
    return lambda filepath: asked.trainer.save_checkpoint(filepath)


def _sanity_steps(asked: Asked) -> int | float:
    steps: int = asked.trainer.settings.num_sanity_val_steps
    return float("inf") if steps == -1 else steps


def _num_batches(stage: str, limit: str) -> Callable[[Asked], list[int]]:
    """The number of batches of a stage; `limit` is the trainer's limit of it, by its path."""

    def value(asked: Asked) -> list[int]:
        data, most = asked.trainer.datamodule, attrgetter(limit)(asked.trainer)
        step = is_overridden(f"{stage}_step", asked.module, LightningModule)
        if data is None or not step or most == 0:
            return []
        sizes = [len(examples) for examples in data.evaluation_data(stage)]
        return [number_of_batches(size, data.eval_batch_size, most) for size in sizes]

    return value


_num_val_batches = _num_batches("validation", "limit_val_batches")


def _num_sanity_val_batches(asked: Asked) -> list[int]:
    return [int(min(_sanity_steps(asked), number)) for number in _num_val_batches(asked)]


def _every_n_epoch(asked: Asked) -> int | None:
    every = asked.trainer.check_val_every_n_rounds
    return 1 if isinstance(every, str) else every


# ---------------------------------------------------------------- the table

_INFINITE = float("inf")

ATTRIBUTES: Mapping[str, Attribute] = {
    # time
    "version": _task(
        "pulled_version",
        _path("version"),
        "The version of the server's model; in a local run, the version that was pulled.",
    ),
    "current_epoch": _task(
        "pulled_version",
        _path("version"),
        "Rounds so far (the server's version); in a local run, the version that was pulled. So it "
        "is 1 in the hooks at the end of the first round, while Lightning's is 0.",
    ),
    "global_step": _task(
        "pulled_version",
        _path("version"),
        "Server updates so far, as `current_epoch`; the step that loggers use.",
    ),
    "max_epochs": _of("max_rounds", "``max_rounds``; -1 if the rounds have no limit.", -1),
    "min_epochs": _is(0, "0: a federation has no minimum number of rounds."),
    "max_steps": _of(
        "max_rounds",
        "``max_rounds``, since `global_step` counts rounds; -1 if the rounds have no limit.",
        -1,
    ),
    "min_steps": _is(None, "None: a federation has no minimum number of rounds."),
    "estimated_stepping_batches": _task(
        "num_steps",
        _path("max_rounds", _INFINITE),
        "In a local run (and its ``configure_optimizers``), its number of local steps. Elsewhere "
        "``max_rounds``, or infinity if the rounds have no limit.",
    ),
    "num_training_batches": _task(
        "num_steps",
        lambda asked: _INFINITE,
        "In a local run, its number of local steps; elsewhere infinity, since tasks differ.",
    ),
    "should_stop": _live(
        "should_stop", "Whether the run ends after the current event. It can be set.", settable=True
    ),
    "interrupted": _live("interrupted", "Whether the run was asked to end by Ctrl-C or SIGTERM."),
    "received_sigterm": _live("interrupted", "As `interrupted`."),
    # what is running
    "training": _stage("Whether ``fit`` is running and not validating.", "train"),
    "validating": _stage(
        "Whether a validation is running, including those within ``fit``.", "validate"
    ),
    "testing": _stage("Whether a test is running.", "test"),
    "predicting": _stage("Whether a prediction is running.", "predict"),
    "evaluating": _stage(
        "Whether a validation or a test is running.", "validate", "test", "sanity_check"
    ),
    "sanity_checking": _stage(
        "Whether the validation before the first round is running.", "sanity_check"
    ),
    "state": Attribute(_state, "The running function and stage, in Lightning's spelling."),
    # metrics and loggers
    "callback_metrics": _live(
        "callback_metrics", "The latest value of each metric at the time of access."
    ),
    "logged_metrics": _live(
        "logged_metrics",
        "The latest value of each metric, except those of ``self.log(…, logger=False)``.",
    ),
    "progress_bar_metrics": _live(
        "progress_bar_metrics", "The latest value of each metric of ``self.log(…, prog_bar=True)``."
    ),
    "logger": _of("logger", "The first logger, or None."),
    "loggers": _of("loggers", "The loggers; none with ``logger=False`` or ``fast_dev_run``."),
    "log_dir": _of(
        "log_dir", "Where the first logger writes; ``default_root_dir`` if there is none."
    ),
    "default_root_dir": Attribute(
        lambda asked: os.path.abspath(asked.trainer.default_root_dir),
        "``default_root_dir`` of `FedTrainer`.",
    ),
    "log_every_n_steps": _of(
        "settings.log_every_n_steps", "``log_every_n_steps``: loggers get every n-th round."
    ),
    "profiler": _of(
        "profiler", "``profiler``; a profiler that measures nothing if none was given."
    ),
    # module, data, callbacks
    "lightning_module": Attribute(attrgetter("module"), "The module."),
    "model": Attribute(attrgetter("module"), "The module."),
    "datamodule": _of("datamodule", "The clients' data."),
    "callbacks": Attribute(
        lambda asked: as_given(asked.trainer.callbacks),
        "The callbacks in the order of their calls; Lightning's callbacks as they were given.",
    ),
    "checkpoint_callback": _first(FedCheckpoint, "The first `FedCheckpoint`, or None."),
    "checkpoint_callbacks": _every(FedCheckpoint, "The `FedCheckpoint` callbacks."),
    "early_stopping_callback": _first(EarlyStopping, "The first `EarlyStopping`, or None."),
    "early_stopping_callbacks": _every(EarlyStopping, "The `EarlyStopping` callbacks."),
    "progress_bar_callback": _first(ProgressBar, "The progress bar, or None."),
    "optimizers": Attribute(
        lambda asked: optimizers_of(asked.moment),
        "In a local run, the module's own optimizer, alone in a list; elsewhere, and under another "
        "local optimizer, empty.",
    ),
    "lr_scheduler_configs": Attribute(
        lambda asked: schedulers_of(asked.moment),
        "In a local run, the schedulers of the module's own optimizer; elsewhere, and under "
        "another local optimizer, empty.",
    ),
    "save_checkpoint": Attribute(
        _save_checkpoint,
        "`FedTrainer.save_checkpoint`: written as soon as the current event is over.",
    ),
    "print": _is(print, "Print; there is one process."),
    # limits
    "limit_train_batches": _is(
        1.0, "1.0: the arrival process sets how many batches a local run takes."
    ),
    "limit_val_batches": _of(
        "limit_val_batches", "``limit_val_batches``; 1.0 for all batches.", 1.0
    ),
    "limit_test_batches": _of(
        "settings.limit_test_batches", "``limit_test_batches``; 1.0 for all batches.", 1.0
    ),
    "limit_predict_batches": _of(
        "settings.limit_predict_batches", "``limit_predict_batches``; 1.0 for all batches.", 1.0
    ),
    "num_sanity_val_steps": Attribute(
        _sanity_steps,
        "``num_sanity_val_steps``: validation batches before the first round; infinity for all.",
    ),
    "num_val_batches": Attribute(
        _num_val_batches, "The number of batches of a validation, for each data set."
    ),
    "num_test_batches": Attribute(
        _num_batches("test", "settings.limit_test_batches"),
        "The number of batches of a test, for each data set.",
    ),
    "num_sanity_val_batches": Attribute(
        _num_sanity_val_batches,
        "The number of validation batches before the first round, for each data set.",
    ),
    "enable_validation": Attribute(
        lambda asked: sum(_num_val_batches(asked)) > 0,
        "Whether there are a ``validation_step`` and batches for it.",
    ),
    "check_val_every_n_epoch": Attribute(
        _every_n_epoch, '``check_val_every_n_rounds``; 1 if that is "auto".'
    ),
    "val_check_interval": _is(1.0, "1.0: validation takes place after a round."),
    "fast_dev_run": _of(
        "fast_dev_run", "``fast_dev_run``: whether this is a trial run, or its number of rounds."
    ),
    "overfit_batches": _is(0.0, "0.0: clients train on all their examples."),
    "reload_dataloaders_every_n_epochs": _is(
        0, "0: clients hold the same examples for the whole run."
    ),
    "enable_autolog_hparams": _of("settings.enable_autolog_hparams", "``enable_autolog_hparams``."),
    "ckpt_path": Attribute(
        attrgetter("ckpt_path"),
        "``ckpt_path`` of ``fit`` or of the other method that is running.",
    ),
    "accumulate_grad_batches": _is(1, "1: each local step takes one batch."),
    "gradient_clip_val": _is(
        None, "None: clipping belongs to the local optimizer (``max_grad_norm``)."
    ),
    "gradient_clip_algorithm": _is(None, "None, as `gradient_clip_val`."),
    # processes and devices
    "world_size": _is(1, "1: all clients share one process."),
    "num_nodes": _is(1, "1."),
    "num_devices": _is(1, "1: all clients share one device."),
    "device_ids": Attribute(
        lambda asked: [asked.trainer.fabric.device.index or 0], "The index of the device."
    ),
    "global_rank": _is(0, "0."),
    "local_rank": _is(0, "0."),
    "node_rank": _is(0, "0."),
    "is_global_zero": _is(True, "True: there is one process."),
    "accelerator": _of("fabric.accelerator", "The kind of device."),
    "precision": Attribute(
        lambda asked: str(asked.trainer.fabric.strategy.precision.precision),
        '``precision``, for example "32-true".',
    ),
    "strategy": Attribute(
        lambda asked: OneDevice(asked.trainer.fabric.device),
        "One device: gathering and reducing over processes return what they are given.",
    ),
    "barebones": _is(False, "False."),
}
"""All attributes, by name."""
