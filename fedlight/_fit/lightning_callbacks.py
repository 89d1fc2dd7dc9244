"""How each of Lightning's callbacks is treated: adapted, replaced by one of ours, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import callbacks as theirs

from fedlight._fit.callback_adapters import (
    Adapted,
    AdaptedDeviceStats,
    AdaptedSummary,
    AdaptedTimer,
    Mirror,
)
from fedlight.callbacks.base import Callback
from fedlight.callbacks.checkpoint import FedCheckpoint
from fedlight.callbacks.early_stopping import EarlyStopping
from fedlight.callbacks.learning_rate import LearningRateMonitor
from fedlight.callbacks.progress import ProgressBar

_OF_CHECKPOINT = (
    ("filename", (None,), "leave it out: the files are named round=<N>.ckpt"),
    ("_every_n_train_steps", (0,), "write FedCheckpoint(…, every_n_updates=…) for client updates"),
    ("_train_time_interval", (None,), "write FedCheckpoint(…, every_time=…) for virtual time"),
    (
        "save_weights_only",
        (False,),
        "leave it out, or write torch.save(module.state_dict(), path) after fit",
    ),
    (
        "save_on_exception",
        (False,),
        "write save_last=True: last.ckpt is the end of the round before the exception",
    ),
)
_OF_LEARNING_RATE = (
    ("logging_interval", (None, "epoch"), "leave it out: the rates are logged once a round"),
    ("log_momentum", (False,), "leave it out: it does not change during a run"),
    ("log_weight_decay", (False,), "leave it out: it does not change during a run"),
)


def _early_stopping(callback: Any, root: Path) -> list[Callback]:
    ours = EarlyStopping(
        callback.monitor,
        # Lightning keeps it multiplied by the sign of the mode.
        min_delta=callback.min_delta * (1 if callback.mode == "max" else -1),
        patience=max(callback.patience, 1),  # Lightning's 0 stops as late as its 1
        verbose=callback.verbose,
        mode=callback.mode,
        strict=callback.strict,
        check_finite=callback.check_finite,
        stopping_threshold=callback.stopping_threshold,
        divergence_threshold=callback.divergence_threshold,
    )

    def write() -> None:
        callback.best_score = torch.tensor(ours.best_score, dtype=torch.float64)
        callback.wait_count = ours.wait_count
        callback.stopped_epoch = max(ours.stopped_round - 1, 0)  # the first epoch is 0
        callback.stopping_reason_message = ours.reason or None

    return [ours, Mirror(callback, ours, write)]


def _checkpoint(callback: Any, root: Path) -> list[Callback]:
    _check_arguments(callback, _OF_CHECKPOINT)
    ours = FedCheckpoint(
        root / "checkpoints" if callback.dirpath is None else callback.dirpath,
        every_n_rounds=callback._every_n_epochs,
        monitor=callback.monitor,
        mode=callback.mode,
        save_top_k=callback.save_top_k,
        save_last=bool(callback.save_last),
    )

    def write() -> None:
        callback.dirpath = str(ours.dirpath)
        callback.best_k_models = {
            path: torch.tensor(score, dtype=torch.float64) for path, score in ours.best_k.items()
        }
        callback.best_model_path = ours.best_model_path
        callback.best_model_score = None
        if callback.monitor is not None:
            callback.best_model_score = callback.best_k_models.get(ours.best_model_path)
        last = ours.last_model_path if ours.save_last else ""
        callback.last_model_path = last if last and Path(last).exists() else ""

    return [ours, Mirror(callback, ours, write)]


def _learning_rate(callback: Any, root: Path) -> list[Callback]:
    _check_arguments(callback, _OF_LEARNING_RATE)
    return [LearningRateMonitor()]


def _bar(callback: Any, root: Path) -> list[Callback]:
    if callback.refresh_rate == 0:
        text = "write FedTrainer(enable_progress_bar=False)"
        raise _no_meaning(callback, "refresh_rate", 0, text)
    return [ProgressBar()]


def _check_arguments(callback: Any, table: Iterable[tuple[str, tuple[Any, ...], str]]) -> None:
    """Refuse arguments of a callback that have no meaning in a federation.

    Args:
        callback: Lightning's callback.
        table: Attributes, their values that are accepted, and what to write for the others.

    Raises:
        TypeError: One of them has another value.
    """
    for attribute, accepted, text in table:
        value = getattr(callback, attribute)
        if value not in accepted:
            raise _no_meaning(callback, attribute.lstrip("_"), value, text)


def _no_meaning(callback: Any, argument: str, value: object, text: str) -> TypeError:
    return TypeError(
        f"{type(callback).__name__}({argument}={value!r}) has no meaning in a federation: {text}"
    )


def _adapted(kind: type[Adapted]) -> Callable[[Any, Path], list[Callback]]:
    def make(callback: Any, root: Path) -> list[Callback]:
        # The name in checkpoints is that of the class, so each callback gets its own back.
        return [type(type(callback).__qualname__, (kind,), {})(callback)]

    return make


class Treatment(NamedTuple):
    """How `FedTrainer` treats one of Lightning's callbacks.

    Attributes:
        status: "works", "differs" (one of our callbacks replaces it) or "refused".
        text: How it is treated, or what to write instead.
        make: Makes the callbacks that replace it, from the callback and ``default_root_dir``; None
            if it is refused.
    """

    status: str
    text: str
    make: Callable[[Any, Path], list[Callback]] | None = None


_PLAIN = _adapted(Adapted)
_AVERAGE = (
    "average the server's model in a fedlight.Callback: "
    "self.average = torch.optim.swa_utils.AveragedModel(module) in on_fit_start, "
    "self.average.update_parameters(module) in on_round_end"
)
_FROZEN = (
    "the set of trained parameters is fixed for a run: set requires_grad_(False) in the module's "
    "setup, and train the rest in a second fit with another FedTrainer"
)

CALLBACKS: Mapping[str, Treatment] = {
    "BackboneFinetuning": Treatment("refused", _FROZEN),
    "BaseFinetuning": Treatment("refused", _FROZEN),
    "BasePredictionWriter": Treatment("refused", "write the result of trainer.predict to a file"),
    "BatchSizeFinder": Treatment("refused", "give FederatedDataModule(…, batch_size=…)"),
    "Callback": Treatment("works", "your subclass: the hooks that have a meaning here", _PLAIN),
    "Checkpoint": Treatment("works", "your subclass: the hooks that have a meaning here", _PLAIN),
    "DeviceStatsMonitor": Treatment(
        "works", "after each round instead of each batch", _adapted(AdaptedDeviceStats)
    ),
    "EMAWeightAveraging": Treatment("refused", _AVERAGE),
    "EarlyStopping": Treatment(
        "differs",
        "fedlight.callbacks.EarlyStopping; patience counts the rounds that have the metric",
        _early_stopping,
    ),
    "GradientAccumulationScheduler": Treatment(
        "refused", "give FederatedDataModule(…, batch_size=…)"
    ),
    "LambdaCallback": Treatment("works", "the hooks that have a meaning here", _PLAIN),
    "LearningRateFinder": Treatment(
        "refused", "compare several rates: one FedTrainer for each LocalSGD(lr=…)"
    ),
    "LearningRateMonitor": Treatment(
        "differs", "fedlight.callbacks.LearningRateMonitor, once a round", _learning_rate
    ),
    "ModelCheckpoint": Treatment(
        "differs",
        "fedlight.callbacks.FedCheckpoint; every_n_epochs counts rounds; files are called "
        "round=<N>.ckpt, and filename= is refused; without dirpath they go to "
        'default_root_dir/"checkpoints"',
        _checkpoint,
    ),
    "ModelPruning": Treatment(
        "refused",
        "prune the module with torch.nn.utils.prune after fit, or permanently before fit",
    ),
    "ModelSummary": Treatment("works", "before the first event", _adapted(AdaptedSummary)),
    "OnExceptionCheckpoint": Treatment(
        "refused",
        'write fedlight.callbacks.FedCheckpoint("checkpoints"), whose last.ckpt is the last '
        "complete round before the exception",
    ),
    "ProgressBar": Treatment("refused", "write a fedlight.Callback that draws in on_round_end"),
    "RichModelSummary": Treatment("works", "before the first event", _adapted(AdaptedSummary)),
    "RichProgressBar": Treatment("differs", "fedlight.callbacks.ProgressBar", _bar),
    "SpikeDetection": Treatment(
        "refused", 'write FedTrainer(max_update_norm=…, on_client_failure="drop")'
    ),
    "StochasticWeightAveraging": Treatment("refused", _AVERAGE),
    "TQDMProgressBar": Treatment("differs", "fedlight.callbacks.ProgressBar", _bar),
    "ThroughputMonitor": Treatment(
        "refused", "leave it out: fedlight.callbacks.ProgressBar shows the updates per second"
    ),
    "Timer": Treatment(
        "works", "measures real time; ends the run between two events", _adapted(AdaptedTimer)
    ),
    "WeightAveraging": Treatment("refused", _AVERAGE),
}
"""Each callback that `lightning.pytorch.callbacks` exports."""


def adapt(callback: theirs.Callback, root: Path) -> list[Callback]:
    """The callbacks that replace one of Lightning's.

    Args:
        callback: Lightning's, or a user's subclass.
        root: ``default_root_dir``.

    Raises:
        TypeError: It has no meaning in a federation; the error says what to write instead.
    """
    name = type(callback).__name__
    for kind in type(callback).__mro__:
        treatment = CALLBACKS.get(kind.__name__)
        if treatment is None or kind is not getattr(theirs, kind.__name__, None):
            continue
        own = kind is not type(callback)
        if treatment.make is None:
            of = f", a subclass of {kind.__name__}," if own else ""
            raise TypeError(
                f"the callback {name}{of} has no meaning in a federation: {treatment.text}"
            )
        if own and treatment.status == "differs":
            raise TypeError(
                f"the callback {name} is a subclass of {kind.__name__}, which another class "
                f"replaces here: derive it from {re.split('[,;]', treatment.text)[0]}"
            )
        return treatment.make(callback, root)
    raise AssertionError(f"{name} is no lightning.Callback")
