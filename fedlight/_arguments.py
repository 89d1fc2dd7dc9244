"""Checks of what a user hands to `FedTrainer`, and what stands in where nothing was given."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule
from lightning.fabric.loggers.logger import Logger
from lightning.pytorch.callbacks import Callback as LightningCallback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlight._checks import non_negative_int, positive_int
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess
from fedlight.callbacks import Callback, FedCheckpoint, ProgressBar
from fedlight.data import FederatedDataModule


def instance_of(kind: type[Any], name: str, value: object, example: str) -> Any:
    """`value` where it is an object of `kind`.

    Raises:
        TypeError: It is a class, or an object of another kind.
    """
    if isinstance(value, type):
        raise TypeError(f"{name} must be an object, got the class {value.__name__}; call it")
    if not isinstance(value, kind):
        raise TypeError(
            f"{name} must be of type {kind.__name__}, got {value!r} ({type(value).__name__}); "
            f"for example {example}"
        )
    return value


def as_module(module: object) -> LightningModule:
    """`module` where it is a LightningModule.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(module, type):
        raise TypeError(f"module must be an object, got the class {module.__name__}; call it")
    if not isinstance(module, LightningModule):
        raise TypeError(
            f"module must be a LightningModule, got {type(module).__name__}; "
            "pass an object of your subclass of lightning.LightningModule"
        )
    return module


def check_module(module: object) -> LightningModule:
    """`module` where it can be trained in a federation.

    Raises:
        TypeError: It is no LightningModule.
        ValueError: It has no ``training_step``, or optimizes by hand.
        RuntimeError: It is called in ``torch.inference_mode()``.
    """
    module = as_module(module)
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "fit cannot train within torch.inference_mode(), where no gradient is recorded; call "
            "it outside of it"
        )
    name = type(module).__name__
    if not is_overridden("training_step", module, LightningModule):
        raise ValueError(
            f"{name} has no training_step; define training_step(self, batch, batch_idx) that "
            "returns the loss"
        )
    if not module.automatic_optimization:
        raise ValueError(
            f"{name} uses manual optimization (automatic_optimization=False), which a local run "
            "cannot take over: return the loss from training_step and pass a local optimizer, "
            "for example local_optimizer=LocalSGD(lr=0.1)"
        )
    return module


def check_data(datamodule: object) -> FederatedDataModule:
    """`datamodule` where it is one.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(datamodule, FederatedDataModule):
        raise TypeError(
            f"datamodule must be a FederatedDataModule, got {type(datamodule).__name__}; wrap your "
            "data: FederatedDataModule(dataset, partitioner) or "
            "FederatedDataModule.from_client_datasets([...])"
        )
    return datamodule


def check_rounds(aggregator: Aggregator, arrivals: ArrivalProcess) -> None:
    """Refuse an aggregator that waits for ends of rounds under a process that has none.

    Raises:
        ValueError: It does.
    """
    if aggregator.needs_rounds and not arrivals.by_rounds:
        raise ValueError(
            f"{aggregator!r} steps at the end of rounds, but {type(arrivals).__name__} has none: "
            "give the aggregator a buffer_size (a process of your own that yields EndRound says "
            "so with by_rounds = True)"
        )


def check_devices(devices: object) -> None:
    """Refuse anything but one device.

    Raises:
        TypeError: It is no integer.
        ValueError: It is not 1.
    """
    if positive_int("devices", devices) != 1:
        raise ValueError(
            f"devices must be 1, got {devices}: all clients share one device; "
            "to use several, give a distributed executor"
        )


def check_can_discard(aggregator: Aggregator) -> None:
    """Refuse an aggregator that could not leave out an update that failed.

    Raises:
        ValueError: It says that it cannot.
    """
    if not aggregator.can_discard:
        raise ValueError(
            f"{type(aggregator).__name__} cannot leave out updates that fail or are too large: "
            "derive it from BufferedAggregator, or define held and discard(failed); or take "
            'on_client_failure="raise" and no max_update_norm'
        )


def limit_batches(value: int | float | None) -> int | float | None:
    """A number of batches, a share of them, or None.

    Raises:
        TypeError: It is no number.
        ValueError: It is outside its range.
    """
    if value is None or (isinstance(value, float) and 0 < value <= 1):
        return value
    if isinstance(value, float):
        raise ValueError(
            f"limit_val_batches must be a share in (0, 1] or a number of batches, got {value!r}"
        )
    if value == 0:
        raise ValueError(
            "limit_val_batches must be at least 1, got 0; to turn validation off write "
            "check_val_every_n_rounds=None"
        )
    return positive_int("limit_val_batches", value)


def number_of_trials(fast_dev_run: bool | int) -> int:
    """Rounds and batches of a trial run; 0 for none.

    Raises:
        TypeError: It is neither a bool nor an integer.
        ValueError: It is below 0.
    """
    if isinstance(fast_dev_run, bool):
        return int(fast_dev_run)
    return non_negative_int("fast_dev_run", fast_dev_run)


def as_folder(root: str | Path | None) -> Path:
    """The folder meant by ``default_root_dir``.

    Raises:
        TypeError: It is no path.
    """
    if root is None:
        return Path(".")
    if not isinstance(root, str | Path):
        raise TypeError(f"default_root_dir must be a path, got {root!r} ({type(root).__name__})")
    return Path(root)


def as_loggers(logger: bool | Logger | Iterable[Logger], root: Path) -> list[Logger]:
    """The loggers meant: TensorBoard under `root` for True.

    Raises:
        TypeError: One of them is no logger.
    """
    if logger is True:
        # Without a metric of its own it would draw the constant `hp_metric` = -1.
        return [TensorBoardLogger(save_dir=root, name="fedlight_logs", default_hp_metric=False)]
    if logger is False or logger is None:
        return []
    loggers = _listed(logger, Logger)
    for each in loggers:
        instance_of(Logger, "logger", each, 'TensorBoardLogger("logs")')
    return loggers


def as_callbacks(callbacks: Callback | Iterable[Callback] | None, bar: bool) -> list[Callback]:
    """The callbacks meant, with a progress bar where one is wanted.

    Raises:
        TypeError: One of them is no callback.
    """
    given = [] if callbacks is None else _listed(callbacks, Callback)
    for each in given:
        instance_of(Callback, "callbacks", each, "fedlight.callbacks.EarlyStopping(…)")
        _warn_of_callback_hooks(each)
    if bar and not any(isinstance(each, ProgressBar) for each in given):
        given.append(ProgressBar())
    # Last, as in Lightning: a checkpoint then holds what the others made of the event.
    return sorted(given, key=lambda each: isinstance(each, FedCheckpoint))


def _listed(value: Any, kind: type[Any]) -> list[Any]:
    """One object or several as a list; what is neither is left to the check of each."""
    if isinstance(value, Iterable) and not isinstance(value, str | kind):
        return list(value)
    return [value]


def _warn_of_callback_hooks(callback: Callback) -> None:
    known = set(dir(Callback))
    ignored = [
        name
        for name in dir(LightningCallback)
        if name.startswith("on_") and name not in known and hasattr(type(callback), name)
    ]
    if ignored:
        rank_zero_warn(
            f"fedlight: the callback {type(callback).__name__} has {', '.join(ignored)}, which a "
            f"federation never calls; its hooks are "
            f"{', '.join(sorted(name for name in known if name.startswith('on_')))}"
        )
