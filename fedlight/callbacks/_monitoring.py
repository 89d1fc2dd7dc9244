"""The check of a metric that a callback monitors."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from lightning import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

if TYPE_CHECKING:
    from fedlight.trainer import FedTrainer


def check_logged(who: str, monitor: str, trainer: FedTrainer, validated: bool) -> None:
    """Refuse a metric that is unknown although there was an occasion to log it.

    Args:
        who: The callback.
        monitor: The metric.
        trainer: The trainer.
        validated: Whether the callback has seen a validation.

    Raises:
        ValueError: The metric is unknown after a validation, or after a round of a run without any.
    """
    every = trainer.check_val_every_n_rounds or trainer.check_val_every_n_updates
    if not trainer.history or monitor in trainer.callback_metrics:
        return
    if validated:
        known = sorted(trainer.callback_metrics)
        raise ValueError(f"{who} monitors {monitor!r}, which was not logged; there are {known}")
    if every is None:
        near = get_close_matches(monitor, trainer.callback_metrics, n=1, cutoff=0.8)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{who} monitors {monitor!r}, which was not logged: {no_validation(trainer, 0)}{hint}"
        )


def no_validation(trainer: FedTrainer, first: int) -> str:
    """Say that a fit has validated nothing, and why.

    Args:
        trainer: The trainer.
        first: Number of rounds before the fit; 0 unless it was resumed.
    """
    rounds = len(trainer.history) - first
    why = f"check_val_every_n_rounds={trainer.check_val_every_n_rounds!r}"
    if trainer.check_val_every_n_updates is not None:
        why = f"check_val_every_n_updates={trainer.check_val_every_n_updates}"
    data = trainer.datamodule
    if data is not None and not data.evaluation_data("validation"):
        why = "there are no validation data"
    elif not is_overridden("validation_step", trainer.module, LightningModule):
        why = "the module has no validation_step"
    elif trainer.limit_val_batches == 0:
        why = "limit_val_batches=0"
    return f"no validation took place in {rounds} round{'s' if rounds != 1 else ''} ({why})"
