"""Reading traces: the same devices in four formats, and nothing but plain data of a pickle."""

import csv
import json
import os
import pickle
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlight.arrivals import (
    Availability,
    ContinuousArrivals,
    FixedDurations,
    TraceDurations,
    TraceWindows,
    read_traces,
    sample_traces,
)
from fedlight.arrivals.windows import Window
from fedlight.events import to_ticks
from fedlight.types import Federation

FIELDS = {
    17: {"active": [0, 8], "inactive": [2, 9.5], "finish_time": 10, "model": "a phone"},
    4: {"active": [3], "inactive": [5], "finish_time": 8},
}


def test_one_trace_in_four_formats(tmp_path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(FIELDS))
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(FIELDS))
    rows = [
        {"client": client, "start": start, "end": end, "period": fields["finish_time"]}
        for client, fields in FIELDS.items()
        for start, end in zip(fields["active"], fields["inactive"], strict=True)
    ]
    with open(tmp_path / "a.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = [read_traces(tmp_path / f"a.{kind}") for kind in ("json", "pkl", "csv", "parquet")]
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0][0].windows == [(0.0, 2.0), (8.0, 9.5)]
    assert [device.period for device in found[0]] == [10.0, 8.0]


class Runs:
    def __reduce__(self):
        return os.system, ("touch harm",)


@pytest.mark.parametrize("harm", [Runs(), np.float64(1.0), pytest.raises])
def test_a_pickle_runs_nothing(harm, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pickle").write_bytes(pickle.dumps({0: {"computation": harm}}))
    with pytest.raises(ValueError, match="may hold plain data only"):
        read_traces("a.pickle")
    assert not (tmp_path / "harm").exists()


def test_windows_repeat_with_the_period_of_each_device(tmp_path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(FIELDS))
    windows = TraceWindows(read_traces(tmp_path / "a.json"))

    def find(client: int, time: float) -> tuple[float, float]:
        window = windows.find(client, to_ticks(time))
        return window.start / 1e9, window.end / 1e9

    assert [find(0, t) for t in (1, 2, 9.5, 30)] == [(0, 2), (8, 9.5), (10, 12), (30, 32)]
    assert [find(1, t) for t in (0, 5, 12)] == [(3, 5), (11, 13), (11, 13)]
    assert find(2, 1) == find(0, 1)
    hours = TraceWindows(read_traces(tmp_path / "a.json"), unit=2.0)
    assert hours.find(0, to_ticks(4.0)) == Window(to_ticks(4), to_ticks(4.75))
    arrivals = Availability(ContinuousArrivals(FixedDurations([1.0, 1.0]), local_steps=1), windows)
    table = arrivals.simulate(2, buffer_size=1, max_time=14)
    starts = [event.dispatched_at for event in table.events if event.client == 1]
    assert starts == [3, 4, 11, 12]


def test_windows_without_a_period_end(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("client,start,end\n0,1,2\n1,3,4\n")
    windows = TraceWindows(read_traces(tmp_path / "a.csv"))
    assert windows.find(0, to_ticks(2)) is None
    assert not windows.over(to_ticks(3.9))
    assert windows.over(to_ticks(4))


def test_speeds_by_hand(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("client,computation,communication\n0,10,8\n1,20,16\n")
    devices = read_traces(tmp_path / "a.csv")
    federation = Federation(3, np.array([100, 100, 5]), batch_size=10)
    durations = TraceDurations(devices, nbytes=2000, passes=3)
    # 3 * 10 ms * 10 examples * 2 steps + 16 kbit at 8 kbit/s
    found = [durations.draw(None, client, 2, federation, 0.0) for client in range(3)]
    assert found == pytest.approx([0.6 + 2.0, 1.2 + 1.0, 0.3 + 2.0])
    expected = durations.expected(federation, np.array([2.0, 2.0, 2.0]))
    np.testing.assert_allclose(expected, found)
    minutes = TraceDurations(devices, nbytes=2000, unit=60)
    assert minutes.draw(None, 0, 2, federation, 0.0) == pytest.approx(2.6 / 60)


def test_the_sample_is_used_as_it_is() -> None:
    devices = sample_traces()
    arrivals = Availability(
        ContinuousArrivals(TraceDurations(devices, nbytes=1e6), concurrency=3, local_steps=5),
        TraceWindows(devices),
    )
    table = arrivals.simulate(20, buffer_size=2, max_time=2 * 86400, num_examples=50, batch_size=20)
    assert len({event.client for event in table.events}) == 20
    with pytest.raises(ValueError, match="has no windows"):
        TraceWindows([devices[0]._replace(windows=None)])
    with pytest.raises(ValueError, match="lacks computation or communication"):
        TraceDurations([devices[0]._replace(computation=None)])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "{", "a.json' cannot be read as .json (Expecting property name"),
        ("a.pkl", "garbage", "a.pkl' cannot be read as .pkl ("),
        ("a.pickle", "", "a.pickle' cannot be read as .pickle ("),
        ("a.parquet", "PAR1", "a.parquet' cannot be read as .parquet ("),
        ("a.json", '[{"active": 5, "inactive": 6}]', "device 0 of"),
        ("a.json", '[{"active": ["x"], "inactive": [6]}]', "must have numbers only (could not"),
        ("a.json", '[{"computation": 1}, {"computation": "fast"}]', "device 1 of"),
        ("a.json", "[]", "must hold a mapping from device to fields"),
        ("a.json", '[{"speed": 1}]', "must be a mapping with some of active, communication"),
        ("a.json", '[{"active": [1], "inactive": []}]', "as many ends (inactive) as starts"),
        ("a.json", '[{"active": [2], "inactive": [1]}]', "with 0 <= start <= end, got (2, 1)"),
        ("a.json", '[{"active": [-1], "inactive": [1]}]', "with 0 <= start <= end, got (-1, 1)"),
        ("a.json", '[{"computation": 0}]', "must have a computation above 0, got 0.0"),
        (
            "a.json",
            '[{"active": [1], "inactive": [9], "finish_time": 8}]',
            "a window that ends after its period 8",
        ),
        ("a.csv", "client,begin\n0,1\n", "must have the column client, and start and end"),
        ("a.csv", "client,start,end\n0,one,2\n", "must hold numbers, got"),
        ("a.txt", "", "path must end in .json, .csv, .parquet, .pkl, .pickle, got"),
    ],
)
def test_bad_files(name, text, words, tmp_path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(words)):
        read_traces(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no file of traces"):
        read_traces(tmp_path / "none.json")
    with pytest.raises(TypeError, match=r"path must be a path, got 3 \(int\)"):
        read_traces(3)
    with pytest.raises(TypeError, match="devices must be a list as returned by read_traces"):
        TraceWindows(str(tmp_path / name))
