"""Failures: tasks in flight are lost with their client, and no task starts during a repair."""

from itertools import pairwise

import numpy as np
import pytest

from fedlight import participation_report
from fedlight.aggregators import FedASMU, FedAvg, FedBuff
from fedlight.arrivals import (
    Availability,
    ContinuousArrivals,
    DropOut,
    Failures,
    FixedDurations,
    PoissonArrivals,
    RefreshedTasks,
    ReplayEvent,
    ScheduleTable,
    SynchronousArrivals,
    UniformSpeeds,
)
from fedlight.arrivals.windows import Window
from fedlight.events import to_ticks


class ByHand(Failures):
    """The times at which the clients are up are given."""

    def __init__(self, arrivals, up):
        super().__init__(arrivals, 1.0, 1.0)
        self._given = up

    def _draw(self, client, known):
        later = [(100.0 * number, 100.0 * number + 1) for number in range(1, 20)]
        known += [Window(to_ticks(a), to_ticks(b)) for a, b in [*self._given[client], *later]]


def clock(*durations, **more):
    return ContinuousArrivals(FixedDurations(durations), resume="on_arrival", **more)


def seen(tasks):
    return [(t.client_id, t.dispatched_at, t.arrives_at, t.lost) for t in tasks]


def test_a_failure_ends_the_task_and_the_client_goes_on_after_the_repair(drive):
    """Up in [0, 2.5) and [4, 9): the third task is lost at 2.5, the next one starts at 4."""
    _, tasks = drive(
        lambda: ByHand(clock(1.0), [[(0, 2.5), (4, 9)]]), 1, buffer_size=1, max_time=5.5
    )
    assert seen(tasks) == [
        *[(0, 0.0, 1.0, False), (0, 1.0, 2.0, False), (0, 2.0, 2.5, True)],
        *[(0, 4.0, 5.0, False), (0, 5.0, 6.0, False)],
    ]


def test_an_arrival_at_the_time_of_the_failure_has_arrived(drive):
    """And at that time the client is down already: it goes on at 4."""
    _, tasks = drive(lambda: ByHand(clock(1.0), [[(0, 2), (4, 9)]]), 1, buffer_size=1, max_time=4.5)
    assert seen(tasks) == [(0, 0.0, 1.0, False), (0, 1.0, 2.0, False), (0, 4.0, 5.0, False)]


def test_another_client_is_drawn_while_one_is_down(drive):
    """One place for two clients; client 0 is down from 0.5 on, so client 1 gets all tasks."""
    up = [[(0, 0.5)], [(0, 99)]]
    _, tasks = drive(
        lambda: ByHand(clock(1.0, 1.0, concurrency=1), up), 2, buffer_size=1, max_time=9
    )
    later = [t.client_id for t in tasks if t.dispatched_at >= 0.5]
    assert len(later) >= 8
    assert set(later) == {1}
    assert {t.client_id for t in tasks if t.lost} <= {0}


def test_a_cohort_does_without_the_clients_that_are_down(drive):
    """Rounds of two at 0, 1, 2 …: client 1 is up in [0, 1.5) alone; rounds last as long."""
    lines, tasks = drive(
        lambda: ByHand(
            SynchronousArrivals(2, FixedDurations([1.0, 1.0]), 1), [[(0, 99)], [(0, 1.5)]]
        ),
        2,
        max_time=3,
    )
    assert sorted(seen(tasks), key=lambda task: (task[1], task[0])) == [
        *[(0, 0.0, 1.0, False), (1, 0.0, 1.0, False)],
        *[(0, 1.0, 2.0, False), (1, 1.0, 1.5, True), (0, 2.0, 3.0, False), (0, 3.0, 4.0, False)],
    ]
    assert lines[-1].version == 3


@pytest.mark.parametrize("wrapped", [0, 1])
def test_it_goes_with_other_wrappers(drive, wrapped):
    def make():
        if wrapped:
            return Failures(DropOut(Availability(clock(1.0, 0.7), [(0, 30)]), 0.2), 2.0, 1.0)
        return DropOut(Availability(Failures(clock(1.0, 0.7), 2.0, 1.0), [(0, 30)]), 0.2)

    whole = drive(make, 2, buffer_size=2, num_events=40)
    assert whole == drive(make, 2, buffer_size=2, num_events=40, stop_after=7)
    assert any(task.lost and task.arrives_at - task.dispatched_at < 0.7 for task in whole[1])


def test_a_killed_run_sees_the_same_failures(drive):
    def make():
        return Failures(PoissonArrivals(2.0, UniformSpeeds(0.5)), [3.0, 1.0, 9.0], 0.5)

    whole = drive(make, 3, buffer_size=2, num_events=80)
    for stop_after in (1, 17, 60):
        assert drive(make, 3, buffer_size=2, num_events=80, stop_after=stop_after) == whole


def test_failures_depend_neither_on_the_server_nor_on_the_order_of_questions(federation):
    one, two = (Failures(clock(1.0, 1.0), 2.0, 0.5) for _ in range(2))
    one.setup(federation(2))
    two.setup(federation(2))
    times = [to_ticks(0.3 * number) for number in range(200)]
    forth = [one._find(client, ticks) for client in (0, 1) for ticks in times]
    back = [two._find(client, ticks) for client in (1, 0) for ticks in reversed(times)]
    assert forth == back[::-1]
    assert all(a.end < b.start for a, b in pairwise(one._up[0]))


def test_failures_that_are_over_are_forgotten(federation):
    """A long run of many short failures sees the same ones, and holds only those to come."""
    every = Failures(clock(1.0), mtbf=1.0, mttr=1.0)
    every.setup(federation(1))
    asked = [to_ticks(each) for each in range(0, 3000, 7)]
    expected = [every._find(0, each) for each in asked]
    some = Failures(clock(1.0), mtbf=1.0, mttr=1.0)
    some.setup(federation(1))
    found = []
    for each in asked:
        list(some.change([], each / 1e9))
        found.append(some._find(0, each))
        assert len(some._up[0]) <= 2 * 16
    assert found == expected
    assert len(every._up[0]) > 1000


def test_the_means_of_the_times(federation):
    process = Failures(clock(1.0), 3.0, 0.5)
    process.setup(federation(1))
    process._find(0, to_ticks(14000.0))
    windows = process._up[0]
    assert windows[0].start == 0
    up = np.array([w.end - w.start for w in windows]) / 1e9
    down = np.array([b.start - a.end for a, b in pairwise(windows)]) / 1e9
    # About 4,000 of each: four standard deviations are 0.063 of the mean.
    assert abs(up.mean() / 3 - 1) < 0.063
    assert abs(down.mean() / 0.5 - 1) < 0.063


def test_goodput_by_hand():
    """Up in [0, 2.5) and [4, 9): until 5 there are 3 units of work that arrived, 0.5 lost.

    Client 1 never fails, with tasks of 2 units, of which 2 have arrived at 5.
    """
    process = ByHand(clock(1.0, 2.0), [[(0, 2.5), (4, 9)], [(0, 99)]])
    report = participation_report(process, FedBuff(1), num_clients=2, max_time=5)
    assert report.goodput_of == pytest.approx([3 / 3.5, 1.0])
    assert report.goodput == pytest.approx(7 / 7.5)
    assert "goodput 0.933" in str(report)
    assert report.table().columns[-1].header == "goodput"


def test_a_record_keeps_what_was_lost(tmp_path):
    """The same; the task that client 0 begins at 5 is in flight at the end, and not lost."""
    process = ByHand(clock(1.0, 2.0), [[(0, 2.5), (4, 9)], [(0, 99)]])
    table = process.simulate(num_clients=2, buffer_size=1, max_time=5)
    # By its pull at 2 (client 1 has not yet arrived), client 0 has made two versions.
    assert table.lost == [ReplayEvent(0, 2, 2.5, 1, 2.0, 2)]
    table.save(tmp_path / "schedule.parquet")
    report = participation_report(ScheduleTable.load(tmp_path / "schedule.parquet"), FedBuff(1))
    assert report.goodput_of == pytest.approx([3 / 3.5, 1.0])
    assert report.goodput == pytest.approx(7 / 7.5)


def test_dropped_and_cancelled_work_is_waste():
    """Over-selection, first of two: the other one has worked as long when it is cancelled."""
    process = SynchronousArrivals(1, FixedDurations([1.0, 3.0]), 1, over_select=1)
    report = participation_report(process, FedAvg(), num_clients=2, max_rounds=4)
    assert report.goodput == pytest.approx(0.5)
    assert report.goodput_of == pytest.approx([1.0, 0.0])
    whole = participation_report(clock(1.0, 2.0), FedBuff(1), num_clients=2, max_rounds=9)
    assert whole.goodput == 1.0
    assert "goodput" not in str(whole)


def test_a_first_half_counts_as_the_second_one():
    """Client 0 has tasks of 2 in halves, all used; client 1 fails at 3, in its second half."""
    halves = RefreshedTasks(
        ContinuousArrivals(FixedDurations([2.0, 4.0]), resume="on_arrival", local_steps=2)
    )
    process = ByHand(halves, [[(0, 99)], [(0, 3)]])
    table = process.simulate(num_clients=2, buffer_size=1, max_time=8)
    assert [(event.client, event.time, event.tag) for event in table.lost] == [(1, 3.0, "from 0")]
    for report in (
        participation_report(process, FedASMU(), num_clients=2, max_time=8),
        participation_report(table, FedASMU()),
    ):
        assert report.goodput_of == pytest.approx([1.0, 0.0])
        assert report.goodput == pytest.approx(8 / 11)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((None, 1, 1), TypeError, "arrivals must be an arrival process, got None"),
        ((clock(1.0), 0, 1), ValueError, "mtbf must be larger than 0, got 0"),
        ((clock(1.0), 1, [1, -1]), ValueError, r"mttr\[1\] must be larger than 0, got -1"),
    ],
)
def test_bad_arguments(arguments, error, says):
    with pytest.raises(error, match=says):
        Failures(*arguments)


def test_one_time_for_each_client(federation):
    with pytest.raises(ValueError, match="mtbf has 2 numbers, but there are 3 clients"):
        Failures(clock(1.0, 1.0, 1.0), [1, 2], 1).setup(federation(3))
