"""Lightning's own callbacks under `FedTrainer`: adapted, replaced by one of ours, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from lightning.pytorch import callbacks as theirs
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator, MPSAccelerator
from lightning.pytorch.utilities import rank_zero_warn

from fedlight.callbacks.base import Callback
from fedlight.callbacks.checkpoint import FedCheckpoint
from fedlight.callbacks.early_stopping import EarlyStopping
from fedlight.callbacks.learning_rate import LearningRateMonitor
from fedlight.callbacks.progress import ProgressBar

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.types import ClientUpdate

HOOKS: Mapping[str, str] = {
    "setup": "when fit, validate, test or predict begins",
    "on_fit_start": "before the first event",
    "on_sanity_check_start": "before the validation of num_sanity_val_steps",
    "on_sanity_check_end": "after that validation",
    "on_train_start": "before the first event, after on_fit_start",
    "on_train_epoch_start": "when the first update of a round arrives",
    "on_validation_start": "before a validation",
    "on_validation_epoch_start": "before a validation",
    "on_validation_epoch_end": "after a validation",
    "on_validation_end": "after a validation",
    "on_train_epoch_end": "after each round (server update) and its validation",
    "on_train_end": "after the last event",
    "on_fit_end": "after on_train_end",
    "on_test_start": "before a test",
    "on_test_epoch_start": "before a test",
    "on_test_epoch_end": "after a test",
    "on_test_end": "after a test",
    "on_predict_start": "before a prediction",
    "on_predict_epoch_start": "before a prediction",
    "on_predict_epoch_end": "after a prediction",
    "on_predict_end": "after a prediction",
    "on_exception": "when fit is interrupted by an exception",
    "teardown": "when fit, validate, test or predict ends",
    "state_dict": "when a checkpoint is written",
    "load_state_dict": "when a run resumes from a checkpoint",
}
"""The hooks of `lightning.Callback` that are called, and when. A round stands for an epoch."""

_NO_HOOKS = ("state_key",)


class Adapted(Callback):
    """Calls the hooks of a `lightning.Callback` that have a meaning in a federation (`HOOKS`).

    The others, those of the batches of a client's local run, are named in a warning.

    Args:
        callback: The callback.

    Attributes:
        callback: The callback.
        handled: More of its hooks that are called or replaced.
    """

    handled: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, callback: Any) -> None:
        self.callback = callback
        self._hooks = {name for name in dir(theirs.Callback) if _overrides(callback, name)}
        self._in_round = False
        never = sorted(
            name for name in self._hooks - HOOKS.keys() - self.handled if name.startswith("on_")
        )
        if never:
            rank_zero_warn(
                f"fedlight: the callback {type(callback).__name__} has {', '.join(never)}, which a "
                "federation never calls: a client's local steps run without callbacks; "
                "on_train_epoch_end is called after each round"
            )

    def _call(self, names: tuple[str, ...], module: LightningModule, *args: Any) -> None:
        """Call hooks with the trainer that the module has, which answers by Lightning's names."""
        for name in names:
            if name in self._hooks:
                getattr(self.callback, name)(module.trainer, module, *args)

    def setup(self, trainer: Any, module: LightningModule, stage: str) -> None:
        """Pass it on."""
        self._call(("setup",), module, stage)

    def on_fit_start(self, trainer: Any, module: LightningModule) -> None:
        """Pass it on."""
        self._in_round = False
        self._call(("on_fit_start",), module)

    def on_sanity_check_start(self, trainer: Any, module: LightningModule) -> None:
        """Pass it on."""
        self._call(("on_sanity_check_start",), module)

    def on_sanity_check_end(self, trainer: Any, module: LightningModule) -> None:
        """Pass it on."""
        self._call(("on_sanity_check_end",), module)

    def on_train_start(self, trainer: Any, module: LightningModule) -> None:
        """Pass it on."""
        self._call(("on_train_start",), module)

    def on_update(self, trainer: Any, module: LightningModule, update: ClientUpdate) -> None:
        """The first update of a round begins an epoch."""
        if not self._in_round:
            self._begin_round(trainer, module)

    def _begin_round(self, trainer: Any, module: LightningModule) -> None:
        self._in_round = True
        self._call(("on_train_epoch_start",), module)

    def on_validation_start(self, trainer: Any, module: LightningModule) -> None:
        """Pass it on."""
        self._call(("on_validation_start", "on_validation_epoch_start"), module)

    def on_validation_end(self, trainer: Any, module: LightningModule) -> None:
        """Pass it on."""
        self._call(("on_validation_epoch_end", "on_validation_end"), module)

    def on_test_start(self, trainer: Any, module: LightningModule) -> None:
        """Pass it on."""
        self._call(("on_test_start", "on_test_epoch_start"), module)

    def on_test_end(self, trainer: Any, module: LightningModule) -> None:
        """Pass it on."""
        self._call(("on_test_epoch_end", "on_test_end"), module)

    def on_predict_start(self, trainer: Any, module: LightningModule) -> None:
        """Pass it on."""
        self._call(("on_predict_start", "on_predict_epoch_start"), module)

    def on_predict_end(self, trainer: Any, module: LightningModule) -> None:
        """Pass it on."""
        self._call(("on_predict_epoch_end", "on_predict_end"), module)

    def on_round_end(self, trainer: Any, module: LightningModule) -> None:
        """A round is an epoch."""
        if not self._in_round:  # the step of a deadline may use no update at all
            self._begin_round(trainer, module)
        self._in_round = False
        self._call(("on_train_epoch_end",), module)

    def on_exception(self, trainer: Any, module: LightningModule, exception: BaseException) -> None:
        """Pass it on."""
        self._call(("on_exception",), module, exception)

    def on_train_end(self, trainer: Any, module: LightningModule) -> None:
        """Pass it on."""
        self._call(("on_train_end",), module)

    def on_fit_end(self, trainer: Any, module: LightningModule) -> None:
        """Pass it on."""
        self._call(("on_fit_end",), module)

    def teardown(self, trainer: Any, module: LightningModule, stage: str) -> None:
        """Pass it on."""
        self._call(("teardown",), module, stage)

    def state_dict(self) -> dict[str, Any]:
        """The callback's state."""
        state: dict[str, Any] = self.callback.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the callback's state."""
        self.callback.load_state_dict(state)

    def __repr__(self) -> str:
        return f"Adapted({self.callback!r})"


class AdaptedTimer(Adapted):
    """Ends the run between two events when the time of Lightning's `Timer` is over."""

    handled = frozenset({"on_train_batch_end"})

    def on_fit_start(self, trainer: Any, module: LightningModule) -> None:
        """A resumed run may have no time left."""
        self.on_event_end(trainer, module)

    def on_event_end(self, trainer: Any, module: LightningModule) -> None:
        """Look at the clock."""
        remaining = self.callback.time_remaining()
        if remaining is not None and remaining <= 0 and not trainer.should_stop:
            one = SimpleNamespace(should_stop=False, strategy=SimpleNamespace(broadcast=bool))
            self.callback.on_fit_start(one)  # says that the time is over
            trainer.should_stop = True


class AdaptedSummary(Adapted):
    """Prints Lightning's summary of the model before the first event."""

    def on_fit_start(self, trainer: Any, module: LightningModule) -> None:
        """Print it."""
        lent, module.trainer = module._trainer, None  # the summary would ask for its connectors
        try:
            self.callback.on_fit_start(SimpleNamespace(strategy=None, is_global_zero=True), module)
        finally:
            module.trainer = lent


class AdaptedDeviceStats(Adapted):
    """Sends the statistics of Lightning's `DeviceStatsMonitor` to the loggers after each round."""

    handled = frozenset(
        f"on_{stage}_batch_{end}"
        for stage in ("train", "validation", "test")
        for end in ("start", "end")
    )

    def setup(self, trainer: Any, module: LightningModule, stage: str) -> None:
        """Check that there is a logger and that the statistics can be read."""
        self.callback.setup(_for_device_stats(trainer), module, stage)

    def on_round_end(self, trainer: Any, module: LightningModule) -> None:
        """Log the statistics; the history omits them, since it must not depend on the machine."""
        self.callback.on_train_batch_end(_for_device_stats(trainer), module, None, None, 0)


def _for_device_stats(trainer: Any) -> SimpleNamespace:
    """What `DeviceStatsMonitor` reads of a trainer."""
    device = trainer.fabric.device
    kind = {"cuda": CUDAAccelerator, "mps": MPSAccelerator}.get(device.type, CPUAccelerator)
    loop = SimpleNamespace(_batches_that_stepped=trainer.version)
    return SimpleNamespace(
        loggers=trainer.loggers,
        accelerator=kind(),
        strategy=SimpleNamespace(root_device=device),
        _logger_connector=SimpleNamespace(should_update_logs=True),
        fit_loop=SimpleNamespace(epoch_loop=loop),
    )


class Mirror(Callback):
    """Writes the results of one of our callbacks into the Lightning callback that it replaces.

    Args:
        callback: Lightning's callback.
        of: Ours.
        write: Does it.
    """

    def __init__(self, callback: theirs.Callback, of: Callback, write: Callable[[], None]) -> None:
        self.callback, self.of, self._write = callback, of, write

    def on_event_end(self, trainer: Any, module: LightningModule) -> None:
        """Write it, for callbacks that look during the run."""
        self._write()

    def teardown(self, trainer: Any, module: LightningModule, stage: str) -> None:
        """Write the end."""
        self._write()


def _early_stopping(callback: Any, root: Path) -> list[Callback]:
    ours = EarlyStopping(
        callback.monitor,
        # Lightning keeps it with the sign of the mode.
        min_delta=callback.min_delta * (1 if callback.mode == "max" else -1),
        patience=max(callback.patience, 1),  # which is what 0 comes to
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
    _only(
        callback,
        filename=(callback.filename, None, "leave it out: the files are named round=<N>.ckpt"),
        every_n_train_steps=(
            callback._every_n_train_steps,
            0,
            "write FedCheckpoint(…, every_n_updates=…) for client updates",
        ),
        train_time_interval=(
            callback._train_time_interval,
            None,
            "write FedCheckpoint(…, every_time=…) for virtual time",
        ),
        save_weights_only=(
            callback.save_weights_only,
            False,
            "leave it out, or write torch.save(module.state_dict(), path) after fit",
        ),
        save_on_exception=(
            callback.save_on_exception,
            False,
            "write save_last=True: last.ckpt is the end of the round before the exception",
        ),
    )
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
    once = "leave it out: the rates are logged once a round"
    fixed = "leave it out: it does not change during a run"
    _only(
        callback,
        logging_interval=(
            None if callback.logging_interval == "epoch" else callback.logging_interval,
            None,
            once,
        ),
        log_momentum=(callback.log_momentum, False, fixed),
        log_weight_decay=(callback.log_weight_decay, False, fixed),
    )
    return [LearningRateMonitor()]


def _bar(callback: Any, root: Path) -> list[Callback]:
    rate = callback.refresh_rate
    if rate == 0:
        _only(callback, refresh_rate=(0, 1, "write FedTrainer(enable_progress_bar=False)"))
    return [ProgressBar()]


def _only(callback: Any, **arguments: tuple[Any, Any, str]) -> None:
    """Refuse arguments (value, the value that is accepted, what to write) of a callback."""
    for name, (value, accepted, text) in arguments.items():
        if value != accepted:
            raise TypeError(
                f"{type(callback).__name__}({name}={value!r}) has no meaning in a federation: "
                f"{text}"
            )


def _adapted(kind: type[Adapted]) -> Callable[[Any, Path], list[Callback]]:
    def make(callback: Any, root: Path) -> list[Callback]:
        # The name in checkpoints is that of the class, so each callback gets its own back.
        return [type(type(callback).__qualname__, (kind,), {})(callback)]

    return make


class Treatment(NamedTuple):
    """How `FedTrainer` treats one of Lightning's callbacks.

    Attributes:
        status: "runs", "mapped" or "refused".
        text: How, or what to write instead.
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
    "Callback": Treatment("runs", "your subclass: the hooks that have a meaning here", _PLAIN),
    "Checkpoint": Treatment("runs", "your subclass: the hooks that have a meaning here", _PLAIN),
    "DeviceStatsMonitor": Treatment(
        "runs", "after each round instead of each batch", _adapted(AdaptedDeviceStats)
    ),
    "EMAWeightAveraging": Treatment("refused", _AVERAGE),
    "EarlyStopping": Treatment(
        "mapped",
        "fedlight.callbacks.EarlyStopping; patience counts the rounds that have the metric",
        _early_stopping,
    ),
    "GradientAccumulationScheduler": Treatment(
        "refused", "give FederatedDataModule(…, batch_size=…)"
    ),
    "LambdaCallback": Treatment("runs", "the hooks that have a meaning here", _PLAIN),
    "LearningRateFinder": Treatment(
        "refused", "compare several rates: one FedTrainer for each LocalSGD(lr=…)"
    ),
    "LearningRateMonitor": Treatment(
        "mapped", "fedlight.callbacks.LearningRateMonitor, once a round", _learning_rate
    ),
    "ModelCheckpoint": Treatment(
        "mapped",
        "fedlight.callbacks.FedCheckpoint; every_n_epochs counts rounds; without dirpath the files "
        'go to default_root_dir/"checkpoints"',
        _checkpoint,
    ),
    "ModelPruning": Treatment(
        "refused",
        "prune the module with torch.nn.utils.prune after fit, or permanently before fit",
    ),
    "ModelSummary": Treatment("runs", "before the first event", _adapted(AdaptedSummary)),
    "OnExceptionCheckpoint": Treatment(
        "refused",
        'write fedlight.callbacks.FedCheckpoint("checkpoints"), whose last.ckpt is the last '
        "complete round before the exception",
    ),
    "ProgressBar": Treatment("refused", "write a fedlight.Callback that draws in on_round_end"),
    "RichModelSummary": Treatment("runs", "before the first event", _adapted(AdaptedSummary)),
    "RichProgressBar": Treatment("mapped", "fedlight.callbacks.ProgressBar", _bar),
    "SpikeDetection": Treatment(
        "refused", 'write FedTrainer(max_update_norm=…, on_client_failure="drop")'
    ),
    "StochasticWeightAveraging": Treatment("refused", _AVERAGE),
    "TQDMProgressBar": Treatment("mapped", "fedlight.callbacks.ProgressBar", _bar),
    "ThroughputMonitor": Treatment(
        "refused", "leave it out: fedlight.callbacks.ProgressBar shows the updates per second"
    ),
    "Timer": Treatment(
        "runs", "measures real time; ends the run between two events", _adapted(AdaptedTimer)
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
        if own and treatment.status == "mapped":
            raise TypeError(
                f"the callback {name} is a subclass of {kind.__name__}, which another class "
                f"replaces here: derive it from {re.split('[,;]', treatment.text)[0]}"
            )
        return treatment.make(callback, root)
    raise AssertionError(f"{name} is no lightning.Callback")


def as_given(callbacks: Iterable[Callback]) -> list[Any]:
    """The callbacks, with Lightning's in place of their adapters and beside their replacements."""
    listed = list(callbacks)
    stands = {id(each.of): each.callback for each in listed if isinstance(each, Mirror)}
    given: list[Any] = []
    for each in listed:
        if not isinstance(each, Mirror):
            given.append(each.callback if isinstance(each, Adapted) else each)
        if id(each) in stands:
            given.append(stands[id(each)])
    return given


def _overrides(callback: Any, name: str) -> bool:
    """Whether a callback has a hook of its own, in its class or in the object."""
    if name.startswith("__") or name in _NO_HOOKS:
        return False
    method = getattr(callback, name)
    return getattr(method, "__func__", method) is not getattr(theirs.Callback, name)
