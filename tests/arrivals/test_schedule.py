"""The clock around a process that does just what it is told."""

import json

import numpy as np
import pytest

from fedlight.arrivals import (
    ArrivalProcess,
    Availability,
    ContinuousArrivals,
    Dispatch,
    DiurnalWindows,
    EndRound,
    FixedDurations,
    ReplayEvent,
    Wake,
)
from fedlight.arrivals.schedule import Schedule
from fedlight.events import Kind
from fedlight.loop import Handled
from tests.playing import events


class Script(ArrivalProcess):
    """Answers each call with the next actions of a list, and writes the calls down."""

    by_rounds = True

    def __init__(self, *answers):
        self.answers = answers

    def setup(self, federation):
        self.calls = []
        self.left = list(self.answers)

    def answer(self, *call):
        self.calls.append(call)
        return self.left.pop(0) if self.left else []

    def on_wake(self, now):
        return self.answer("wake", now)

    def on_arrival(self, task, now):
        return self.answer("arrival", task.serial, task.lost, now)

    def on_round_end(self, now):
        return self.answer("round end", now)

    def on_version(self, version, clients, now):
        return self.answer("version", version, list(clients), now)

    def state_dict(self):
        return {"left": len(self.left)}


def test_what_a_process_is_asked(federation):
    script = Script(
        [Dispatch(0, 1.0, 5), Dispatch(1, 1.0, 2, lost=True), Wake(0.5), EndRound(1.0)],
        [Dispatch(2, 1.5, 3, delay=0.25)],
    )
    seen = []
    schedule = Schedule(script, federation(3))
    for number, event in enumerate(events(schedule, seen), start=1):
        seen += schedule.send_on(event, Handled(number, [7] * number))
    assert script.calls == [
        ("wake", 0.0),
        ("wake", 0.5),
        ("arrival", 0, False, 1.0),
        ("version", 1, [7], 1.0),
        ("arrival", 1, True, 1.0),  # of a lost one only the process hears
        ("round end", 1.0),
        ("version", 2, [7, 7], 1.0),
        ("arrival", 2, False, 2.25),
        ("version", 3, [7, 7, 7], 2.25),
    ]
    assert [
        (t.client_id, t.dispatched_at, t.arrives_at, t.pulled_version, t.lost) for t in seen
    ] == [
        (0, 0.0, 1.0, 0, False),
        (1, 0.0, 1.0, 0, True),
        (2, 0.75, 2.25, 0, False),
    ]


def test_no_news_no_call(federation):
    script = Script([Dispatch(0, 1.0, 5), Dispatch(1, 2.0, 5)])
    schedule = Schedule(script, federation(2))
    for event in events(schedule):
        schedule.send_on(event, Handled(0, [1] if event.task.client_id == 1 else []))
    assert [call[0] for call in script.calls] == ["wake", "arrival", "arrival", "version"]


def test_ties_are_broken_by_client_then_serial(federation):
    script = Script(
        [
            EndRound(1.0),
            Dispatch(2, 1.0, 1),
            Dispatch(0, 0.7, 1, delay=0.3),
            Dispatch(0, 1.0, 1),
            Dispatch(1, 1.0, 1),
        ]
    )
    schedule = Schedule(script, federation(3), interval=1.0)
    order = []
    for event in events(schedule):
        order.append((event.task and (event.task.client_id, event.task.serial)) or event.kind.name)
        schedule.send_on(event, Handled(0, []))
    assert order == [(0, 1), (0, 3), (1, 2), (2, 0), "ROUND_END", "DEADLINE"]


def test_events_at_the_limit_count(federation):
    script = Script([Dispatch(0, 1.0, 1), Dispatch(1, 1.000000001, 1)])
    schedule = Schedule(script, federation(2), max_time=1.0)
    assert [event.task.client_id for event in events(schedule)] == [0]
    assert schedule.now == 1.0


def test_deadlines_as_long_as_something_is_to_come(federation):
    script = Script([Dispatch(0, 2.5, 1), Dispatch(1, 0.3, 1)])
    schedule = Schedule(script, federation(2), interval=0.9)
    log = []
    for event in events(schedule):
        log.append((schedule.now, event.kind.name))
        schedule.send_on(event, Handled(0, []))
    assert log == [
        (0.3, "ARRIVAL"),
        (0.9, "DEADLINE"),
        (1.8, "DEADLINE"),
        (2.5, "ARRIVAL"),
        (2.7, "DEADLINE"),
    ]


def test_ten_deadlines_of_a_tenth_are_one(federation):
    schedule = Schedule(Script([Dispatch(0, 1.0, 1)]), federation(1), interval=0.1)
    times = []
    for event in events(schedule):
        times.append(schedule.now)
        schedule.send_on(event, Handled(0, []))
    assert times == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0]


def test_nothing_to_do(federation):
    assert list(events(Schedule(Script(), federation(1), interval=1.0))) == []


@pytest.mark.parametrize(
    "action",
    [
        Dispatch(0, 0.0, 1),
        Dispatch(0, -1.0, 1),
        Dispatch(0, 1.0, 1, delay=-1.0),
        Wake(0.0),
        EndRound(-1.0),
    ],
    ids=repr,
)
def test_time_has_to_go_on(federation, action):
    schedule = Schedule(Script([action]), federation(1))
    with pytest.raises(ValueError, match="virtual time must advance by at least 1e-9"):
        list(events(schedule))


def test_versions_that_do_not_exist(federation):
    schedule = Schedule(Script([Dispatch(0, 1.0, 1, pulled_version=1)]), federation(1))
    with pytest.raises(
        ValueError, match=r"client 0 is to pull version 1 at 0.0 .* only at version 0"
    ):
        list(events(schedule))


def test_needed_versions(federation):
    script = Script([Dispatch(0, 1.0, 1, delay=2.0, pulled_version=0), Dispatch(1, 1.0, 1)])
    schedule = Schedule(script, federation(2))
    needed = []
    for version, event in enumerate(events(schedule), start=1):
        needed.append([schedule.needs_version(v) for v in (0, 1)])
        schedule.send_on(event, Handled(version, []))
    assert needed == [[True, False], [False, False]]


def test_goes_on_from_its_state(federation):
    script = Script([Dispatch(0, 1.0, 5), Dispatch(1, 1.0, 2, delay=1.0), EndRound(3.0)])
    schedule = Schedule(script, federation(2))
    schedule.send_on(next(events(schedule)), Handled(1, [0]))
    state = json.loads(json.dumps(schedule.state_dict()))
    other_script = Script()
    other = Schedule(other_script, federation(2))
    other.load_state_dict(state)
    assert (other.now, other.version) == (1.0, 1)
    pulls, kinds = [], []
    for event in events(other, pulls):
        kinds.append(event.kind)
        other.send_on(event, Handled(1, []))
    assert [(task.client_id, task.pulled_version, task.arrives_at) for task in pulls] == [
        (1, 1, 2.0)
    ]
    assert kinds == [Kind.ARRIVAL, Kind.ROUND_END]
    assert other_script.calls == [("arrival", 1, False, 2.0), ("round end", 3.0)]


def test_times_that_no_float_holds_are_refused():
    with pytest.raises(ValueError, match=r"pass 9,007,199 units.*take a larger unit"):
        ContinuousArrivals(FixedDurations([3e6]), local_steps=1).simulate(
            num_clients=1, buffer_size=1, max_time=1e7
        )


def test_a_schedule_that_loses_everything_ends():
    windows = DiurnalWindows(2.0, 0.5)
    process = Availability(
        ContinuousArrivals(FixedDurations([2.0] * 2), local_steps=1), windows, unfinished="lose"
    )
    with pytest.warns(UserWarning, match=r"\(10,020 tasks lost in a row; .* before its limit"):
        assert len(process.simulate(num_clients=2, buffer_size=1, max_rounds=3)) == 0


def test_what_a_process_answers_is_checked():
    class Bare(ArrivalProcess):
        by_rounds = True

        def setup(self, federation): ...

        def on_wake(self, now):
            return Dispatch(0, 1.0, 1)

    with pytest.raises(TypeError, match=r"returned Dispatch\(.*yield each"):
        Bare().simulate(num_clients=1, max_rounds=1)

    far = Script([Dispatch(9, 1.0, 1)])
    with pytest.raises(ValueError, match=r"dispatches client 9, but there are only 2 clients"):
        far.simulate(num_clients=2, max_rounds=1, buffer_size=1)


def test_numpy_numbers_in_records_become_plain_ones():
    event = ReplayEvent(np.int64(1), np.int64(0), np.float64(1.0), np.int64(2), visit=np.int64(0))
    assert [type(value) for value in (event.client, event.time, event.visit)] == [int, float, int]
