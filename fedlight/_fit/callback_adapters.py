"""Lightning's own callbacks in a federation: the adapters that call their hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

from lightning import LightningModule
from lightning.pytorch import callbacks as theirs
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator, MPSAccelerator
from lightning.pytorch.utilities import rank_zero_warn

from fedlight.callbacks.base import Callback
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
"""The hooks of `lightning.Callback` that are called, and when; a round replaces an epoch."""

_NO_HOOKS = ("state_key",)


def _passing(*names: str) -> Callable[..., None]:
    """A hook of ours that calls these hooks of the adapted callback, in this order."""

    def hook(self: Adapted, trainer: Any, module: LightningModule, *args: Any) -> None:
        self._call(names, module, *args)

    return hook


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

    setup = _passing("setup")

    def on_fit_start(self, trainer: Any, module: LightningModule) -> None:
        """Pass it on; no round has begun."""
        self._in_round = False
        self._call(("on_fit_start",), module)

    on_sanity_check_start = _passing("on_sanity_check_start")
    on_sanity_check_end = _passing("on_sanity_check_end")
    on_train_start = _passing("on_train_start")

    def on_update(self, trainer: Any, module: LightningModule, update: ClientUpdate) -> None:
        """The first update of a round begins an epoch."""
        if not self._in_round:
            self._begin_round(trainer, module)

    def _begin_round(self, trainer: Any, module: LightningModule) -> None:
        self._in_round = True
        self._call(("on_train_epoch_start",), module)

    on_validation_start = _passing("on_validation_start", "on_validation_epoch_start")
    on_validation_end = _passing("on_validation_epoch_end", "on_validation_end")
    on_test_start = _passing("on_test_start", "on_test_epoch_start")
    on_test_end = _passing("on_test_epoch_end", "on_test_end")
    on_predict_start = _passing("on_predict_start", "on_predict_epoch_start")
    on_predict_end = _passing("on_predict_epoch_end", "on_predict_end")

    def on_round_end(self, trainer: Any, module: LightningModule) -> None:
        """A round is an epoch."""
        if not self._in_round:  # the step of a deadline may use no update at all
            self._begin_round(trainer, module)
        self._in_round = False
        self._call(("on_train_epoch_end",), module)

    on_exception = _passing("on_exception")
    on_train_end = _passing("on_train_end")
    on_fit_end = _passing("on_fit_end")
    teardown = _passing("teardown")

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
        """Stop the run if the time is over."""
        remaining = self.callback.time_remaining()
        if remaining is not None and remaining <= 0 and not trainer.should_stop:
            one = SimpleNamespace(should_stop=False, strategy=SimpleNamespace(broadcast=bool))
            self.callback.on_fit_start(one)  # says that the time is over
            trainer.should_stop = True


class AdaptedSummary(Adapted):
    """Prints Lightning's summary of the model before the first event."""

    def on_fit_start(self, trainer: Any, module: LightningModule) -> None:
        """Print it."""
        own, module.trainer = module._trainer, None  # the summary would read its connectors
        try:
            self.callback.on_fit_start(SimpleNamespace(strategy=None, is_global_zero=True), module)
        finally:
            module.trainer = own


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
    """The attributes of a trainer that `DeviceStatsMonitor` reads."""
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
        write: Writes the results.
    """

    def __init__(self, callback: theirs.Callback, of: Callback, write: Callable[[], None]) -> None:
        self.callback, self.of, self._write = callback, of, write

    def on_event_end(self, trainer: Any, module: LightningModule) -> None:
        """Write the results, for callbacks that read them during the run."""
        self._write()

    def teardown(self, trainer: Any, module: LightningModule, stage: str) -> None:
        """Write the final results."""
        self._write()


def as_given(callbacks: Iterable[Callback]) -> list[Any]:
    """The callbacks, with Lightning's in place of their adapters and after their replacements."""
    listed = list(callbacks)
    replaced = {id(each.of): each.callback for each in listed if isinstance(each, Mirror)}
    given: list[Any] = []
    for each in listed:
        if not isinstance(each, Mirror):
            given.append(each.callback if isinstance(each, Adapted) else each)
        if id(each) in replaced:
            given.append(replaced[id(each)])
    return given


def _overrides(callback: Any, name: str) -> bool:
    """Whether a callback has a hook of its own, in its class or in the object."""
    if name.startswith("__") or name in _NO_HOOKS:
        return False
    method = getattr(callback, name)
    return getattr(method, "__func__", method) is not getattr(theirs.Callback, name)
