"""Lightning's names on `FedTrainer` itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from fedlight._fit.module_trainer import ModuleTrainer
from fedlight._fit.one_device import INSTEAD

if TYPE_CHECKING:
    from pathlib import Path

    from lightning import LightningModule
    from lightning.fabric.loggers.logger import Logger
    from torch import Tensor

    from fedlight.types import Metrics


class _Seen(Protocol):
    """What `LightningNames` reads of a trainer."""

    @property
    def module(self) -> LightningModule: ...
    @property
    def version(self) -> int: ...
    @property
    def newest_metrics(self) -> Metrics: ...
    @property
    def loggers(self) -> list[Logger]: ...
    @property
    def default_root_dir(self) -> Path: ...


class LightningNames:
    """Figures of a trainer under Lightning's names, for those who look for them there."""

    @property
    def model(self: _Seen) -> LightningModule:
        """The module, as `module`."""
        return self.module

    @property
    def current_epoch(self: _Seen) -> int:
        """The version of the server's model: rounds so far."""
        return self.version

    @property
    def global_step(self: _Seen) -> int:
        """The version of the server's model: server updates so far, the step of all loggers."""
        return self.version

    @property
    def callback_metrics(self: _Seen) -> dict[str, Tensor]:
        """The newest value of each metric."""
        return {name: torch.tensor(value) for name, value in self.newest_metrics.items()}

    @property
    def logged_metrics(self: _Seen) -> dict[str, Tensor]:
        """The newest value of each metric that goes to loggers."""
        logged = self.newest_metrics.logged()
        return {name: torch.tensor(value) for name, value in logged.items()}

    @property
    def progress_bar_metrics(self: _Seen) -> dict[str, float]:
        """The newest value of each metric that was logged with ``prog_bar=True``."""
        metrics = self.newest_metrics
        return {name: value for name, value in metrics.items() if name in metrics.prog_bar}

    @property
    def log_dir(self: _Seen) -> str:
        """Where the first logger writes; `default_root_dir` if there is none."""
        first: Any = self.loggers[0] if self.loggers else None
        if isinstance(first, TensorBoardLogger | CSVLogger):
            return str(first.log_dir)
        return str(getattr(first, "save_dir", None) or os.path.abspath(self.default_root_dir))

    if not TYPE_CHECKING:  # else every misspelled attribute would pass for one

        def __getattr__(self, name: str) -> Any:
            """What ``self.trainer`` of a module answers, for those who ask the trainer itself.

            Raises:
                AttributeError: There is no such attribute, or no module yet.
            """
            attribute = None if name.startswith("_") else vars(ModuleTrainer).get(name)
            module = vars(self).get("_module")
            if attribute is None:
                words = f"FedTrainer has no attribute {name!r}"
                raise AttributeError(words + (f": {INSTEAD[name]}" if name in INSTEAD else ""))
            if module is None:
                raise AttributeError(f"FedTrainer has no {name!r} before it has a module: call fit")
            shown = ModuleTrainer(self, module, "fit")
            shown.stage = None
            # Not by `getattr`: a missing one would be asked of this trainer again.
            return attribute.__get__(shown, ModuleTrainer)
