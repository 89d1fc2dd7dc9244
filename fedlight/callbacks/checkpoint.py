"""Checkpoints while a run goes on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_warn

from fedlight._checks import integer, one_of, positive, positive_int
from fedlight.callbacks.base import Callback
from fedlight.checkpoint import CheckpointError, Parts, read_checkpoint

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.trainer import FedTrainer


class FedCheckpoint(Callback):
    """Saves the whole run every so many rounds, updates or units of virtual time.

    A file is named after its round (``round=12.ckpt``); ``last.ckpt`` is the newest one. A run
    that was killed goes on with ``trainer.fit(module, data, ckpt_path="last")``. The folder
    ``parts`` in `dirpath` holds the earlier rounds, which each checkpoint names and none writes
    again, so that a checkpoint costs the same however long the run is; copy it with them.

    Args:
        dirpath: Where the files go.
        every_n_rounds: Save after every so many server updates; 1 where nothing else is given.
        every_n_updates: Save after every so many arrivals.
        every_time: Save after every so much virtual time.
        monitor: Metric that says which checkpoints to keep; None keeps the newest.
        mode: "min" or "max" of the metric is best.
        save_top_k: How many to keep beside the last one; -1 keeps all, 0 none.
        save_last: Keep ``last.ckpt``.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range, or several intervals are given.
    """

    def __init__(
        self,
        dirpath: str | Path,
        every_n_rounds: int | None = None,
        every_n_updates: int | None = None,
        every_time: float | None = None,
        monitor: str | None = None,
        mode: str = "min",
        save_top_k: int = 1,
        save_last: bool = True,
    ) -> None:
        given = [
            name
            for name, value in (
                ("every_n_rounds", every_n_rounds),
                ("every_n_updates", every_n_updates),
                ("every_time", every_time),
            )
            if value is not None
        ]
        if len(given) > 1:
            raise ValueError(f"give one interval, got {' and '.join(given)}")
        if not isinstance(dirpath, str | Path):
            raise TypeError(f'dirpath must be a path, got {dirpath!r}; for example "checkpoints"')
        if not isinstance(monitor, str | None):
            raise TypeError(f"monitor must be the name of a metric, got {monitor!r}")
        self.dirpath = Path(dirpath)
        self.every_n_rounds = positive_int(
            "every_n_rounds", 1 if every_n_rounds is None else every_n_rounds
        )
        self.every_n_updates = (
            None if every_n_updates is None else positive_int("every_n_updates", every_n_updates)
        )
        self.every_time = None if every_time is None else positive("every_time", every_time)
        self.monitor = monitor
        self.mode = one_of("mode", mode, ("min", "max"))
        self.save_top_k = integer("save_top_k", save_top_k)
        if self.save_top_k < -1:
            raise ValueError(f"save_top_k must be -1 (all), 0 or more, got {save_top_k}")
        self.save_last = save_last
        self.best_k: dict[str, float] = {}  # the best comes first
        self._outdone: list[str] = []  # files to delete once the new ones are written
        self._periods = 0
        self._parts = Parts(self.dirpath)

    @property
    def best_model_path(self) -> str:
        """The best checkpoint kept (the newest, without a monitor), or an empty string."""
        return next(iter(self.best_k), "")

    @property
    def last_model_path(self) -> str:
        """The path of ``last.ckpt``."""
        return str(self.dirpath / "last.ckpt")

    def on_fit_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Begin to count where the run is, and take away what a killed run left half written."""
        self._periods = self._period(trainer)
        self._parts = Parts(self.dirpath)  # what it has written of an earlier run is not this one's
        for torn in self.dirpath.glob("**/.*.part"):
            torn.unlink(missing_ok=True)

    def on_event_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Save where it is due."""
        period = self._period(trainer)
        if period == self._periods and not trainer.interrupted:
            return
        self._periods = period
        paths = self._ranked(trainer) if self.save_top_k else []
        if self.save_last:
            paths.append(self.last_model_path)
        if paths:
            trainer.save_checkpoint(*paths, parts=self._parts)
        while self._outdone:
            Path(self._outdone.pop()).unlink(missing_ok=True)

    def on_fit_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Save the end of the run."""
        if self.save_last:
            trainer.save_checkpoint(self.last_model_path, parts=self._parts)

    def read_last(self) -> dict[str, Any] | None:
        """The newest whole checkpoint of the folder, or None where there is none at all.

        Raises:
            CheckpointError: There are files, and none of them is whole.
        """
        files = sorted(
            self.dirpath.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns, reverse=True
        )
        files.sort(key=lambda path: path.name != "last.ckpt")
        refused: list[str] = []
        for path in files:
            try:
                return read_checkpoint(path)
            except CheckpointError as error:
                rank_zero_warn(f"{error}; the one before it is used")
                refused.append(str(path))
        if refused:
            raise CheckpointError(f"no whole checkpoint is left in {str(self.dirpath)!r}")
        return None

    def state_dict(self) -> dict[str, Any]:
        """The checkpoints kept and their scores."""
        return {"best_k": dict(self.best_k)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the checkpoints that were kept."""
        self.best_k = {
            path: score for path, score in state["best_k"].items() if Path(path).exists()
        }

    def _period(self, trainer: FedTrainer) -> int:
        if self.every_n_updates is not None:
            return trainer.num_updates // self.every_n_updates
        if self.every_time is not None:
            return math.floor(trainer.now / self.every_time)
        return trainer.version // self.every_n_rounds

    def _ranked(self, trainer: FedTrainer) -> list[str]:
        """Rank the present round; the path to save it to, if it is among the best."""
        score = float(trainer.version)
        if self.monitor is not None:
            if self.monitor not in trainer.callback_metrics:
                known = sorted(trainer.callback_metrics)
                raise ValueError(
                    f"FedCheckpoint monitors {self.monitor!r}, which was not logged; "
                    f"there are {known}"
                )
            score = float(trainer.callback_metrics[self.monitor])
        lower_is_better = self.monitor is not None and self.mode == "min"
        path = str(self.dirpath / f"round={trainer.version}.ckpt")
        ranked = sorted(
            {**self.best_k, path: score}.items(),
            key=lambda item: item[1] if lower_is_better else -item[1],
        )
        kept = dict(ranked if self.save_top_k == -1 else ranked[: self.save_top_k])
        self._outdone += [old for old in self.best_k if old not in kept]
        self.best_k = kept
        return [path] if path in kept else []


def keeper_of(callbacks: Iterable[object]) -> FedCheckpoint | None:
    """The first `FedCheckpoint` among callbacks."""
    return next((each for each in callbacks if isinstance(each, FedCheckpoint)), None)


def content_of(ckpt_path: str | Path | None, callbacks: Iterable[object]) -> dict[str, Any] | None:
    """The content of the checkpoint that `FedTrainer.fit` is to go on from; None to start anew.

    Args:
        ckpt_path: A file, or "last" for the newest one that the `FedCheckpoint` finds.
        callbacks: The trainer's callbacks.

    Raises:
        ValueError: "last", and there is no `FedCheckpoint`.
        FileNotFoundError: There is no such file.
        CheckpointError: The file is damaged.
    """
    if ckpt_path is None:
        return None
    if ckpt_path != "last":
        return read_checkpoint(ckpt_path)
    keeper = keeper_of(callbacks)
    if keeper is None:
        raise ValueError(
            'ckpt_path="last" needs a FedCheckpoint among the callbacks, which knows where '
            "its files are; or give the path of a file"
        )
    return keeper.read_last()
