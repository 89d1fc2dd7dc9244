"""The device of a run and its precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning import Fabric
from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
from lightning.fabric.accelerators.accelerator import Accelerator
from lightning.fabric.loggers.logger import Logger
from lightning.fabric.plugins.precision import MixedPrecision
from lightning.fabric.utilities.exceptions import MisconfigurationException

from fedlight._support.checks import non_negative_int, one_of, positive_int

_PRECISIONS = (
    *("32-true", "64-true", "bf16-true", "bf16-mixed", "16-true", "16-mixed"),
    *("32", "64", "16", "bf16", "transformer-engine", "transformer-engine-float16"),
)


def fabric_of(
    accelerator: str, devices: object, precision: Any, loggers: Sequence[Logger], callbacks: Any
) -> Fabric:
    """Lightning's Fabric for the arguments of a trainer.

    Raises:
        TypeError: `devices` is of the wrong kind.
        ValueError: An argument is outside its range, or the precision needs a scaled loss.
    """
    chosen, device = _accelerator(accelerator), one_device(devices)
    try:
        fabric = Fabric(
            accelerator=chosen,
            devices=device,
            precision=_precision(precision),
            loggers=list(loggers),
            callbacks=callbacks,
        )
    except (TypeError, MisconfigurationException) as error:
        raise ValueError(
            f"accelerator={accelerator!r} and devices={devices!r} do not fit this machine ({error})"
        ) from error
    check_precision(fabric.strategy.precision)
    return fabric


def _accelerator(value: Any) -> Any:
    """`accelerator`, if it is an object of Lightning's or the name of one.

    Raises:
        ValueError: There is no accelerator of this name.
    """
    if isinstance(value, Accelerator):
        return value
    known = ("auto", "gpu", *ACCELERATOR_REGISTRY.available_accelerators())
    return one_of("accelerator", value, known)


def _precision(value: Any) -> Any:
    """`precision`, if Lightning has it; None means single precision, as in Lightning.

    Raises:
        ValueError: Lightning has no such precision.
    """
    number = isinstance(value, int) and not isinstance(value, bool) and str(value) in _PRECISIONS
    return value if value is None or number else one_of("precision", value, _PRECISIONS)


def one_device(value: object) -> int | list[int]:
    """`devices` for Fabric, if that is one device.

    Raises:
        TypeError: It is neither a number, nor "auto", nor a list of one number.
        ValueError: It asks for another number of devices.
    """
    if isinstance(value, str) and value == "auto":
        return 1
    if isinstance(value, str):
        numbers = [part for part in value.split(",") if part.strip()]
        if numbers and all(part.strip().isdecimal() for part in numbers):
            # As in Lightning, "1" is a number of devices and "1," the device with that index.
            indices = [int(part) for part in numbers]
            value = indices if "," in value else indices[0]
    if isinstance(value, list | tuple) and len(value) == 1:
        return [non_negative_int("devices[0]", value[0])]
    several = len(value) if isinstance(value, list | tuple) else positive_int("devices", value)
    if several != 1:
        raise ValueError(
            f"devices must be 1, got {value}: all clients share one device; "
            "to use several, write executor=RayExecutor(…)"
        )
    return 1


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
