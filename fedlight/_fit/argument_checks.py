"""Checks of the arguments of `FedTrainer` and of its methods, and their defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat, TypeAlias

import torch
from lightning import LightningDataModule, LightningModule
from lightning.fabric.loggers.logger import Logger
from lightning.pytorch.callbacks import Callback as LightningCallback
from lightning.pytorch.callbacks import ModelSummary
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlight._fit.callback_adapters import AdaptedSummary, Mirror
from fedlight._fit.lightning_arguments import LightningSettings, refuse_arguments
from fedlight._fit.lightning_callbacks import adapt
from fedlight._support.checks import (
    described,
    flag,
    index_below,
    non_negative_int,
    shown,
)
from fedlight._support.files import user_path
from fedlight.aggregators import Aggregator
from fedlight.callbacks import Callback, FedCheckpoint, ProgressBar
from fedlight.checkpoint import Parts
from fedlight.data import FederatedDataModule
from fedlight.types import Federation

AnyCallback: TypeAlias = Callback | LightningCallback

_OTHER_PACKAGE = "pytorch_lightning"


def instance_of(kind: type[Any], name: str, value: object, example: str) -> Any:
    """Return `value` if it is an instance of `kind`.

    Raises:
        TypeError: It is a class, or an object of another kind.
    """
    if isinstance(value, type):
        if issubclass(value, torch.optim.Optimizer):
            raise TypeError(
                f"{name} must be of type {kind.__name__}, got the class {value.__name__} of "
                f"torch; for example {example}, or return {value.__name__}(self.parameters(), …) "
                f"from the module's configure_optimizers and leave {name} out"
            )
        raise TypeError(f"{name} must be an object, got the class {value.__name__}; call it")
    if not isinstance(value, kind):
        if _is_of_other_package(value):
            raise TypeError(
                f"{name} must be of type {kind.__name__}, got {type(value).__name__} of "
                f"{_OTHER_PACKAGE}, which is another package with classes of its own: import it "
                "from lightning.pytorch"
            )
        raise TypeError(
            f"{name} must be of type {kind.__name__}, got {shown(value)} ({type(value).__name__}); "
            f"for example {example}"
        )
    return value


def _is_of_other_package(value: object) -> bool:
    return any(kind.__module__.split(".")[0] == _OTHER_PACKAGE for kind in type(value).__mro__)


def as_module(module: object, name: str = "module") -> LightningModule:
    """Return `module` if it is a LightningModule; for a compiled one, the module in it.

    Args:
        module: The module.
        name: Name of the argument.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(module, type):
        raise TypeError(f"{name} must be an object, got the class {module.__name__}; call it")
    module = _uncompiled(module)
    if not isinstance(module, LightningModule):
        if _is_of_other_package(module):
            raise TypeError(
                f"{name} must be a LightningModule, got {type(module).__name__} of "
                f"{_OTHER_PACKAGE}, which is another package with classes of its own: write "
                "from lightning.pytorch import LightningModule"
            )
        advice = "pass an object of your subclass of lightning.LightningModule"
        if isinstance(module, torch.nn.Module):
            advice += (
                "; to wrap a torch model, write its training_step, or forward in a subclass of "
                "fedlight.models.Classifier"
            )
        for child in module.children() if isinstance(module, torch.nn.Module) else ():
            if isinstance(child, LightningModule):  # as wrapped by DataParallel or Fabric
                advice = f"pass the {type(child).__name__} in it"
        raise TypeError(f"{name} must be a LightningModule, got {described(module)}; {advice}")
    return module


def _uncompiled(module: object) -> object:
    """The module within the wrapper of ``torch.compile``; any other object unchanged."""
    if type(module).__name__ != "OptimizedModule":  # its class lies in a private module of torch
        return module
    rank_zero_info(
        "fedlight: the module is trained without torch.compile: executors run its training_step, "
        "not its compiled forward. The compiled module shares its weights"
    )
    assert isinstance(module, torch.nn.Module)
    return module.get_submodule("_orig_mod")


def given_module(
    method: str, module: object, model: object, others: Mapping[str, object]
) -> object:
    """The module of ``fit`` and the like, which has two names; refuse arguments of Lightning's.

    Args:
        method: "fit", "validate", "test" or "predict".
        module: The module, by our name of it.
        model: The module, by Lightning's name of it.
        others: The arguments that no parameter takes.

    Raises:
        TypeError: The module was given by both names, `model` is none, or there are other
            arguments.
    """
    refuse_arguments(method, others)
    if module is not None and model is not None:
        raise TypeError(
            "module and model are two names of one argument, got "
            f"module={described(module)} and model={described(model)}; give one of them"
        )
    return module if model is None else as_module(model, "model")


def check_module(module: object) -> LightningModule:
    """Return `module` if it can be trained in a federation.

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
    """Return `datamodule` if it is a `FederatedDataModule`.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(datamodule, FederatedDataModule):
        if isinstance(datamodule, LightningDataModule):
            way = "write FederatedDataModule.from_lightning(datamodule, partitioner)"
        else:
            way = (
                "wrap your data: FederatedDataModule(dataset, partitioner) or "
                "FederatedDataModule.from_client_datasets([...])"
            )
        raise TypeError(
            f"datamodule must be a FederatedDataModule, got {described(datamodule)}; {way}"
        )
    return datamodule


def checked_metrics(metrics: Mapping[str, float]) -> Mapping[str, float]:
    """Return the metrics of a callback.

    Raises:
        ValueError: One of them has a name of the trainer's.
        TypeError: They are no mapping, a name is no string, or a value is not a real number.
    """
    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
        raise TypeError(
            f'metrics must be a mapping from names to numbers, such as {{"dropped": 3}}, got '
            f"{shown(metrics)}"
        )
    for name, value in metrics.items():
        if name.startswith("fed/"):
            raise ValueError(
                f"log_metrics({{{name!r}: …}}): names that begin with 'fed/' belong to FedTrainer; "
                "choose another name"
            )
        if not isinstance(value, SupportsFloat):
            raise TypeError(f"log_metrics({{{name!r}: …}}) takes numbers in metrics, got {value!r}")
    return metrics


def client_index(client_id: object, federation: Federation) -> int:
    """Return the number of a client.

    Raises:
        TypeError: It is not an integer.
        ValueError: There is no such client.
    """
    return index_below("client_id", client_id, federation.num_clients)


def check_parts(parts: object) -> None:
    """Check the folder for the parts of a checkpoint.

    Raises:
        TypeError: It is of another kind.
    """
    if parts is not None:
        instance_of(Parts, "parts", parts, 'Parts("checkpoints")')


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
    """The folder of ``default_root_dir``; the working directory for None.

    Raises:
        TypeError: It is no path.
    """
    if root is None:
        return Path(".")
    if not isinstance(root, str | Path):
        raise TypeError(f"default_root_dir must be a path, got {root!r} ({type(root).__name__})")
    return user_path(root)


def as_loggers(logger: bool | Logger | Iterable[Logger], root: Path) -> list[Logger]:
    """The loggers as a list; for True, TensorBoard under `root`.

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


def as_callbacks(
    callbacks: AnyCallback | Iterable[AnyCallback] | None,
    bar: bool | None,
    root: Path = Path("."),
    settings: LightningSettings | None = None,
) -> list[Callback]:
    """The callbacks as a list, with those that other arguments ask for.

    Args:
        callbacks: Ours, and Lightning's, which are adapted.
        bar: Whether to show a progress bar; None means True, as in Lightning.
        root: The folder for checkpoints that name none.
        settings: The arguments of `lightning.Trainer`, some of which ask for a callback.

    Raises:
        TypeError: One of them is no callback, or has no meaning in a federation.
        ValueError: There is a `FedCheckpoint`, and ``enable_checkpointing=False``.
    """
    given: list[Callback] = []
    for each in [] if callbacks is None else _listed(callbacks, Callback | LightningCallback):
        if isinstance(each, LightningCallback) and not isinstance(each, Callback):
            given += adapt(each, root)
            continue
        example = "fedlight.callbacks.EarlyStopping(…)"
        given.append(instance_of(Callback, "callbacks", each, example))
        _warn_of_callback_hooks(each)
    if settings is not None:
        given += _asked_for(settings, given, root)
    wanted = bar is None or flag("enable_progress_bar", bar)
    if wanted and not any(isinstance(each, ProgressBar) for each in given):
        given.append(ProgressBar())
    # Checkpoints come last, as in Lightning: they then hold the effect of the other callbacks.
    return sorted(given, key=lambda each: isinstance(each, FedCheckpoint | Mirror))


def _asked_for(
    settings: LightningSettings, given: Iterable[Callback], root: Path
) -> list[Callback]:
    """The callbacks that ``max_wall_time``, ``enable_model_summary`` and others ask for."""
    asked: list[Callback] = []
    if settings.max_wall_time is not None:
        asked += adapt(settings.max_wall_time, root)
    if settings.enable_model_summary and not any(isinstance(e, AdaptedSummary) for e in given):
        asked += adapt(ModelSummary(), root)
    keeper = any(isinstance(each, FedCheckpoint) for each in given)
    if settings.enable_checkpointing and not keeper:
        asked.append(FedCheckpoint(root / "checkpoints"))
    if settings.enable_checkpointing is False and keeper:
        raise ValueError(
            "enable_checkpointing=False, but there is a FedCheckpoint among the callbacks; "
            "leave one of the two out"
        )
    return asked


def _listed(value: Any, kind: Any) -> list[Any]:
    """One object or several as a list; the caller checks the kind of each."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping | kind):
        return [value]
    try:
        return list(value)
    except TypeError:  # an array without an axis
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
