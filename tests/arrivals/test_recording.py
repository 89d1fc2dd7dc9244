import json
from itertools import islice

import pytest

from fedlight import participation_report
from fedlight.aggregators import FedBuff
from fedlight.arrivals import (
    Availability,
    ContinuousArrivals,
    DropOut,
    FixedDurations,
    Recording,
    ReplayArrivals,
    ReplayEvent,
    ScheduleTable,
    SynchronousArrivals,
    Tiers,
    UniformArrivals,
    UniformSpeeds,
)
from fedlight.arrivals._table_writer import TableWriter
from fedlight.arrivals.schedule import Schedule
from fedlight.loop import Handled
from fedlight.types import Task
from tests.playing import events


def test_the_file_appears_whole_at_the_end(tmp_path):
    path = tmp_path / "schedule.parquet"
    arrivals = Recording(ContinuousArrivals(FixedDurations([1.0, 0.4]), local_steps=5), path)
    assert not path.exists()
    table = arrivals.simulate(num_clients=2, buffer_size=2, max_time=2.0)
    assert table == ScheduleTable(
        [
            ReplayEvent(1, 0, 0.4, 5, 0.0, 0),
            ReplayEvent(0, 0, 1.0, 5, 0.0, 0),
            ReplayEvent(1, 1, 1.4, 5, 1.0, 1),
            ReplayEvent(0, 1, 2.0, 5, 1.0, 1),
        ],
        [],
        2,
        [1.0, 0.4],
        [0, 0, 1, 1],
        waste_known=True,
    )
    assert ScheduleTable.load(path) == table
    assert [file.name for file in tmp_path.iterdir()] == ["schedule.parquet"]


def test_tasks_in_flight_at_the_end(tmp_path):
    """Client 0 takes 1.0, client 1 takes 0.4: at 0.8, client 0 is at work and client 1 is back.

    Client 1 starts again at 0.8, when the last version is made, so that nothing is computed beside
    it any more. Client 0 has started at 0, and would arrive at 1.
    """
    clock = ContinuousArrivals(FixedDurations([1.0, 0.4]), local_steps=5)
    path = tmp_path / "schedule.parquet"
    table = Recording(clock, path).simulate(num_clients=2, buffer_size=1, max_rounds=2)
    assert [(event.client, event.time) for event in table.events] == [(1, 0.4), (1, 0.8)]
    assert table.unfinished == [ReplayEvent(0, 0, 1.0, 5, 0.0, 0)]
    assert not table.may_stop
    assert Recording(clock).simulate(num_clients=2, buffer_size=1, max_rounds=2) == table
    assert ScheduleTable.load(path) == table
    replayed = Recording(ReplayArrivals(path))
    assert replayed.simulate(num_clients=2, buffer_size=1) == table  # it does not arrive
    assert replayed.table() == table
    assert "unfinished=[ReplayEvent(client=0" in repr(table)


def test_lost_and_retried_tasks_are_not_among_them():
    clock = ContinuousArrivals(FixedDurations([1.0, 0.4]), local_steps=5)
    tasks = [
        Task(0, 0, 0.0, 1.0, 1, 0, 0),
        Task(1, 0, 0.0, 1.0, 1, 1, 0, tries=1),
        Task(1, 0, 0.0, 1.0, 1, 1, 0, lost=True),
    ]
    clock.simulate(num_clients=2, buffer_size=1, max_rounds=1)  # sets it up
    writer = TableWriter()
    writer.end_round(0.5)
    writer.end([*tasks, tasks[0]._replace(dispatched_at=0.5)])
    (event,) = writer.table(clock, 2).unfinished
    assert (event.client, event.dispatched_at) == (0, 0.0)


def test_a_process_that_may_stop_clients_is_recorded_as_one():
    stops = SynchronousArrivals(1, FixedDurations([1.0]), local_steps=1, timeout=2.0)
    table = stops.simulate(num_clients=1, max_rounds=2)
    assert all(event.stopped_at_version is None for event in table.events)
    assert table.may_stop is stops.may_stop is ReplayArrivals(table).may_stop is True
    assert ReplayArrivals(table).simulate(num_clients=1) == table


def test_an_earlier_file_stays_until_the_end(tmp_path, federation):
    path = tmp_path / "schedule.parquet"
    path.write_bytes(b"an earlier one")
    arrivals = Recording(UniformArrivals(2), path)
    schedule = Schedule(arrivals, federation(3))
    schedule.send_on(next(events(schedule)), Handled(0, []))
    assert path.read_bytes() == b"an earlier one"
    schedule.finish()
    assert len(ScheduleTable.load(path)) == 1


def test_a_failure_to_write_leaves_nothing_behind(tmp_path, monkeypatch):
    import pyarrow.parquet

    def broken(table, path):
        path.write(b"half")
        raise OSError("disk full")

    path = tmp_path / "schedule.parquet"
    path.write_bytes(b"an earlier one")
    monkeypatch.setattr(pyarrow.parquet, "write_table", broken)
    with pytest.raises(OSError, match="disk full"):
        Recording(UniformArrivals(2), path).simulate(num_clients=3, max_rounds=1)
    assert path.read_bytes() == b"an earlier one"
    assert len(list(tmp_path.iterdir())) == 1


def test_it_behaves_as_the_process_itself(drive, tmp_path):
    def plain():
        return ContinuousArrivals(UniformSpeeds(0.5), concurrency=2)

    recorded = drive(lambda: Recording(plain(), tmp_path / "x"), 5, buffer_size=2)
    assert recorded == drive(plain, 5, buffer_size=2)
    assert Recording(UniformArrivals(2), "x").by_rounds
    assert not Recording(plain(), "x").by_rounds
    assert not (tmp_path / "x").exists()  # nobody said that the run was over


def test_what_is_lost_is_kept_apart():
    arrivals = Recording(DropOut(ContinuousArrivals(FixedDurations([1.0])), 0.5))
    table = arrivals.simulate(num_clients=1, buffer_size=1, max_time=20)
    assert 3 < len(table) < 17
    visits = [event.visit for event in table.events]
    assert [event.time for event in table.events] == [visit + 1.0 for visit in visits]
    assert [(event.visit, event.time) for event in table.lost] == [
        (visit, visit + 1.0) for visit in range(20) if visit not in visits
    ]
    assert ReplayArrivals(table).simulate(num_clients=1, buffer_size=1) == table


def test_a_lost_task_that_is_cancelled_first():
    """Client 1's task would be lost at 4, but is two versions old at 1; so is the next one at 2."""
    clock = ContinuousArrivals(
        FixedDurations([0.5, 4.0]), local_steps=1, restart_after=2, resume="on_arrival"
    )
    recording = Recording(Availability(clock, {0: [(0, 9)], 1: [(0, 3)]}, unfinished="lose"))
    given = {"num_clients": 2, "buffer_size": 1, "max_rounds": 5}
    table = recording.simulate(**given)
    assert [event.client for event in table.events] == [0] * 5
    assert table.lost == [
        ReplayEvent(1, 0, 1.0, 1, 0.0, 0, stopped_at_version=2),
        ReplayEvent(1, 2, 2.0, 1, 1.0, 1, stopped_at_version=4),
    ]
    assert recording.table().lost == table.lost
    assert ReplayArrivals(table).simulate(**given) == table
    # Until the last version at 2.5, client 0 has worked for 2.5, and client 1 for 2 in vain.
    report = participation_report(table, FedBuff(1))
    assert report.goodput_of.tolist() == [1.0, 0.0]
    assert report.goodput == pytest.approx(2.5 / 4.5)


def test_a_recording_of_a_record_that_does_not_know_its_waste():
    events = [ReplayEvent(0, 0, 1.0, 1, 0.0), ReplayEvent(0, 1, 2.0, 1, 1.0)]
    for known in (False, True):
        table = ScheduleTable(events, num_clients=1, waste_known=known)
        replays = {"1": ReplayArrivals(table)}
        inside = [Tiers(replays), DropOut(ReplayArrivals(table), 0.0), ReplayArrivals(table)]
        assert [each.waste_known for each in inside] == [known] * 3
        recording = Recording(inside[1])
        assert recording.simulate(num_clients=1, buffer_size=1).waste_known is known
        assert recording.table().waste_known is known


def test_a_recording_that_goes_on_from_an_older_checkpoint(federation):
    """The checkpoint has no lost tasks, and whether there were any is unknown from then on."""
    recordings = [Recording(ContinuousArrivals(FixedDurations([1.0]))) for _ in range(3)]
    for recording in recordings:
        recording.setup(federation(1))
    first, second, third = recordings
    state = first.state_dict()
    second.load_state_dict(state)
    assert second.table().waste_known
    old = {k: v for k, v in state["table"].items() if k not in ("lost", "waste_known")}
    second.load_state_dict({**state, "table": old})
    assert not second.table().waste_known
    third.load_state_dict(second.state_dict())
    assert not third.table().waste_known


def test_what_stays_in_the_buffer_was_not_used():
    table = ContinuousArrivals(FixedDurations([1.0, 0.4]), resume="on_arrival").simulate(
        num_clients=2, buffer_size=3, max_updates=5
    )
    assert table.versions == [0, 0, 0, None, None]
    assert table.staleness().tolist() == [0, 0, 0]


def test_dropped_updates_have_a_staleness_too(federation):
    """Let go without a new version: the staleness is that at its arrival."""
    recording = Recording(ContinuousArrivals(FixedDurations([1.0, 3.0])))
    schedule = Schedule(recording, federation(2))
    version = 0
    for event in events(schedule):
        version += event.task.client_id == 0
        schedule.send_on(event, Handled(version, [event.task.client_id]))
        if schedule.now == 3.0 and event.task.client_id == 1:
            break
    assert [e.client for e in recording.table().events] == [0, 0, 0, 1]
    assert recording.table().staleness().tolist() == [0, 0, 0, 3]


def test_goes_on_from_its_state(federation):
    def start():
        recording = Recording(ContinuousArrivals(UniformSpeeds(0.5), concurrency=3))
        return recording, Schedule(recording, federation(5))

    def go_on(schedule, version, held, steps):
        for event in islice(events(schedule), steps):
            held.append(event.task.client_id)
            due = len(held) == 4
            version += due
            schedule.send_on(event, Handled(version, held if due else []))
            held = [] if due else held
        return version, held

    whole, schedule = start()
    go_on(schedule, 0, [], 30)
    first, schedule = start()
    version, held = go_on(schedule, 0, [], 14)
    state = json.loads(json.dumps(schedule.state_dict(), default=list))
    second, schedule = start()
    schedule.load_state_dict(state)
    go_on(schedule, version, held, 16)
    assert len(first.table()) == 14
    assert second.table() == whole.table()


def test_more_than_one_update_of_a_client_is_used_at_once():
    """Rounds longer than the tasks: both updates of the client belong to the same round."""
    events = [ReplayEvent(0, 0, 1.0, 1, 0.0), ReplayEvent(0, 0, 2.0, 1, 1.0)]
    table = ReplayArrivals(events, round_ends=[3.0]).simulate(num_clients=1)
    assert table.versions == [0, 0]
    assert table.round_ends == [3.0]


def test_bad_paths(federation):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        Recording(UniformArrivals(1), "nowhere/x.parquet").setup(federation(1))
    with pytest.raises(TypeError, match="path must name a file"):
        Recording(UniformArrivals(1), 5)
    with pytest.raises(TypeError, match="arrivals must be an arrival process"):
        Recording([1])


def test_repr():
    assert repr(Recording(UniformArrivals(1), "x")) == f"Recording({UniformArrivals(1)!r}, 'x')"
    assert repr(Recording(UniformArrivals(1))) == repr(UniformArrivals(1))
