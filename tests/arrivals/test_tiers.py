"""Several processes side by side."""

from functools import partial

import pytest

from fedlight.arrivals import (
    ContinuousArrivals,
    DropOut,
    ExponentialDurations,
    FixedDurations,
    Regions,
    SynchronousArrivals,
    Tiers,
    UniformSteps,
)


def rounds(durations, *given, **more):
    return SynchronousArrivals(*given, durations=FixedDurations(durations), local_steps=1, **more)


def test_rounds_inside_and_none_across():
    tiers = Tiers(
        {"fast": rounds([1.0, 0.5]), "slow": rounds([2.5])},
        clients={"fast": [2, 0], "slow": [1]},
    )
    table = tiers.simulate(num_clients=3, max_time=3.0)
    assert [(e.client, e.tag, e.pulled_version, e.time) for e in table.events] == [
        (0, "fast", 0, 0.5),
        (2, "fast", 0, 1.0),
        (0, "fast", 1, 1.5),
        (2, "fast", 1, 2.0),
        (0, "fast", 2, 2.5),
        (1, "slow", 0, 2.5),
        (2, "fast", 2, 3.0),
    ]
    assert list(zip(table.round_ends, table.round_tags, strict=True)) == [
        (1.0, "fast"),
        (2.0, "fast"),
        (2.5, "slow"),
        (3.0, "fast"),
    ]
    assert table.groups == ["fast", "slow"]
    assert tiers.expected_durations().tolist() == [0.5, 2.5, 1.0]


def test_tiers_that_end_together_go_on_one_after_the_other():
    """That whose last client has the smallest number first; each pulls the version it has made."""
    tiers = Tiers({"a": rounds([1.0] * 3, [[2]] * 3), "b": rounds([1.0] * 3, [[0, 1]] * 3)})
    table = tiers.simulate(num_clients=3)
    assert table.round_tags == ["b", "a"] * 3
    assert [(e.client, e.pulled_version) for e in table.events[3:6]] == [(0, 1), (1, 1), (2, 2)]


def test_each_tier_has_random_numbers_of_its_own():
    def inner():
        return SynchronousArrivals(2, ExponentialDurations(1.0), UniformSteps(1, 99))

    alone = inner().simulate(num_clients=4, max_rounds=5, seed=3)
    first = Tiers({"a": inner()}).simulate(num_clients=4, max_rounds=5, seed=3)
    assert [(e.client, e.time) for e in first.events] == [(e.client, e.time) for e in alone.events]
    both = Tiers({"a": inner(), "b": inner()}, {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]})
    table = both.simulate(num_clients=8, max_time=8, seed=3)
    times = {tag: [e.time for e in table.events if e.tag == tag] for tag in ("a", "b")}
    assert times["a"][:3] == [e.time for e in alone.events][:3]
    assert not set(times["a"]) & set(times["b"])


def test_what_tiers_are():
    clock = ContinuousArrivals(FixedDurations([1.0, 2.0]), restart_after=1)
    mixed = Tiers({"a": rounds([1.0], [[0]]), "b": clock}, {"a": [0], "b": [1, 2]})
    assert (mixed.by_rounds, mixed.finite, mixed.may_stop) == (True, False, True)
    listed = Tiers({"a": rounds([1.0] * 2, [[0]]), "b": rounds([1.0] * 2, [[1], [1]])})
    assert (listed.by_rounds, listed.finite, listed.may_stop) == (True, True, False)
    assert listed.groups == ("a", "b")


@pytest.mark.parametrize("kind", [Tiers, partial(Regions, arrivals_per_send=2)])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_process_for_two_groups_is_refused(kind, wrapped):
    """The clients of the second group would never start, as the first one has started it."""
    shared = ContinuousArrivals(ExponentialDurations(1.0))
    other = DropOut(shared, 0.5) if wrapped else shared
    with pytest.raises(
        ValueError, match=r"processes\['b'\] is the same object as processes\['a'\]"
    ):
        kind({"a": shared, "b": other}, {"a": [0], "b": [1]})


def test_a_client_that_does_not_exist():
    tiers = Tiers({"a": rounds([1.0])}, {"a": [3]})
    with pytest.raises(ValueError, match=r"clients\['a'\] names client 3, but there are only 2"):
        tiers.simulate(num_clients=2, max_rounds=1)
