"""Reads a log of devices: a CSV file with a row for each local run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fedlight._support.checks import (
    items,
    number,
    one_of,
    optional,
    positive,
    positive_int,
    shown,
    word,
)
from fedlight._support.files import existing_file
from fedlight.arrivals.table import ReplayEvent
from fedlight.events import MAX_TICKS, TICKS_PER_UNIT

if TYPE_CHECKING:
    from numpy.typing import NDArray

Clients: TypeAlias = Literal["names"] | Iterable[object] | None

_MISSING = ["", "nan", "NaN", "NA", "N/A", "null", "NULL", "None", "NaT"]


class DeviceLog(NamedTuple):
    """The content of a log.

    Attributes:
        events: A record for each row, in the order of arrivals.
        clients: The data client of each name.
        left_out: How many rows were left out since they lack a value.
        overlaps: How many local runs start before an earlier one of their client has ended.
    """

    events: list[ReplayEvent]
    clients: dict[str, int]
    left_out: int
    overlaps: int


class _Times(NamedTuple):
    """A column of times.

    Attributes:
        values: The times: numbers, or nanoseconds since 1970 if the column has timestamps.
        scale: 1 for numbers, nanoseconds per second for timestamps.
    """

    values: NDArray[Any]
    scale: float


def read_device_log(
    path: str | Path,
    *,
    client: str,
    start: str,
    duration: str | None,
    end: str | None,
    steps: str | int,
    unit: float,
    duration_unit: float,
    origin: float | str | None,
    clients: Clients,
    overlap: str,
    missing: str,
    sep: str,
) -> DeviceLog:
    """Read a log; see `ReplayArrivals.from_csv`."""
    word("client", client)
    word("start", start)
    optional(word, "duration", duration)
    optional(word, "end", end)
    if sep is not None and len(word("sep", sep)) != 1 and sep not in (r"\s+", r"\t"):
        raise ValueError(f"sep must be one character, got {sep!r}")
    if (duration is None) == (end is None):
        raise ValueError(
            "either duration= or end= must name the column that says how long a local run took, "
            f"got duration={duration!r} and end={end!r}"
        )
    unit, duration_unit = positive("unit", unit), positive("duration_unit", duration_unit)
    one_of("overlap", overlap, ("raise", "keep"))
    one_of("missing", missing, ("raise", "drop"))
    named = {"client": client, "start": start, "duration": duration, "end": end}
    if isinstance(steps, str):
        named["steps"] = steps
    columns = {argument: name for argument, name in named.items() if name is not None}
    rows = _Rows(path, columns, sep)
    left_out, why = rows.drop_missing(missing, client, list(columns.values()))

    starts = rows.times(start)
    given, origin = origin, _origin(starts, origin)
    begin = (starts.values - origin) / starts.scale
    if end is not None:
        ends = rows.times(end)
        if ends.scale != starts.scale:
            raise ValueError(
                f"the columns start={start!r} and end={end!r} of {str(path)!r} must both have "
                "numbers or both have timestamps; if one of them is a duration, write duration="
            )
        finish = (ends.values - origin) / ends.scale
    else:
        assert duration is not None
        finish = begin + rows.numbers(duration) * duration_unit
    begin, finish = (np.round(times / unit * TICKS_PER_UNIT) for times in (begin, finish))
    how = f"unit={unit:g}, duration_unit={duration_unit:g}, origin={given!r}"
    rule = "must be after its start" if end is not None else "must be larger than 0"
    rule += f" by at least 1e-9 virtual time ({how})"
    rows.refuse(finish <= begin, end or duration or "", rule)
    rows.check_ticks(begin, start, how)
    rows.check_ticks(finish, start, how)

    index, names = rows.clients(client, clients)
    overlaps = _overlaps(rows, client, index, begin, finish, keep=overlap == "keep")
    made = positive_int("steps", steps) if not isinstance(steps, str) else rows.whole(steps)
    order = np.lexsort((begin, index, finish))
    times = ((each[order] / TICKS_PER_UNIT).tolist() for each in (begin, finish))
    counts = np.broadcast_to(made, order.shape)[order].tolist()
    events = [
        ReplayEvent(who, None, until, count, since)
        for who, count, since, until in zip(index[order].tolist(), counts, *times, strict=True)
    ]
    told = []
    if left_out:
        told.append(f"{left_out} of {left_out + len(events)} rows are left out ({why})")
    if overlaps:
        told.append(f"local runs that overlap an earlier one of their device: {overlaps}")
    if told:
        from lightning.pytorch.utilities import rank_zero_info  # it loads torch

        rank_zero_info(f"fedlight: {str(path)!r}: {'; '.join(told)}")
    return DeviceLog(events, names, left_out, overlaps)


class _Rows:
    """The columns of a file as text, with errors that name row and column."""

    def __init__(self, path: str | Path, columns: Mapping[str, str], sep: str) -> None:
        import pandas as pd

        file = existing_file("path", path, "log")
        self._name = repr(str(path))
        try:
            table = pd.read_csv(
                file,
                dtype=str,
                sep=sep,
                keep_default_na=False,
                skip_blank_lines=False,
                skipinitialspace=True,
                index_col=False,
                encoding="utf-8-sig",
            )
        except (ValueError, OSError) as error:  # pandas' own errors are ValueErrors
            raise ValueError(f"{self._name} cannot be read as CSV ({error})") from error
        table.columns = table.columns.str.strip()
        for argument, name in columns.items():
            if name not in table.columns:
                near = get_close_matches(name, list(table.columns), n=1)
                raise ValueError(
                    f"{argument}={name!r} is not a column of {self._name}, which has "
                    f"{list(table.columns)}{f'; did you mean {near[0]!r}?' if near else ''}"
                    f"{f' with sep={sep!r}' if len(table.columns) == 1 else ''}"
                )
        table = table[list(dict.fromkeys(columns.values()))].fillna("")
        table = table.apply(lambda column: column.str.strip())
        self._table = table[(table != "").any(axis=1)]  # without blank lines
        self._check_that_there_are_rows()

    def refuse(self, wrong: Any, column: str, rule: str) -> None:
        """Raise the error for the first of the rows that break a rule, if there are any."""
        wrong = np.asarray(wrong)
        if wrong.any():
            row, more = int(wrong.argmax()), int(wrong.sum()) - 1
            others = f" (and {more} more row{'s' * (more > 1)})" if more else ""
            raise ValueError(
                f"{self.where(row)}, column {column!r}: the value {rule}, "
                f"got {self.value(row, column)!r}{others}"
            )

    def value(self, row: int, column: str) -> str:
        """The text of a row in a column."""
        return str(self._table[column].iloc[row])

    def where(self, row: int) -> str:
        """The place of a row, for errors; the first row is the one below the header."""
        place = int(self._table.index[row])
        return f"row {place + 1} of {self._name} (line {place + 2})"

    def drop_missing(self, missing: str, client: str, columns: list[str]) -> tuple[int, str]:
        """Leave out the rows without a value, or refuse them; return their number and the cause."""
        empty = self._table[columns].isin(_MISSING)
        empty[client] = self._table[client] == ""  # "NA" may be a name
        lacking = [column for column in columns if empty[column].any()]
        if missing == "raise":
            for column in lacking:
                rule = 'must not be missing (write missing="drop" to leave such rows out)'
                self.refuse(empty[column], column, rule)
        incomplete = empty.any(axis=1)
        self._table = self._table[~incomplete]
        self._check_that_there_are_rows()
        return int(incomplete.sum()), f"no {' or '.join(map(repr, lacking))}"

    def _check_that_there_are_rows(self) -> None:
        if self._table.empty:
            raise ValueError(f"{self._name} must have at least one complete row below its header")

    def numbers(self, column: str) -> NDArray[np.float64]:
        """A column of finite numbers."""
        import pandas as pd

        found = pd.to_numeric(self._table[column], errors="coerce").to_numpy(np.float64)
        self.refuse(~np.isfinite(found), column, "must be a finite number")
        return np.asarray(found)

    def whole(self, column: str) -> NDArray[np.int64]:
        """A column of integers of at least 1."""
        found = self.numbers(column)
        wrong = (found < 1) | (found != np.floor(found)) | (found > 2**31)
        self.refuse(wrong, column, "must be an integer of at least 1")
        return found.astype(np.int64)

    def times(self, column: str) -> _Times:
        """A column of numbers, or of timestamps if its first value is no number."""
        import pandas as pd

        text = self._table[column]
        if pd.notna(pd.to_numeric(text.iloc[:1], errors="coerce")).all():
            return _Times(self.numbers(column), 1.0)
        stamps = pd.to_datetime(text, errors="coerce", utc=True, format="ISO8601")
        rule = "must be a number, or a timestamp such as 2026-05-01T13:45:00Z (ISO 8601)"
        self.refuse(stamps.isna(), column, f"{rule}, of one kind in all rows")
        return _Times(stamps.dt.as_unit("ns").astype("int64").to_numpy(), 1e9)

    def check_ticks(self, ticks: NDArray[np.float64], column: str, how: str) -> None:
        """Check that times lie between virtual time 0 and the largest one; `how` they are read."""
        units = ticks / TICKS_PER_UNIT
        early, late = ticks < 0, ticks > MAX_TICKS
        rule = (
            f"must be at or after virtual time 0, which is {-units[early.argmax()]:g} units later"
        )
        self.refuse(early, column, f'{rule} (write origin="first" for the earliest start; {how})')
        most = MAX_TICKS // TICKS_PER_UNIT
        rule = f"must be at most {most} units of virtual time, not {units[late.argmax()]:g}"
        self.refuse(late, column, f'{rule} (write origin="first", or a larger unit; {how})')

    def clients(self, column: str, clients: Clients) -> tuple[NDArray[np.int64], dict[str, int]]:
        """The data client of each row and of each name."""
        import pandas as pd

        codes, found = pd.factorize(self._table[column], sort=True)
        names = pd.Series(found)
        places = np.arange(len(names))
        are_numbers = names.str.fullmatch(r"0|[1-9]\d{0,17}").all()
        if clients is None or (isinstance(clients, str) and clients == "names"):
            if are_numbers:
                numbers = names.astype("int64").to_numpy()
                places = numbers if clients is None else numbers.argsort().argsort()
        elif isinstance(clients, str | bytes) or not isinstance(clients, Iterable):
            raise TypeError(
                'clients must be a list of names in the order of the data\'s clients, "names" or '
                f"None, got {clients!r}"
            )
        else:
            listed = [str(name) for name in items("clients", clients)]
            given = {name: place for place, name in enumerate(listed)}
            if len(given) < len(listed):
                ((twice, _),) = Counter(listed).most_common(1)
                raise ValueError(f"clients must hold each name once, got {twice!r} more than once")
            places = names.map(given).fillna(-1).to_numpy(np.int64)
            unknown = places[codes] < 0
            rule = f"must be one of the {len(given)} names in clients={shown(listed)}"
            self.refuse(unknown, column, rule)
        order = places.argsort()
        by_name = zip(names.iloc[order].tolist(), places[order].tolist(), strict=True)
        return places[codes], dict(by_name)


def _origin(starts: _Times, origin: float | str | None) -> Any:
    """The time of the log at which virtual time is 0, in the unit of its values."""
    stamps = starts.scale != 1
    if (origin is None and stamps) or (isinstance(origin, str) and origin == "first"):
        return starts.values.min()
    if not stamps:
        return number("origin", 0.0 if origin is None else origin)
    import pandas as pd

    try:
        moment = pd.to_datetime(str(origin), utc=True, format="ISO8601").as_unit("ns")
    except (ValueError, TypeError) as error:
        raise ValueError(
            "origin must be a timestamp such as '2026-05-01T00:00:00Z', because the column of "
            f'starts has timestamps, or "first", got {origin!r}'
        ) from error
    return moment.value


def _overlaps(
    rows: _Rows,
    column: str,
    index: NDArray[np.int64],
    begin: NDArray[np.float64],
    finish: NDArray[np.float64],
    keep: bool,
) -> int:
    """Count the local runs that start before an earlier one of their client has ended.

    Raises:
        ValueError: There are some, and they are not kept.
    """
    import pandas as pd

    order = np.lexsort((finish, begin, index))
    same = index[order][1:] == index[order][:-1]
    busy = pd.Series(finish[order]).groupby(index[order]).cummax().to_numpy()
    found = same & (begin[order][1:] < busy[:-1])
    count = int(found.sum())
    if count and not keep:
        place = int(found.argmax())  # the client's first overlap: it is with the run just before
        one, other = int(order[place]), int(order[place + 1])
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise ValueError(
            f"{rows.value(other, column)!r} starts in {rows.where(other)} before its run of "
            f'{rows.where(one)} has ended{more}; write overlap="keep" to replay both at once'
        )
    return count
