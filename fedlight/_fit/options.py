"""The options of a `FedTrainer`, checked, in one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, Never, TypeVar, overload

from lightning import Fabric
from lightning.fabric.loggers.logger import Logger

from fedlight._fit.argument_checks import (
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
    LightningSettings,
    lightning_settings,
    virtual_time,
)
from fedlight._fit.strategy_checks import check_partners
from fedlight._runs.loggers import left_open
from fedlight._runs.setting import Setting
from fedlight._support.checks import integer, one_of, optional, positive
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess
from fedlight.callbacks import Callback
from fedlight.channel import as_channel
from fedlight.executors._choice.choose_executor import check_executor
from fedlight.local_optimizers import LocalOptimizer, ModuleOptimizer
from fedlight.loop import Limits
from fedlight.privacy import check_private

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TrainerOptions:
    """The arguments of a `FedTrainer`, checked; its attributes of the same names read them.

    Attributes:
        setting: The options that the result depends on.
        settings: The arguments of `lightning.Trainer`.
        callbacks: The callbacks in the order of their calls; those of a module are added.
        loggers: The loggers.
        open_loggers: Those whose version is left open: each fit takes a new one.
        fabric: Device and precision.
        check_val_every_n_rounds: Rounds between two validations, "auto", or None.
        check_val_every_n_updates: Client updates between two validations, or None.
        default_root_dir: Where the default logger writes.
        fast_dev_run: Whether this is a trial run, or its number of rounds.
        on_interrupt: The end of `fit` after a signal has ended the run, "raise" or "return".
    """

    setting: Setting
    settings: LightningSettings
    callbacks: list[Callback]
    loggers: list[Logger]
    open_loggers: list[Any]
    fabric: Fabric
    check_val_every_n_rounds: int | str | None
    check_val_every_n_updates: int | None
    default_root_dir: Path
    fast_dev_run: bool | int
    on_interrupt: str


class Option(Generic[T]):
    """A public attribute of a trainer that reads one of its options, and cannot be set.

    An option lives once, in the record. `T` is its type.

    Args:
        path: The attributes that lead from the trainer to it, with dots between them.
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


def options_of(given: Mapping[str, Any], lightning: Mapping[str, Any]) -> TrainerOptions:
    """Check the arguments of a trainer.

    Args:
        given: The arguments that `FedTrainer` itself defines, by name.
        lightning: The other arguments, which are those of `lightning.Trainer`.

    Raises:
        TypeError: An argument is of the wrong kind, or has no meaning in a federation.
        ValueError: An argument is outside its range, or two contradict each other.
    """
    trial = number_of_trials(given["fast_dev_run"])
    settings = lightning_settings(lightning, given, trial)
    virtual_time(given["max_time"])
    limits = Limits(trial or given["max_rounds"], given["max_time"], given["max_updates"])
    setting = _setting_of(given, limits)
    rounds, updates = given["check_val_every_n_rounds"], given["check_val_every_n_updates"]
    rounds, updates = check_intervals(
        1 if trial and isinstance(rounds, str) and rounds == "auto" else rounds, updates
    )
    root = as_folder(given["default_root_dir"])
    loggers = [] if trial else as_loggers(given["logger"], root)
    callbacks = as_callbacks(given["callbacks"], given["enable_progress_bar"], root, settings)
    device = given["accelerator"], given["devices"], given["precision"]
    fabric = fabric_of(*device, loggers, callbacks)
    return TrainerOptions(
        setting=replace(setting, precision=str(fabric.strategy.precision.precision)),
        settings=settings,
        callbacks=callbacks,
        loggers=loggers,
        open_loggers=left_open(loggers),
        fabric=fabric,
        check_val_every_n_rounds=rounds,
        check_val_every_n_updates=updates,
        default_root_dir=root,
        fast_dev_run=given["fast_dev_run"],
        on_interrupt=one_of("on_interrupt", given["on_interrupt"], ("raise", "return")),
    )


def _setting_of(given: Mapping[str, Any], limits: Limits) -> Setting:
    def one(name: str, *choices: str) -> str:
        return one_of(name, given[name], choices)

    optimizer = given["local_optimizer"]
    optimizer = ModuleOptimizer() if optimizer is None else optimizer
    example = "UniformArrivals(per_round=5)"
    setting = Setting(
        instance_of(ArrivalProcess, "arrivals", given["arrivals"], example),
        instance_of(Aggregator, "aggregator", given["aggregator"], "AFACD()"),
        instance_of(LocalOptimizer, "local_optimizer", optimizer, "LocalSGD(lr=0.1)"),
        executor=check_executor(given["executor"]),
        limits=limits,
        seed=integer("seed", given["seed"]),
        on_client_failure=one("on_client_failure", "raise", "drop", "retry"),
        max_update_norm=optional(positive, "max_update_norm", given["max_update_norm"]),
        on_large_update=one("on_large_update", "clip", "drop"),
        channel=optional(as_channel, "channel", given["channel"]),
    )
    limits.check(setting.arrivals)
    check_partners(setting.aggregator, setting.arrivals, setting.local_optimizer)
    check_private(setting)
    if setting.on_client_failure != "raise" or setting.max_update_norm is not None:
        check_can_discard(setting.aggregator)
    return setting
