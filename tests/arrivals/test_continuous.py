import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlight.arrivals import (
    ConstantSteps,
    ContinuousArrivals,
    ExponentialDurations,
    FixedDurations,
    UniformSpeeds,
    UniformSteps,
)
from fedlight.arrivals.schedule import Schedule
from fedlight.events import to_ticks
from fedlight.loop import Handled
from fedlight.types import Federation
from tests.playing import events
from tests.work import bounded_work


def arrived(lines):
    """(time, client, pulled version, version behind it) of each arrival."""
    return [(x.now, x.task.client_id, x.task.pulled_version, x.version) for x in lines if x.task]


def test_a_waiting_client_pulls_the_model_made_from_its_update(drive):
    lines, tasks = drive(
        lambda: ContinuousArrivals(FixedDurations([1.0, 0.4])), 2, buffer_size=2, max_time=3.0
    )
    assert arrived(lines) == [
        (0.4, 1, 0, 0),
        (1.0, 0, 0, 1),
        (1.4, 1, 1, 1),
        (2.0, 0, 1, 2),
        (2.4, 1, 2, 2),
        (3.0, 0, 2, 3),
    ]
    assert [(t.serial, t.client_id, t.dispatched_at, t.visit) for t in tasks] == [
        (0, 0, 0.0, 0),
        (1, 1, 0.0, 0),
        (2, 0, 1.0, 1),
        (3, 1, 1.0, 1),
        (4, 0, 2.0, 2),
        (5, 1, 2.0, 2),
        (6, 0, 3.0, 3),
        (7, 1, 3.0, 3),
    ]


def test_on_arrival_a_client_goes_on_at_once(drive):
    lines, _ = drive(
        lambda: ContinuousArrivals(FixedDurations([1.0, 0.4]), resume="on_arrival"),
        2,
        buffer_size=2,
        max_time=2.0,
    )
    # At 2.0 client 0 comes first and fills the buffer; client 1 arrives at version 3 then.
    assert arrived(lines) == [
        (0.4, 1, 0, 0),
        (0.8, 1, 0, 1),
        (1.0, 0, 0, 1),
        (1.2, 1, 1, 2),
        (1.6, 1, 2, 2),
        (2.0, 0, 1, 3),
        (2.0, 1, 2, 3),
    ]


@pytest.mark.parametrize(
    ("duration", "interval", "pulls"),
    [
        (0.9, 0.3, [(0.0, 0), (0.9, 3), (1.8, 6), (2.7, 9)]),
        (0.3, 0.1, [(0.0, 0), (0.3, 3), (0.6, 6), (0.9, 9)]),
        # From 0.35 it waits for the deadline at 0.4, and from 0.75 for the one at 0.8.
        (0.35, 0.1, [(0.0, 0), (0.4, 4), (0.8, 8)]),
    ],
)
def test_an_arrival_on_a_deadline_belongs_to_it(drive, duration, interval, pulls):
    lines, tasks = drive(
        lambda: ContinuousArrivals(FixedDurations([duration])),
        1,
        interval=interval,
        max_time=pulls[-1][0],
    )
    assert [(t.dispatched_at, t.pulled_version) for t in tasks] == pulls
    assert lines[-1].version == pulls[-1][1]


def test_deadlines_of_the_fedfix_paper(drive):
    """T = 1, 1.7, 3.2 under a deadline at each unit of time."""
    _, tasks = drive(
        lambda: ContinuousArrivals(FixedDurations([1.0, 1.7, 3.2])), 3, interval=1.0, max_time=8.0
    )
    starts = {client: [] for client in range(3)}
    for task in tasks:
        starts[task.client_id].append((task.dispatched_at, task.pulled_version))
    assert starts == {
        0: [(float(t), t) for t in range(9)],
        1: [(0.0, 0), (2.0, 2), (4.0, 4), (6.0, 6), (8.0, 8)],
        2: [(0.0, 0), (4.0, 4), (8.0, 8)],
    }


@pytest.mark.parametrize("resume", ["on_aggregation", "on_arrival"])
@pytest.mark.parametrize("concurrency", [None, 1])
def test_idle_time(drive, resume, concurrency):
    """Of one client alone, with and without a concurrency."""
    lines, tasks = drive(
        lambda: ContinuousArrivals(FixedDurations([1.0]), concurrency, idle=0.25, resume=resume),
        1,
        buffer_size=1,
        max_time=4.0,
    )
    assert [task.dispatched_at for task in tasks] == [0.0, 1.25, 2.5, 3.75]
    assert [task.pulled_version for task in tasks] == [0, 1, 2, 3]
    assert len(lines) == 3


def test_after_its_idle_time_a_client_pulls_what_is_newest_then(drive):
    _, tasks = drive(
        lambda: ContinuousArrivals(FixedDurations([1.0, 0.1]), idle=0.3),
        2,
        buffer_size=1,
        max_time=1.3,
    )
    assert [(t.client_id, t.dispatched_at, t.pulled_version) for t in tasks] == [
        (0, 0.0, 0),
        (1, 0.0, 0),
        (1, 0.4, 1),
        (1, 0.8, 2),
        (1, 1.2, 4),  # client 0 arrived at 1.0
        (0, 1.3, 5),  # client 1 arrived at 1.3
    ]


def test_idle_clients_are_not_drawn(drive):
    """Two places, three clients of which one rests: the other two work on and on."""
    _, tasks = drive(
        lambda: ContinuousArrivals(UniformSpeeds(0), 1, idle=1.5, resume="on_arrival"),
        2,
        buffer_size=1,
        max_time=6.0,
    )
    # 0..1 the first, 1..2 the second; the first is back at 2.5, the second at 3.5, …
    assert [task.dispatched_at for task in tasks] == [0.0, 1.0, 2.5, 3.5, 5.0, 6.0]
    first, second = tasks[0].client_id, tasks[1].client_id
    assert [task.client_id for task in tasks] == [first, second] * 3


def test_the_next_client_is_drawn_when_one_arrives(drive):
    lines, tasks = drive(
        lambda: ContinuousArrivals(FixedDurations([1.0, 1.0]), concurrency=1),
        2,
        buffer_size=2,
        max_time=6.0,
    )
    assert [task.dispatched_at for task in tasks] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    for one, two in zip(tasks[:6:2], tasks[1:6:2], strict=True):
        assert {one.client_id, two.client_id} == {0, 1}  # one waits, so the other is drawn
    assert [line.version for line in lines] == [0, 1, 1, 2, 2, 3]


def test_nobody_idle_and_nothing_in_flight_ends_the_run(drive):
    lines, tasks = drive(
        lambda: ContinuousArrivals(UniformSpeeds(0), concurrency=1), 2, buffer_size=3
    )
    assert len(lines) == len(tasks) == 2
    lines, _ = drive(lambda: ContinuousArrivals(UniformSpeeds(0)), 2, buffer_size=3)
    assert len(lines) == 2


def test_nobody_idle_and_a_deadline_to_come(drive):
    """The place stays empty until the deadline, not for ever and not in a loop."""
    _, tasks = drive(
        lambda: ContinuousArrivals(FixedDurations([0.5]), concurrency=1),
        1,
        interval=2.0,
        max_time=4.0,
    )
    assert [task.dispatched_at for task in tasks] == [0.0, 2.0, 4.0]


def test_all_clients_are_drawn_evenly(drive):
    _, tasks = drive(
        lambda: ContinuousArrivals(UniformSpeeds(0.5), concurrency=3, resume="on_arrival"),
        10,
        buffer_size=1,
        num_events=10_000,
    )
    counts = np.bincount([task.client_id for task in tasks])
    # The slow ones are less often idle, so they come a little less often.
    assert counts.min() > 850
    assert counts.max() < 1150


def test_full_concurrency_is_everybody(drive):
    def make(concurrency):
        return lambda: ContinuousArrivals(
            ExponentialDurations(1.0), concurrency, local_steps=UniformSteps(1, 9)
        )

    assert drive(make(5), 5, buffer_size=2) == drive(make(None), 5, buffer_size=2)


def test_a_clients_tasks_do_not_depend_on_the_others(drive):
    """Duration and steps of the k-th task of a client, however the server lets clients go."""

    def drawn(how=None, **server):
        _, tasks = drive(
            lambda: ContinuousArrivals(
                ExponentialDurations(1.0), local_steps=UniformSteps(1, 99), **(how or {})
            ),
            4,
            num_events=200,
            **server,
        )
        return {
            (t.client_id, t.visit): (
                to_ticks(t.arrives_at) - to_ticks(t.dispatched_at),
                t.num_steps,
            )
            for t in tasks
        }

    first = drawn(buffer_size=1)
    assert len({steps for _, steps in first.values()}) > 50
    for other in [
        drawn(buffer_size=3),
        drawn(interval=0.5),
        drawn({"concurrency": 2}, buffer_size=1),
        drawn({"idle": 0.7}, buffer_size=1),
    ]:
        common = first.keys() & other.keys()
        assert len(common) > 20
        assert all(first[key] == other[key] for key in common)
    assert drawn(buffer_size=1, seed=1) != first


@given(
    num_clients=st.integers(1, 6),
    concurrency=st.integers(1, 6),
    idle=st.sampled_from([0, 0.3]),
    resume=st.sampled_from(["on_aggregation", "on_arrival"]),
    server=st.sampled_from([{"buffer_size": 1}, {"buffer_size": 3}, {"interval": 0.7}]),
    seed=st.integers(0, 99),
)
def test_invariants(drive, num_clients, concurrency, idle, resume, server, seed):
    concurrency = min(concurrency, num_clients)
    lines, tasks = drive(
        lambda: ContinuousArrivals(ExponentialDurations(1.0), concurrency, idle, resume),
        num_clients,
        num_events=60,
        max_time=40.0,
        seed=seed,
        **server,
    )
    times = [line.now for line in lines]
    assert times == sorted(times)
    assert [task.serial for task in tasks] == list(range(len(tasks)))
    for line in lines:
        if line.task:
            assert 0 <= line.task.pulled_version <= line.version
    busy = {}
    for task in tasks:
        assert busy.get(task.client_id, 0.0) <= task.dispatched_at < task.arrives_at
        busy[task.client_id] = task.arrives_at
    for moment in {task.dispatched_at for task in tasks}:
        working = [t for t in tasks if t.dispatched_at <= moment < t.arrives_at]
        assert len(working) <= concurrency
        if idle == 0 and resume == "on_arrival":
            assert len(working) == concurrency


def test_a_million_clients_start_at_once():
    num_clients = 1_000_000
    federation = Federation(num_clients, np.ones(num_clients, dtype=np.int64), 1)
    arrivals = ContinuousArrivals(ExponentialDurations(1.0), concurrency=100)
    # 1.1 million lines, 220 for an event, and 0.9 MB, less than a byte for each client.
    with bounded_work(lines=1_600_000, new_bytes=1_500_000):
        schedule = Schedule(arrivals, federation)
        pulls, pulled = [], 0
        for number, event in enumerate(events(schedule, pulls), start=1):
            pulls += schedule.send_on(event, Handled(number, [event.task.client_id]))
            pulled += len(pulls)
            pulls.clear()
            if number == 5000:
                break
    assert pulled - number == 100  # in flight
    # What is kept grows with the clients met, not with all of them.
    assert len(schedule.state_dict()["arrivals"]["pool"]["changed"]) < 11_000


def test_more_places_than_clients_are_refused(federation):
    arrivals = ContinuousArrivals(UniformSpeeds(0), concurrency=5)
    with pytest.raises(ValueError, match="concurrency=5 is more than the 4 clients; write"):
        arrivals.setup(federation(4))


def test_durations_and_steps_must_fit(federation):
    with pytest.raises(ValueError, match="durations has 2 numbers, but there are 3 clients"):
        ContinuousArrivals(FixedDurations([1.0, 1.0])).setup(federation(3))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"durations": 1.0}, TypeError, "durations must be a duration model, got 1.0"),
        ({"concurrency": 0}, ValueError, "concurrency must be at least 1, got 0"),
        ({"concurrency": 2.5}, TypeError, "concurrency must be an integer, got 2.5"),
        ({"idle": -1}, ValueError, "idle must be 0 or larger, got -1"),
        ({"idle": 1e-12}, ValueError, "idle must be 0 or at least 1e-9"),
        ({"resume": "now"}, ValueError, "resume must be one of 'on_aggregation', 'on_arrival'"),
        ({"local_steps": "5"}, TypeError, "local_steps must be a LocalSteps policy"),
    ],
)
def test_bad_arguments(arguments, error, says):
    with pytest.raises(error, match=says):
        ContinuousArrivals(**{"durations": UniformSpeeds(0), **arguments})


def test_repr():
    arrivals = ContinuousArrivals(UniformSpeeds(0.8), 3, local_steps=ConstantSteps(5))
    assert repr(arrivals) == (
        "ContinuousArrivals(UniformSpeeds(0.8, slowest=1), concurrency=3, idle=0, "
        "resume='on_aggregation', local_steps=ConstantSteps(5))"
    )
