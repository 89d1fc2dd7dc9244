"""Tables of a study: means over seeds, paired differences, published numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedlight._support.bootstrap import Interval, bootstrap, mean_of, std_of
from fedlight._support.checks import mapping, non_negative_int, number, optional, text
from fedlight._support.checks import shown as in_words
from fedlight._support.files import new_file, replacing

if TYPE_CHECKING:
    from fedlight.studies.runs import StudyRun


_LARGE = 1e15  # of a diverging run; all digits of such a number would widen the table


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a table.

    Attributes:
        values: The value of each seed, or its difference; nan if the run has none, or has not
            reached a target.
        errors: Why runs failed.
        beside: A published number, or None.
        difference: The paired difference, or None.
        of_target: Whether the values are places at which a target was reached.
        absent: How many seeds of the study have no run here, finished or failed.
    """

    values: dict[int, float]
    errors: list[str] = field(default_factory=list)
    beside: float | None = None
    difference: Interval | None = None
    of_target: bool = False
    absent: int = 0

    @classmethod
    def of(
        cls,
        runs: Sequence[StudyRun],
        measure: Callable[[Any], float],
        of_target: bool = False,
        seeds: int = 0,
    ) -> Entry:
        """The entry of some runs, of a study of so many seeds."""
        return cls(
            {run.seed: float(measure(run.history)) for run in runs if run.error is None},
            [run.error for run in runs if run.error is not None],
            of_target=of_target,
            absent=max(0, seeds - len({run.seed for run in runs})),
        )

    @property
    def reached(self) -> list[float]:
        """The values that are numbers, or infinite."""
        return [value for value in self.values.values() if not math.isnan(value)]

    @property
    def mean(self) -> float:
        """Mean over the seeds; nan if there is none, infinite if a value is."""
        return mean_of(self.reached)

    @property
    def std(self) -> float:
        """Sample standard deviation over the seeds; nan if it has no value."""
        return std_of(self.reached)

    def words(self, digits: int) -> str:
        """The entry as text."""
        if self.difference is not None:
            pairs, known = len(self.values) + self.absent, self.difference.count
            left_out = f" ({known} of {pairs} pairs)" if known < pairs else ""
            return _interval_words(self.difference, digits) + left_out
        total = len(self.values) + len(self.errors)
        parts = []
        if self.reached:
            parts.append(_figure(self.mean, digits))
            if not math.isnan(self.std):
                parts.append(f"± {_figure(self.std, digits)}")
        if len(self.reached) < len(self.values):
            if self.of_target or self.reached:
                have = "reach it" if self.of_target else "have one"
                parts.append(f"({len(self.reached)} of {len(self.values)} {have})")
            else:
                parts.append("no value")
        if self.errors:
            which = (
                "failed" if len(self.errors) == total else f"{len(self.errors)} of {total} failed"
            )
            kind = self.errors[0].partition(":")[0]
            parts.append(f"({which}: {kind})" if parts else f"{which}: {kind}")
        if self.absent:
            parts.append(f"({total} of {total + self.absent} seeds)")
        if self.beside is not None:
            parts.append(f"[{_figure(self.beside, digits)}]")
        return " ".join(parts)


def _figure(value: float, digits: int) -> str:
    if math.isfinite(value) and abs(value) >= _LARGE:
        return f"{value:.{max(digits, 1)}g}"
    if float(value).is_integer() and abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}"


def _interval_words(each: Interval, digits: int) -> str:
    words = f"{each.mean:+.{digits}f}"
    if math.isnan(each.low):
        return words
    return f"{words} [{each.low:+.{digits}f}, {each.high:+.{digits}f}]"


class StudyTable:
    """A table; ``rich.print`` shows it, and it is written as markdown, LaTeX or a data frame.

    Args:
        title: The title.
        axes: The axes of the rows.
        columns: The axis of the columns, or None.
        entries: The entries by row and column, in their order.
        digits: Decimal places.
        confidence: Confidence of the intervals of differences.

    Attributes:
        title: The title.
        axes: The axes of the rows.
        column_axis: The axis of the columns, or None.
        entries: The entries by row (a tuple of names, one for each axis) and column.
    """

    def __init__(
        self,
        title: str,
        axes: Sequence[str],
        columns: str | None,
        entries: Mapping[tuple[Any, Any], Entry],
        digits: int = 4,
        confidence: float = 0.95,
    ) -> None:
        self.title, self.entries = title, dict(entries)
        self.confidence = confidence
        self.axes, self.column_axis = list(axes), columns
        self._digits = non_negative_int("digits", digits)

    @property
    def rows(self) -> list[tuple[Hashable, ...]]:
        """The rows: a name for each axis."""
        return list(dict.fromkeys(row for row, _ in self.entries))

    @property
    def columns(self) -> list[Hashable]:
        """The columns."""
        return list(dict.fromkeys(column for _, column in self.entries))

    @property
    def failures(self) -> list[str]:
        """Why runs failed: each reason once, with the row and column of the first such run."""
        found: dict[str, str] = {}
        for (row, column), entry in self.entries.items():
            where = ", ".join(map(str, (*row, column) if self.column_axis else row))
            for error in entry.errors:
                found.setdefault(error, f"{where}: {error}")
        return list(found.values())

    def names_of(self, row: tuple[Hashable, ...], column: Hashable) -> dict[str, Hashable]:
        """The names of an entry's cell by axis.

        Args:
            row: One of `rows`.
            column: One of `columns`.

        Raises:
            ValueError: The table has no such row or column.
        """
        for name, given, known in (("row", row, self.rows), ("column", column, self.columns)):
            if not isinstance(given, Hashable) or given not in known:
                raise ValueError(f"{name} must be one of {known}, got {in_words(given)}")
        return _names_of(self, row, column)

    def with_entries(
        self,
        entries: Mapping[tuple[Any, Any], Entry],
        title: str = "",
        confidence: float | None = None,
    ) -> StudyTable:
        """The table with other entries."""
        title, confidence = title or self.title, confidence or self.confidence
        return StudyTable(title, self.axes, self.column_axis, entries, self._digits, confidence)

    def beside(self, numbers: Mapping[Any, float]) -> StudyTable:
        """The table with published numbers in brackets.

        Args:
            numbers: By (row, column), or by row for the first column.

        Raises:
            TypeError: `numbers` is no mapping, or a value no number.
            ValueError: A number has no place in the table.
        """
        return beside(self, "numbers", numbers)

    def lines(self) -> tuple[list[str], list[list[str]]]:
        """The head, and the lines, as text."""
        axis = self.column_axis
        lines = [[*self.axes, *(f"{axis}={name}" if axis else str(name) for name in self.columns)]]
        for row in self.rows:
            words = list(map(str, row))
            for column in self.columns:
                entry = self.entries.get((row, column))
                digits = 0 if axis is None and column == "rounds" else self._digits
                words.append("" if entry is None else entry.words(digits))
            lines.append(words)
        head, *lines = [[" ".join(word.split()) for word in line] for line in lines]
        return head, lines

    def to_markdown(self) -> str:
        """The table in markdown: its title, the table, and why runs failed."""
        head, lines = self.lines()
        rule = ["---"] * len(self.axes) + ["---:"] * (len(head) - len(self.axes))
        escaped = [[word.replace("|", r"\|") for word in line] for line in (head, rule, *lines)]
        table = ["| " + " | ".join(line) + " |" for line in escaped]
        notes = ["", *self.failures] if self.failures else []
        return "\n".join([self.title, "", *table, *notes])

    @property
    def legend(self) -> str:
        """The meaning of ± and of brackets in the entries; "" if there are none."""
        return " ".join(f"{words[0].upper()}{words[1:]}." for words in self._meanings())

    def _meanings(self) -> list[str]:
        entries, words = self.entries.values(), []
        if any(each.difference is None and not math.isnan(each.std) for each in entries):
            words.append("entries are means ± the sample standard deviation over the seeds")
        if any(each.difference and not math.isnan(each.difference.low) for each in entries):
            words.append(
                f"brackets after a difference hold the {100 * self.confidence:g} % bootstrap "
                "interval of the mean difference over the seeds"
            )
        if any(each.beside is not None for each in entries):
            words.append("single numbers in brackets are published ones")
        return words

    def to_latex(self, label: str | None = None, caption: str | None = None) -> str:
        r"""The table in LaTeX, with the rules of the package booktabs.

        It is a float. The caption ends with a sentence that has the title of the table (the metric
        and the number of seeds) and the meaning of ± and brackets, and with why runs failed.

        Args:
            label: The label, for ``\ref``; None for none.
            caption: The beginning of the caption, as plain text; None for none.

        Raises:
            TypeError: `label` or `caption` is no text.
        """
        optional(text, "label", label)
        optional(text, "caption", caption)
        head, lines = self.lines()
        form = "l" * len(self.axes) + "r" * (len(head) - len(self.axes))
        body = [
            " & ".join(
                [*map(_latex, line[: len(self.axes)]), *map(_latex_numbers, line[len(self.axes) :])]
            )
            + r" \\"
            for line in lines
        ]
        sentences = [caption or "", "; ".join([self.title, *self._meanings()])]
        words = [f"{each.rstrip().removesuffix('.')}." for each in sentences if each.strip()]
        named = [] if label is None else [rf"\label{{{label}}}"]
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{_latex(' '.join([*words, *self.failures]))}}}",
                *named,
                rf"\begin{{tabular}}{{{form}}}",
                r"\toprule",
                " & ".join(map(_latex, head)) + r" \\",
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def to_pandas(self) -> Any:
        """A data frame with a row for each entry: mean, standard deviation, number of runs, ….

        If an axis has the name of one of these, its column is ``axis/<name>``.
        """
        return self._columns().to_pandas()

    def to_csv(self, path: str | Path | None = None) -> str | None:
        """Write the columns of `to_pandas` as CSV.

        Args:
            path: The file; None to return the text.

        Raises:
            OSError: The file cannot be written.
            TypeError: `path` is no path.
        """
        return csv_of(self._columns(), path)

    def _columns(self) -> Any:
        import pyarrow as pa

        own = {"mean", "std", "low", "high", "runs", "failed", "reference"}
        rows = []
        for (row, column), entry in self.entries.items():
            names = _names_of(self, row, column)
            called = column_names(names, own if self.column_axis else own | {"value"})
            shown = entry.difference or Interval(entry.mean, math.nan, math.nan, 0)
            rows.append(
                {
                    **{called[axis]: str(name) for axis, name in names.items()},
                    **({} if self.column_axis else {"value": str(column)}),
                    "mean": shown.mean,
                    "std": entry.std,
                    "low": shown.low,
                    "high": shown.high,
                    "runs": len(entry.values),
                    "failed": len(entry.errors),
                    "reference": math.nan if entry.beside is None else entry.beside,
                }
            )
        return pa.Table.from_pylist(rows)

    def __rich__(self) -> Table:
        head, lines = self.lines()
        notes = "\n".join(self.failures).replace("[", r"\[")
        table = Table(title=self.title, caption=notes or None, caption_justify="left")
        for place, name in enumerate(head):
            table.add_column(name, justify="left" if place < len(self.axes) else "right")
        for line in lines:
            table.add_row(*(word.replace("[", r"\[") for word in line))
        return table

    def __str__(self) -> str:
        head, lines = self.lines()
        widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
        text = ["  ".join(w.ljust(n) for w, n in zip(line, widths, strict=True)).rstrip()
                for line in (head, *lines)]  # fmt: skip
        return "\n".join([self.title, *text, *self.failures])

    def __repr__(self) -> str:
        return f"<StudyTable {self.title!r}: {len(self.rows)} rows, {len(self.columns)} columns>"


def _names_of(
    table: StudyTable, row: tuple[Hashable, ...], column: Hashable
) -> dict[str, Hashable]:
    names = dict(zip(table.axes, row, strict=True))
    return names if table.column_axis is None else {**names, table.column_axis: column}


def beside(table: StudyTable, name: str, numbers: Mapping[Any, float]) -> StudyTable:
    """A table with published numbers in brackets, see `StudyTable.beside`.

    Args:
        table: The table.
        name: Name of the argument that holds the numbers, for errors.
        numbers: The numbers.

    Raises:
        TypeError: They are no mapping, or one is no number.
        ValueError: A number has no place in the table.
    """
    entries = dict(table.entries)
    left = set(mapping(name, numbers, "rows or cells to numbers"))
    for (row, column), entry in table.entries.items():
        sole: Any = row[0] if len(row) == 1 else row
        places = [(sole, column), (row, column)]
        if column == table.columns[0]:
            places += [sole, row]
        for place in places:
            if place in numbers:
                known = number(f"{name}[{place!r}]", numbers[place])
                entries[row, column] = replace(entry, beside=known)
                left.discard(place)
    if left:
        raise ValueError(
            f"{name} has {sorted(map(str, left))}, which are no rows or cells; those are "
            f"{[(row[0] if len(row) == 1 else row, c) for row, c in table.entries][:8]} …"
        )
    return table.with_entries(entries)


def csv_of(table: Any, path: str | Path | None) -> str | None:
    """Write a table of pyarrow as CSV; without a path, return the text."""
    from pyarrow import BufferOutputStream, csv

    if path is not None:
        with replacing(new_file("path", path, "table.csv"), "wb") as file:
            csv.write_csv(table, file)
        return None
    stream = BufferOutputStream()
    csv.write_csv(table, stream)
    return bytes(stream.getvalue()).decode()


def column_names(axes: Iterable[str], own: Collection[str]) -> dict[str, str]:
    """The columns of axes in a data frame, none of which is one of its own columns."""
    return {axis: f"axis/{axis}" if axis in own else axis for axis in axes}


def differences(
    table: StudyTable,
    reference: Hashable,
    names: Mapping[str, Sequence[Hashable]],
    shown: Collection[str],
    confidence: float,
    chosen: Collection[str] = (),
) -> StudyTable:
    """The table with the paired differences from the runs of one value of an axis.

    Args:
        table: The table.
        reference: The value.
        names: The names on each axis.
        shown: The columns from which differences are taken, if columns are no axis.
        confidence: Confidence of the intervals.
        chosen: Axes of which each cell has its own best value; the cells that are compared may
            differ in it.

    Raises:
        ValueError: No axis has such a value, or several have.
    """
    axes = [
        axis
        for axis, values in names.items()
        if isinstance(reference, Hashable) and reference in values
    ]
    if len(axes) != 1:
        raise ValueError(
            f"reference={in_words(reference)} must be the name of a value of one axis, or map "
            f"cells to numbers; it is on {axes or 'none'} of {dict(names)}"
        )
    (axis,) = axes
    entries = dict(table.entries)
    title = f"{table.title}; difference from {axis}={reference}, {confidence:.0%} interval"
    for (row, column), entry in table.entries.items():
        if table.column_axis is None and column not in shown:
            continue
        own = _names_of(table, row, column)
        others = [each for each in own if each != axis and each not in chosen]
        bases = [
            each.values
            for (a_row, a_column), each in table.entries.items()
            if (table.column_axis is not None or a_column == column)
            and (of_it := _names_of(table, a_row, a_column))[axis] == reference
            and all(of_it[other] == own[other] for other in others)
        ]
        if own[axis] == reference or len(bases) != 1:
            continue
        base = bases[0]
        paired = {seed: value - base[seed] for seed, value in entry.values.items() if seed in base}
        known = [each for each in paired.values() if not math.isnan(each)]
        if paired:
            entries[row, f"{column} - {reference}"] = Entry(
                paired,
                difference=bootstrap(known, confidence) if known else None,
                of_target=entry.of_target,
                absent=len(entry.values) + len(entry.errors) + entry.absent - len(paired),
            )
    return table.with_entries(entries, title, confidence)


_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%#_${}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)


def _latex(word: str) -> str:
    return " ".join(word.split()).translate(_LATEX)


def _latex_numbers(entry: str) -> str:
    """An entry; a negative number is in math mode, where a hyphen is a minus sign."""
    return re.sub(r"(?<!\w)-[\d.,]*\d(e[+-]?\d+)?", r"$\g<0>$", _latex(entry))
