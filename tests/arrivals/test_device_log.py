"""Logs of devices: times in any unit, names of clients, and errors that name row and column."""

import gzip
import sys

import pytest

from fedlight.arrivals import ReplayArrivals

HEADER = "device,started,took,ended,k\n"


def read(tmp_path, text, **options):
    """A log with the columns of `HEADER`, or with its own."""
    path = tmp_path / "log.csv"
    path.write_text(text if text.startswith("device") else HEADER + text)
    given = {"client": "device", "start": "started"}
    if "end" not in options:
        given["duration"] = "took"
    return ReplayArrivals.from_csv(path, **given | options)


def runs(arrivals):
    return [(e.client, e.dispatched_at, e.time, e.num_steps) for e in arrivals.events]


def test_rows_in_any_order_become_records_in_the_order_of_arrivals(tmp_path):
    text = "b,2,3,,7\na,0,4,,5\nb,0,1,,6\n"
    arrivals = read(tmp_path, text, steps="k")
    assert runs(arrivals) == [(1, 0.0, 1.0, 6), (0, 0.0, 4.0, 5), (1, 2.0, 5.0, 7)]
    assert arrivals.pull == "newest"
    assert arrivals.clients == {"a": 0, "b": 1}
    sorted_rows = HEADER + "".join(sorted(text.splitlines(keepends=True)))
    assert repr(read(tmp_path, sorted_rows, steps="k")) == repr(arrivals)


def test_devices_pull_the_newest_version_at_their_start(tmp_path, drive):
    def log():
        return read(tmp_path, "a,0,1,,\nb,0.5,2,,\na,1.5,0.25,,\n", steps=2)

    lines, tasks = drive(log, 2, buffer_size=1)
    assert [(t.client_id, t.dispatched_at, t.pulled_version) for t in tasks] == [
        (0, 0.0, 0),
        (1, 0.5, 0),
        (0, 1.5, 1),
    ]
    assert [(x.now, x.task.client_id, x.version) for x in lines if x.task] == [
        (1.0, 0, 1),
        (1.75, 0, 2),
        (2.5, 1, 3),
    ]


@pytest.mark.parametrize(
    ("row", "options", "expected"),
    [
        ("a,90,30,,", {"unit": 60}, (1.5, 2.0)),
        ("a,90,30,,", {"unit": 60, "origin": 60}, (0.5, 1.0)),
        ("a,90,30,,", {"origin": "first"}, (0.0, 30.0)),
        ("a,90,1500,,", {"duration_unit": 0.001}, (90.0, 91.5)),
        ("a,1767225600.5,1,,", {"origin": 1767225600}, (0.5, 1.5)),
        ("a,0.1,0.2,,", {}, (0.1, 0.3)),
        ("a, 1e3 ,1,,", {}, (1000.0, 1001.0)),
        ("a,90,,120,", {"end": "ended", "unit": 60}, (1.5, 2.0)),
        ("a,2026-05-01T10:00:00,1.5,,", {}, (0.0, 1.5)),
        ("a,2026-05-01 10:00:00.25Z,,2026-05-01 11:00:00.75Z,", {"end": "ended"}, (0.0, 3600.5)),
        ("a,2026-05-01T12:00+02:00,,2026-05-01T11:00Z,", {"end": "ended"}, (0.0, 3600.0)),
        ("a,2026-05-01T10:00Z,9,,", {"origin": "2026-05-01T09:00Z", "unit": 3600}, (1.0, 1.0025)),
    ],
)
def test_times_of_any_unit(row, options, expected, tmp_path):
    ((_, start, end, _),) = runs(read(tmp_path, row, **options))
    assert (start, end) == expected


@pytest.mark.parametrize(
    ("rows", "clients", "expected"),
    [
        ("10,10,9", None, {"9": 9, "10": 10}),
        ("10,10,9", "names", {"9": 0, "10": 1}),
        ("d10,d10,d9", None, {"d10": 0, "d9": 1}),
        ("NA,NA,x", None, {"NA": 0, "x": 1}),
        ("007,007,7", None, {"007": 0, "7": 1}),
        ("b,b,a", ["c", "b", "a"], {"b": 1, "a": 2}),
        ("7,7,3", [3, 5, 7], {"3": 0, "7": 2}),
        (" b,b,Zoë ", None, {"Zoë": 0, "b": 1}),
    ],
)
def test_names_of_clients(rows, clients, expected, tmp_path):
    first, again, other = rows.split(",")
    log = f"{first},0,1,,\n{again},2,1,,\n{other},0,3.5,,\n"
    arrivals = read(tmp_path, log, clients=clients)
    assert arrivals.clients == expected
    names = [name.strip() for name in (first, again, other)]
    assert [event.client for event in arrivals.events] == [expected[name] for name in names]


def test_a_log_with_more_clients_than_the_data_is_refused(tmp_path, federation):
    arrivals = read(tmp_path, "4,0,1,,\n9,0,1,,\n")
    arrivals.setup(federation(10))
    says = r"client '9' is client 9, but the data have only 9 clients .*clients=\"names\""
    with pytest.raises(ValueError, match=says):
        arrivals.setup(federation(9))
    read(tmp_path, "4,0,1,,\n9,0,1,,\n", clients="names").setup(federation(2))


def test_overlaps(tmp_path, drive, caplog):
    text = "b,0,1,,\na,0,3,,\na,2,2,,\na,4,1,,\n"
    says = (
        r"'a' starts in row 3 of .* \(line 4\) before its run of row 2 .*has ended; write overlap"
    )
    with pytest.raises(ValueError, match=says):
        read(tmp_path, text)
    with caplog.at_level("INFO"):
        _, tasks = drive(lambda: read(tmp_path, text, overlap="keep"), 2, buffer_size=1)
    assert [t.dispatched_at for t in tasks if t.client_id == 0] == [0.0, 2.0, 4.0]
    assert "log.csv': local runs that overlap an earlier one of their device: 1" in caplog.text


def test_a_run_that_overlaps_one_before_the_last_counts(tmp_path):
    text = "a,0,9,,\na,1,1,,\na,3,1,,\nb,3,9,,\nb,4,1,,\na,9,1,,\n"
    assert read(tmp_path, text, overlap="keep").overlaps == 3
    with pytest.raises(ValueError, match=r"'a' starts in row 2 .*row 1 .*ended \(and 2 more\)"):
        read(tmp_path, text)


def test_rows_that_lack_a_value(tmp_path, caplog):
    text = "a,0,1,,\n\nb,0,NaN,,\nc,0,1,,\nd,0,,,\n"
    says = r"row 3 .*line 4\), column 'took'.*missing=\"drop\".*got 'NaN' \(and 1 more row\)"
    with pytest.raises(ValueError, match=says):
        read(tmp_path, text)
    with caplog.at_level("INFO"):
        arrivals = read(tmp_path, text, missing="drop", overlap="keep")
    assert arrivals.clients == {"a": 0, "c": 1}
    assert (arrivals.left_out, arrivals.overlaps) == (2, 0)
    assert "log.csv': 2 of 4 rows are left out (no 'took')" in caplog.text
    assert "local runs" not in caplog.text
    with pytest.raises(ValueError, match="at least one complete row"):
        read(tmp_path, "a,0,,,\n", missing="drop")


def test_a_complete_log_is_read_without_a_message(tmp_path, caplog):
    with caplog.at_level("INFO"):
        read(tmp_path, "a,0,1,,\na,1,1,,\n", missing="drop", overlap="keep")
    assert not caplog.text


def test_other_files(tmp_path):
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfclient; start; end\na;0;2\n"))
    assert runs(ReplayArrivals.from_csv(str(path), end="end", sep=";")) == [(0, 0.0, 2.0, 1)]


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("a,x,1,,", {}, r"row 1 .*line 2\), column 'started'.*timestamp.*got 'x'"),
        ("a,0,1,,\nb,x,1,,", {}, r"row 2 .*line 3\), column 'started'.*number, got 'x'"),
        ("a,0,1,,\nb,2026-05-01,1,,", {}, r"row 2 .*'started'.*finite number, got '2026-05-01'"),
        ("a,2026-05-01,1,,\nb,5,1,,", {}, r"row 2 .*'started'.*of one kind.*got '5'"),
        ("a,0,inf,,", {}, "row 1 .*'took'.*finite number, got 'inf'"),
        ("a,0,0,,", {}, "row 1 .*'took'.*larger than 0 by at least 1e-9 .*got '0'"),
        ("a,0,-3,,", {}, "row 1 .*'took'.*larger than 0"),
        ("a,5,,4,", {"end": "ended"}, "row 1 .*'ended'.*after its start"),
        ("a,-5,1,,", {}, "row 1 .*'started'.*virtual time 0, which is 5 units.*origin=\"first\""),
        ("a,1767225600,1,,", {}, "row 1 .*'started'.*origin=\"first\", or a larger unit"),
        ("a,0,1,,2.5", {"steps": "k"}, "row 1 .*'k'.*integer of at least 1, got '2.5'"),
        ("a,0,1,,0", {"steps": "k"}, "row 1 .*'k'.*integer of at least 1, got '0'"),
        ("a,0,1,,", {"steps": "k"}, "row 1 .*'k'.*must not be missing"),
        ("a,0,1,,", {"clients": ["b"]}, "row 1 .*'device'.*one of the 1 names in clients="),
        ("a,0,1,,", {"clients": ["b", "a", "b"]}, "clients must hold each name once, got 'b'"),
        ("a,0,1,,", {"start": "start"}, "start='start' is not a column .*did you mean 'started'"),
        ("a,0,1,,", {"end": "ended"} | {"duration": "took"}, "either duration= or end="),
        ("a,0,1,,", {"duration": None}, "either duration= or end="),
        ("a,0,1,2026-05-01,", {"end": "ended"}, "must both have numbers or both have timestamps"),
        ("a,2026-05-01,1,,", {"origin": 5.0}, "origin must be a timestamp such as .*got 5.0"),
        ("a,0,1,,", {"unit": 0}, "unit must be larger than 0"),
        ("a,0,1,,", {"duration_unit": -1}, "duration_unit must be larger than 0"),
        ("a,0,1,,", {"overlap": "x"}, "overlap must be one of"),
        ("a,0,1,,", {"missing": "x"}, "missing must be one of"),
        ("a,0,1,,", {"steps": 0}, "steps must be at least 1"),
        ("device,started,took\n", {}, "at least one complete row"),
        ('device,started,took\na,1\n"b', {}, "cannot be read as CSV"),
    ],
)
def test_errors_name_row_and_column(text, options, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        read(tmp_path, text, **options)


def test_other_bad_arguments(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no log 'nowhere\.csv'"):
        ReplayArrivals.from_csv("nowhere.csv", duration="duration")
    with pytest.raises(TypeError, match="path must be a path, got 5"):
        ReplayArrivals.from_csv(5, duration="duration")
    for wrong in ("sorted", 3):
        with pytest.raises(TypeError, match="clients must be a list of names"):
            read(tmp_path, "a,0,1,,", clients=wrong)
    with pytest.raises(TypeError, match="origin must be a number"):
        read(tmp_path, "a,0,1,,", origin="2026-05-01")


def test_no_function_of_the_reader_is_called_once_for_each_row(tmp_path):
    counts = []

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.endswith("_device_log.py"):
            counts[-1] += 1

    for rows in (10, 1000):
        text = "".join(f"d{n},{n}.5,1,,{n + 1}\n" for n in range(rows))
        counts.append(0)
        sys.setprofile(count)
        try:
            arrivals = read(tmp_path, text, steps="k", unit=60)
        finally:
            sys.setprofile(None)
        assert len(arrivals.events) == rows
    assert counts[0] == counts[1]
