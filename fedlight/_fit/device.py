"""The device of a run and its precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning import Fabric
from lightning.fabric.loggers.logger import Logger
from lightning.fabric.plugins.precision import MixedPrecision

from fedlight._fit.lightning_arguments import one_device


def fabric_of(
    accelerator: str, devices: object, precision: Any, loggers: Sequence[Logger], callbacks: Any
) -> Fabric:
    """Lightning's Fabric for the arguments of a trainer.

    Raises:
        TypeError: `devices` is of the wrong kind.
        ValueError: An argument is outside its range, or the precision needs a scaled loss.
    """
    fabric = Fabric(
        accelerator=accelerator,
        devices=one_device(devices),
        precision=precision,
        loggers=list(loggers),
        callbacks=callbacks,
    )
    check_precision(fabric.strategy.precision)
    return fabric


def check_precision(plugin: object) -> None:
    """Refuse half precision that needs a scaled loss.

    Lightning scales the loss by a factor that grows from step to step and is halved whenever a
    gradient overflows; that step is skipped. Clients would have to share the factor, and each
    result would depend on which clients were computed before.

    Raises:
        ValueError: The plugin scales the loss.
    """
    if isinstance(plugin, MixedPrecision) and plugin.scaler is not None:
        raise ValueError(
            "precision='16-mixed' must scale the loss by a factor that depends on all steps so "
            "far, which clients do not share; write precision='bf16-mixed', which needs no factor, "
            "or precision='32-true'"
        )
