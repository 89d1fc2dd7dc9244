import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlight.arrivals import (
    Availability,
    Dispatch,
    FixedDurations,
    ReplayArrivals,
    StepDurations,
    SynchronousArrivals,
    Tiers,
    UniformSteps,
)
from fedlight.arrivals.wrapper import Wrapper
from fedlight.events import Kind


def test_a_round_ends_with_its_slowest(drive):
    lines, tasks = drive(
        lambda: SynchronousArrivals(durations=FixedDurations([1.0, 0.3, 0.5])), 3, max_time=2.0
    )
    assert [(x.now, x.kind.name, x.task and x.task.client_id, x.version) for x in lines] == [
        (0.3, "ARRIVAL", 1, 0),
        (0.5, "ARRIVAL", 2, 0),
        (1.0, "ARRIVAL", 0, 0),
        (1.0, "ROUND_END", None, 1),
        (1.3, "ARRIVAL", 1, 1),
        (1.5, "ARRIVAL", 2, 1),
        (2.0, "ARRIVAL", 0, 1),
        (2.0, "ROUND_END", None, 2),
    ]
    assert all(task.pulled_version == task.dispatched_at for task in tasks)


def test_the_slowest_of_those_who_take_part(drive):
    lines, tasks = drive(
        lambda: SynchronousArrivals(2, FixedDurations([0.25, 0.5, 1.0, 2.0])), 4, num_events=300
    )
    ends = [0.0] + [line.now for line in lines if line.kind is Kind.ROUND_END]
    for number in range(len(ends) - 1):
        taking_part = [t for t in tasks if t.pulled_version == number]
        assert len({task.client_id for task in taking_part}) == 2
        assert {task.dispatched_at for task in taking_part} == {ends[number]}
        assert max(task.arrives_at for task in taking_part) == ends[number + 1]
    counts = np.bincount([task.client_id for task in tasks])
    assert counts.min() > 35


def test_by_default_a_round_lasts_one_unit(drive):
    lines, _ = drive(lambda: SynchronousArrivals(), 3, max_time=3.0)
    assert [line.now for line in lines if line.kind is Kind.ROUND_END] == [1.0, 2.0, 3.0]


def test_durations_of_the_steps(drive):
    _, tasks = drive(
        lambda: SynchronousArrivals(2, StepDurations(0.1), UniformSteps(1, 10)), 5, num_events=60
    )
    for task in tasks:
        assert task.arrives_at - task.dispatched_at == pytest.approx(task.num_steps / 10)
    assert len({task.num_steps for task in tasks}) > 5


def test_expected_durations(federation):
    arrivals = SynchronousArrivals()
    arrivals.setup(federation(2))
    assert arrivals.expected_durations().tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"per_round": 0}, ValueError, "per_round must be at least 1"),
        ({"durations": [1.0]}, TypeError, r"durations must be a duration model, got \[1.0\]"),
        ({"local_steps": "1"}, TypeError, "local_steps must be"),
    ],
)
def test_bad_arguments(arguments, error, says):
    with pytest.raises(error, match=says):
        SynchronousArrivals(**arguments)


def test_what_must_fit(federation):
    with pytest.raises(ValueError, match="per_round=5 is more than the 4 clients"):
        SynchronousArrivals(5).setup(federation(4))
    with pytest.raises(ValueError, match="has 1 numbers, but there are 2 clients"):
        SynchronousArrivals(None, FixedDurations([1.0])).setup(federation(2))


def test_repr():
    assert repr(SynchronousArrivals(2)) == (
        "SynchronousArrivals(per_round=2, durations=None, local_steps=LocalEpochs(1))"
    )


def rounds(durations, per_round=None, **more):
    return SynchronousArrivals(per_round, FixedDurations(durations), local_steps=1, **more)


def schedule(durations, max_rounds=1, wrapped=lambda arrivals: arrivals, **more):
    """The ends of rounds; and of each task the client, pulled version, time, and if it was late."""
    arrivals = wrapped(rounds(durations, **more))
    table = arrivals.simulate(len(durations), max_rounds=max_rounds)
    tasks = [
        (e.client, e.pulled_version, e.time, e.stopped_at_version is not None) for e in table.events
    ]
    return table.round_ends, tasks


@pytest.mark.parametrize(
    ("more", "end", "arrive"),
    [
        ({"grace": 1.0}, 2.0, [0, 1, 2]),  # clients 1 and 2 arrive exactly at the end
        ({"grace": 0.5}, 1.5, [0]),
        ({"grace": 0}, 1.0, [0]),
        ({"quorum": 1}, 1.0, [0]),
        ({"quorum": 2}, 2.0, [0, 1, 2]),  # together with the second one
        ({"quorum": 3}, 2.0, [0, 1, 2]),
        ({"over_select": 2}, 2.0, [0, 1]),  # which does not take them together
        ({"quorum": 2, "grace": 1.5}, 3.5, [0, 1, 2]),
        ({"quorum": 3, "grace": 2.0}, 4.0, [0, 1, 2, 3]),
        ({"quorum": 1, "grace": 50.0}, 4.0, [0, 1, 2, 3]),  # nobody is left to wait for
        ({"quorum": 4, "grace": 1.0}, 4.0, [0, 1, 2, 3]),
        ({"quorum": 2, "grace": 1.5, "timeout": 3.0}, 3.0, [0, 1, 2]),
        ({"quorum": 1, "grace": 0.5, "timeout": 3.0}, 1.5, [0]),
        ({"quorum": 2, "grace": 1.5, "over_select": 1}, 2.0, [0, 1, 2]),
    ],
    ids=repr,
)
def test_the_end_of_a_round_with_a_quorum_by_hand(more, end, arrive):
    """Four clients that take 1, 2, 2 and 4 units; the late ones are stopped at the end."""
    durations = [1.0, 2.0, 2.0, 4.0]
    ends, tasks = schedule(durations, **more)
    assert ends == [end]
    in_time = [(client, 0, durations[client], False) for client in arrive]
    late = [(client, 0, end, True) for client in range(4) if client not in arrive]
    assert tasks == in_time + late


def test_late_clients_of_a_grace_period_are_cut():
    table = SynchronousArrivals(
        None, FixedDurations([1.0, 2.0, 4.0]), local_steps=8, grace=1.0, late="cut"
    ).simulate(3, max_rounds=1)
    # client 2 has had half of its time
    assert [(e.client, e.time, e.num_steps) for e in table.events] == [
        (0, 1.0, 8),
        (1, 2.0, 8),
        (2, 2.0, 4),
    ]


def test_late_clients_continue_by_hand():
    """Clients of 1, 2.5 and 3 units, and half a unit of grace."""
    ends, tasks = schedule([1.0, 2.5, 3.0], max_rounds=3, grace=0.5, late="continue")
    # Client 0 arrives at 1, so the round ends at 1.5, and client 0 pulls version 1. It and client 1
    # arrive at 2.5; client 2 arrives exactly at the end of that round. All begin the third one.
    assert ends == [1.5, 3.0, 4.5]
    assert tasks == [
        (0, 0, 1.0, False),
        (0, 1, 2.5, False),
        (1, 0, 2.5, False),
        (2, 0, 3.0, False),
        (0, 2, 4.0, False),
    ]


def test_a_timeout_without_an_arrival_while_clients_continue():
    ends, tasks = schedule([2.0, 2.25], max_rounds=5, timeout=0.5, late="continue")
    # Nobody is there to begin the rounds 2 to 4. The fourth one ends with an arrival in it.
    assert ends == [0.5, 1.0, 1.5, 2.0, 2.5]
    assert tasks == [(0, 0, 2.0, False), (1, 0, 2.25, False)]


def test_drawn_clients_that_are_at_work_do_not_begin():
    ends, tasks = schedule(
        [1.0, 5.0, 2.0],
        max_rounds=4,
        per_round=[[0, 1], [1, 2], [1], [0, 1]],
        quorum=1,
        late="continue",
    )
    # Round 2 adds client 2 alone, round 3 nobody: it waits for client 1. Then 0 and 1 begin.
    assert ends == [1.0, 3.0, 5.0, 6.0]
    assert tasks == [(0, 0, 1.0, False), (2, 1, 3.0, False), (1, 0, 5.0, False), (0, 3, 6.0, False)]


def test_updates_are_used_at_once_and_clients_begin_together():
    """A server that steps at each arrival, whose clients wait for the grace period to end."""
    arrivals = rounds([1.0, 1.25, 4.0], grace=0.5, late="continue")
    table = arrivals.simulate(3, buffer_size=1, max_rounds=6)
    assert [(e.client, e.dispatched_at, e.pulled_version, e.time) for e in table.events] == [
        (0, 0.0, 0, 1.0),
        (1, 0.0, 0, 1.25),
        (0, 1.5, 2, 2.5),
        (1, 1.5, 2, 2.75),
        (0, 3.0, 4, 4.0),
        (2, 0.0, 0, 4.0),
    ]


class Loses(Wrapper):
    """The results of one client are lost."""

    def __init__(self, arrivals, client):
        super().__init__(arrivals)
        self.client = client

    def change(self, actions, now):
        for action in actions:
            lost = isinstance(action, Dispatch) and action.client_id == self.client
            yield action._replace(lost=True) if lost else action


@pytest.mark.parametrize("late", ["cancel", "continue"])
def test_a_lost_task_is_no_arrival(late):
    lost = lambda arrivals: Loses(arrivals, 0)  # noqa: E731
    ends, tasks = schedule([1.0, 2.0, 5.0], wrapped=lost, quorum=1, grace=0.5, late=late)
    assert ends == [2.5]
    assert tasks[0] == (1, 0, 2.0, False)
    # With a quorum that cannot be reached any more, the round ends when nobody is at work.
    ends, _ = schedule([1.0, 2.0, 5.0], wrapped=lost, quorum=3, grace=0.5, late=late)
    assert ends == [5.0]


@pytest.mark.parametrize("late", ["cancel", "continue"])
def test_an_unavailable_client_is_not_waited_for(late):
    def by_day(arrivals):
        return Availability(arrivals, {0: [(0, 9)], 1: [(3, 9)]})

    ends, tasks = schedule([1.0, 0.5], 4, by_day, quorum=2, late=late)
    # Client 1 takes part from the fourth round on.
    assert ends == [1.0, 2.0, 3.0, 4.0]
    assert [(client, time) for client, _, time, _ in tasks] == [
        (0, 1.0),
        (0, 2.0),
        (0, 3.0),
        (1, 3.5),
        (0, 4.0),
    ]


@pytest.mark.parametrize("late", ["cancel", "continue"])
def test_rounds_without_anyone_go_on(late):
    """Nobody is available before 2; a round of nobody is as long as it was planned."""
    ends, tasks = schedule(
        [1.0, 1.0], 3, lambda a: Availability(a, [(2, 9)]), quorum=1, grace=1.0, late=late
    )
    assert ends == [1.0, 2.0, 3.0]
    assert tasks == [(0, 2, 3.0, False), (1, 2, 3.0, False)]


def test_a_planned_time_of_an_earlier_round_starts_nothing_before_the_version():
    """In a tier, the end of a round and a time that an earlier one has asked for coincide at 2."""
    arrivals = Tiers({"a": rounds([0.5, 2.0], quorum=1)})
    table = arrivals.simulate(2, max_rounds=6)
    assert table.round_ends == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    pulls = {(e.dispatched_at, e.pulled_version) for e in table.events}
    assert pulls == {(k / 2, k) for k in range(6)}


halves = st.integers(1, 12).map(lambda number: number / 2)


def expected_rounds(durations, quorum, grace, timeout, number):
    """Ends of rounds and the arrivals, from the rule: all idle clients begin each round."""
    now, ends, working, arrivals = 0.0, [], {}, []
    for version in range(number):
        for client, duration in enumerate(durations):
            working.setdefault(client, (now + duration, version))
        times = sorted(time for time, _ in working.values())
        end = times[-1]
        if quorum <= len(times):
            end = min(end, times[quorum - 1] + grace)
        if timeout is not None:
            end = min(end, now + timeout)
        done = sorted((w[0], client, w[1]) for client, w in working.items() if w[0] <= end)
        arrivals += done
        for _, client, _ in done:
            del working[client]
        ends.append(end)
        now = end
    return ends, arrivals


@settings(max_examples=150, deadline=None)
@given(
    durations=st.lists(halves, min_size=1, max_size=5),
    data=st.data(),
    grace=st.integers(0, 6).map(lambda number: number / 2),
    timeout=st.none() | halves,
    late=st.sampled_from(["cancel", "continue"]),
)
def test_rounds_are_those_of_the_rule(durations, data, grace, timeout, late):
    quorum = data.draw(st.integers(1, len(durations)))
    arrivals = rounds(durations, quorum=quorum, grace=grace, timeout=timeout, late=late)
    table = arrivals.simulate(len(durations), max_rounds=6)
    in_time = [
        (e.time, e.client, e.pulled_version) for e in table.events if e.stopped_at_version is None
    ]
    if late == "continue":
        ends, expected = expected_rounds(durations, quorum, grace, timeout, 6)
    else:
        (length,), first = expected_rounds(durations, quorum, grace, timeout, 1)
        ends = [length * number for number in range(1, 7)]
        expected = [(length * k + time, client, k) for k in range(6) for time, client, _ in first]
    assert table.round_ends == ends
    assert in_time == expected
    # The record plays the same, ties and late results included.
    if table.events:
        assert ReplayArrivals(table).simulate(len(durations), max_rounds=6) == table


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"quorum": 0}, ValueError, "quorum must be at least 1, got 0"),
        ({"quorum": 1.5}, TypeError, "quorum must be an integer"),
        ({"grace": -1}, ValueError, "grace must be 0 or larger, got -1"),
        ({"grace": "1"}, TypeError, "grace must be a number"),
        ({"grace": 1, "late": "keep"}, ValueError, "late must be one of 'cancel', 'cut', 'contin"),
        ({"late": "continue"}, ValueError, "late='continue' needs over_select, timeout, quorum or"),
        ({"late": "cut"}, ValueError, "late='cut' needs over_select, timeout, quorum or grace"),
        (
            {"late": "continue", "over_select": 1, "quorum": 1},
            ValueError,
            "over_select=1 draws clients to stop .* write quorum= for",
        ),
        (
            {"per_round": [[0, 1, 2], [1, 2]], "quorum": 3},
            ValueError,
            "quorum=3 is more than the 2 clients that a round waits for; write quorum=2 or less",
        ),
        (
            {"per_round": [[0, 1, 2]], "quorum": 3, "over_select": 1},
            ValueError,
            "quorum=3 is more than the 2 clients",
        ),
    ],
)
def test_bad_quorums(arguments, error, says):
    with pytest.raises(error, match=says):
        SynchronousArrivals(**arguments)


@pytest.mark.parametrize(
    ("arguments", "most"),
    [({"quorum": 5}, 4), ({"quorum": 4, "over_select": 1}, 3), ({"per_round": 2, "quorum": 3}, 2)],
)
def test_a_quorum_that_no_round_reaches(federation, arguments, most):
    with pytest.raises(ValueError, match=f"is more than the {most} clients .* quorum={most} or"):
        SynchronousArrivals(**arguments).setup(federation(4))
    SynchronousArrivals(**arguments | {"quorum": most}).setup(federation(4))


def test_only_stopped_clients_keep_others_from_being_computed_ahead():
    assert SynchronousArrivals(grace=1.0).may_stop
    assert not SynchronousArrivals(grace=1.0, late="continue").may_stop


def test_repr_of_a_quorum():
    assert repr(SynchronousArrivals(2, quorum=1, grace=0.5, late="continue")) == (
        "SynchronousArrivals(per_round=2, durations=None, local_steps=LocalEpochs(1), "
        "late='continue', quorum=1, grace=0.5)"
    )


def test_a_quorum_that_no_round_reaches_is_refused_at_once():
    words = "quorum=3 is more than the 2 clients that a round waits for; write quorum=2 or less"
    with pytest.raises(ValueError, match=words):
        SynchronousArrivals(2, quorum=3)
    with pytest.raises(ValueError, match=words):
        SynchronousArrivals(2, quorum=3, over_select=5)  # of those drawn, 2 are waited for
    assert SynchronousArrivals(3, quorum=3).quorum == 3
    late = SynchronousArrivals(quorum=3)  # the number of all clients is not known yet
    with pytest.raises(ValueError, match=words):
        late.simulate(num_clients=2, max_rounds=1)
