"""Schedules of which nothing comes: they end with one line, and long silences are not cut."""

import re
import warnings
from copy import deepcopy
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedlight.aggregators import MIFA, FedAvg, FedBuff, FedFix, Malenia
from fedlight.aggregators.buffered import BufferedAggregator
from fedlight.arrivals import (
    ArrivalProcess,
    Availability,
    CommunicationPattern,
    ContinuousArrivals,
    Dispatch,
    DiurnalWindows,
    DropOut,
    EndRound,
    FixedDurations,
    PoissonArrivals,
    PolledArrivals,
    SynchronousArrivals,
    Tiers,
    UniformArrivals,
    Wake,
)
from fedlight.arrivals import _silence as silence
from fedlight.arrivals.schedule import Schedule
from fedlight.loop import Limits
from fedlight.participation import dry_run

SPEEDS = FixedDurations([1, 1.2, 2])
MOST = 20 + 2 * 3


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """B = 20 + 2 M."""
    monkeypatch.setattr(silence, "_TASKS", 20)
    monkeypatch.setattr(silence, "_PER_CLIENT", 2)


class Watched:
    """Counts the events of schedules, and fails beyond a number of them."""

    def __init__(self, monkeypatch, most):
        self.most, self.count, original = most, 0, Schedule.next

        def following(schedule):
            self.count += 1
            assert self.count <= self.most, "the schedule does not end"
            return original(schedule)

        monkeypatch.setattr(Schedule, "next", following)


@pytest.fixture
def watch(monkeypatch):
    return Watched(monkeypatch, 10_000)


def told(found):
    """The one line of a schedule that has ended early."""
    (line,) = [str(each.message) for each in found if "before its limit" in str(each.message)]
    return line


@pytest.mark.parametrize("late", ["cancel", "cut"])
@pytest.mark.parametrize("limit", [{"buffer_size": 2, "max_rounds": 5}, {"max_updates": 5}])
def test_a_schedule_in_which_every_task_is_stopped_ends(watch, late, limit):
    arrivals = SynchronousArrivals(2, SPEEDS, 1, timeout=0.8, late=late)
    words = r"no update can be used \(26 tasks stopped in a row; give them more time .* virtual"
    with pytest.warns(UserWarning, match=words):
        table = arrivals.simulate(num_clients=3, **limit)
    assert all(event.stopped_at_version is not None for event in table.events)
    assert len(table.events) == MOST  # 13 rounds of two tasks
    assert table.events[-1].time == pytest.approx(13 * 0.8)


def test_rounds_without_an_update_still_count_as_versions():
    """With FedAvg by rounds the run ends after five rounds, as it always did."""
    arrivals = SynchronousArrivals(2, SPEEDS, 1, timeout=0.8)
    table = arrivals.simulate(num_clients=3, max_rounds=5)
    assert table.round_ends == pytest.approx([0.8, 1.6, 2.4, 3.2, 4.0])


class Lost(ArrivalProcess):
    """A client whose tasks are all lost but every n-th."""

    def __init__(self, every):
        self.every = every

    def setup(self, federation):
        self.made = 0

    def on_wake(self, now):
        return self.on_arrival(None, now)

    def on_arrival(self, task, now):
        self.made += 1
        return [Dispatch(0, 1.0, 1, lost=self.made % self.every != 0)]


def test_tasks_that_are_lost_end_a_run_only_in_a_row(watch):
    most = 20 + 2  # of one client
    table = Lost(most).simulate(num_clients=1, buffer_size=1, max_updates=3)
    assert [each.time for each in table.events] == [22.0, 44.0, 66.0]
    with pytest.warns(UserWarning, match=r"\(22 tasks lost in a row; lose fewer"):
        table = Lost(most + 1).simulate(num_clients=1, buffer_size=1, max_updates=3)
    assert len(table) == 0


def test_a_process_that_only_wakes_up_ends(watch):
    class Idle(ArrivalProcess):
        def setup(self, federation):
            pass

        def on_wake(self, now):
            return [Wake(1.0)]

    with pytest.warns(UserWarning, match=r"\(220 wake-ups without a task in a row"):
        Idle().simulate(num_clients=1, buffer_size=1, max_updates=3)


def test_a_process_of_empty_rounds_ends(watch):
    class Empty(ArrivalProcess):
        by_rounds = True

        def setup(self, federation):
            pass

        def on_wake(self, now):
            return [EndRound(1.0)]

        on_round_end = on_wake

    with pytest.warns(UserWarning, match=r"\(22 rounds without a task in a row"):
        Empty().simulate(num_clients=1, max_updates=3)


def test_a_clock_that_stands_still_is_refused(watch):
    """Ends of rounds and wake-ups in turn, before the only task arrives: 22 = 20 + 2 M."""

    class Standing(ArrivalProcess):
        by_rounds = True

        def setup(self, federation):
            self.started = False

        def on_wake(self, now):
            started, self.started = self.started, True
            return [EndRound(0.0)] if started else [Dispatch(0, 1.0, 1), Wake(0.5)]

        def on_round_end(self, now):
            return [Wake(0.0)]

    words = r"woken up 23 times at virtual time 0.5, which does not advance; .* delay above 0"
    with pytest.raises(ValueError, match=words):
        Standing().simulate(num_clients=1, max_updates=3)


def test_what_was_counted_is_in_the_state(federation):
    schedule = Schedule(Lost(1000), federation(1))
    from fedlight.loop import Handled

    for _ in range(12):
        schedule.send_on(schedule.next(), Handled(0))
    again = Schedule(Lost(1000), federation(1))
    again.load_state_dict(schedule.state_dict())
    assert again.silence.state_dict() == schedule.silence.state_dict()
    assert schedule.silence.lost == 11


# --- long silences ---


@pytest.mark.parametrize(
    "arrivals",
    [
        SynchronousArrivals(1, SPEEDS, 1),
        SynchronousArrivals(1, SPEEDS, 1, timeout=1.5),
        UniformArrivals(1),
        CommunicationPattern.periodic(1),
        PolledArrivals(1, 1.0, SPEEDS, 1),
        PoissonArrivals(2.0, SPEEDS, 1),
        ContinuousArrivals(SPEEDS, local_steps=1),
        ContinuousArrivals(SPEEDS, concurrency=1, local_steps=1),
        Tiers({"one": SynchronousArrivals(1, SPEEDS, 1), "two": ContinuousArrivals(SPEEDS)}),
    ],
    ids=str,
)
def test_a_long_night_is_not_cut(arrivals):
    """From 4 to 2004 nobody is there: 2000 rounds, ticks or starts, many times the bound."""
    table = Availability(arrivals, [(0, 4), (2004, 2010)]).simulate(
        num_clients=3, max_time=2009, **({} if arrivals.by_rounds else {"buffer_size": 1})
    )
    late = [each.time for each in table.events if each.time > 2004]
    assert late
    assert all(each.time < 100 or each.time > 2004 for each in table.events)


def test_windows_that_every_tick_misses_end_a_run(watch):
    """Clients are there from 0.25 to 0.5 of each unit, ticks are at whole units."""
    windows = DiurnalWindows(1.0, 0.25, phases=0.25)
    arrivals = Availability(CommunicationPattern.periodic(1), windows)
    with pytest.warns(UserWarning, match=r"\(260 wake-ups without a task in a row"):
        arrivals.simulate(num_clients=3, buffer_size=1, max_rounds=5)


def test_starts_while_a_client_is_at_work_are_no_silence():
    """A thousand starts for each task: all clients are busy, and one is on its way."""
    arrivals = PoissonArrivals(1000.0, FixedDurations([1.0]), 1)
    assert len(arrivals.simulate(num_clients=1, buffer_size=1, max_updates=3)) == 3


def test_deadlines_are_no_silence():
    arrivals = ContinuousArrivals(FixedDurations([100.0]), local_steps=1)
    assert len(arrivals.simulate(num_clients=1, interval=0.1, max_updates=2)) == 2


# --- aggregators ---


class Never(BufferedAggregator):
    """Accepts no update."""

    def accepts(self, update, version):
        return False

    def weights(self, updates, version):
        return [1.0] * len(updates)


def rounds_of(arrivals, aggregator, federation, **limits):
    return dry_run(arrivals, aggregator, federation, Limits(**limits)).history


def test_updates_that_are_all_dropped_end_a_run(watch, federation):
    with pytest.warns(UserWarning, match=r"\(26 updates dropped in a row; let the aggregator"):
        found = rounds_of(ContinuousArrivals(SPEEDS), Never(2), federation(3), max_rounds=4)
    assert found == []


def test_an_aggregator_that_waits_for_a_client_that_never_arrives_ends(watch, federation):
    arrivals = Availability(
        ContinuousArrivals(SPEEDS, resume="on_arrival"), {0: [(0, 9e4)], 1: [(0, 9e4)]}
    )
    with pytest.warns(UserWarning, match=r"has received 260 updates since its last version"):
        assert rounds_of(arrivals, Malenia(), federation(3), max_rounds=4) == []


def test_a_large_buffer_is_not_cut(federation):
    arrivals = ContinuousArrivals(SPEEDS, resume="on_arrival")
    assert len(rounds_of(arrivals, FedBuff(600), federation(3), max_rounds=1)) == 1


PROCESSES = st.one_of(
    st.builds(
        lambda count, early, late: SynchronousArrivals(count, SPEEDS, 1, late=late, **early),
        st.sampled_from([None, 1, 2]),
        st.sampled_from([{"timeout": t} for t in (0.5, 1.1, 3.0)] + [{"quorum": 1}]),
        st.sampled_from(["cancel", "cut", "continue"]),
    ),
    st.builds(lambda n, age: UniformArrivals(n, age), st.integers(1, 3), st.integers(0, 2)),
    st.builds(CommunicationPattern.periodic, st.integers(1, 3)),
    st.builds(lambda p: CommunicationPattern.random(p), st.sampled_from([0.05, 0.3])),
    st.builds(lambda n, gap: PolledArrivals(n, gap, SPEEDS, 2), st.integers(1, 3), st.just(0.5)),
    st.builds(lambda rate: PoissonArrivals(rate, SPEEDS, 1), st.sampled_from([0.1, 3.0])),
    st.builds(
        lambda count, resume: ContinuousArrivals(
            SPEEDS, concurrency=count, resume=resume, local_steps=1
        ),
        st.sampled_from([None, 1, 2]),
        st.sampled_from(["on_arrival", "on_aggregation"]),
    ),
)
TIMES = st.integers(0, 12).map(lambda n: n / 4)
PAIRS = st.tuples(TIMES, TIMES).filter(lambda pair: pair[0] < pair[1])
WINDOWS = st.one_of(
    st.dictionaries(st.integers(0, 2), st.lists(PAIRS, min_size=1, max_size=2), min_size=1),
    st.builds(DiurnalWindows, st.sampled_from([1.0, 1.3]), st.sampled_from([0.1, 0.6]), TIMES),
)
WRAPPERS = st.one_of(
    st.just(lambda process: process),
    st.builds(lambda p: lambda process: DropOut(process, p), st.sampled_from([0.3, 0.97])),
    st.builds(
        lambda w, how: lambda process: Availability(process, w, unfinished=how),
        WINDOWS,
        st.sampled_from(["finish", "lose"]),
    ),
    st.builds(
        lambda w: lambda process: Tiers({"a": Availability(process, w), "b": deepcopy(process)}),
        WINDOWS,
    ),
)
AGGREGATORS = st.sampled_from(
    [FedAvg, Malenia, *(partial(each, 2) for each in (FedBuff, MIFA, Never)), partial(FedFix, 0.4)]
)


@given(
    process=PROCESSES,
    wrapper=WRAPPERS,
    make=AGGREGATORS,
    limits=st.sampled_from([{"max_rounds": 30}, {"max_updates": 60}]),
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_schedule_ends(monkeypatch, federation, process, wrapper, make, limits):
    """At its limit, or with one line; the watchdog counts events."""
    arrivals, aggregator = wrapper(process), make()
    if not arrivals.by_rounds and aggregator.buffer_size is None and aggregator.interval is None:
        aggregator = FedBuff(2)
    with monkeypatch.context() as patches, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        Watched(patches, 20_000)
        history = rounds_of(arrivals, aggregator, federation(3), **limits)
    lines = [each for each in found if "before its limit" in str(each.message)]
    arrived = sum(len(each.updates) + len(each.dropped) for each in history)
    reached = len(history) >= limits.get("max_rounds", 1e9) or arrived >= limits.get(
        "max_updates", 1e9
    )
    assert len(lines) <= 1
    assert not (reached and lines)
    if lines:
        assert re.search("no client can arrive|no update can be used|does not", told(found))
