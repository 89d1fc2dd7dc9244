import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fedlight.arrivals import ReplayEvent, ScheduleTable, UniformArrivals

EVENTS = [ReplayEvent(0, 0, 1.0, 2, 0.5, 3), ReplayEvent(1, 0, 2.0, 1)]


@pytest.mark.parametrize(
    "table",
    [
        ScheduleTable(EVENTS),
        ScheduleTable(EVENTS, [1.0, 2.0], 3, [1.0, 0.5, 0.25], [0, None]),
        ScheduleTable([]),
        ScheduleTable(EVENTS, unfinished=[ReplayEvent(2, 1, 3.5, 4, 1.5, 0)], may_stop=True),
        ScheduleTable(
            EVENTS,
            unfinished=[
                ReplayEvent(2, 1, 3.5, 4, 1.5, 0, None, "west"),
                ReplayEvent(0, 1, 3.5, 4, 1.5, 0, None, None, True, 7, 1, False),
            ],
        ),
        ScheduleTable(
            EVENTS,
            lost=[
                ReplayEvent(2, 1, 3.5, 4, 1.5, 0, 2, "west"),
                ReplayEvent(0, 1, 3.5, 4, 3.5, 0, 1, None, True, 7, 1, False),
            ],
        ),
        ScheduleTable(EVENTS, waste_known=True),
    ],
    ids=[
        "events alone",
        "with all",
        "empty",
        "unfinished",
        "of groups and shards",
        "lost",
        "whole",
    ],
)
def test_there_and_back(tmp_path, table):
    table.save(tmp_path / "a.parquet")
    assert ScheduleTable.load(tmp_path / "a.parquet") == table
    assert ScheduleTable.load(str(tmp_path / "a.parquet")) == table


def test_versions_that_do_not_know_of_other_tasks_read_the_rest(tmp_path):
    """They look at two entries of the metadata, which are those of the table without the tasks."""
    others = [ReplayEvent(2, 1, 3.5, 4, 1.5, 0)]
    kinds = {
        "unfinished": {"unfinished": others},
        "lost": {"lost": others, "waste_known": True},
        "none": {},
    }
    for name, more in kinds.items():
        ScheduleTable(EVENTS, num_clients=3, **more).save(tmp_path / name)
    unfinished, lost, none = (pq.read_table(tmp_path / name) for name in kinds)
    assert unfinished.equals(none)
    assert lost.equals(none)
    seen = (b"fedlight.schedule", b"fedlight.hash")
    for table, entries in (
        (unfinished, (*seen, b"fedlight.end")),
        (lost, (*seen, b"fedlight.lost")),
    ):
        assert set(table.schema.metadata) == set(entries)
        for key in seen:
            assert table.schema.metadata[key] == none.schema.metadata[key]
    assert set(none.schema.metadata) == set(seen)
    old = ScheduleTable.load(tmp_path / "none")
    assert (old.unfinished, old.lost, old.waste_known) == ([], [], False)


@pytest.mark.parametrize(("name", "key"), [("unfinished", b"end"), ("lost", b"lost")])
def test_tasks_that_were_changed_are_refused(tmp_path, name, key):
    path, key = tmp_path / "schedule", b"fedlight." + key
    ScheduleTable(EVENTS, **{name: [ReplayEvent(2, 1, 3.5, 4, 1.5, 0)]}).save(path)
    table = pq.read_table(path)
    metadata = table.schema.metadata
    packed = metadata[key]
    changed = packed[:-8] + b"AAAA" + packed[-4:]
    pq.write_table(table.replace_schema_metadata({**metadata, key: changed}), path)
    with pytest.raises(ValueError, match="was changed since fedlight has written it"):
        ScheduleTable.load(path)


def test_what_one_wants_to_look_at():
    table = ScheduleTable(EVENTS, versions=[3, None])
    assert len(table) == 2
    assert table.staleness().tolist() == [3]
    frame = table.to_pandas()
    assert list(frame.columns) == [
        "client",
        "pulled_version",
        "time",
        "num_steps",
        "dispatched_at",
        "visit",
        "version",
    ]
    assert frame["num_steps"].tolist() == [2, 1]
    assert frame["version"].isna().tolist() == [False, True]
    assert table.to_arrow().num_rows == 2


def test_staleness_of_a_table_made_by_hand():
    with pytest.raises(ValueError, match="does not contain the versions at which"):
        ScheduleTable(EVENTS).staleness()


def test_files_that_are_not_ours(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no schedule file"):
        ScheduleTable.load(tmp_path / "nothing.parquet")
    (tmp_path / "text").write_text("client,time")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "plain.parquet")
    other = pa.table({"a": [1]}).replace_schema_metadata({"fedlight.schedule": "{}"})
    pq.write_table(other, tmp_path / "columns.parquet")
    ours = ScheduleTable(EVENTS).to_arrow()
    pq.write_table(
        ours.replace_schema_metadata({"fedlight.schedule": "{"}), tmp_path / "json.parquet"
    )
    pq.write_table(
        ours.replace_schema_metadata({"fedlight.schedule": '{"x": 1}'}), tmp_path / "field.parquet"
    )
    for name in ("text", "plain.parquet", "columns.parquet", "json.parquet", "field.parquet"):
        with pytest.raises(ValueError, match=f"{name}' is not a schedule written by fedlight"):
            ScheduleTable.load(tmp_path / name)


def test_a_schedule_without_torch(tmp_path):
    code = f"""
import sys
from fedlight.arrivals import ContinuousArrivals, Recording, ReplayArrivals, UniformSpeeds
path = {str(tmp_path / "x.parquet")!r}
table = Recording(ContinuousArrivals(UniformSpeeds(0.8), concurrency=3), path).simulate(
    num_clients=10, buffer_size=2, max_rounds=20
)
assert len(table) == 40 and table.staleness().mean() > 0
assert ReplayArrivals(path).simulate(num_clients=10, buffer_size=2) == table
table.to_pandas()
sys.exit("torch" in sys.modules or "lightning" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_limits_of_a_simulation():
    arrivals = UniformArrivals(2)
    assert len(arrivals.simulate(4, max_rounds=3)) == 6
    assert len(arrivals.simulate(4, max_updates=3)) == 3
    assert arrivals.simulate(4, max_updates=4).round_ends == [1.0]
    table = arrivals.simulate(4, max_time=3.0)
    assert (len(table), table.round_ends) == (6, [1.0, 2.0, 3.0])
    assert [
        e.num_steps
        for e in arrivals.simulate(2, max_rounds=1, num_examples=[6, 3], batch_size=2).events
    ] == [3, 2]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({}, ValueError, "nothing would stop a run"),
        ({"max_rounds": 0}, ValueError, "max_rounds must be at least 1"),
        ({"max_time": 0}, ValueError, "max_time must be larger than 0"),
        ({"max_updates": 1.5}, TypeError, "max_updates must be an integer"),
        ({"max_rounds": 1, "num_clients": 0}, ValueError, "num_clients must be at least 1"),
        ({"max_rounds": 1, "buffer_size": 0}, ValueError, "buffer_size must be at least 1"),
        ({"max_rounds": 1, "interval": -1}, ValueError, "interval must be larger than 0"),
        ({"max_rounds": 1, "interval": 1e-12}, ValueError, "interval must be at least 1e-9"),
        ({"max_rounds": 1, "num_examples": [1]}, ValueError, "num_examples has 1 numbers"),
        ({"max_rounds": 1, "num_examples": 0}, ValueError, "num_examples must be at least 1"),
        ({"max_rounds": 1, "batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"max_rounds": 1, "seed": 0.5}, TypeError, "seed must be an integer"),
    ],
)
def test_bad_arguments_of_a_simulation(arguments, error, says):
    with pytest.raises(error, match=says):
        UniformArrivals(2).simulate(**{"num_clients": 4, **arguments})


def test_the_clock_needs_a_server():
    from fedlight.arrivals import ContinuousArrivals, UniformSpeeds

    with pytest.raises(ValueError, match=r"has no rounds; give buffer_size .* or interval"):
        ContinuousArrivals(UniformSpeeds(0)).simulate(4, max_rounds=1)


def test_the_repr_of_a_long_table_is_a_summary():
    table = UniformArrivals(3).simulate(num_clients=20, max_rounds=250)
    assert len(table) == 750
    assert repr(table) == (
        "ScheduleTable(750 arrivals of 20 of 20 clients, virtual time 1 to 250, 250 rounds)"
    )
    assert repr(ScheduleTable(table.events[:4])).startswith("ScheduleTable(4 arrivals of ")


def test_the_repr_of_a_short_table_makes_it_again():
    table = ScheduleTable(EVENTS, [1.0, 2.0], 3, [1.0, 0.5, 0.25], [0, None])
    assert eval(repr(table)) == table
    table = ScheduleTable(EVENTS, lost=[ReplayEvent(2, 1, 3.5, 4, 1.5, 0)], waste_known=True)
    assert eval(repr(table)) == table


def test_a_file_of_changed_rows_is_refused_and_one_without_a_hash_is_read(tmp_path):
    path = tmp_path / "x.parquet"
    table = UniformArrivals(2, 1).simulate(num_clients=3, max_rounds=4)
    table.save(path)
    rows = pq.read_table(path)
    key = b"fedlight.schedule"
    ends = rows.schema.metadata[key].replace(b'"round_ends": [1.0', b'"round_ends": [1.5')
    shifted = pc.add(rows["time"], 1.0)
    for changed in (
        rows.slice(1),
        rows.replace_schema_metadata({**rows.schema.metadata, key: ends}),
        rows.set_column(rows.column_names.index("time"), "time", shifted),
        rows.set_column(rows.column_names.index("visit"), "visit", pa.nulls(len(rows), pa.int64())),
    ):
        pq.write_table(changed, path)
        with pytest.raises(ValueError, match="was changed since fedlight has written it"):
            ScheduleTable.load(path)
    pq.write_table(rows.slice(1), path)
    with pytest.raises(ValueError, match="was changed since fedlight has written it"):
        ScheduleTable.load(path)
    pq.write_table(table.to_arrow(), path)  # as 0.2 wrote it
    assert ScheduleTable.load(path) == table


def test_a_name_that_is_no_text_is_damage(tmp_path):
    """One byte of a column's name, which pyarrow decodes."""
    path = tmp_path / "schedule.parquet"
    UniformArrivals(1).simulate(2, max_rounds=3).save(path)
    path.write_bytes(path.read_bytes().replace(b"num_steps", b"n\x92m_steps", 1))
    with pytest.raises(ValueError, match=r"schedule.parquet' is not a schedule written by"):
        ScheduleTable.load(path)
