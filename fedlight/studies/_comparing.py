"""What comparisons and studies need beside the runs: names, folders, starts, what is best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from lightning import LightningModule
from lightning.pytorch.utilities import rank_zero_info

from fedlight._fit.arguments import as_module
from fedlight._module.rng import isolated_rng, seed_all
from fedlight._support.checks import one_of
from fedlight.aggregators import Aggregator
from fedlight.callbacks.client_evaluation import LOWER_IS_BETTER, likely_mode
from fedlight.studies.store import made_folder

if TYPE_CHECKING:
    from fedlight.data import FederatedDataModule

_HIGHER_IS_BETTER = (
    *("acc", "auc", "auroc", "f1", "precision", "recall", "score", "r2", "iou", "dice"),
    *("bleu", "rouge", "reward", "return", "correlation", "likelihood"),
)

Start: TypeAlias = LightningModule | Callable[[], LightningModule]
"""A module, of which each run trains a copy; or a class or function, called once for each seed."""
Data: TypeAlias = "FederatedDataModule | Callable[[int], FederatedDataModule]"
"""A data module for all seeds, or a function of the seed that returns one."""


def check_names(aggregators: Mapping[str, Aggregator], logger_dir: str | Path | None) -> None:
    for name in aggregators:
        if not isinstance(name, str) or not name.strip():
            raise TypeError(f"each name of aggregators must be a word, got {name!r}")
    folders = [plain(name) for name in aggregators]
    if logger_dir is not None and len(set(folders)) < len(folders):
        raise ValueError(
            f"names of aggregators must differ in more than slashes, as each names a folder in "
            f"logger_dir, got {list(aggregators)}"
        )


def first_module(module: Start, seed: int) -> LightningModule:
    if isinstance(module, LightningModule):
        return module
    with isolated_rng():
        seed_all(seed)
        return as_module(module())


def fresh_folder(folder: Path) -> Path:
    """Make the next free version in `logger_dir`, so that no older run is overwritten.

    Raises:
        OSError: It cannot be made; the error comes before the first run, and names the argument.
    """
    path = next(path for k in count() if not (path := folder / f"version_{k}").exists())
    return made_folder("logger_dir", folder, path)


def mode_of(metric: str, mode: str | None) -> str:
    """Return "min" or "max", whichever of a metric is best; None decides by its name.

    Raises:
        TypeError: `metric` is no name.
        ValueError: `mode` is another word.
    """
    if not isinstance(metric, str):
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


def plain(name: str) -> str:
    """A name as that of one folder."""
    return name.replace("/", "-").replace("\\", "-")
