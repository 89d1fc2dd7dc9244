import numpy as np
import pandas as pd
import pytest

from fedlight.arrivals import ReplayArrivals, ReplayEvent, ScheduleTable, UniformArrivals
from fedlight.arrivals.schedule import Schedule
from fedlight.events import Kind
from fedlight.loop import Handled, Stop
from tests.playing import events


def seen(lines):
    return [
        (x.now, x.task.client_id, x.task.pulled_version, x.task.num_steps, x.version)
        for x in lines
        if x.task
    ]


def test_records_pull_what_they_name(drive):
    """Client 1's second record pulls version 1, though version 2 is there when it is free."""
    events = [
        ReplayEvent(0, 0, 1.0, 5),
        ReplayEvent(1, 0, 2.0, 3),
        ReplayEvent(1, 1, 3.0, 2),
        ReplayEvent(0, 1, 4.0, 1),
    ]
    lines, tasks = drive(lambda: ReplayArrivals(events), 2, buffer_size=1)
    assert seen(lines) == [(1, 0, 0, 5, 1), (2, 1, 0, 3, 2), (3, 1, 1, 2, 3), (4, 0, 1, 1, 4)]
    # As soon as the version is there and the client is free.
    assert [(t.client_id, t.dispatched_at) for t in tasks] == [(0, 0), (1, 0), (0, 1), (1, 2)]


def test_records_are_sorted_by_time(drive):
    events = [ReplayEvent(0, 0, 3.0, 1), ReplayEvent(1, 0, 1.0, 2), ReplayEvent(0, 0, 2.0, 3)]
    lines, _ = drive(lambda: ReplayArrivals(events), 2, buffer_size=1)
    assert [(time, client, steps) for time, client, _, steps, _ in seen(lines)] == [
        (1, 1, 2),
        (2, 0, 3),
        (3, 0, 1),
    ]


def test_times_of_their_own(drive):
    events = [ReplayEvent(0, 0, 2.0, 1, dispatched_at=0.5), ReplayEvent(0, 1, 5.0, 1, 4.0, visit=7)]
    lines, tasks = drive(lambda: ReplayArrivals(events), 1, interval=1.0)
    assert [(t.dispatched_at, t.arrives_at, t.visit) for t in tasks] == [(0.5, 2, 0), (4, 5, 7)]
    assert [(x.now, x.version) for x in lines if x.kind is Kind.DEADLINE] == [
        (float(t), t) for t in range(1, 6)
    ]


def test_a_client_may_have_two_tasks_at_once(drive):
    events = [ReplayEvent(0, 0, 2.0, 1, 0.0), ReplayEvent(0, 0, 3.0, 2, 1.0)]
    lines, tasks = drive(lambda: ReplayArrivals(events), 1, buffer_size=1)
    assert [(t.dispatched_at, t.visit) for t in tasks] == [(0.0, 0), (1.0, 1)]
    assert [time for time, *_ in seen(lines)] == [2.0, 3.0]


def test_simultaneous_arrivals_come_in_the_order_of_clients(drive):
    events = [ReplayEvent(client, 0, 1.0, 1) for client in (2, 0, 1)]
    lines, _ = drive(lambda: ReplayArrivals(events), 3, buffer_size=1)
    assert seen(lines) == [(1, 0, 0, 1, 1), (1, 1, 0, 1, 2), (1, 2, 0, 1, 3)]


def test_rounds(drive):
    arrivals = ReplayArrivals(
        [ReplayEvent(0, 0, 1.0, 1), ReplayEvent(0, 1, 2.0, 1)], round_ends=[1, 2.5]
    )
    assert arrivals.by_rounds
    lines, _ = drive(lambda: arrivals, 1)
    assert [(x.now, x.kind.name, x.version) for x in lines] == [
        (1.0, "ARRIVAL", 0),
        (1.0, "ROUND_END", 1),
        (2.0, "ARRIVAL", 1),
        (2.5, "ROUND_END", 2),
    ]


def test_versions_still_named_are_needed(federation):
    arrivals = ReplayArrivals(
        [ReplayEvent(0, 0, 1.0, 1), ReplayEvent(1, 0, 9.0, 1, dispatched_at=8.0)]
    )
    schedule = Schedule(arrivals, federation(2))
    assert schedule.needs_version(0)
    coming = events(schedule)
    schedule.send_on(next(coming), Handled(1, [0]))
    assert schedule.needs_version(0)
    assert not schedule.needs_version(1)
    schedule.send_on(next(coming), Handled(2, [1]))
    assert not schedule.needs_version(0)


def test_untimed_versions_are_needed_until_they_are_pulled(federation):
    arrivals = ReplayArrivals([ReplayEvent(0, 0, 1.0, 1), ReplayEvent(0, 1, 3.0, 1)])
    schedule = Schedule(arrivals, federation(1))
    coming = events(schedule)
    first = next(coming)
    assert not schedule.needs_version(0)
    assert schedule.needs_version(1)
    schedule.send_on(first, Handled(1, [0]))
    assert not schedule.needs_version(1)


def test_newest(drive):
    """Under an aggregator that makes fewer versions, each record pulls what is there."""
    events = [ReplayEvent(0, v, v + 1.0, 1, dispatched_at=float(v)) for v in range(6)]
    with pytest.raises(
        ValueError, match=r"client 0 is to pull version 1 at 1.0 .* only at version 0"
    ):
        drive(lambda: ReplayArrivals(events), 1, buffer_size=2)
    lines, _ = drive(lambda: ReplayArrivals(events, pull="newest"), 1, buffer_size=2)
    assert [pulled for _, _, pulled, _, _ in seen(lines)] == [0, 0, 1, 1, 2, 2]


def test_newest_needs_no_version(drive):
    """The record is the same with and without the version that is ignored."""

    def runs(**ignored):
        events = [ReplayEvent(client=0, time=v + 1.0, dispatched_at=v, **ignored) for v in range(4)]
        lines, _ = drive(lambda: ReplayArrivals(events, pull="newest"), 1, buffer_size=2)
        return seen(lines)

    assert runs() == runs(pulled_version=7)
    assert [pulled for _, _, pulled, _, _ in runs()] == [0, 0, 1, 1]
    with pytest.raises(ValueError, match=r"events\[0\] has no pulled_version, .*pull='newest'"):
        ReplayArrivals([ReplayEvent(client=0, time=1.0, dispatched_at=0.0)])
    with pytest.raises(ValueError, match=r"pulled_version must be .* or give dispatched_at"):
        ReplayEvent(client=0, time=1.0)
    with pytest.raises(ValueError, match=r"ReplayEvent\.time must be larger than 0"):
        ReplayEvent(client=0, dispatched_at=0.0)


def test_a_table_may_lack_versions(tmp_path):
    table = ScheduleTable([ReplayEvent(client=0, time=1.0, dispatched_at=0.0)], versions=[0])
    table.save(tmp_path / "a.parquet")
    assert ScheduleTable.load(tmp_path / "a.parquet") == table
    assert table.staleness().tolist() == []


@pytest.mark.parametrize(
    "events",
    [
        # Version 1 is made by the arrival at 1.0 at the earliest.
        [ReplayEvent(0, 0, 1.0, 1), ReplayEvent(1, 1, 1.0, 1)],
        [ReplayEvent(0, 0, 1.0, 1), ReplayEvent(1, 1, 0.5, 1)],
        # Version 5 is never made.
        [ReplayEvent(0, 0, 1.0, 1), ReplayEvent(1, 5, 2.0, 1), ReplayEvent(0, 0, 3.0, 1)],
        [ReplayEvent(0, 0, 1.0, 1), ReplayEvent(1, 5, 2.0, 1)],
        # The client arrives at that time itself.
        [ReplayEvent(1, 0, 2.0, 1), ReplayEvent(1, 1, 2.0, 1)],
    ],
    ids=["as late", "earlier", "never", "never, at the end", "not free"],
)
def test_versions_that_cannot_exist_are_named(drive, events):
    with pytest.raises(ValueError, match="can never happen: there is no time") as caught:
        drive(lambda: ReplayArrivals(events), 2, buffer_size=1)
    assert repr(events[1]) in str(caught.value)


def test_a_version_that_does_not_exist_at_its_own_time_is_named(drive):
    events = [ReplayEvent(0, 0, 3.0, 1), ReplayEvent(1, 1, 4.0, 1, dispatched_at=2.0)]
    with pytest.raises(
        ValueError, match=r"client 1 is to pull version 1 at 2\.0 .* arrival at 4\.0"
    ):
        drive(lambda: ReplayArrivals(events), 2, buffer_size=1)


LOST = [ReplayEvent(1, 1, 3.0, 2, 1.5, 0), ReplayEvent(1, 2, 5.5, 2, 4.0, 1, 3)]


def test_lost_tasks_are_lost_again(federation):
    """One is lost at 3, the other one, which would be lost later, is cancelled at 5.5."""
    arrived = [ReplayEvent(0, v, 2.0 * v + 1, 1, 2.0 * v) for v in range(4)]
    arrivals = ReplayArrivals(ScheduleTable(arrived, lost=LOST, may_stop=True))
    schedule = Schedule(arrivals, federation(2))
    server, coming, ends = 0, schedule.next(), []
    while coming is not None:
        made = coming.task is not None and not coming.task.lost
        server += made
        told = schedule.send_on(coming, Handled(server, [0] if made else []))
        if coming.task is not None:
            ends.append((schedule.now, coming.task.client_id, coming.task.lost))
        ends += [(schedule.now, each.task) for each in told if isinstance(each, Stop)]
        coming = schedule.next()
    *ended, (at, stopped), last = ends
    assert ended == [(1.0, 0, False), (3.0, 0, False), (3.0, 1, True), (5.0, 0, False)]
    assert last == (7.0, 0, False)
    assert at == 5.5
    assert (stopped.client_id, stopped.pulled_version, stopped.dispatched_at) == (1, 2, 4.0)
    assert stopped.lost
    assert arrivals.simulate(2, buffer_size=1).lost == LOST


def test_a_lost_task_needs_no_version(drive, federation):
    """Nothing is computed from it: it does not keep one, and misses none that is not made."""
    events = [ReplayEvent(0, 0, v + 1.0, 1, dispatched_at=float(v)) for v in range(6)]
    table = ScheduleTable(events, lost=LOST)
    _, tasks = drive(lambda: ReplayArrivals(table), 2, buffer_size=4)
    assert [t.pulled_version for t in tasks if t.lost] == [0, 1]  # of 1 and 2
    schedule = Schedule(ReplayArrivals(ScheduleTable(events[:1], lost=LOST)), federation(2))
    schedule.send_on(schedule.next(), Handled(0, []))
    assert not schedule.arrivals.needs_version(1)


def test_a_client_without_times_waits_for_its_arrivals_alone(drive):
    """The end of a lost task at 0.5 starts no record, as client 0 is at work until 1."""
    events = [ReplayEvent(0, 0, 1.0, 1), ReplayEvent(0, 0, 2.0, 1)]
    table = ScheduleTable(events, lost=[ReplayEvent(0, 0, 0.5, 1, 0.25)])
    _, tasks = drive(lambda: ReplayArrivals(table), 1, buffer_size=1)
    assert [(t.dispatched_at, t.lost) for t in tasks] == [(0, False), (0.25, True), (1, False)]


def test_records_with_other_losses_are_other_runs():
    event = ReplayEvent(0, 0, 1.0, 1)
    plain, known, lost = (
        repr(ReplayArrivals(ScheduleTable([event], **more)))
        for more in ({}, {"waste_known": True}, {"lost": LOST})
    )
    assert plain == known == repr(ReplayArrivals([event]))
    assert plain != lost


def test_durations(federation):
    one = ReplayEvent(0, 0, 1.0, 1)
    arrivals = ReplayArrivals([one], durations=[1.0, 0.5])
    arrivals.setup(federation(2))
    assert arrivals.expected_durations().tolist() == [1.0, 0.5]
    with pytest.raises(ValueError, match="durations has 2 numbers, but there are 3 clients"):
        arrivals.setup(federation(3))
    table = ScheduleTable([one], durations=[3.0, 4.0], round_ends=[2.0])
    assert ReplayArrivals(table).durations.durations == [3.0, 4.0]
    assert ReplayArrivals(table, durations=[1.0, 1.0]).durations.durations == [1.0, 1.0]
    assert ReplayArrivals(table).round_ends == [2.0]
    plain = ReplayArrivals([one])
    plain.setup(federation(1))
    assert plain.expected_durations() is None
    assert plain.finite


def test_clients_must_exist(federation):
    with pytest.raises(
        ValueError, match=r"events\[1\] names client 5, but there are only 3 clients"
    ):
        ReplayArrivals([ReplayEvent(0, 0, 1, 1), ReplayEvent(5, 0, 1, 1)]).setup(federation(3))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: ReplayArrivals([]), ValueError, "events must hold at least one ReplayEvent"),
        (lambda: ReplayArrivals([(0, 0, 1.0, 1)]), TypeError, r"events\[0\] must be a ReplayEvent"),
        (lambda: ReplayArrivals("nowhere.parquet"), FileNotFoundError, "nowhere.parquet"),
        (
            lambda: ReplayArrivals([ReplayEvent(0, 0, 1, 1)], durations=[0.0]),
            ValueError,
            r"durations\[0\] must be larger than 0",
        ),
        (
            lambda: ReplayArrivals([ReplayEvent(0, 0, 1, 1)], round_ends=[-1]),
            ValueError,
            r"round_ends\[0\] must be larger than 0",
        ),
        (
            lambda: ReplayArrivals([ReplayEvent(0, 0, 1, 1)], round_ends=5.0),
            TypeError,
            "round_ends must be a list of virtual times",
        ),
        (
            lambda: ReplayArrivals([ReplayEvent(0, 0, 1, 1)], durations={0: 1.0}),
            TypeError,
            "durations must be a list, got the mapping",
        ),
        (lambda: ReplayArrivals(5), TypeError, "events must be a list of ReplayEvent objects"),
        (lambda: ReplayArrivals({"client": [0]}), TypeError, "ReplayEvent objects, got {'client"),
        (lambda: ReplayArrivals(pd.DataFrame({"client": [0]})), TypeError, "got DataFrame; for a"),
        (
            lambda: ReplayArrivals([ReplayEvent(0, 0, 1, 1)], pull="newest"),
            ValueError,
            r"events\[0\] has no dispatched_at",
        ),
        (
            lambda: ReplayArrivals([ReplayEvent(0, 0, 1, 1)], pull="x"),
            ValueError,
            "pull must be one",
        ),
        (
            lambda: ReplayArrivals(ScheduleTable([ReplayEvent(0, 0, 1, 1)], lost=[(0, 0, 1, 1)])),
            TypeError,
            r"lost\[0\] must be a ReplayEvent, got \(0, 0, 1, 1\)",
        ),
        (
            lambda: ReplayArrivals(ScheduleTable([ReplayEvent(0, 0, 1, 1)], lost=5)),
            TypeError,
            "lost must be a list",
        ),
        (
            lambda: ReplayArrivals(
                ScheduleTable([ReplayEvent(0, 0, 1, 1)], unfinished=[ReplayEvent(0, 0, 1, 1)])
            ),
            ValueError,
            r"unfinished\[0\] has no dispatched_at, the virtual time of its pull; add it",
        ),
        (lambda: ReplayEvent(-1, 0, 1.0, 1), ValueError, "client must be 0 or larger"),
        (lambda: ReplayEvent(0, -1, 1.0, 1), ValueError, "pulled_version must be 0 or larger"),
        (lambda: ReplayEvent(0, 0, 0.0, 1), ValueError, "time must be larger than 0"),
        (lambda: ReplayEvent(0, 0, 1.0, 0), ValueError, "num_steps must be at least 1"),
        (lambda: ReplayEvent(0.5, 0, 1.0, 1), TypeError, "client must be an integer"),
        (
            lambda: ReplayEvent(0, 0, 1.0, 1, 1.0),
            ValueError,
            "dispatched_at must be between 0 and",
        ),
        (lambda: ReplayEvent(0, 0, 1.0, 1, -0.5), ValueError, "got -0.5"),
        (lambda: ReplayEvent(0, 0, 1.0, 1, "a"), TypeError, "dispatched_at must be a number"),
        (lambda: ReplayEvent(0, 0, 1.0, 1, 0.5, -1), ValueError, "visit must be 0 or larger"),
    ],
)
def test_bad_arguments(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_rounds_may_end_at_the_times_of_an_array():
    table = UniformArrivals(2).simulate(num_clients=3, max_rounds=2)
    assert ReplayArrivals(table, round_ends=np.array([1.0, 2.0])).round_ends == table.round_ends
    assert ReplayArrivals(table, round_ends=np.array([])).round_ends == table.round_ends


def test_repr():
    assert repr(ReplayArrivals([ReplayEvent(0, 0, 1, 1)])).startswith("ReplayArrivals(1 events, ")
