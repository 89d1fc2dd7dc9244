"""The check of a metric that a callback monitors."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    known = trainer.callback_metrics
    if (validated or every is None) and trainer.history and monitor not in known:
        raise ValueError(
            f"{who} monitors {monitor!r}, which was not logged; there are {sorted(known)}"
        )
