"""``self.trainer`` of a module: `FedTrainer` by the names that Lightning's modules ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning import LightningModule
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlight._fit.actor_trainer import ActorTrainer
from fedlight._fit.lightning_callbacks import as_given
from fedlight._fit.one_device import OneDevice, unknown
from fedlight._module.evaluation_batches import number_of_batches
from fedlight._module.log_recorder import LogRecorder
from fedlight._module.moment import Moment
from fedlight.callbacks import EarlyStopping, FedCheckpoint, ProgressBar

if TYPE_CHECKING:
    from lightning.fabric.loggers.logger import Logger
    from lightning.pytorch.profilers import Profiler
    from torch import Tensor

    from fedlight.data import FederatedDataModule
    from fedlight.trainer import FedTrainer


class ModuleTrainer(Moment):
    """Gives the attributes of ``self.trainer`` their meaning in a federation.

    Attributes that are not defined here are looked up on `FedTrainer`. If it has no such attribute
    either, an AttributeError is raised. The docstring of each attribute is its meaning
    (`meanings`).

    In a local run, time is the version that the client has pulled. So a local run gives the same
    result no matter when it is computed and together with which other runs.

    Args:
        trainer: The trainer.
        module: Its module.
        function: The method that runs: "fit", "validate", "test" or "predict".
        ckpt_path: Its argument of this name.
    """

    def __init__(
        self,
        trainer: FedTrainer,
        module: LightningModule,
        function: str,
        ckpt_path: str | Path | None = None,
    ) -> None:
        super().__init__()
        self._fed, self._module, self._function = trainer, module, function
        self._ckpt_path = ckpt_path
        self.stage = {"fit": "train"}.get(function, function)

    def for_actor(self) -> ActorTrainer:
        """The answers that a local step may get in another process."""
        own, passed = set(meanings()), {each for each in dir(self._fed) if each[0] != "_"}
        fixed = own | {name for name in vars(self._fed) if name in passed}
        values = {name: getattr(self, name) for name in sorted(fixed - _LIVE)}
        answers = {name: value for name, value in values.items() if _plain(value)}
        return ActorTrainer(answers, (own | passed) - answers.keys())

    # ------------------------------------------------------------------ time

    def _version(self, name: str) -> int:
        self.ask(name)
        if self.tasks:
            return self.common(name, [task.pulled_version for task in self.tasks])
        return self._fed.version

    @property
    def version(self) -> int:
        """The version of the server's model; in a local run, the version that was pulled."""
        return self._version("version")

    @property
    def current_epoch(self) -> int:
        """Rounds so far (the server's version); in a local run, the version that was pulled.

        So it is 1 in the hooks at the end of the first round, while Lightning's is 0.
        """
        return self._version("current_epoch")

    @property
    def global_step(self) -> int:
        """Server updates so far, as `current_epoch`; the step that loggers use."""
        return self._version("global_step")

    @property
    def max_epochs(self) -> int:
        """``max_rounds``; -1 if the rounds have no limit."""
        return -1 if self._fed.max_rounds is None else self._fed.max_rounds

    @property
    def min_epochs(self) -> int:
        """0: a federation has no minimum number of rounds."""
        return 0

    @property
    def max_steps(self) -> int:
        """``max_rounds``, since `global_step` counts rounds; -1 if the rounds have no limit."""
        return self.max_epochs

    @property
    def min_steps(self) -> None:
        """None: a federation has no minimum number of rounds."""
        return

    @property
    def estimated_stepping_batches(self) -> int | float:
        """In a local run (and its ``configure_optimizers``), its number of local steps.

        Elsewhere ``max_rounds``, or infinity if the rounds have no limit.
        """
        self.ask("estimated_stepping_batches")
        if self.tasks:
            steps = [task.num_steps for task in self.tasks]
            return self.common("estimated_stepping_batches", steps)
        return float("inf") if self._fed.max_rounds is None else self._fed.max_rounds

    @property
    def num_training_batches(self) -> int | float:
        """In a local run, its number of local steps; elsewhere infinity, since tasks differ."""
        self.ask("num_training_batches")
        if self.tasks:
            return self.common("num_training_batches", [task.num_steps for task in self.tasks])
        return float("inf")

    @property
    def should_stop(self) -> bool:
        """Whether the run ends after the current event. It can be set."""
        self.ask("should_stop")
        return self._fed.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self._fed.should_stop = value

    @property
    def interrupted(self) -> bool:
        """Whether the run was asked to end by Ctrl-C or SIGTERM."""
        return self._fed.interrupted

    @property
    def received_sigterm(self) -> bool:
        """As `interrupted`."""
        return self._fed.interrupted

    # ------------------------------------------------------------------ what is running

    @property
    def training(self) -> bool:
        """Whether ``fit`` is running and not validating."""
        return self.stage == "train"

    @property
    def validating(self) -> bool:
        """Whether a validation is running, including those within ``fit``."""
        return self.stage == "validate"

    @property
    def testing(self) -> bool:
        """Whether a test is running."""
        return self.stage == "test"

    @property
    def predicting(self) -> bool:
        """Whether a prediction is running."""
        return self.stage == "predict"

    @property
    def evaluating(self) -> bool:
        """Whether a validation or a test is running."""
        return self.stage in ("validate", "test", "sanity_check")

    @property
    def sanity_checking(self) -> bool:
        """Whether the validation before the first round is running."""
        return self.stage == "sanity_check"

    @property
    def state(self) -> TrainerState:
        """The running function and stage, in Lightning's spelling."""
        function = TrainerFn({"fit": "fit"}.get(self._function, self._function))
        stage = None if self.stage is None else RunningStage(self.stage)
        return TrainerState(TrainerStatus.RUNNING, function, stage)

    # ------------------------------------------------------------------ metrics and loggers

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The latest value of each metric at the time of access."""
        self.ask("callback_metrics")
        return self._fed.callback_metrics

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """The latest value of each metric, except those of ``self.log(…, logger=False)``."""
        self.ask("logged_metrics")
        return self._fed.logged_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The latest value of each metric of ``self.log(…, prog_bar=True)``."""
        self.ask("progress_bar_metrics")
        return self._fed.progress_bar_metrics

    @property
    def logger(self) -> Logger | None:
        """The first logger, or None."""
        return self._fed.logger

    @property
    def loggers(self) -> list[Logger]:
        """The loggers; none with ``logger=False`` or ``fast_dev_run``."""
        return self._fed.loggers

    @property
    def log_dir(self) -> str:
        """Where the first logger writes; ``default_root_dir`` if there is none."""
        return self._fed.log_dir

    @property
    def default_root_dir(self) -> str:
        """``default_root_dir`` of `FedTrainer`."""
        return os.path.abspath(self._fed.default_root_dir)

    @property
    def log_every_n_steps(self) -> int:
        """``log_every_n_steps``: loggers get every n-th round."""
        return self._fed.settings.log_every_n_steps

    @property
    def profiler(self) -> Profiler:
        """``profiler``; a profiler that measures nothing if none was given."""
        return self._fed.profiler

    # ------------------------------------------------------------------ module, data, callbacks

    @property
    def lightning_module(self) -> LightningModule:
        """The module."""
        return self._module

    @property
    def model(self) -> LightningModule:
        """The module."""
        return self._module

    @property
    def datamodule(self) -> FederatedDataModule | None:
        """The clients' data."""
        return self._fed.datamodule

    @property
    def callbacks(self) -> list[Any]:
        """The callbacks in the order of their calls; Lightning's callbacks as they were given."""
        return as_given(self._fed.callbacks)

    @property
    def checkpoint_callback(self) -> FedCheckpoint | None:
        """The first `FedCheckpoint`, or None."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def checkpoint_callbacks(self) -> list[FedCheckpoint]:
        """The `FedCheckpoint` callbacks."""
        return [each for each in self._fed.callbacks if isinstance(each, FedCheckpoint)]

    @property
    def early_stopping_callback(self) -> EarlyStopping | None:
        """The first `EarlyStopping`, or None."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[EarlyStopping]:
        """The `EarlyStopping` callbacks."""
        return [each for each in self._fed.callbacks if isinstance(each, EarlyStopping)]

    @property
    def progress_bar_callback(self) -> ProgressBar | None:
        """The progress bar, or None."""
        return next((each for each in self._fed.callbacks if isinstance(each, ProgressBar)), None)

    @property
    def optimizers(self) -> list[Any]:
        """Empty: an optimizer exists only during one local run."""
        return []

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """Empty: a scheduler exists only during one local run."""
        return []

    def save_checkpoint(self, filepath: str | Path) -> None:
        """`FedTrainer.save_checkpoint`: written as soon as the current event is over."""
        self._fed.save_checkpoint(filepath)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print; there is one process."""
        print(*args, **kwargs)

    # ------------------------------------------------------------------ limits

    @property
    def limit_train_batches(self) -> float:
        """1.0: the arrival process sets how many batches a local run takes."""
        return 1.0

    @property
    def limit_val_batches(self) -> int | float:
        """``limit_val_batches``; 1.0 for all batches."""
        limit = self._fed.limit_val_batches
        return 1.0 if limit is None else limit

    @property
    def limit_test_batches(self) -> int | float:
        """``limit_test_batches``; 1.0 for all batches."""
        limit = self._fed.settings.limit_test_batches
        return 1.0 if limit is None else limit

    @property
    def limit_predict_batches(self) -> int | float:
        """``limit_predict_batches``; 1.0 for all batches."""
        limit = self._fed.settings.limit_predict_batches
        return 1.0 if limit is None else limit

    @property
    def num_sanity_val_steps(self) -> int | float:
        """``num_sanity_val_steps``: validation batches before the first round; infinity for all."""
        steps = self._fed.settings.num_sanity_val_steps
        return float("inf") if steps == -1 else steps

    def _num_batches(self, stage: str, limit: int | float | None) -> list[int]:
        data = self._fed.datamodule
        step = is_overridden(f"{stage}_step", self._module, LightningModule)
        if data is None or not step or limit == 0:
            return []
        sizes = [len(examples) for examples in data.evaluation_data(stage)]
        return [number_of_batches(size, data.eval_batch_size, limit) for size in sizes]

    @property
    def num_val_batches(self) -> list[int]:
        """The number of batches of a validation, for each data set."""
        return self._num_batches("validation", self._fed.limit_val_batches)

    @property
    def num_test_batches(self) -> list[int]:
        """The number of batches of a test, for each data set."""
        return self._num_batches("test", self._fed.settings.limit_test_batches)

    @property
    def num_sanity_val_batches(self) -> list[int]:
        """The number of validation batches before the first round, for each data set."""
        return [int(min(self.num_sanity_val_steps, number)) for number in self.num_val_batches]

    @property
    def enable_validation(self) -> bool:
        """Whether there are a ``validation_step`` and batches for it."""
        return sum(self.num_val_batches) > 0

    @property
    def check_val_every_n_epoch(self) -> int | None:
        """``check_val_every_n_rounds``; 1 if that is "auto"."""
        every = self._fed.check_val_every_n_rounds
        return 1 if isinstance(every, str) else every

    @property
    def val_check_interval(self) -> float:
        """1.0: validation takes place after a round."""
        return 1.0

    @property
    def fast_dev_run(self) -> bool | int:
        """``fast_dev_run``: whether this is a trial run, or its number of rounds."""
        return self._fed.fast_dev_run

    @property
    def overfit_batches(self) -> float:
        """0.0: clients train on all their examples."""
        return 0.0

    @property
    def reload_dataloaders_every_n_epochs(self) -> int:
        """0: clients hold the same examples for the whole run."""
        return 0

    @property
    def enable_autolog_hparams(self) -> bool:
        """``enable_autolog_hparams``."""
        return self._fed.settings.enable_autolog_hparams

    @property
    def ckpt_path(self) -> str | Path | None:
        """``ckpt_path`` of ``fit`` or of the other method that is running."""
        return self._ckpt_path

    @property
    def accumulate_grad_batches(self) -> int:
        """1: each local step takes one batch."""
        return 1

    @property
    def gradient_clip_val(self) -> None:
        """None: clipping belongs to the local optimizer (``max_grad_norm``)."""
        return

    @property
    def gradient_clip_algorithm(self) -> None:
        """None, as `gradient_clip_val`."""
        return

    # ------------------------------------------------------------------ processes and devices

    @property
    def world_size(self) -> int:
        """1: all clients share one process."""
        return 1

    @property
    def num_nodes(self) -> int:
        """1."""
        return 1

    @property
    def num_devices(self) -> int:
        """1: all clients share one device."""
        return 1

    @property
    def device_ids(self) -> list[int]:
        """The index of the device."""
        return [self._fed.fabric.device.index or 0]

    @property
    def global_rank(self) -> int:
        """0."""
        return 0

    @property
    def local_rank(self) -> int:
        """0."""
        return 0

    @property
    def node_rank(self) -> int:
        """0."""
        return 0

    @property
    def is_global_zero(self) -> bool:
        """True: there is one process."""
        return True

    @property
    def accelerator(self) -> Any:
        """The kind of device."""
        return self._fed.fabric.accelerator

    @property
    def precision(self) -> str:
        """``precision``, for example "32-true"."""
        return str(self._fed.fabric.strategy.precision.precision)

    @property
    def strategy(self) -> OneDevice:
        """One device: gathering and reducing over processes return what they are given."""
        return OneDevice(self._fed.fabric.device)

    @property
    def barebones(self) -> bool:
        """False."""
        return False

    @property
    def _results(self) -> None:  # Lightning's own ``log`` then says that nothing can be logged
        return

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(unknown(name))
        if hasattr(self._fed, name):
            self.ask(name)
            return getattr(self._fed, name)
        raise AttributeError(unknown(name))


_LIVE = {
    *("version", "current_epoch", "global_step", "now", "history", "should_stop", "interrupted"),
    *("received_sigterm", "callback_metrics", "logged_metrics", "progress_bar_metrics"),
    *("estimated_stepping_batches", "num_training_batches"),
}
"""What changes during a run, or from task to task."""


def _plain(value: Any) -> bool:
    """Whether a value is the same in another process."""
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    kinds = (bool, int, float, str, Path, Enum, TrainerState, OneDevice)
    return value is None or isinstance(value, kinds)


def meanings() -> dict[str, str]:
    """The attributes of ``self.trainer`` by name, each with its meaning in a federation."""
    return {
        name: " ".join((attribute.__doc__ or "").split())
        for name, attribute in vars(ModuleTrainer).items()
        if not name.startswith("_") and attribute.__doc__ and not hasattr(Moment, name)
    }


@contextmanager
def attached(
    module: LightningModule,
    trainer: FedTrainer,
    function: str,
    ckpt_path: str | Path | None = None,
) -> Iterator[LogRecorder]:
    """Within the context, ``self.trainer`` and ``self.log`` of a module answer in all its hooks.

    Args:
        module: The module.
        trainer: The trainer.
        function: The method that runs: "fit", "validate", "test" or "predict".
        ckpt_path: Its argument of this name.

    Yields:
        What the module logs outside of its steps.
    """
    before = module._trainer, module._fabric
    recorder = LogRecorder(module)
    module.fabric = None  # or else Lightning would ask Fabric
    shown = ModuleTrainer(trainer, module, function, ckpt_path)
    module.trainer = shown  # type: ignore[assignment]
    try:
        with recorder.recording():
            yield recorder
    finally:
        module.trainer, module.fabric = before
