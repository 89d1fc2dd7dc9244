"""Checkpoints during a run."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_warn

from fedlight._support.checks import (
    flag,
    integer,
    one_of,
    optional,
    positive,
    positive_int,
    shown,
)
from fedlight._support.files import existing_file, remove_torn, user_path
from fedlight.callbacks._monitoring import check_logged, no_validation
from fedlight.callbacks.base import Callback
from fedlight.checkpoint import CheckpointError, Parts, read_checkpoint, run_of

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.trainer import FedTrainer


class FedCheckpoint(Callback):
    """Saves the whole run every so many rounds, updates, units of virtual time or seconds.

    A file is named after its round (``round=12.ckpt``); ``last.ckpt`` is the newest one. A run
    that was killed is resumed by ``trainer.fit(module, data, ckpt_path="last")``. The folder
    ``parts`` in `dirpath` holds the earlier rounds. Each checkpoint names them and none writes them
    again, so a checkpoint costs the same however long the run is. Copy the folder with the files.

    A run ranks, replaces and deletes only files in `dirpath` that it has written itself, or that
    were written by the run that it resumes. If `dirpath` holds checkpoints of another run,
    the new run says so and takes names of its own: ``round=12-v1.ckpt``, ``last-v1.ckpt``.
    ``ckpt_path="last"`` resumes from the newest one. Under ``fast_dev_run`` nothing is written.

    Several of them in one run may share `dirpath`, as those do that stand for Lightning's
    ``ModelCheckpoint`` without one. The file of a round is the same for all of them; it is deleted
    when none of them keeps it any more.

    Args:
        dirpath: Where the files go.
        every_n_rounds: Save after every so many server updates; 1 if no interval is given.
        every_n_updates: Save after every so many arrivals.
        every_time: Save after every so much virtual time.
        every_seconds: Save after every so many seconds of real time.
        monitor: Metric that says which checkpoints to keep; None keeps the newest. A round is
            ranked only if it has the metric itself, as after a validation; nan is the worst value.
        mode: "min" or "max" of the metric is best.
        save_top_k: How many to keep in addition to the last one; -1 keeps all, 0 none.
        save_last: Keep ``last.ckpt``.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range, or several intervals are given; (during the
            run) no metric is called `monitor`.
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
        every_seconds: float | None = None,
    ) -> None:
        intervals = {
            "every_n_rounds": every_n_rounds,
            "every_n_updates": every_n_updates,
            "every_time": every_time,
            "every_seconds": every_seconds,
        }
        given = [name for name, value in intervals.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"give one interval, got {' and '.join(given)}")
        if not isinstance(dirpath, str | Path):
            raise TypeError(f'dirpath must be a path, got {dirpath!r}; for example "checkpoints"')
        if dirpath == "":
            raise ValueError(
                f'dirpath must not be empty, got {dirpath!r}; write "." for the working directory'
            )
        if not isinstance(monitor, str | None) or monitor == "":
            raise TypeError(f"monitor must be the name of a metric, got {shown(monitor)}")
        self.dirpath = user_path(dirpath)
        self.every_n_rounds = optional(positive_int, "every_n_rounds", every_n_rounds) or 1
        self.every_n_updates = optional(positive_int, "every_n_updates", every_n_updates)
        self.every_time = optional(positive, "every_time", every_time)
        self.every_seconds = optional(positive, "every_seconds", every_seconds)
        self._since = time.monotonic()
        self.monitor = monitor
        self.mode = one_of("mode", mode, ("min", "max"))
        self.save_top_k = integer("save_top_k", save_top_k)
        if self.save_top_k < -1:
            raise ValueError(f"save_top_k must be -1 (all), 0 or more, got {save_top_k}")
        self.save_last = flag("save_last", save_last)
        self.best_k: dict[str, float] = {}  # the best comes first
        self._suffix = ""
        self._names_taken = self._validated = False
        self._periods = 0
        self._parts = Parts(self.dirpath)

    @property
    def best_model_path(self) -> str:
        """The best checkpoint kept (the newest, without a monitor), or an empty string."""
        return next(iter(self.best_k), "")

    @property
    def best_model_score(self) -> float | None:
        """The monitored value of the best checkpoint kept, or None without a monitor."""
        return None if self.monitor is None else next(iter(self.best_k.values()), None)

    @property
    def best_k_models(self) -> dict[str, float]:
        """The checkpoints kept and their values, the best first; best_k, as Lightning calls it."""
        return self.best_k

    @property
    def last_model_path(self) -> str:
        """The path of ``last.ckpt``."""
        return str(self.dirpath / f"last{self._suffix}.ckpt")

    def on_fit_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Begin to count from the present round, and remove files that a killed run left torn.

        Raises:
            NotADirectoryError: `dirpath` is a file, or lies below one.
        """
        self._check_folder()
        self._since = time.monotonic()
        self._periods = self._period(trainer)
        self._first = len(trainer.history)
        self._parts = Parts(self.dirpath)  # the parts of an earlier run are not this one's
        self._names_taken = self._validated = False
        if not trainer.fast_dev_run:
            remove_torn(self.dirpath)

    def _check_folder(self) -> None:
        lowest = next(each for each in (self.dirpath, *self.dirpath.parents) if each.exists())
        if not lowest.is_dir():
            raise NotADirectoryError(
                f"FedCheckpoint(dirpath={str(self.dirpath)!r}) needs a folder, but "
                f"{str(lowest)!r} is a file; give another dirpath"
            )

    def on_validation_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Note that a validation has taken place."""
        self._validated = True

    def on_event_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Save if it is due."""
        period = self._period(trainer)
        if trainer.fast_dev_run or (period == self._periods and not trainer.interrupted):
            return
        self._periods = period
        self._take_names(trainer.run.id)
        before = dict(self.best_k)
        paths = self._ranked(trainer) if self.save_top_k else []
        try:
            if paths or self.save_last:
                last = [self.last_model_path] if self.save_last else []
                trainer.save_checkpoint(*paths, *last, parts=self._parts)
        except BaseException:
            # The newest last.ckpt does not list a new file, so a resumed run would never rank it.
            for path in set(paths) - before.keys():
                Path(path).unlink(missing_ok=True)
            self.best_k = before
            raise
        # Only now, so that there is a best checkpoint also if the new one cannot be written.
        kept = {
            Path(path).resolve()
            for each in trainer.callbacks
            if isinstance(each, FedCheckpoint)
            for path in each.best_k
        }
        for path in before.keys() - self.best_k.keys():
            if Path(path).resolve() not in kept:
                Path(path).unlink(missing_ok=True)

    def on_fit_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Save the end of the run."""
        if trainer.fast_dev_run:
            return
        self._take_names(trainer.run.id)
        if self.save_last:
            trainer.save_checkpoint(self.last_model_path, parts=self._parts)
        if self.monitor is not None and self.save_top_k and trainer.history and not self.best_k:
            missing = f"FedCheckpoint monitors {self.monitor!r}, which no round had"
            if self._validated or self.monitor in trainer.callback_metrics:
                known = sorted(trainer.callback_metrics)
                missing += f" in which a checkpoint was due. There are {known}"
            else:
                missing += f": {no_validation(trainer, self._first)}"
            rank_zero_warn(f"{missing}; no best checkpoint was kept")

    def read_last(self) -> dict[str, Any] | None:
        """The newest whole checkpoint of the folder, or None if there is none.

        Raises:
            CheckpointError: There are files, and none of them is whole.
        """
        return self.newest()[0]

    def newest(self) -> tuple[dict[str, Any] | None, str]:
        """The newest whole checkpoint and its path, or None and the folder.

        Raises:
            CheckpointError: There are files, and none of them is whole.
        """
        files = _newest_first(self.dirpath.glob("*.ckpt"))
        newest = next((path for path in files if path.stem.startswith("last")), None)
        files.sort(key=lambda path: path != newest)
        for path in files:
            try:
                return read_checkpoint(path), str(path)
            except CheckpointError as error:
                rank_zero_warn(f"{error}; the one before it is used")
        if files:
            raise CheckpointError(f"no whole checkpoint is left in {str(self.dirpath)!r}")
        return None, str(self.dirpath)

    def state_dict(self) -> dict[str, Any]:
        """The checkpoints kept, by their names in `dirpath`, and their scores."""
        names = {Path(path).name: score for path, score in self.best_k.items()}
        return {"best_k": names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the list of checkpoints, as far as they are in `dirpath`."""
        paths = {str(self.dirpath / name): score for name, score in state["best_k"].items()}
        self.best_k = {path: score for path, score in paths.items() if Path(path).exists()}

    def _take_names(self, run: str) -> None:
        """Before the first save of a fit: find out which files in `dirpath` are those of the run.

        This is done as late as possible, since two runs may have been started in one folder.
        """
        if self._names_taken:
            return
        self._names_taken = True
        # They may be those of an earlier fit, and another run may have used the folder since.
        kept = self.best_k.items()
        self.best_k = {path: score for path, score in kept if run_of(Path(path)) == run}
        found: dict[str, list[Path]] = defaultdict(list)
        for path in _newest_first(self.dirpath.glob("*.ckpt")):
            if name := re.fullmatch(r"(?:round=\d+|last)(-v\d+)?", path.stem):
                found[name[1] or ""].append(path)
        for suffix, paths in found.items():
            if next(filter(None, map(run_of, paths)), None) == run:
                self._suffix = suffix
                return
        self._suffix = ""
        if found:
            self._suffix = f"-v{1 + max(int(suffix[2:] or 0) for suffix in found)}"
            rank_zero_warn(
                f"FedCheckpoint: {str(self.dirpath)!r} holds checkpoints of another run, which "
                f"stay as they are; this run writes {Path(self.last_model_path).name!r}. To go on "
                'from a checkpoint, write fit(…, ckpt_path="last")'
            )

    def _period(self, trainer: FedTrainer) -> int:
        if self.every_n_updates is not None:
            return trainer.num_updates // self.every_n_updates
        if self.every_time is not None:
            return math.floor(trainer.now / self.every_time)
        if self.every_seconds is not None:
            return math.floor((time.monotonic() - self._since) / self.every_seconds)
        return trainer.version // self.every_n_rounds

    def _ranked(self, trainer: FedTrainer) -> list[str]:
        """Rank the present round; the path to save it to, if it is among the best."""
        score = float(trainer.version)
        if self.monitor is not None:
            # Not `callback_metrics`: that may hold the value of an earlier round.
            metrics = trainer.history[-1].metrics if trainer.history else {}
            if self.monitor not in metrics:
                check_logged("FedCheckpoint", self.monitor, trainer, self._validated)
                return []
            score = metrics[self.monitor]
        path = str(self.dirpath / f"round={trainer.version}{self._suffix}.ckpt")
        self.best_k.pop(path, None)  # an earlier save of the same round
        while self.save_top_k != -1 and len(self.best_k) >= self.save_top_k:
            worst = max(self.best_k, key=lambda kept: self._badness(self.best_k[kept]))
            full = len(self.best_k) == self.save_top_k  # more, if there was room for more before
            if full and self._badness(score) >= self._badness(self.best_k[worst]):
                return []
            del self.best_k[worst]
        ranked = {**self.best_k, path: score}.items()
        self.best_k = dict(sorted(ranked, key=lambda item: self._badness(item[1])))
        return [path]

    def _badness(self, score: float) -> float:
        if math.isnan(score):
            return math.inf
        return score if self.monitor is not None and self.mode == "min" else -score


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    times = {}
    for path in paths:
        with suppress(FileNotFoundError):  # another run has just removed it
            times[path] = path.stat().st_mtime_ns
    return sorted(times, key=times.__getitem__, reverse=True)


def keeper_of(callbacks: Iterable[object]) -> FedCheckpoint | None:
    """The first `FedCheckpoint` among callbacks."""
    return next((each for each in callbacks if isinstance(each, FedCheckpoint)), None)


def content_of(
    ckpt_path: str | PathLike[str] | None, callbacks: Iterable[object]
) -> tuple[dict[str, Any] | None, str]:
    """The content of the checkpoint that `FedTrainer.fit` resumes from, and its path.

    The content is None without a checkpoint; if "last" finds none, the path is that of the folder.

    Args:
        ckpt_path: A file; or "last" for the newest one and "best" for the best one of the
            `FedCheckpoint`.
        callbacks: The trainer's callbacks.

    Raises:
        TypeError: It is no path.
        ValueError: "last" or "best", and there is no `FedCheckpoint`; "best", and it has none.
        FileNotFoundError: There is no such file.
        CheckpointError: The file is damaged.
    """
    if ckpt_path is None:
        return None, ""
    if not isinstance(ckpt_path, str | PathLike):
        raise TypeError(
            f'ckpt_path must be the path of a file, "last" or "best", got {ckpt_path!r} '
            f"({type(ckpt_path).__name__})"
        )
    if ckpt_path not in ("last", "best"):
        existing_file("ckpt_path", ckpt_path, "checkpoint file")
        return read_checkpoint(ckpt_path), str(ckpt_path)
    keeper = keeper_of(callbacks)
    if keeper is None:
        raise ValueError(
            f'ckpt_path="{ckpt_path}" needs a FedCheckpoint among the callbacks, which knows where '
            "its files are; or give the path of a file"
        )
    if ckpt_path == "last":
        return keeper.newest()
    if not keeper.best_model_path:
        raise ValueError(
            'ckpt_path="best": the FedCheckpoint has kept no best checkpoint; fit first, with '
            "save_top_k of 1 or more, or give the path of a file"
        )
    return read_checkpoint(keeper.best_model_path), keeper.best_model_path
