"""What `fedlight.compare` needs beside the runs: names, folders, starts, a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TypeAlias

from lightning import LightningModule
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.progress import track

from fedlight._arguments import as_module
from fedlight.aggregators import Aggregator
from fedlight.callbacks import Callback, TensorBoardMetrics
from fedlight.callbacks.progress import lacks_widgets
from fedlight.executors._rng import isolated_rng, seed_all

Start: TypeAlias = LightningModule | Callable[[], LightningModule]


def check_names(aggregators: Mapping[str, Aggregator], logger_dir: str | Path | None) -> None:
    for name in aggregators:
        if not isinstance(name, str) or not name.strip():
            raise TypeError(f"each name of aggregators must be a word, got {name!r}")
    folders = [_plain(name) for name in aggregators]
    if logger_dir is not None and len(set(folders)) < len(folders):
        raise ValueError(
            f"names of aggregators must differ in more than slashes, as each names a folder in "
            f"logger_dir, got {list(aggregators)}"
        )


def first_module(module: Start, seed: int) -> LightningModule:
    if isinstance(module, LightningModule):
        return module
    if not callable(module):
        return as_module(module)  # raises
    with isolated_rng():
        seed_all(seed)
        return as_module(module())


def callbacks_of(callbacks: Callable[[], Iterable[Callback]] | None, logs: bool) -> list[Callback]:
    made = [] if callbacks is None else list(callbacks())
    if logs and not any(isinstance(each, TensorBoardMetrics) for each in made):
        made.append(TensorBoardMetrics())
    return made


def fresh_folder(folder: Path) -> Path:
    """Make the next free version in a folder, so that no older run is overwritten.

    Raises:
        OSError: It cannot be made; the error comes before the first run, and names the argument.
    """
    path = next(path for k in count() if not (path := folder / f"version_{k}").exists())
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise OSError(
            f"logger_dir={str(folder)!r} must be a folder that can be written to ({error.strerror})"
        ) from error
    return path


def logger_of(folder: Path, name: str, seed: int) -> TensorBoardLogger:
    return TensorBoardLogger(
        folder, name=_plain(name), version=f"seed={seed}", default_hp_metric=False
    )


def _plain(name: str) -> str:
    return name.replace("/", "-").replace("\\", "-")


def shown(plan: Sequence[tuple[int, str]], bar: bool) -> Iterator[tuple[int, str]]:
    if not bar:
        return iter(plan)
    console = Console(stderr=True)
    if lacks_widgets(console):
        console = Console(stderr=True, force_jupyter=False)
    return iter(track(plan, description="runs", console=console))
