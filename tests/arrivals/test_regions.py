"""Regions with a server each: when they send, and which version their clients pull."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlight.arrivals import (
    Availability,
    ContinuousArrivals,
    DropOut,
    ExponentialDurations,
    FixedDurations,
    PartialWork,
    Recording,
    Regions,
    ReplayArrivals,
    ScheduleTable,
    Tiers,
)


def clock(*durations, **more):
    return ContinuousArrivals(FixedDurations(durations), local_steps=1, **more)


def ends(table, region):
    pairs = zip(table.round_ends, table.round_tags, strict=True)
    return [end for end, tag in pairs if tag == region]


def two(**more):
    """Client 0 in the west arrives at 1, 2, …, client 1 in the east at 1.5, 3, …; K = 2."""
    return Regions(
        {"west": clock(1.0), "east": clock(1.5)},
        {"west": [0], "east": [1]},
        arrivals_per_send=2,
        **more,
    )


def test_each_arrival_and_each_end_of_a_transfer_makes_a_version():
    """West sends at 2 and counts again from 2.75; so it sends at 4, and from 4.75 on, at 6.

    East sends at 3 and has the model back at 4; then arrivals at 4.5 and 6 make the next sum.
    Versions: 1 (west, 1), 2 (east, 1.5), 3 (west, 2), 4 and 5 (transfers of west), 6 (west, 3),
    7 (east, 3), 8 (west, 4), 9 and 10 (transfers of east at 4), 11 (west, 4.25), 12 (east, 4.5).
    """
    arrivals = two(up={"west": 0.25, "east": 1.0}, down={"west": 0.5, "east": 0.0})
    table = arrivals.simulate(num_clients=2, max_time=7.0)
    assert ends(table, "west") == [2.25, 2.75, 4.25, 4.75, 6.25, 6.75]
    assert ends(table, "east") == [4.0, 4.0, 7.0, 7.0]
    assert [(e.client, e.time, e.pulled_version, e.tag) for e in table.events[:7]] == [
        (0, 1.0, 0, "west"),
        (1, 1.5, 0, "east"),
        (0, 2.0, 1, "west"),
        (0, 3.0, 3, "west"),  # it pulled at 2, before the transfers
        (1, 3.0, 2, "east"),
        (0, 4.0, 6, "west"),
        (1, 4.5, 7, "east"),
    ]
    assert table.versions[:7] == [0, 1, 2, 5, 6, 7, 11]
    assert (table.groups, table.arrivals_per_send) == (["west", "east"], 2)


def test_a_client_that_waits_pulls_the_newest_version_of_its_own_region():
    """East's client arrives at 1 (version 2), rests until 2.5, and pulls version 2 all the same."""
    arrivals = Regions(
        {"west": clock(0.8), "east": clock(1.0, idle=1.5)},
        {"west": [0], "east": [1]},
        arrivals_per_send=100,
    )
    table = arrivals.simulate(num_clients=2, max_time=3.5)
    last = table.events[-1]
    assert (last.client, last.dispatched_at, last.pulled_version) == (1, 2.5, 2)
    assert [e.time for e in table.events if e.client == 0] == [0.8, 1.6, 2.4, 3.2]


def test_arrivals_during_the_transfers_are_not_counted():
    """K = 1: sends at 1; arrivals at 2 and 3 meet the transfers (until 3); it sends at 4."""
    arrivals = Regions({"a": clock(1.0)}, {"a": [0]}, 1, up=1.0, down=1.0)
    assert arrivals.simulate(num_clients=1, max_time=9.5).round_ends == [2.0, 3.0, 5.0, 6.0, 8.0, 9]


def test_ends_of_one_time_are_in_the_order_of_the_regions():
    parts = {"b": clock(1.0), "a": clock(1.0)}
    arrivals = Regions(parts, {"b": [1], "a": [0]}, 1, up=0.5)
    assert arrivals.simulate(num_clients=2, max_time=1.5).round_tags == ["b", "b", "a", "a"]


def test_lost_tasks_do_not_count():
    table = Recording(DropOut(two(), 0.5))
    table.simulate(num_clients=2, max_time=40.0, seed=1)
    found = table.table()
    for region, client in (("west", 0), ("east", 1)):
        times = [e.time for e in found.events if e.client == client]
        assert ends(found, region)[::2] == times[1::2]
        assert len(times) < 40


def test_two_transfers_of_a_task_within_the_region():
    arrivals = two(within={"west": 0.25, "east": 0.0})
    table = arrivals.simulate(num_clients=2, max_time=4.5)
    assert [e.time for e in table.events if e.client == 0] == [1.5, 3.0, 4.5]
    assert arrivals.expected_durations().tolist() == [1.5, 1.5]
    drawn = Regions({"a": clock(1.0)}, {"a": [1]}, 1, within=0.5)
    drawn.simulate(num_clients=2, max_rounds=1)
    assert drawn.expected_durations() is None  # client 0 is in no region


def test_a_matrix_of_pairs_has_all_times():
    parts = {"x": clock(1.0), "y": clock(1.0)}, {"x": [0], "y": [1]}, 3
    times = np.array([[0.1, 2.0], [3.0, 0.2]])
    arrivals = Regions.from_matrix(*parts, times, home="y")
    assert arrivals.up == {"x": 2.0, "y": 0.2}
    assert arrivals.down == {"x": 3.0, "y": 0.2}
    assert arrivals.within == {"x": 0.1, "y": 0.2}
    assert Regions.from_matrix(*parts, [[0, 0], [0, 0]], "x").simulate(
        num_clients=2, max_time=9
    ) == Regions(*parts).simulate(num_clients=2, max_time=9)


@pytest.mark.parametrize(
    ("times", "error", "words"),
    [
        (None, ValueError, "times must have a row for each of the 2 regions"),
        (3, ValueError, "times must have a row for each of the 2 regions"),
        ([[0, 1], [2, -4]], ValueError, r"times\[1\]\[1\] must be 0 or larger, got -4"),
        ([[0, "1"], [2, 4]], TypeError, r"times\[0\]\[1\] must be a number, got '1'"),
    ],
)
def test_errors_name_the_matrix(times, error, words):
    with pytest.raises(error, match=words):
        Regions.from_matrix({"x": clock(1.0), "y": clock(1.0)}, {"x": [0], "y": [1]}, 3, times, "x")


def test_work_that_stops_early_arrives_early():
    """Half of a task of two steps takes half of its time, as in `Tiers`, though it has rounds."""

    def inner():
        return {"a": ContinuousArrivals(FixedDurations([4.0]), local_steps=2)}

    regions = PartialWork(Regions(inner(), {"a": [0]}, 1, up=0.5))
    table = regions.simulate(num_clients=1, max_time=6)
    assert [(e.time, e.num_steps) for e in table.events] == [(2.0, 1), (4.0, 1), (6.0, 1)]
    assert regions.expected_durations() is None
    tiers = PartialWork(Tiers(inner(), {"a": [0]}))
    same = tiers.simulate(num_clients=1, max_time=6, buffer_size=1)
    assert [e.time for e in same.events] == [e.time for e in table.events]


def test_without_sends_the_arrivals_are_those_of_tiers():
    def inner():
        return {name: ContinuousArrivals(ExponentialDurations(1.0)) for name in ("a", "b")}

    members = {"a": [0, 2], "b": [1, 3]}
    regions = Regions(inner(), members, 10**6).simulate(num_clients=4, max_time=9, seed=2)
    tiers = Tiers(inner(), members).simulate(num_clients=4, max_time=9, seed=2, buffer_size=1)
    times = [[(e.client, e.time, e.num_steps) for e in each.events] for each in (regions, tiers)]
    assert times[0] == times[1]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_table_knows_that_the_servers_are_of_regions(wrapped, tmp_path):
    arrivals = two(up=0.5, down=0.25)
    if wrapped:
        arrivals = Availability(arrivals, [(0, 2.5), (4, 40)])
    table = arrivals.simulate(num_clients=2, max_time=12.0)
    table.save(tmp_path / "table.parquet")
    again = ScheduleTable.load(tmp_path / "table.parquet")
    assert again == table
    assert "arrivals_per_send=2" in repr(ScheduleTable(table.events[:1], arrivals_per_send=2))
    replayed = ReplayArrivals(again)
    assert replayed.arrivals_per_send == 2
    assert replayed.simulate(num_clients=2, max_time=12.0) == table


times = st.integers(1, 12).map(lambda tenths: tenths / 10)
transfers = st.one_of(st.just(0.0), times)


@given(
    durations=st.lists(times, min_size=3, max_size=3),
    up=st.tuples(transfers, transfers),
    down=st.tuples(transfers, transfers),
    every=st.integers(1, 4),
)
def test_what_holds_for_all_times(durations, up, down, every):
    """Ends come in pairs, `down` apart; K arrivals or more are between a return and a send."""
    arrivals = Regions(
        {"a": clock(*durations[:2]), "b": clock(durations[2])},
        {"a": [0, 2], "b": [1]},
        every,
        up=dict(zip("ab", up, strict=True)),
        down=dict(zip("ab", down, strict=True)),
    )
    table = arrivals.simulate(num_clients=3, max_time=8.0)
    assert table == arrivals.simulate(num_clients=3, max_time=8.0)
    for place, name in enumerate("ab"):
        times = [e.time for e in table.events if e.tag == name]
        found, back = ends(table, name), -1.0
        for there, returned in zip(found[::2], found[1::2], strict=False):
            assert returned == pytest.approx(there + down[place])
            sent = there - up[place]
            since = [time for time in times if back < time <= sent + 1e-9]
            # Equal times: the K-th arrival may be in the middle of those of one instant.
            before = [time for time in since if time < sent - 1e-9]
            assert len(before) < every <= len(since)
            back = returned
    for event, version in zip(table.events, table.versions, strict=True):
        assert version is None or 0 <= event.pulled_version <= version
