"""The result of `sweep`: runs, tables, figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_info

from fedlight._support.bootstrap import check_confidence
from fedlight._support.checks import (
    below_one,
    flag,
    function,
    number,
    one_of,
    optional,
    shown,
)
from fedlight._support.checks import names as names_of
from fedlight._support.checks import text as text_of
from fedlight._support.files import new_file, replacing
from fedlight.plot import X_AXES
from fedlight.plot.figures import Band
from fedlight.studies._figures import draw, draw_ends
from fedlight.studies._groups import (
    called,
    check_axis,
    grouped,
    holds,
    on_common_axes,
    rounds_of,
    row_axes,
)
from fedlight.studies._measures import (
    best_of,
    check_metric,
    checked_last,
    end_of,
    ends_over,
    epsilons_at,
    place_of,
    values_at,
)
from fedlight.studies._modes import mode_of
from fedlight.studies._origin import Origin
from fedlight.studies._report import page
from fedlight.studies.keys import StudyKeys, hidden_of
from fedlight.studies.runs import StudyRun
from fedlight.studies.store import Store, folder_of
from fedlight.studies.tables import Entry, StudyTable, beside, csv_of, differences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedlight.types import RoundRecord

    Measure = Any


class Study:
    """The runs of a study; ``rich.print`` shows a table.

    Args:
        runs: The runs.
        metric: The metric that is shown if none is named.
        mode: "min" or "max" of it is best; None decides by its name.
        chosen: Axes of which each cell of the others has one value, its best; see `best`.
        seeds: Further seeds of the study of which the runs are a part.
        origin: How the study was made, for `report`; None if it is not known.

    Attributes:
        runs: The runs, by cell (the last axis varies fastest), then by seed.
        axes: The axes, and the names of the values on each.
        metric: The metric that is shown if none is named.
        mode: "min" or "max" of it is best.
        origin: How the study was made: command, settings, seeds and versions; or None.

    Raises:
        ValueError: There are no runs.
    """

    def __init__(
        self,
        runs: Sequence[StudyRun],
        metric: str = "val_acc",
        mode: str | None = None,
        *,
        chosen: Collection[str] = (),
        seeds: Iterable[int] = (),
        origin: Origin | None = None,
    ) -> None:
        if not runs:
            raise ValueError("runs must hold one or more, got none")
        self.metric, self.mode = metric, mode_of(metric, mode)
        self.runs, self.axes = on_common_axes(runs)
        self.origin = origin
        self._chosen = frozenset(chosen)
        self._all_seeds = {*seeds, *(run.seed for run in runs)}

    @classmethod
    def load(cls, path: str | Path, metric: str | None = None, mode: str | None = None) -> Study:
        """Read a study from its folder, without training.

        Args:
            path: The folder.
            metric: The metric that is shown if none is named; None for that of the newest `sweep`.
            mode: "min" or "max" of it is best; None decides by its name.

        Raises:
            FileNotFoundError: There is no such study.
            ValueError: It is of another version's format.
        """
        if not (folder_of("path", path) / "study.json").is_file():
            raise FileNotFoundError(
                f"there is no study in {str(path)!r}; sweep(…, path=…) makes one"
            )
        if mode is not None:
            mode_of("val_acc" if metric is None else metric, mode)
        store = Store(path)
        settings = store.settings()
        if metric is None:
            metric = settings.get("metric", "val_acc")
            mode = settings.get("mode") if mode is None else mode
        runs, missing = store.load()
        if not runs:
            raise FileNotFoundError(f"no run of the study in {str(path)!r} is finished yet")
        if missing:
            rank_zero_info(f"fedlight: {missing} runs of the study are not finished")
        recorded = settings.get("origin")
        return cls(runs, metric, mode, origin=None if recorded is None else Origin(**recorded))

    def shown(self, metric: str | None = None, mode: str | None = None) -> tuple[str, str]:
        """Return the metric that is shown, and "min" or "max", whichever of it is best.

        Args:
            metric: Name of the metric; None for that of the study.
            mode: "min" or "max" of it is best; None decides by its name.

        Raises:
            ValueError: Rounds have metrics, but none has this one; or `mode` is another word.
        """
        metric = self.metric if metric is None else metric
        if mode is None and isinstance(metric, str) and metric == self.metric:
            mode = self.mode
        mode = mode_of(metric, mode)  # first, since it names a metric of the wrong kind
        check_metric(self.runs, metric)
        return metric, mode

    def keys(self) -> StudyKeys:
        """Return what defines each run in the folder of the study, and what could not be seen.

        `print` shows the key of each run, which is the name of its file, and below them what a
        function reads that is not part of the keys, such as an open file. After a change of it,
        ``sweep(…, fresh=True)`` computes the runs again.

        Raises:
            ValueError: The study has no folder.
        """
        given = [(dict(run.cell), run.seed, run.key) for run in self.runs if run.key is not None]
        if not given:
            raise ValueError("the runs have no keys: a study with a folder has, sweep(…, path=…)")
        return StudyKeys(tuple(given), hidden_of([key for *_, key in given]))

    # ------------------------------------------------------------------ tables

    def table(
        self,
        rows: str | Sequence[str] | None = None,
        columns: str | None = None,
        metric: str | None = None,
        reference: Any = None,
        *,
        value: str = "best",
        mode: str | None = None,
        last: float = 1,
        digits: int = 4,
        confidence: float = 0.95,
        delta: float | None = None,
    ) -> StudyTable:
        """Return a metric as mean ± standard deviation over the seeds.

        A run that ended before its first round, or before the metric was first logged, has no
        value. Means and differences are taken over the others, and the entry says how many those
        are; it is "no value" if there are none. A run without a round counts as 0 rounds.

        Args:
            rows: The axis of the rows, or several; None for all that `columns` leaves.
            columns: The axis of the columns; None for a column each of the best and the last value.
            metric: Name of the metric.
            reference: A comparison to add: published numbers as ``{(row, column): number}`` (or
                ``{row: number}`` without `columns`), or the name of a value of an axis. The other
                runs are then compared with the runs of that value: the mean of the paired
                differences (other minus this, seed by seed) with a bootstrap interval.
            value: "best" or "last", of which the cells are made if there are `columns`, and the
                differences.
            mode: "min" or "max" is best; None decides by the name of the metric.
            last: The last value is the mean over this many last rounds that have the metric; or,
                below 1, over this last share of the virtual time.
            digits: Decimal places.
            confidence: Confidence of the intervals.
            delta: Two further columns for runs whose server adds noise: their epsilon at this
                delta, and that of central DP-FedAvg with the same noise, see
                `fedlight.privacy.PrivacyReport`.

        Raises:
            ImportError: Opacus, which computes epsilon, is not installed.
            ValueError: There is no such axis, or an axis is in neither `rows` nor `columns`; or
                rounds have metrics, but none has this one; or `delta` is given with `columns`, or
                no run has such noise.
        """
        one_of("value", value, ("best", "last"))
        metric, mode = self.shown(metric, mode)
        last = checked_last(last)
        best, end = best_of(metric, mode), end_of(metric, last)
        ends = "last" if last == 1 else f"mean of the last {last if last > 1 else f'{last:.0%}'}"
        shown = "best" if value == "best" else ends
        measures: dict[str, Measure] = {"best": best, ends: end, "rounds": len}
        title = f"{metric}, {self._seeds()}"
        if delta is not None:
            if columns is not None:
                raise ValueError("delta needs columns of its own: leave columns out")
            measures |= epsilons_at(delta, self.runs)
        if columns is not None:
            measures, title = {shown: measures[shown]}, f"{shown} {title}"
        table = self._table(title, rows, columns, measures, digits)
        return self._compared(table, reference, shown, confidence)

    def time_to(
        self,
        target: float,
        axis: str = "virtual_time",
        rows: str | Sequence[str] | None = None,
        columns: str | None = None,
        metric: str | None = None,
        mode: str | None = None,
        digits: int = 1,
        *,
        reference: Any = None,
        confidence: float = 0.95,
    ) -> StudyTable:
        """Return how far along an axis the metric first reaches a target.

        Args:
            target: The value to reach: at least, if "max" is best, else at most.
            axis: "round", "virtual_time", "gradients", "models", "bytes", "examples" or "tokens".
            rows: As for `table`.
            columns: As for `table`.
            metric: Name of the metric.
            mode: "min" or "max" is best; None decides by the name of the metric.
            digits: Decimal places.
            reference: As for `table`; differences are taken at the seeds at which both reach it.
            confidence: Confidence of the intervals.

        Returns:
            Mean ± standard deviation over the runs that reach it, and how many of them do. A run
            without a round does not reach it.

        Raises:
            ValueError: `axis` is another word, or there is no such axis of the study.
        """
        rounds = isinstance(axis, str) and axis == "rounds"
        axis = one_of("axis", "round" if rounds else axis, tuple(X_AXES))
        target = number("target", target)
        metric, mode = self.shown(metric, mode)

        reached = {axis: place_of(target, metric, mode, axis)}
        title = f"{X_AXES[axis]} to {metric} of {target:g}, {self._seeds()}"
        table = self._table(title, rows, columns, reached, digits, of_target=True)
        return self._compared(table, reference, axis, confidence)

    def at(
        self,
        places: Sequence[float],
        axis: str = "virtual_time",
        rows: str | Sequence[str] | None = None,
        metric: str | None = None,
        digits: int = 4,
        *,
        reference: Any = None,
        confidence: float = 0.95,
    ) -> StudyTable:
        """Return the metric at places on an axis, by straight lines between its points.

        A run has no value at a place that is before its first point, or behind its last round: a
        run that ended before 500 gradients says nothing about 500 gradients. Means and differences
        are taken over the other runs, as in `table`. Between the last point and the last round the
        value is the last one.

        Args:
            places: The places, such as ``[250, 500, 1000]`` gradients; each is a column.
            axis: "round", "virtual_time", "gradients", "models", "bytes", "examples" or "tokens".
            rows: As for `table`.
            metric: Name of the metric.
            digits: Decimal places.
            reference: As for `table`; there is a difference at each place.
            confidence: Confidence of the intervals.

        Raises:
            ValueError: `axis` is another word, or there is no such axis of the study.
        """
        one_of("axis", axis, tuple(X_AXES))
        metric, _ = self.shown(metric, None)
        values = values_at(places, metric, axis)
        table = self._table(f"{metric}, {self._seeds()}", rows, None, values, digits)
        return self._compared(table, reference, [*values], confidence)

    def _seeds(self) -> str:
        seeds = len(self._all_seeds)
        return f"{seeds} seed{'s' * (seeds != 1)}"

    def _table(
        self,
        title: str,
        rows: str | Sequence[str] | None,
        columns: str | None,
        measures: Mapping[str, Measure],
        digits: int,
        of_target: bool = False,
    ) -> StudyTable:
        axes = row_axes(self.axes, rows, columns, self._chosen)
        seeds = len(self._all_seeds)
        entries = {}
        for names, runs in grouped(self.runs, [*axes, *filter(None, [columns])]).items():
            for name, measure in measures.items():
                place = (names, name) if columns is None else (names[:-1], names[-1])
                entries[place] = Entry.of(runs, measure, of_target, seeds)
        return StudyTable(title, axes, columns, entries, digits)

    def _compared(
        self, table: StudyTable, reference: Any, shown: str | Sequence[str], confidence: float
    ) -> StudyTable:
        """A table with the published numbers or the differences that `reference` asks for."""
        confidence = check_confidence(confidence)
        if reference is None:
            return table
        if isinstance(reference, Mapping):
            return beside(table, "reference", reference)
        columns = [shown] if isinstance(shown, str) else shown
        return differences(table, reference, self.axes, columns, confidence, self._chosen)

    def only(self, **names: Hashable) -> Study:
        """Return the part of the study with one value on some axes, such as ``only(p=2)``.

        Raises:
            ValueError: There is no such axis or value.
        """
        for axis, name in names.items():
            check_axis(self.axes, "the argument", axis)
            if not holds(self.axes[axis], name):
                raise ValueError(f"{axis} must be one of {self.axes[axis]}, got {shown(name)}")
        runs = [r for r in self.runs if all(r.cell[a] == name for a, name in names.items())]
        return self._part(runs, self._chosen)

    def best(
        self, axis: str, metric: str | None = None, last: float = 1, *, value: str = "last"
    ) -> Study:
        """Return the part with the best value on an axis for each cell of the others.

        Such as the best learning rate of each aggregator: ``study.best("lr")``. In its tables, the
        axis may be left out of the rows, and ``reference=`` compares cells with their own best
        values. They are the best on the same seeds, so a table's means are a little too good.

        Args:
            axis: The axis.
            metric: Name of the metric, whose value is to be best in the mean over the seeds that
                have one.
            last: What the last value is; as for `table`.
            value: "last" or "best".

        Raises:
            ValueError: There is no such axis, or no run has the metric.
        """
        check_axis(self.axes, "axis", axis)
        one_of("value", value, ("last", "best"))
        metric, mode = self.shown(metric, None)
        measure = end_of(metric, last) if value == "last" else best_of(metric, mode)
        others = [each for each in self.axes if each != axis and each not in self._chosen]
        sign = 1 if mode == "min" else -1
        kept = []
        for runs in grouped(self.runs, others).values():
            means = {
                name: Entry.of([r for r in runs if r.cell[axis] == name], measure).mean
                for name in dict.fromkeys(run.cell[axis] for run in runs)
            }
            # A value without the metric has the mean nan, which comes last.
            best = min(means, key=lambda name: (math.isnan(means[name]), sign * means[name]))
            kept += [run for run in runs if run.cell[axis] == best]
        return self._part(kept, {*self._chosen, axis})

    def _part(self, runs: Sequence[StudyRun], chosen: Collection[str]) -> Study:
        return Study(
            runs,
            self.metric,
            self.mode,
            chosen=chosen,
            seeds=self._all_seeds,
            origin=self.origin,
        )

    # ------------------------------------------------------------------ figures and frames

    def plot(
        self,
        x: str | Sequence[str] = "virtual_time",
        panels: str | None = None,
        metric: str | Sequence[str] | None = None,
        smooth: int = 1,
        *,
        log: bool = False,
        zoom: float = 0.0,
        band: str | None = "interval",
        confidence: float = 0.95,
    ) -> Figure:
        """Draw the mean of the metric over the seeds, with a band that the legend names.

        Runs that failed, or ended before the metric was first logged, have no curve; a panel in
        which no run has one says so. Values that are infinite or nan are left out of the mean, and
        the legend says how many seeds have some.

        Args:
            x: "round", "virtual_time", "gradients", "models", "bytes", "examples" or "tokens"; or
                several, with a column of pictures each. Or an axis of the study whose names are
                numbers, such as a learning rate: then each line has the last value of each run
                over that axis.
            panels: The axis of the study with a picture (if there are several `x` or `metric`, a
                row) for each of its values; the others that have several values are the lines.
            metric: Name of the metric; or several, with a column of pictures each.
            smooth: Draw the mean of this many points, up to the current one.
            log: Draw the metric in a logarithmic scale.
            zoom: Choose the range of the metric from its values after this share of the horizontal
                axis, so that the first rounds do not hide the differences at the end.
            band: "interval" for the bootstrap interval of the mean over the seeds, as in tables
                (see `bootstrap`; it is too narrow with few seeds), "std" for one sample standard
                deviation on both sides, or None for no band.
            confidence: Confidence of the intervals.

        Returns:
            The figure, ``figure.savefig("figure.pdf")``.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: There is no such axis, rounds have metrics but none has this one, every run
                has failed, `zoom` is outside [0, 1), or `band` or `confidence` is none of these.
        """
        xs = [x] if isinstance(x, str) else names_of("x", x)
        for each in xs:
            one_of("x", each, (*X_AXES, *self.axes))
        chosen = self.metric if metric is None else metric
        metrics = [chosen] if isinstance(chosen, str) else names_of("metric", chosen)
        if not xs or not all(metrics) or not metrics:
            raise ValueError(f"x and metric must name one or more, got x={x!r}, metric={metric!r}")
        log, zoom = flag("log", log), below_one("zoom", zoom)
        shape = Band(band, confidence)
        if all(run.error is not None for run in self.runs):
            raise ValueError(f"every run has failed, there is no curve: {self.runs[0].error}")
        for each in metrics:
            check_metric(self.runs, each)
        parts = {"": self}
        if panels is not None:
            check_axis(self.axes, "panels", panels)
            parts = {f"{panels} = {n}": self.only(**{panels: n}) for n in self.axes[panels]}
        without = {
            title: "no run has a value"
            if any(run.error is None for run in part.runs)
            else "all runs failed"
            for title, part in parts.items()
        }
        lines = [axis for axis in self.axes if axis not in (panels, x) and len(self.axes[axis]) > 1]
        if isinstance(x, str) and x in self.axes:
            ends = {title: ends_over(x, p.runs, lines, metrics[0]) for title, p in parts.items()}
            return draw_ends(ends, x, metrics[0], log, without, shape)
        shown = {title: part.histories_by(lines, called) for title, part in parts.items()}
        return draw(shown, metrics, xs, smooth, log, zoom, without, shape)

    def histories_by(
        self, axes: Sequence[str], word: Callable[[str, Hashable], str] = lambda _, name: str(name)
    ) -> dict[str, list[list[RoundRecord]]]:
        """The histories by the names on some axes, one for each seed that has a round.

        Args:
            axes: The axes.
            word: Makes the label of a name on an axis.

        Raises:
            TypeError: `word` is no function.
            ValueError: There is no such axis.
        """
        axes = names_of("axes", axes)
        for axis in axes:
            check_axis(self.axes, "axes", axis)
        word = function("word", word, "an axis and a name that returns a label")
        found: dict[str, list[list[RoundRecord]]] = {}
        for run in self.runs:
            if run.error is None and run.history:
                name = ", ".join(word(axis, run.cell[axis]) for axis in axes)
                found.setdefault(name, []).append(run.history)
        return found

    @property
    def histories(self) -> dict[str, list[list[RoundRecord]]]:
        """The histories by name of the cell, one for each seed that has a round.

        `fedlight.plot` draws them.
        """
        return self.histories_by(list(self.axes))

    def to_pandas(self) -> Any:
        """Return all metrics as a data frame with a row for each round of each run.

        If an axis has the name of a metric, its column is ``axis/<name>``. A run without a round,
        such as a failed one, has no row.
        """
        return rounds_of(self.runs, self.axes).to_pandas()

    def to_csv(self, path: str | Path | None = None) -> str | None:
        """Write the columns of `to_pandas`, all metrics of all rounds, as CSV.

        Args:
            path: The file; None to return the text.

        Raises:
            OSError: The file cannot be written.
            TypeError: `path` is no path.
        """
        return csv_of(rounds_of(self.runs, self.axes), path)

    def report(
        self,
        path: str | Path,
        title: str | None = None,
        metric: str | None = None,
        reference: Any = None,
    ) -> None:
        """Write one HTML file that shows the study and how it was made.

        It has the table, figures over virtual time and rounds, the settings that all runs share and
        those that differ, the seeds, the versions of packages, the command of the process, and the
        references that `fedlight.cite` gives. The figures are part of the file, which loads
        nothing. The command is written as it was typed, so keep passwords out of it.

        Args:
            path: The file.
            title: The title; None for the metric and the axes.
            metric: Name of the metric of table and figures.
            reference: As for `table`.

        Raises:
            ImportError: matplotlib is not installed.
            OSError: The file cannot be written.
            TypeError: `path` is no path, or `title` no text.
            ValueError: Rounds have metrics, but none has this one.
        """
        file_path = new_file("path", path, "report.html")
        optional(text_of, "title", title)
        metric, _ = self.shown(metric)
        title = title or " by ".join([metric, ", ".join(self.axes)]).removesuffix(" by ")
        text = page(self, self.table(metric=metric, reference=reference), metric, title)
        with replacing(file_path, "w") as file:
            file.write(text)

    def __repr__(self) -> str:
        axes = ", ".join(f"{axis}={names}" for axis, names in self.axes.items())
        failed = sum(run.error is not None for run in self.runs)
        words = f"; {failed} failed" if failed else ""
        return f"<Study of {len(self.runs)} runs{words}; {axes}; metric={self.metric!r}>"

    def __rich__(self) -> Any:
        return self.table().__rich__()

    def __str__(self) -> str:
        return str(self.table())
