"""Published traces of devices: their availability and their speeds."""

from __future__ import annotations

import csv
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedlight._support.checks import non_negative, positive
from fedlight._support.files import existing_file
from fedlight._support.strategy import Summary, digest
from fedlight.arrivals.durations import LONGEST, SHORTEST, DurationModel, Means
from fedlight.arrivals.windows import Window, Windows, first_after, united
from fedlight.events import to_ticks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation

_COLUMNS = ("computation", "communication", "period")
SAMPLE = Path(__file__).parent / "sample_traces.json"


class Device(NamedTuple):
    """The data of one device in a trace.

    Attributes:
        windows: Pairs (start, end) of its availability, in the trace's unit of time; None if the
            trace does not contain it.
        period: The time after which its availability repeats; None for never.
        computation: Milliseconds for one example, or None.
        communication: Kilobits per second, or None.
    """

    windows: list[tuple[float, float]] | None = None
    period: float | None = None
    computation: float | None = None
    communication: float | None = None


def read_traces(path: str | Path) -> list[Device]:
    """Read the traces of devices from a JSON, CSV, Parquet or pickle file.

    A JSON or pickle file holds a mapping from devices to fields, or a list of fields. The fields
    are ``active`` and ``inactive`` (the starts and the ends of the windows), ``finish_time`` (after
    which they repeat), ``computation`` (milliseconds for one example) and ``communication``
    (kilobits per second). These are the names in the traces published with
    [FedScale](https://arxiv.org/abs/2105.11367); a file need not contain all of them. A CSV or
    Parquet file holds the column ``client``, and either ``start`` and ``end`` with a row for each
    window or ``computation`` and ``communication``, and optionally ``period``.

    A pickle may hold only plain data: numbers, strings, lists, dicts. Nothing else is loaded from
    it, so that a file from elsewhere cannot run code.

    Args:
        path: The file; its suffix determines the format.

    Returns:
        The devices, in the order of the file.

    Raises:
        FileNotFoundError: There is no such file.
        TypeError: `path` is not a path.
        ValueError: The file is damaged or has other content; the error names the device or row.

    Example:
        >>> devices = read_traces(SAMPLE)
        >>> len(devices), devices[0].windows[0], devices[0].computation
        (8, (0.0, 21600.0), 12.0)
    """
    path = existing_file("path", path, "file of traces")
    kind = path.suffix.lower()
    if kind not in _READERS:
        raise ValueError(f"path must end in {', '.join(_READERS)}, got {str(path)!r}")
    try:
        content = _READERS[kind](path)
    except _NotPlainError:
        raise
    except Exception as error:
        raise ValueError(f"{str(path)!r} cannot be read as {kind} ({error})") from error
    return (_from_rows if kind in (".csv", ".parquet") else _from_fields)(content, path)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _read_csv(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _read_parquet(path: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()


def _read_pickle(path: Path) -> Any:
    with path.open("rb") as file:
        return _PlainData(file, str(path)).load()


_READERS: dict[str, Callable[[Path], Any]] = {
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".pkl": _read_pickle,
    ".pickle": _read_pickle,
}


def sample_traces() -> list[Device]:
    """Return eight invented devices: phones charging at night, and slower, always available ones.

    The unit of time is a second. The file has the format of the published traces.
    """
    return read_traces(SAMPLE)


class TraceWindows(Windows):
    """The availability of the devices of a trace, for `Availability`.

    Client i is device ``i % D`` of D devices. Its windows repeat after its period. Windows that
    overlap, as in a trace that lists one twice, are one.

    Args:
        devices: The devices returned by `read_traces`.
        unit: Length of one unit of virtual time, in the trace's unit of time: 3600 for hours if the
            trace is in seconds.

    Raises:
        TypeError: `devices` is not a list of devices.
        ValueError: The trace does not contain the availability of a device.

    Example:
        >>> from fedlight.arrivals import Availability, ContinuousArrivals, FixedDurations
        >>> windows = TraceWindows(sample_traces(), unit=3600)
        >>> arrivals = Availability(ContinuousArrivals(FixedDurations([1.0] * 8)), windows)
    """

    def __init__(self, devices: list[Device], unit: float = 1.0) -> None:
        self.unit = unit = positive("unit", unit)
        _check_devices(devices)
        self._devices: list[tuple[list[Window], int | None]] = []
        for number, device in enumerate(devices):
            if device.windows is None:
                raise ValueError(
                    f"device {number} of the trace has no windows (active and inactive, or the "
                    "columns start and end), so its availability is unknown"
                )
            windows = [Window(to_ticks(a / unit), to_ticks(b / unit)) for a, b in device.windows]
            windows = united(window for window in windows if window.end > window.start)
            period = None if device.period is None else to_ticks(device.period / unit)
            self._devices.append((windows, period))

    def find(self, client: int, ticks: int) -> Window | None:
        """The first window that ends after `ticks`, or None."""
        windows, period = self._devices[client % len(self._devices)]
        if not windows:
            return None
        if period is None:
            return first_after(windows, ticks)
        begin = ticks - ticks % period
        found = first_after(windows, ticks - begin)
        if found is None:  # the first one of the next period
            begin, found = begin + period, windows[0]
        return Window(begin + found.start, begin + found.end)

    def over(self, ticks: int) -> bool:
        """Whether no device has a window left."""
        return all(
            not windows or (period is None and windows[-1].end <= ticks)
            for windows, period in self._devices
        )

    def _kept_otherwise(self) -> dict[str, Any]:
        return {"devices": Summary(f"{len(self._devices)} devices, {digest(self._devices)}")}


class TraceDurations(DurationModel):
    """The time of computation and transfer on the devices of a trace.

    ``T_i = (passes * b_i * K * computation / 1000 + 8 nbytes / (1000 * communication)) / unit``
    with b_i examples for each of K local steps, `computation` in milliseconds per example and
    `communication` in kilobits per second. Client i is device ``i % D`` of D devices.

    Args:
        devices: The devices returned by `read_traces`.
        nbytes: Bytes of a task in both directions.
        passes: Cost of a training step relative to inference, which published traces measure;
            FedScale uses 3.
        unit: Seconds per unit of virtual time.

    Raises:
        TypeError: `devices` is not a list of devices, or an argument is not a number.
        ValueError: The trace does not contain the speed of a device.

    Source: Lai et al., [FedScale: Benchmarking Model and System Performance of Federated Learning
    at Scale](https://arxiv.org/abs/2105.11367).

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals
        >>> arrivals = ContinuousArrivals(TraceDurations(sample_traces(), nbytes=1e6))
    """

    uses_rng = False

    def __init__(
        self, devices: list[Device], nbytes: float = 0.0, passes: float = 3.0, unit: float = 1.0
    ) -> None:
        _check_devices(devices)
        self.nbytes = non_negative("nbytes", nbytes)
        self.passes, self.unit = positive("passes", passes), positive("unit", unit)
        self._per_example: list[float] = []
        self._transfer: list[float] = []
        for number, device in enumerate(devices):
            if device.computation is None or (device.communication is None and self.nbytes):
                raise ValueError(
                    f"device {number} of the trace lacks computation or communication, so its "
                    "speed is unknown"
                )
            self._per_example.append(self.passes * device.computation / 1000 / self.unit)
            seconds = 8 * self.nbytes / (1000 * (device.communication or 1.0))
            self._transfer.append(seconds / self.unit)

    def draw(
        self,
        rng: np.random.Generator,
        client_id: int,
        num_steps: int,
        federation: Federation,
        starts_at: float,
    ) -> float:
        """T_i."""
        device = client_id % len(self._transfer)
        examples = min(federation.batch_size, int(federation.num_examples[client_id])) * num_steps
        duration = self._per_example[device] * examples + self._transfer[device]
        return min(max(SHORTEST, duration), LONGEST)

    def expected(self, federation: Federation, num_steps: Means = None) -> Means:
        """T_i for the mean number of local steps, or None if that is unknown."""
        if num_steps is None:
            return None
        device = np.arange(federation.num_clients) % len(self._transfer)
        batch = np.minimum(federation.batch_size, federation.num_examples)
        times: NDArray[np.float64] = np.array(self._transfer)[device]
        times += np.array(self._per_example)[device] * batch * num_steps
        return times

    def _kept_otherwise(self) -> dict[str, Any]:
        numbers = digest([self._per_example, self._transfer])
        return {"devices": Summary(f"{len(self._transfer)} devices, {numbers}")}


class _NotPlainError(ValueError):
    """A pickle holds more than plain data."""


class _PlainData(pickle.Unpickler):
    """Loads numbers, strings and containers of them, and nothing that could run code."""

    def __init__(self, file: Any, name: str) -> None:
        super().__init__(file)
        self._name = name

    def find_class(self, module: str, name: str) -> Any:
        """Refuse every class and function.

        Raises:
            ValueError: Always.
        """
        raise _NotPlainError(
            f"{self._name!r} holds {module}.{name}, but a pickle of traces may hold plain data "
            "only; if you trust it, load it yourself and write it as JSON"
        )


def _from_fields(content: Any, path: Path) -> list[Device]:
    """The devices of a mapping, or of a list, of fields."""
    devices = list(content.values()) if isinstance(content, Mapping) else content
    if not isinstance(devices, list) or not devices:
        raise ValueError(f"{str(path)!r} must hold a mapping from device to fields, or a list")
    return [_device(each, f"device {n} of {str(path)!r}") for n, each in enumerate(devices)]


def _device(fields: Any, where: str) -> Device:
    known = {"active", "inactive", "finish_time", "computation", "communication"}
    if not isinstance(fields, Mapping) or not known & fields.keys():
        raise ValueError(
            f"{where} must be a mapping with some of {', '.join(sorted(known))}, "
            f"got {fields!r:.100}"
        )
    windows = None
    names = ("finish_time", "computation", "communication")
    try:
        numbers = [_number(fields.get(name)) for name in names]
        starts, ends = (
            [float(time) for time in fields.get(name, ())] for name in ("active", "inactive")
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where} must have numbers only ({error})") from None
    if "active" in fields:
        if len(starts) != len(ends):
            raise ValueError(
                f"{where} must have as many ends (inactive) as starts (active), got {len(ends)} "
                f"and {len(starts)}"
            )
        windows = list(zip(starts, ends, strict=True))
    return _checked(Device(windows, *numbers), where)


def _from_rows(rows: list[dict[str, Any]], path: Path) -> list[Device]:
    """The devices of a table."""
    columns = set(rows[0]) if rows else set()
    if "client" not in columns or not {"start", "computation"} & columns:
        raise ValueError(
            f"{str(path)!r} must have the column client, and start and end or computation and "
            f"communication, got {sorted(columns)}"
        )
    devices: dict[Any, Device] = {}
    for row in rows:
        device = devices.get(row["client"], Device([] if "start" in columns else None))
        try:
            if device.windows is not None:
                device.windows.append((float(row["start"]), float(row["end"])))
            given: dict[str, Any] = {n: _number(row[n]) for n in _COLUMNS if n in columns}
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"a row of {str(path)!r} must hold numbers, got {row}") from None
        devices[row["client"]] = device._replace(**given)
    found = enumerate(devices.values())
    return [_checked(device, f"device {n} of {str(path)!r}") for n, device in found]


def _checked(device: Device, where: str) -> Device:
    for start, end in device.windows or []:
        if not 0 <= start <= end < LONGEST * 1e6:
            raise ValueError(
                f"{where} must have windows with 0 <= start <= end, got ({start:g}, {end:g})"
            )
    for name in ("period", "computation", "communication"):
        value = device._asdict()[name]
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{where} must have a {name} above 0, got {value!r}")
    if device.period is not None and any(end > device.period for _, end in device.windows or []):
        raise ValueError(f"{where} has a window that ends after its period {device.period:g}")
    return device


def _number(value: Any) -> float | None:
    return None if value is None or value == "" else float(value)


def _check_devices(devices: object) -> None:
    if not isinstance(devices, list) or not devices or not isinstance(devices[0], Device):
        raise TypeError(
            f"devices must be a list as returned by read_traces, got {devices!r:.100}; for example "
            "read_traces('traces.json')"
        )
