"""The options of a `FedTrainer`, checked, in one record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar, overload

from fedlight._fit.arguments import (
    AnyCallback,
    as_callbacks,
    as_folder,
    as_loggers,
    check_can_discard,
    instance_of,
    number_of_trials,
)
from fedlight._fit.device import fabric_of
from fedlight._fit.intervals import check_intervals
from fedlight._fit.lightning_arguments import (
    Settings,
    limit_batches,
    virtual_time,
)
from fedlight._fit.partners import check_partners
from fedlight._runs.loggers import left_open
from fedlight._runs.setting import Setting
from fedlight._support.checks import integer, one_of, optional, positive
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess
from fedlight.channel import as_channel
from fedlight.executors._choice.choose import check_executor
from fedlight.local_optimizers import LocalOptimizer, ModuleOptimizer
from fedlight.loop import Limits

if TYPE_CHECKING:
    from lightning import Fabric
    from lightning.fabric.loggers.logger import Logger

    from fedlight.callbacks import Callback

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Options:
    """All that a `FedTrainer` was given; its attributes of the same names read it.

    Attributes:
        setting: The options that the result depends on.
        settings: The arguments of `lightning.Trainer`.
        callbacks: The callbacks in the order of their calls; a module's own join them.
        loggers: The loggers.
        open_loggers: Those whose version is left open: each fit gets one of its own.
        fabric: Device and precision.
        check_val_every_n_rounds: Rounds between two validations, "auto", or None.
        check_val_every_n_updates: Client updates between two validations, or None.
        limit_val_batches: At most so many validation batches, or this share of them.
        default_root_dir: Where the default logger writes.
        fast_dev_run: Whether this is a trial run, or its number of rounds.
        trial: The rounds and batches of a trial run; 0 if it is none.
        on_interrupt: What `fit` does after a signal has ended the run, "raise" or "return".
    """

    setting: Setting
    settings: Settings
    callbacks: list[Callback]
    loggers: list[Logger]
    open_loggers: list[Any]
    fabric: Fabric
    check_val_every_n_rounds: int | str | None
    check_val_every_n_updates: int | None
    limit_val_batches: int | float | None
    default_root_dir: Path
    fast_dev_run: bool | int
    trial: int
    on_interrupt: str


class Option(Generic[T]):
    """A public attribute of a trainer that reads one of its options, and cannot be set.

    An option lives once, in the record. `T` is its type.

    Args:
        path: Where it is, from the trainer on.
    """

    def __init__(self, path: str) -> None:
        self._read = attrgetter(path)

    @overload
    def __get__(self, trainer: None, kind: type) -> Option[T]: ...
    @overload
    def __get__(self, trainer: object, kind: type) -> T: ...
    def __get__(self, trainer: object, kind: type) -> Option[T] | T:
        """The option; of the class itself, this object."""
        if trainer is None:
            return self
        found: T = self._read(trainer)
        return found

    def __set__(self, trainer: object, value: Never) -> None:
        """Refuse to change it.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError("an option of a trainer cannot be changed; make another FedTrainer")


def names_of_options(trainer: object) -> set[str]:
    """The names of the attributes of a trainer that never change."""
    kind = type(trainer)
    return {name for name in dir(kind) if isinstance(getattr(kind, name), Option)}


def setting_of(
    arrivals: ArrivalProcess,
    aggregator: Aggregator,
    local_optimizer: LocalOptimizer | None,
    *,
    executor: object,
    limits: tuple[int | None, float | None, int | None],
    seed: int,
    on_client_failure: str,
    max_update_norm: float | None,
    on_large_update: str,
    channel: object,
) -> Setting:
    """Check the arguments of a trainer that the result depends on.

    Args:
        arrivals: The arrival process.
        aggregator: The aggregator.
        local_optimizer: The local optimizer; None for the module's own.
        executor: An executor, or the name of one.
        limits: ``max_rounds``, ``max_time`` and ``max_updates``.
        seed: The seed.
        on_client_failure: "raise", "drop" or "retry".
        max_update_norm: The largest norm of an update, or None.
        on_large_update: "clip" or "drop".
        channel: One channel or several in turn, or None.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range, or two contradict each other.
    """
    optimizer = ModuleOptimizer() if local_optimizer is None else local_optimizer
    virtual_time(limits[1])
    setting = Setting(
        instance_of(ArrivalProcess, "arrivals", arrivals, "UniformArrivals(per_round=5)"),
        instance_of(Aggregator, "aggregator", aggregator, "AFACD()"),
        instance_of(LocalOptimizer, "local_optimizer", optimizer, "LocalSGD(lr=0.1)"),
        executor=check_executor(executor),
        limits=Limits(*limits),
        seed=integer("seed", seed),
        on_client_failure=one_of(
            "on_client_failure", on_client_failure, ("raise", "drop", "retry")
        ),
        max_update_norm=optional(positive, "max_update_norm", max_update_norm),
        on_large_update=one_of("on_large_update", on_large_update, ("clip", "drop")),
        channel=optional(as_channel, "channel", channel),
    )
    setting.limits.check(setting.arrivals)
    check_partners(setting.aggregator, setting.arrivals, setting.local_optimizer)
    if setting.on_client_failure != "raise" or setting.max_update_norm is not None:
        check_can_discard(setting.aggregator)
    return setting


def options_of(
    setting: Setting,
    settings: Settings,
    *,
    callbacks: AnyCallback | Iterable[AnyCallback] | None,
    logger: bool | Logger | Iterable[Logger],
    device: tuple[str, object, Any],
    validate_every: tuple[int | str | None, int | None],
    limit_val_batches: int | float | None,
    enable_progress_bar: bool,
    default_root_dir: str | Path | None,
    fast_dev_run: bool | int,
    on_interrupt: str,
) -> Options:
    """Check the other arguments of a trainer.

    Args:
        setting: What the result depends on.
        settings: The arguments of `lightning.Trainer`.
        callbacks: One callback or several, ours or Lightning's.
        logger: True for TensorBoard, one logger or several, or False.
        device: ``accelerator``, ``devices`` and ``precision``.
        validate_every: ``check_val_every_n_rounds`` and ``check_val_every_n_updates``.
        limit_val_batches: A number of validation batches, or a share of them.
        enable_progress_bar: Whether a progress bar is shown.
        default_root_dir: The folder for what names none.
        fast_dev_run: Whether this is a trial run, or its number of rounds.
        on_interrupt: "raise" or "return".

    Raises:
        TypeError: An argument is of the wrong kind, or has no meaning in a federation.
        ValueError: An argument is outside its range.
    """
    trial = number_of_trials(fast_dev_run)
    rounds, updates = validate_every
    if trial and rounds == "auto":
        rounds = 1
    rounds, updates = check_intervals(rounds, updates)
    root = as_folder(default_root_dir)
    loggers = [] if trial else as_loggers(logger, root)
    all_callbacks = as_callbacks(callbacks, enable_progress_bar, root, settings)
    return Options(
        setting=setting,
        settings=settings,
        callbacks=all_callbacks,
        loggers=loggers,
        open_loggers=left_open(loggers),
        fabric=fabric_of(*device, loggers, all_callbacks),
        check_val_every_n_rounds=rounds,
        check_val_every_n_updates=updates,
        limit_val_batches=trial or limit_batches("limit_val_batches", limit_val_batches),
        default_root_dir=root,
        fast_dev_run=fast_dev_run,
        trial=trial,
        on_interrupt=one_of("on_interrupt", on_interrupt, ("raise", "return")),
    )
