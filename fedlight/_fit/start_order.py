"""The start of a fit, a validation or a test, in the order of `lightning.Trainer`.

::

    configure_callbacks                     the module's own callbacks join the trainer's
    prepare_data                            of the data, of the module
    setup                                   of the data, of the callbacks, of the module
    configure_model
    precision, device                       reach what setup and configure_model have made
    (fit) a checkpoint is loaded            on_load_checkpoint of the module
    (fit) on_fit_start                      of the callbacks, of the module
    (fit) the sanity check                  if there is one
    (fit) on_train_start                    of the callbacks, of the module
    (fit) the module is read as version 0   or as the checkpoint's version
    (fit) the executor tries a step

Changes that any of these hooks makes to the module are therefore kept. `lightning.Trainer` reads a
checkpoint's weights at the same place. Here they are loaded once more after the hooks, since a
resumed run must continue to the same bits as one that never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lightning import Fabric, LightningModule
from lightning.pytorch.callbacks import Callback as LightningCallback
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlight._fit.argument_checks import as_callbacks
from fedlight._fit.callback_adapters import Adapted, Mirror
from fedlight._module.evaluation import place
from fedlight.callbacks import Callback, FedCheckpoint


def with_callbacks_of(
    module: LightningModule, callbacks: Sequence[Any], root: Path = Path(".")
) -> list[Any]:
    """The trainer's callbacks and those of the module's ``configure_callbacks``.

    As in Lightning, a callback of the module takes the place of those of its class or of a base
    of it; plain `Callback` objects stay.

    Raises:
        TypeError: One of them is no callback.
    """
    given: Any = module.configure_callbacks()
    own = as_callbacks(given or None, bar=False, root=root)
    kept = [each for each in callbacks if not any(_replaces(new, each) for new in own)]
    kept = [each for each in kept if not isinstance(each, Mirror) or each.of in kept]
    return sorted([*kept, *own], key=lambda each: isinstance(each, FedCheckpoint | Mirror))  # last


def _replaces(new: object, old: object) -> bool:
    mirrors = any(isinstance(each, Mirror) for each in (new, old))  # go with what they show
    plain = _kind(old) in (Callback, LightningCallback)
    return not mirrors and not plain and issubclass(_kind(new), _kind(old))


def _kind(callback: object) -> type:
    """The class of a callback; of an adapted one, that of Lightning's."""
    return type(callback.callback if isinstance(callback, Adapted) else callback)


def set_up(
    module: LightningModule, hooks: Callable[..., object], fabric: Fabric, stage: str
) -> None:
    """Call the hooks that make the module, then give it the run's precision and device.

    Args:
        module: The module.
        hooks: Calls a hook of all callbacks by its name.
        fabric: Gives device and precision.
        stage: "fit", "validate", "test" or "predict".
    """
    hooks("setup", stage)
    module.setup(stage)
    if is_overridden("configure_model", module, LightningModule):
        with fabric.init_module():
            module.configure_model()
    place(module, fabric)


def start_training(
    module: LightningModule,
    hooks: Callable[..., object],
    check_sanity: Callable[[], None] | None = None,
) -> None:
    """Call the hooks before the first event.

    Args:
        module: The module, on its device.
        hooks: Calls a hook of all callbacks by its name.
        check_sanity: Validates before the training; None for no validation.
    """
    hooks("on_fit_start")
    module.on_fit_start()
    resting = [name or "the module itself" for name, m in module.named_modules() if not m.training]
    if resting:
        shown = ", ".join(resting[:3]) + (", …" if len(resting) > 3 else "")
        rank_zero_warn(
            f"fedlight: parts of {type(module).__name__} are in eval mode at the start of the "
            f"training and stay in it: {shown}. Dropout is off and BatchNorm does not learn there; "
            "call module.train() before fit unless this is meant"
        )
    if check_sanity is not None:
        check_sanity()
    hooks("on_train_start")
    module.on_train_start()
