"""FedCompass' plan: groups, their times, and clients that are late."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlight.arrivals import (
    ChangingDurations,
    CompassArrivals,
    DropOut,
    MixedDurations,
    StepDurations,
    Tiers,
    UniformSpeeds,
)
from tests import by_hand

# Steps of client 0 take 1, those of client 1 take 2 and from 30 on 3, those of client 2 take 4.
THREE = MixedDurations(
    [
        (1 / 3, StepDurations(1.0)),
        (1 / 3, ChangingDurations(StepDurations(2.0), [(30.0, 1.5)])),
        (1 / 3, StepDurations(4.0)),
    ]
)


def compass(durations, min_steps=2, max_steps=10, latest=1.2, momentum=1.0):
    return CompassArrivals(durations, min_steps, max_steps, latest, momentum)


def rows(table):
    return [(e.client, e.dispatched_at, e.time, e.num_steps, e.tag) for e in table.events]


def ends(table):
    return list(zip(table.round_ends, table.round_tags, strict=True))


def test_ten_events_by_hand():
    """The worked example of the page; client 1 is late for group 2, which ends at 30 + 1.2 * 10."""
    table = compass(THREE).simulate(num_clients=3, max_time=52.0)
    assert rows(table) == [
        (0, 0.0, 10.0, 10, "first 0"),
        (0, 10.0, 20.0, 10, "0"),  # nobody else is known: a group with Q_max steps
        (1, 0.0, 20.0, 10, "first 1"),
        (0, 20.0, 30.0, 10, "1"),
        (1, 20.0, 30.0, 5, "1"),  # floor((30 - 20) / 2)
        (0, 30.0, 40.0, 10, "2"),
        (2, 0.0, 40.0, 10, "first 2"),
        (1, 30.0, 45.0, 5, "2"),  # planned for 40
        (1, 45.0, 51.0, 2, "3"),  # floor((52 - 45) / 3), with its new speed
        (0, 42.0, 52.0, 10, "3"),  # floor((52 - 42) / 1)
        (2, 40.0, 52.0, 3, "3"),  # a new group: floor((42 + 1 * 10 - 40) / 4)
    ]
    assert ends(table) == [
        (10.0, "first 0"),
        (20.0, "0"),
        (20.0, "first 1"),
        (30.0, "1"),
        (40.0, "first 2"),
        (42.0, "2"),
        (52.0, "3"),
    ]
    pulled = [event.pulled_version for event in table.events]
    assert pulled == [0, 1, 0, 2, 3, 4, 0, 4, 6, 6, 5]
    page = by_hand.rows("FedCompass")
    assert len(page) == 10
    made = [(float(row[0]), re.match(r"version (\d)", row[-1])) for row in page]
    assert [(time, int(found[1])) for time, found in made if found] == [
        (time, version) for version, time in enumerate(table.round_ends, start=1)
    ]


def test_equal_speeds_are_rounds_of_everyone():
    table = compass(StepDurations(0.1), 3, 7).simulate(num_clients=4, max_time=3.5)
    first, later = table.events[:4], table.events[4:]
    assert {event.time for event in first} == {0.7}
    assert [event.num_steps for event in later] == [7] * 16
    assert [event.time for event in later] == [t for t in (1.4, 2.1, 2.8, 3.5) for _ in range(4)]
    assert ends(table)[4:] == [(1.4, "0"), (2.1, "1"), (2.8, "2"), (3.5, "3")]
    # After the four versions of the first tasks each version is pulled by all.
    assert [event.pulled_version for event in later[4:]] == [5] * 4 + [6] * 4 + [7] * 4


def test_a_client_at_the_latest_time_is_in_time():
    """Client 1 needs 1.5 times as long, and the group waits 1.5 times its length."""
    slower = MixedDurations(
        [
            (0.5, StepDurations(1.0)),
            (0.5, ChangingDurations(StepDurations(1.0), [(10.0, 1.5), (20.0, 1.6)])),
        ]
    )
    table = compass(slower, latest=1.5).simulate(num_clients=2, max_time=60.0)
    assert rows(table)[2:4] == [(0, 10.0, 20.0, 10, "0"), (1, 10.0, 25.0, 10, "0")]
    assert (25.0, "0") in ends(table)
    # Then each of its steps takes 1.6 in place of 1.5: floor(10 / 1.5) = 6 of them take 9.6.
    assert rows(table)[4:6] == [(1, 25.0, 34.6, 6, "1"), (0, 25.0, 35.0, 10, "1")]


def test_the_last_of_several_groups_with_as_many_steps_is_joined():
    process = compass(StepDurations(1.0))
    process.simulate(num_clients=1, max_time=1.0)  # set up
    group = type("Group", (), {})  # only what the plan reads
    for name, end in ((0, 60), (1, 61), (2, 69)):
        process._groups[name] = group()
        process._groups[name].__dict__ = {"end": end, "latest": end, "working": [], "arrived": []}
    process._speeds = {0: 10.0}
    *_, dispatch = process._plan(0, 0.0)
    assert (dispatch.tag, dispatch.num_steps) == ("2", 6)


def test_a_new_group_takes_the_largest_number_within_the_limits():
    process = compass(StepDurations(1.0), 3, 8)
    process.simulate(num_clients=1, max_time=1.0)
    groups = {0: (0, 50, [0]), 1: (0, 90, [1]), 2: (0, 400, [1])}
    for name, (end, latest, working) in groups.items():
        process._groups[name] = type(
            "Group", (), {"end": end, "latest": latest, "working": working, "arrived": []}
        )
    process._speeds = {0: 1.0, 1: 2.0}
    # (50 + 8) / 20 = 2.9, (90 + 16) / 20 = 5.3, and (400 + 16) / 20 is above Q_max.
    assert process._steps_of_new(0, 20.0) == 5
    del process._groups[1]
    assert process._steps_of_new(0, 20.0) == 3  # 2 is below Q_min
    del process._groups[0]
    assert process._steps_of_new(0, 20.0) == 8  # none is possible: Q_max
    process._groups.clear()
    assert process._steps_of_new(0, 20.0) == 8


@pytest.mark.parametrize(("momentum", "steps"), [(1.0, 2), (0.5, 4), (0.25, 6)])
def test_the_speed_is_a_moving_average(momentum, steps):
    """Client 1 had 1 per step and then 4: 4, 2.5 and 1.75 of 10 time units and more."""
    changing = ChangingDurations(StepDurations(1.0), [(10.0, 4.0), (11.0, 1.0)])
    both = MixedDurations([(0.5, StepDurations(1.0)), (0.5, changing)])
    process = compass(both, latest=4.5, momentum=momentum)
    table = process.simulate(num_clients=2, max_time=61.0)
    event = [e for e in table.events if e.client == 1][2]
    assert (event.dispatched_at, event.num_steps) == (50.0, {2: 2, 4: 4, 6: 5}[steps])


def test_a_lost_task_is_planned_again():
    process = DropOut(compass(StepDurations([1.0, 2.0])), 0.3)
    table = process.simulate(num_clients=2, max_time=400.0, seed=4)
    assert {event.client for event in table.events} == {0, 1}
    assert max(event.time for event in table.events) > 380.0


def test_a_recording_keeps_the_ends_of_groups(tmp_path):
    table = compass(THREE).simulate(num_clients=3, max_time=52.0)
    table.save(tmp_path / "plan.parquet")
    assert type(table).load(tmp_path / "plan.parquet").round_tags == table.round_tags


def test_it_is_no_tier():
    with pytest.raises(TypeError, match="must be an arrival process without groups"):
        Tiers({"a": compass(StepDurations(1.0))})


@settings(max_examples=40, deadline=None)
@given(
    speeds=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    least=st.integers(1, 4),
    more=st.integers(0, 12),
    seed=st.integers(0, 99),
)
def test_what_holds_of_every_plan(speeds, least, more, seed):
    """Steps are within the limits, and with exact speeds nobody is late."""
    process = compass(StepDurations([s / 10 for s in speeds]), least, least + more)
    table = process.simulate(num_clients=len(speeds), max_updates=60, seed=seed)
    assert all(least <= event.num_steps <= least + more for event in table.events)
    ended = {}
    for end, tag in ends(table):
        assert tag not in ended
        ended[tag] = end
    for event in table.events:
        assert event.tag not in ended or event.time <= ended[event.tag]
    numbered = [int(tag) for tag in ended if tag.isdecimal()]
    assert set(numbered) <= set(range(max(numbered, default=0) + 1))


def test_durations_without_steps_are_allowed():
    table = compass(UniformSpeeds(0.5)).simulate(num_clients=3, max_updates=30)
    assert len(table) == 30


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"durations": 3}, TypeError, "durations must be a duration model, got 3"),
        ({"min_steps": 0}, ValueError, "min_steps must be at least 1, got 0"),
        ({"min_steps": 5, "max_steps": 4}, ValueError, "max_steps=4 must be at least min_steps=5"),
        ({"latest": 0.9}, ValueError, "latest must be at least 1, got 0.9"),
        ({"momentum": 0}, ValueError, "momentum must be above 0, got 0"),
        ({"momentum": 2}, ValueError, "momentum must lie between 0 and 1, got 2"),
    ],
)
def test_mistakes(arguments, error, words):
    with pytest.raises(error, match=words):
        CompassArrivals(**{"durations": StepDurations(1.0)} | arguments)
