"""The runs of a study by the names of their cells on some axes."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedlight._support.checks import names as names_of
from fedlight._support.checks import shown
from fedlight.studies.tables import column_names

if TYPE_CHECKING:
    from fedlight.studies.runs import StudyRun

Names = Mapping[str, Sequence[Hashable]]  # on each axis

_NO_VALUE = "-"
"""The name of a cell on an axis that its grid does not have."""


def on_common_axes(
    runs: Sequence[StudyRun],
) -> tuple[list[StudyRun], dict[str, list[Hashable]]]:
    """Runs that all have the same axes, also those of a folder of several grids; and the names."""
    axes: dict[str, dict[Hashable, None]] = {}
    for run in runs:
        for axis, name in run.cell.items():
            axes.setdefault(axis, {})[name] = None
    found = list(runs)
    if any(run.cell.keys() != axes.keys() for run in runs):
        for axis in axes:
            if any(axis not in run.cell for run in runs):
                axes[axis][_NO_VALUE] = None
        found = [
            replace(run, cell={axis: run.cell.get(axis, _NO_VALUE) for axis in axes})
            for run in runs
        ]
    return found, {axis: list(names) for axis, names in axes.items()}


def called(axis: str, name: Hashable) -> str:
    """A name on an axis for a legend: a number says nothing without its axis."""
    return str(name) if isinstance(name, str) else f"{axis}={name}"


def check_axis(names: Names, argument: str, axis: object) -> None:
    """Check that the study has an axis.

    Raises:
        ValueError: There is no such axis.
    """
    if not holds(names, axis):
        raise ValueError(
            f"{argument} must be an axis of the study, {list(names)}, got {shown(axis)}"
        )


def holds(names: Collection[Hashable], name: object) -> bool:
    """Whether a name is one of several; lists and arrays are no names."""
    return isinstance(name, Hashable) and name in names


def row_axes(
    names: Names,
    rows: str | Sequence[str] | None,
    columns: str | None,
    chosen: Collection[str] = (),
) -> list[str]:
    """The axes of the rows, which together with that of the columns are all axes.

    Those `chosen` may be left out, since each cell of the others has one value on them.

    Raises:
        TypeError: `rows` is no list.
        ValueError: There is no such axis, or one of several values is left over.
    """
    if columns is not None:
        check_axis(names, "columns", columns)
    if rows is None:
        return [axis for axis in names if axis != columns]
    axes = [rows] if isinstance(rows, str) else names_of("rows", rows)
    for axis in axes:
        check_axis(names, "rows", axis)
    if columns in axes:
        raise ValueError(f"the axis {columns!r} must be in rows or columns, not in both")
    shown = (*axes, columns, *chosen)
    left = [each for each in names if each not in shown and len(names[each]) > 1]
    if left:
        raise ValueError(
            f"the axis {left[0]!r} is in neither rows={axes!r} nor columns; its values are "
            f"different settings, of which no mean is taken: write rows={[*axes, *left]!r}, or "
            f"study.only({left[0]}=…)"
        )
    return axes


def grouped(
    runs: Sequence[StudyRun], axes: Sequence[str]
) -> dict[tuple[Hashable, ...], list[StudyRun]]:
    """Runs by their names on some axes."""
    found: dict[tuple[Hashable, ...], list[StudyRun]] = {}
    for run in runs:
        found.setdefault(tuple(run.cell[axis] for axis in axes), []).append(run)
    return found


def rounds_of(runs: Sequence[StudyRun], names: Names) -> Any:
    """A table of pyarrow with a row for each round of each run."""
    import pyarrow as pa

    rounds = [(run, record) for run in runs for record in run.history]
    metrics = dict.fromkeys(name for _, record in rounds for name in record.metrics)
    called = column_names(names, {"seed", "round", *metrics})
    columns: dict[str, list[Any]] = {}
    for axis, values in names.items():
        cells = [run.cell[axis] for run, _ in rounds]
        # A column of a data frame has one type.
        mixed = len(set(map(type, values))) > 1
        columns[called[axis]] = list(map(str, cells)) if mixed else cells
    columns["seed"] = [run.seed for run, _ in rounds]
    columns["round"] = [record.version for _, record in rounds]
    columns |= {name: [record.metrics.get(name) for _, record in rounds] for name in metrics}
    return pa.table(columns)
