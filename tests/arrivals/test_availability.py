import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlight.arrivals import (
    Availability,
    CommunicationPattern,
    ContinuousArrivals,
    DiurnalWindows,
    DropOut,
    FixedDurations,
    IntervalWindows,
    PoissonArrivals,
    SynchronousArrivals,
    TraceWindows,
    UniformArrivals,
    UniformSpeeds,
)
from fedlight.arrivals.schedule import Schedule
from fedlight.arrivals.traces import Device
from fedlight.arrivals.windows import Window
from fedlight.events import Kind, to_ticks, to_time
from fedlight.loop import Handled
from fedlight.types import Federation
from tests.playing import events
from tests.work import bounded_work


def clock(*durations, **more):
    return ContinuousArrivals(FixedDurations(durations), **more)


def starts(tasks):
    return [(task.client_id, task.dispatched_at) for task in tasks]


def test_a_client_waits_for_its_window(drive):
    lines, tasks = drive(
        lambda: Availability(clock(1.0, 1.0), {0: [(0.5, 2)], 1: [(0, 1), (3, 3.5)]}),
        2,
        buffer_size=1,
    )
    # Client 0: 0.5 to 1.5, again to 2.5, and never again. Client 1: at 1.0 its window is over.
    assert starts(tasks) == [(1, 0.0), (0, 0.5), (0, 1.5), (1, 3.0)]
    assert [(line.now, line.version) for line in lines] == [(1, 1), (1.5, 2), (2.5, 3), (4, 4)]
    assert [task.pulled_version for task in tasks] == [0, 0, 2, 3]


def test_unfinished_work_may_be_lost(drive):
    lines, tasks = drive(
        lambda: Availability(clock(1.0), [(0, 1.5), (4, 6)], unfinished="lose"), 1, buffer_size=1
    )
    assert [(t.dispatched_at, t.lost) for t in tasks] == [
        (0.0, False),
        (1.0, True),
        (4.0, False),
        (5.0, False),  # it arrives as the window ends
    ]
    assert [line.now for line in lines] == [1.0, 5.0, 6.0]


def test_another_client_is_drawn(drive):
    """One place; client 0 is there in [0, 10), client 1 in [10, 20), client 2 never."""
    _, tasks = drive(
        lambda: Availability(
            clock(3.0, 3.0, 3.0, concurrency=1, resume="on_arrival"), {0: [(0, 10)], 1: [(10, 20)]}
        ),
        3,
        buffer_size=1,
    )
    assert starts(tasks) == [
        *((0, t) for t in (0.0, 3.0, 6.0, 9.0)),
        *((1, t) for t in (12.0, 15.0, 18.0)),
    ]


def test_an_empty_place_is_filled_when_somebody_comes(drive):
    _, tasks = drive(
        lambda: Availability(
            clock(1.0, 1.0, concurrency=1, resume="on_arrival"), {0: [(5, 6)], 1: [(8, 9)]}
        ),
        2,
        buffer_size=1,
    )
    assert starts(tasks) == [(0, 5.0), (1, 8.0)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: clock(1.0, 1.0),
        lambda: clock(1.0, 1.0, concurrency=1),
        lambda: PoissonArrivals(1.0, UniformSpeeds(0)),
        lambda: DropOut(clock(1.0, 1.0, concurrency=1), 0.5),
    ],
    ids=["all", "drawn", "poisson", "wrapped"],
)
@pytest.mark.parametrize("server", [{"buffer_size": 1}, {"interval": 1.0}], ids=["buffer", "clock"])
def test_nobody_is_there_any_more(drive, make, server):
    """The run ends; it neither hangs nor crashes."""
    lines, tasks = drive(lambda: Availability(make(), [(0, 3)]), 2, num_events=10**5, **server)
    assert tasks
    assert all(task.dispatched_at < 3 for task in tasks)
    assert lines[-1].now < 6


def test_nobody_was_ever_there(drive):
    for make in [
        lambda: Availability(clock(1.0, 1.0, concurrency=1), {2: [(0, 1)]}),
        lambda: Availability(clock(1.0, 1.0), {2: [(0, 1)]}),
    ]:
        with pytest.raises(ValueError, match="names client 2, but there are only 2 clients"):
            drive(make, 2, buffer_size=1)
    late = {0: [(7, 8)]}
    lines, _ = drive(lambda: Availability(clock(1.0, 1.0), late), 2, interval=2.0)
    assert [line.now for line in lines] == [2.0, 4.0, 6.0, 8.0, 8.0]


def test_by_rounds_absent_clients_do_not_take_part(drive):
    for make in [
        lambda: Availability(UniformArrivals(per_round=3), {0: [(0, 99)], 1: [(2, 4)]}),
        lambda: Availability(SynchronousArrivals(), {0: [(0, 99)], 1: [(2, 4)]}),
    ]:
        lines, tasks = drive(make, 3, max_time=6.0)
        expected = [(0, float(t)) for t in range(7)] + [(1, 2.0), (1, 3.0)]
        assert sorted(starts(tasks)) == sorted(expected)
        ends = [line.now for line in lines if line.kind is Kind.ROUND_END]
        assert ends == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_on_the_common_clock_absent_clients_are_silent(drive):
    _, tasks = drive(
        lambda: Availability(CommunicationPattern.periodic(2), [(0, 1), (3, 5)]),
        1,
        interval=1.0,
        max_time=10.0,
    )
    assert [(t.dispatched_at, t.arrives_at, t.num_steps) for t in tasks] == [(0, 2, 2), (4, 6, 2)]


def test_open_loop(drive):
    _, tasks = drive(
        lambda: Availability(
            PoissonArrivals(5.0, UniformSpeeds(0.5)), {0: [(0, 50)], 1: [(50, 100)]}
        ),
        3,
        buffer_size=1,
        num_events=10**5,
        max_time=200.0,
    )
    assert {t.client_id for t in tasks if t.dispatched_at < 50} == {0}
    assert {t.client_id for t in tasks if t.dispatched_at >= 50} == {1}
    # Each start finds the one client that is there, unless it is at work.
    assert len(tasks) > 50


@given(st.integers(0, 10**4), st.floats(0.05, 0.95), st.integers(0, 20 * 10**9))
def test_days(seed, share, ticks):
    windows = DiurnalWindows(period=2.0, share=share)
    windows.setup(Federation(3, np.ones(3), 1, seed=seed))
    for client in range(3):
        window = windows.find(client, ticks)
        assert window.end > ticks
        assert window.start - ticks < 2 * 10**9
        assert window.end - window.start == to_ticks(2.0 * share)
        for later in (window.start, window.end - 1):
            assert windows.find(client, later) == window
        assert windows.find(client, window.end).start == window.start + 2 * 10**9


def test_days_that_are_given(drive):
    windows = DiurnalWindows(period=10.0, share=0.2, phases=[0.0, 5.0])
    _, tasks = drive(
        lambda: Availability(clock(1.0, 1.0), windows), 2, buffer_size=1, max_time=16.0
    )
    assert starts(tasks) == [
        (0, 0.0),
        (0, 1.0),
        (1, 5.0),
        (1, 6.0),
        (0, 10.0),
        (0, 11.0),
        (1, 15.0),
        (1, 16.0),
    ]
    always = DiurnalWindows(share=1.0, phases=3.0)
    _, tasks = drive(lambda: Availability(clock(0.7), always), 1, buffer_size=1, max_time=2.8)
    assert [task.dispatched_at for task in tasks] == [0.0, 0.7, 1.4, 2.1, 2.8]


def test_a_phase_is_the_begin_of_a_window():
    windows = DiurnalWindows(period=10.0, share=0.2, phases=[3.0])
    windows.setup(Federation(1, np.ones(1), 0))
    for time, start in ((0.0, 3.0), (4.0, 3.0), (5.0, 13.0)):
        found = windows.find(0, to_ticks(time))
        assert (found.start, found.end) == (to_ticks(start), to_ticks(start + 2.0))


def test_a_third_is_awake_at_any_time(drive):
    windows = DiurnalWindows(period=24.0, share=1 / 3)
    windows.setup(Federation(3000, np.ones(3000), 1))
    for hour in (0.0, 5.5, 100.25):
        ticks = to_ticks(hour)
        awake = np.mean([windows.find(i, ticks).start <= ticks for i in range(3000)])
        assert abs(awake - 1 / 3) < 0.035


def test_table_from_a_file(tmp_path, drive):
    path = tmp_path / "who.csv"
    path.write_text("client,start,end\n1,0.5,2\n0,0,1\n1,8,9\n")
    windows = IntervalWindows.from_file(path)
    found = windows.find(1, to_ticks(2.0))
    assert (to_time(found.start), to_time(found.end)) == (8.0, 9.0)
    assert windows.find(1, to_ticks(9.0)) is None
    assert windows.find(2, 0) is None
    _, tasks = drive(lambda: Availability(clock(1.0, 1.0), path), 2, buffer_size=1)
    assert starts(tasks) == [(0, 0.0), (1, 0.5), (1, 1.5), (1, 8.0)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("client,from,to\n0,1,2\n", "must have the columns client,start,end in its first line"),
        ("", "must have the columns client,start,end"),
        ("client,start,end\n0,1,2\n1,x,3\n", r"line 3 of .* must hold numbers, got \['1', 'x'"),
        ("client,start,end\n0,1\n", "line 2 of .* must hold numbers"),
        ("client,start,end\n0,2,1\n", r"intervals\[0\] must hold pairs with start < end"),
        ("client,start,end\n-1,0,1\n", "a client of intervals must be 0 or larger"),
        ("client,start,end\n", "must hold at least one"),
    ],
)
def test_bad_files(tmp_path, content, says):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=says):
        IntervalWindows.from_file(path)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (
            lambda: Availability(3, [(0, 1)]),
            TypeError,
            "arrivals must be an arrival process, got 3",
        ),
        (lambda: Availability(clock(1), 5), TypeError, "windows must be a list"),
        (lambda: Availability(clock(1), []), ValueError, "windows must hold at least one"),
        (
            lambda: Availability(clock(1), {0: []}),
            ValueError,
            r"at least one \(start, end\), got {",
        ),
        (lambda: Availability(clock(1), [3]), TypeError, r"must hold pairs \(start, end\), got 3"),
        (lambda: Availability(clock(1), [(2, 2)]), ValueError, "must hold pairs with start < end"),
        (lambda: Availability(clock(1), [(-1, 2)]), ValueError, "intervals must be 0 or larger"),
        (lambda: Availability(clock(1), {"a": [(0, 1)]}), TypeError, "a client of intervals must"),
        (lambda: Availability(clock(1), [(0, 1)], "stop"), ValueError, "unfinished must be one of"),
        (lambda: Availability(clock(1), "nowhere.csv"), FileNotFoundError, "nowhere.csv"),
        (lambda: Availability(clock(1), {0: 5}), TypeError, r"intervals\[0\] must be a list of"),
        (lambda: Availability(clock(1), {0: (0, 2)}), TypeError, r"must hold pairs .*, got 0"),
        (lambda: IntervalWindows("0-8"), TypeError, "intervals must be a list of"),
        (lambda: IntervalWindows(np.zeros(3)), TypeError, r"must hold pairs .*, got 0.0"),
        (lambda: DiurnalWindows(1e300), ValueError, "period must be at most 9,007,199 units"),
        (lambda: DiurnalWindows(phases={0: 1.0}), TypeError, "phases must be a list, got the mapp"),
        (lambda: DiurnalWindows(phases=[]), ValueError, "phases must hold one number for each"),
        (lambda: DiurnalWindows(0), ValueError, "period must be larger than 0"),
        (lambda: DiurnalWindows(share=0), ValueError, "share of the period must last"),
        (lambda: DiurnalWindows(share=2), ValueError, "share must lie between 0 and 1"),
        (lambda: DiurnalWindows(phases=["a"]), TypeError, r"phases\[0\] must be a number"),
    ],
)
def test_bad_arguments(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_phases_must_fit(federation):
    with pytest.raises(ValueError, match="phases has 2 numbers, but there are 3 clients"):
        DiurnalWindows(phases=[0.0, 1.0]).setup(federation(3))


def test_windows_that_never_meet_are_an_error(drive):
    """Days that begin half a day apart, one around the other: no loop at one virtual time."""
    one, two = (DiurnalWindows(2.0, 0.25, phases=phase) for phase in (0.0, 1.0))
    with pytest.raises(ValueError, match="client 0 was postponed more than 1000 times"):
        drive(lambda: Availability(Availability(clock(1.0), one), two), 1, buffer_size=1)


def test_nested_windows(drive):
    one, two = [(0, 3), (6, 9)], [(2, 7)]
    _, tasks = drive(lambda: Availability(Availability(clock(0.6), one), two), 1, buffer_size=1)
    assert starts(tasks) == [(0, 2.0), (0, 2.6), (0, 6.0), (0, 6.6)]


def test_a_million_clients_of_whom_few_are_there():
    num_clients = 1_000_000
    federation = Federation(num_clients, np.ones(num_clients, dtype=np.int64), 1)
    arrivals = Availability(
        ContinuousArrivals(UniformSpeeds(0.5), concurrency=100), DiurnalWindows(share=0.1)
    )
    # 0.9 million lines and 1.7 MB: less than a line and about a byte for each client and event.
    with bounded_work(lines=1_500_000, new_bytes=2_500_000):
        schedule = Schedule(arrivals, federation)
        pulls, pulled = [], 0
        for number, event in enumerate(events(schedule, pulls), start=1):
            pulls += schedule.send_on(event, Handled(number, [event.task.client_id]))
            pulled += len(pulls)
            pulls.clear()
            if number == 500:
                break
    assert pulled - number == 100  # in flight


def test_repr():
    words = repr(Availability(UniformArrivals(2), [(0, 1)]))
    assert re.search(r"IntervalWindows\(1 intervals, \w{8}\), unfinished='finish'\)$", words)
    words = repr(IntervalWindows({0: [(0, 1)]}))
    assert re.fullmatch(r"IntervalWindows\(1 clients, \w{8}\)", words)
    assert repr(DiurnalWindows(24, 0.3)) == "DiurnalWindows(period=24, share=0.3)"


def test_windows_that_overlap_are_one():
    windows = IntervalWindows([(20, 28), (38, 41), (19, 33), (33, 35)])
    open_at = windows.find(0, to_ticks(28.9))
    assert open_at == Window(to_ticks(19), to_ticks(33))
    assert windows.find(0, to_ticks(33)) == Window(to_ticks(33), to_ticks(35))  # only touches


NUMBERS = st.integers(0, 60)
PAIRS = st.lists(
    st.tuples(NUMBERS, NUMBERS).filter(lambda pair: pair[0] < pair[1]), min_size=1, max_size=6
)


def by_brute_force(pairs, tick, last):
    """Whether the client is there, and else the next tick at which it is, tried one after another.

    Args:
        pairs: The windows, in ticks.
        tick: The time.
        last: The last tick to try.
    """
    for start in range(tick, last):
        if any(a <= start < b for a, b in pairs):
            return start
    return None


@given(pairs=PAIRS, tick=st.integers(0, 70))
def test_intervals_and_traces_agree_with_brute_force(pairs, tick):
    first = by_brute_force(pairs, tick, 61)
    times = [(a * 1e-9, b * 1e-9) for a, b in pairs]
    windows = IntervalWindows(times), TraceWindows([Device(times)])
    for found in (each.find(0, tick) for each in windows):
        if first is None:
            assert found is None
            continue
        assert max(found.start, tick) == first
        # The window ends where a task that lasts on would be outside: no other window covers it.
        assert found.end == next(
            t for t in range(first, 62) if t in ends(pairs) and not inside(pairs, t)
        )


def ends(pairs):
    return {end for _, end in pairs}


def inside(pairs, tick):
    """Whether a window covers both sides of a time."""
    return any(start < tick < end for start, end in pairs)


@given(pairs=PAIRS, tick=st.integers(0, 400))
def test_traces_that_repeat_agree_with_brute_force(pairs, tick):
    windows = TraceWindows([Device([(a * 1e-9, b * 1e-9) for a, b in pairs], period=61e-9)])
    repeated = [(a + 61 * n, b + 61 * n) for a, b in pairs for n in range(9)]
    found = windows.find(0, tick)
    assert max(found.start, tick) == by_brute_force(repeated, tick, 600)


def test_a_window_within_another_changes_nothing():
    devices = [Device([(0, 100), (1, 2)])]
    tables = [
        Availability(ContinuousArrivals(FixedDurations([5.0])), TraceWindows(each)).simulate(
            num_clients=1, buffer_size=1, max_time=100
        )
        for each in (devices, [Device([(0, 100)])])
    ]
    assert tables[0] == tables[1]
    assert len(tables[0]) == 20
