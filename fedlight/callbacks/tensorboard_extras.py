"""Curves over the papers' axes, histograms and pictures for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.fabric.loggers.tensorboard import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn

from fedlight._runs.loggers import CellLogger, log_first_cards
from fedlight._support.checks import (
    names,
    one_of,
    optional,
    positive,
    positive_int,
    word,
)
from fedlight.callbacks._tensorboard_pages import layout_of, summary_of
from fedlight.callbacks.base import Callback
from fedlight.callbacks.client_evaluation import likely_mode
from fedlight.plot import X_AXES
from fedlight.plot._pictures import (
    draw_participation,
    draw_partition,
    draw_timeline,
    label_table,
    work_of,
)

if TYPE_CHECKING:
    from lightning import LightningModule
    from numpy.typing import NDArray

    from fedlight.trainer import FedTrainer
    from fedlight.types import RoundRecord

AXES = {
    axis: f"fed/{'time' if axis == 'virtual_time' else axis}" for axis in X_AXES if axis != "round"
}
"""The horizontal axes in addition to rounds, and the metric that gives a round's place on each."""

_USUAL = ("virtual_time", "gradients", "models", "bytes")


class TensorBoardMetrics(Callback):
    """Logs each scalar over the papers' axes, and histograms and pictures of the run.

    The trainer itself logs each scalar of a round, such as ``val_acc``, over the rounds. This
    callback adds the same curve over

    - ``val_acc/by_virtual_time``: virtual time. TensorBoard's steps are integers, so they count
      thousandths of a unit: ``step = round(now * time_resolution)``. A time of 12.5 is step 12,500.
    - ``val_acc/by_gradients``: local steps of all updates that have arrived, used or dropped.
    - ``val_acc/by_models``: models sent, that is pulls and arrivals, including pulls of lost tasks.
    - ``val_acc/by_bytes``: their bytes: parameters, buffers and pulled client state.
    - ``val_acc/by_examples``, if `axes` has "examples": the examples of these local steps.
    - ``val_acc/by_tokens``, if `axes` has "tokens": their tokens, if the data say how many an
      example has.

    A curve gets no new point if its axis has not moved since its last one, as at a deadline before
    which nothing has arrived. A resumed run writes the same points as an uninterrupted one, each
    of them once.

    Histograms over the updates of the last `histogram_every_n_rounds` rounds are
    ``updates/staleness``, ``updates/local_steps`` and ``updates/norm``. The histogram
    ``clients/updates_used`` is over the clients: the number of updates of each that the server has
    used so far.

    Pictures are ``clients/labels`` (who holds which labels; once, and in a study once for each
    partition), ``clients/participation`` (how
    often each client's updates were used) and ``clients/timeline`` (who worked when). The latter
    two are drawn every `picture_every_n_rounds` rounds and at the end; a timeline shows the rounds
    since the one before.

    The page *Custom Scalars* shows the chosen metric first: on rounds, virtual time, gradients and
    models. At the end ``<metric>/best``, ``<metric>/last`` and ``run/seconds`` (real time) are
    written. The page *HParams* shows them next to the arguments of the run.

    Args:
        axes: The axes: one or several of "virtual_time", "gradients", "models", "bytes", "examples"
            and "tokens"; by default the first four.
        metrics: Names of the scalars to draw over these axes; None for all.
        time_resolution: Steps per unit of virtual time.
        histogram_every_n_rounds: Rounds per histogram; None for no histograms.
        picture_every_n_rounds: Rounds per picture; None for no pictures.
        metric: The chosen metric; None for an accuracy of the validation, or its first metric.
        mode: "min" or "max" of it is best; None decides by its name.

    Raises:
        TypeError: `axes` or `metrics` is a single string.
        ValueError: An argument is outside its range.

    Example:
        >>> callback = TensorBoardMetrics(axes=("virtual_time", "models"), metrics=["val_acc"])
    """

    def __init__(
        self,
        axes: Sequence[str] = _USUAL,
        metrics: Iterable[str] | None = None,
        time_resolution: float = 1000.0,
        histogram_every_n_rounds: int | None = 10,
        picture_every_n_rounds: int | None = 50,
        metric: str | None = None,
        mode: str | None = None,
    ) -> None:
        self.axes = tuple(one_of("axes", each, tuple(AXES)) for each in names("axes", axes))
        self.metrics = None if metrics is None else frozenset(names("metrics", metrics))
        self.time_resolution = positive("time_resolution", time_resolution)
        every = histogram_every_n_rounds
        self.histogram_every_n_rounds = optional(positive_int, "histogram_every_n_rounds", every)
        every = picture_every_n_rounds
        self.picture_every_n_rounds = optional(positive_int, "picture_every_n_rounds", every)
        self.metric = optional(word, "metric", metric)
        self.mode = None if mode is None else one_of("mode", mode, ("min", "max"))
        self._laid_out, self._started = False, 0.0
        self._folders: list[str] = []

    def on_fit_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Draw who holds which labels; in a resumed run, continue the curves of the checkpoint."""
        loggers = [each for each in trainer.loggers if isinstance(each, TensorBoardLogger)]
        if trainer.loggers and not loggers:
            rank_zero_warn(
                "TensorBoardMetrics has nothing to write to: none of the trainer's loggers is a "
                "TensorBoardLogger; give one, or leave the callback out"
            )
        going_on = [each for each in loggers if str(each.log_dir) in self._folders]
        self._laid_out &= bool(trainer.history and going_on)
        self._started = time.perf_counter()
        self._folders = [str(each.log_dir) for each in loggers]
        self._replay(trainer, [], 0)
        self._going_on, self._begun = going_on, len(trainer.history)
        if trainer.history and going_on:
            self._cut(trainer, going_on, trainer.version)
        self._loggers = loggers
        if not trainer.history and self.picture_every_n_rounds is not None:
            self._draw_labels(trainer)

    def on_event_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Write a new round, after other callbacks have added their metrics."""
        if len(trainer.history) > self._seen:
            self._write_round(trainer)
            if not self._laid_out:
                self._lay_out(trainer)

    def on_fit_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Write histograms and pictures of the last rounds, unless the run was interrupted."""
        if trainer.interrupted or not self._loggers:
            return
        version = trainer.version
        if self._going_on and version == self._begun:
            # The checkpoint is one of the end of a run: its last pictures may be there already.
            loggers = self._loggers
            self._cut(trainer, self._going_on, version - 1)
            self._loggers = loggers
        for every, write in self._figures():
            if version % every:
                write(trainer, version - version % every)
        metric = self._chosen(trainer)
        if metric is not None:
            mode = self.mode or likely_mode(metric)
            seconds = time.perf_counter() - self._started
            figures = summary_of(trainer.history, metric, mode, seconds)
            for logger, (name, value) in product(self._loggers, figures.items()):
                logger.experiment.add_scalar(name, value, version)

    def _chosen(self, trainer: FedTrainer) -> str | None:
        """The metric that is shown first: the one given, or the first one of the validation."""
        known = trainer.callback_metrics
        if self.metric is not None:
            return self.metric if self.metric in known else None
        validated = [name for name in known if name.startswith("val")]
        # The first accuracy, or else the first of all.
        return min(validated, key=lambda name: "acc" not in name, default=None)

    def _lay_out(self, trainer: FedTrainer) -> None:
        """Write the page of the chosen metric, as soon as there is one."""
        metric = self._chosen(trainer)
        if metric is not None:
            self._laid_out = True
            layout = layout_of(metric, self.axes, self.time_resolution)
            for logger in self._loggers:
                logger.experiment.add_custom_scalars(layout)

    def state_dict(self) -> dict[str, Any]:
        """The folders of the curves; their points follow from the trainer's history."""
        return {"folders": list(self._folders), "laid_out": self._laid_out}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the folders of the curves."""
        self._folders = list(state["folders"])
        self._laid_out = bool(state.get("laid_out", False))

    def _write_round(self, trainer: FedTrainer, cut: int = 0) -> None:
        """Write the next round of the history, but no point before step `cut` of its axis."""
        record = trainer.history[self._seen]
        self._seen += 1
        for update in record.updates:
            self._used[update.client_id] += 1
        for axis in self.axes:
            place = record.metrics.get(AXES[axis])
            if place is None:
                continue
            step = round(place * self.time_resolution if axis == "virtual_time" else place)
            points = self._points(record, axis, step)
            if points and step >= cut and self._loggers:
                summary = _summary(points)
                for logger in self._loggers:
                    _writer(logger).add_summary(summary, step)
        if record.version < cut or not self._loggers:
            return
        for every, write in self._figures():
            if record.version % every == 0:
                write(trainer, record.version - every)

    def _figures(self) -> list[tuple[int, Callable[[FedTrainer, int], None]]]:
        """The kinds of figures over several rounds: after how many of them, and its writer."""
        intervals = self.histogram_every_n_rounds, self.picture_every_n_rounds
        kinds = zip(intervals, (self._histograms, self._pictures), strict=True)
        return [(every, write) for every, write in kinds if every is not None]

    def _points(self, record: RoundRecord, axis: str, step: int) -> dict[str, float]:
        """The round's new values by their tags."""
        points = {}
        for name, value in record.metrics.logged().items():
            tag = f"{name}/by_{axis}"
            wanted = self.metrics is None or name in self.metrics
            if wanted and name not in AXES.values() and step > self._last.get(tag, -1):
                self._last[tag] = step
                points[tag] = value
        return points

    def _replay(self, trainer: FedTrainer, loggers: list[Any], cut: int) -> None:
        """Go through the whole history again, and write the points from step `cut` on."""
        self._loggers, self._seen = loggers, 0
        self._last: dict[str, int] = {}
        self._used = np.zeros(trainer.federation.num_clients, dtype=np.int64)
        while self._seen < len(trainer.history):
            self._write_round(trainer, cut)

    def _cut(self, trainer: FedTrainer, loggers: list[Any], version: int) -> None:
        """Remove the points after a version, and only those.

        An event file can only be cut at one step, for all its curves: a reader drops the points
        from that step on, whatever their axis. So the cut is made after the step that the shortest
        axis has reached, and the valid points of the other axes are written again.
        """
        ends = {
            axis: max((s for tag, s in self._last.items() if tag.endswith(axis)), default=0)
            for axis in self.axes
        }
        cut = min(version, *ends.values()) + 1
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        start = Event(session_log=SessionLog(status=SessionLog.START))
        for logger in loggers:
            # A TensorBoard that is running takes the first such event for the start of the run.
            for _ in range(2):
                _writer(logger).add_event(start, step=cut)
            for record in trainer.history[cut - 1 :]:
                logger.log_metrics(record.metrics.logged(), step=record.version)
                log_first_cards(logger, record)
        self._replay(trainer, loggers, cut)

    def _histograms(self, trainer: FedTrainer, after: int) -> None:
        """Of the rounds after `after`, up to the last one written."""
        records = trainer.history[after : self._seen]
        updates = [update for record in records for update in record.updates]
        values = {
            "updates/staleness": np.array([update.staleness for update in updates]),
            "updates/local_steps": np.array([update.num_steps for update in updates]),
            "updates/norm": np.array([update.norm for update in updates]),
            "clients/updates_used": self._used,
        }
        for tag, array in values.items():
            array = array[np.isfinite(array)]
            if len(array):
                for logger in self._loggers:
                    logger.experiment.add_histogram(tag, array, self._seen, _bins(array))

    def _pictures(self, trainer: FedTrainer, after: int) -> None:
        """Of the rounds after `after`, up to the last one written."""
        records = trainer.history[after : self._seen]
        start = trainer.history[after - 1].now if after else 0.0
        times = [record.now for record in records]
        timeline = draw_timeline(work_of(records), times, start, times[-1], len(self._used))
        self._draw("clients/timeline", timeline, self._seen, self._loggers)
        participation = draw_participation(self._used)
        self._draw("clients/participation", participation, self._seen, self._loggers)

    def _draw_labels(self, trainer: FedTrainer) -> None:
        assert trainer.datamodule is not None
        loggers = [e for e in self._loggers if not isinstance(e, CellLogger) or e.shows_data]
        table = label_table(trainer.datamodule) if loggers else None
        if table is not None:
            self._draw("clients/labels", draw_partition(*table), 0, loggers)

    def _draw(
        self, tag: str, picture: NDArray[np.uint8], step: int, loggers: Iterable[TensorBoardLogger]
    ) -> None:
        for logger in loggers:
            logger.experiment.add_image(tag, picture, step, dataformats="HWC")


def _writer(logger: TensorBoardLogger) -> Any:
    """The writer of the logger's event file.

    SummaryWriter has no public method for it that also works after it was closed. Its
    ``add_scalar`` would write an event of its own for each point of a round.
    """
    return logger.experiment._get_file_writer()


def _summary(points: Mapping[str, float]) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=tag, simple_value=v) for tag, v in points.items()])


def _bins(values: NDArray[Any]) -> NDArray[np.float64]:
    """Edges of the bins: one bin per integer if these are few, else thirty of equal width."""
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind == "i" and high - low < 64:
        return np.arange(low, high + 2) - 0.5
    return np.linspace(low, high if high > low else low + 1.0, 31)
