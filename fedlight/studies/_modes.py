"""The choice between "min" and "max": which values of a metric are best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_info

from fedlight._support.checks import one_of
from fedlight.callbacks.client_evaluation import LOWER_IS_BETTER, likely_mode

if TYPE_CHECKING:
    pass

_HIGHER_IS_BETTER = (
    *("acc", "auc", "auroc", "f1", "precision", "recall", "score", "r2", "iou", "dice"),
    *("bleu", "rouge", "reward", "return", "correlation", "likelihood"),
)


def mode_of(metric: str, mode: str | None) -> str:
    """Return "min" or "max", whichever of a metric is best; None decides by its name.

    Raises:
        TypeError: `metric` is no name.
        ValueError: `mode` is another word.
    """
    if not isinstance(metric, str) or not metric:
        raise TypeError(f"metric must be the name of one, such as 'val_acc', got {metric!r}")
    if mode is not None:
        return one_of("mode", mode, ("min", "max"))
    return likely_mode(metric)


def chosen_mode(metric: str, mode: str | None) -> str:
    """Return `mode_of` the metric; tell the user if neither `mode` nor the name decides it."""
    known = (*LOWER_IS_BETTER, *_HIGHER_IS_BETTER)
    best = mode_of(metric, mode)
    if mode is None and not any(word in metric.lower() for word in known):
        rank_zero_info(
            f"fedlight: of metric={metric!r} more is taken to be better; if less is, write "
            'mode="min"'
        )
    return best
