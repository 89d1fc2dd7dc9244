"""The module's hooks that change a batch before its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def batch_hooks(module: LightningModule) -> Callable[[Any], Any] | None:
    """Return the module's own hooks, in Lightning's order, as one function; None without any.

    The batch is on the device before the first of them, since a federation keeps all examples
    there.
    """
    overridden = [name for name in _HOOKS if is_overridden(name, module, LightningModule)]
    if not overridden:
        return None

    def prepared(batch: Any) -> Any:
        for name in overridden:
            place = [module.device] if name == "transfer_batch_to_device" else []
            batch = getattr(module, name)(batch, *place, 0)
        return batch

    return prepared
