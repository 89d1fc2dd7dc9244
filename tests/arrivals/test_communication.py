from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlight.arrivals import CommunicationPattern
from fedlight.events import Kind


def ticks_of(drive, make, num_clients, max_time, **more):
    """For each client the ticks at which it communicated."""
    lines, _ = drive(
        make, num_clients, interval=1.0, max_time=float(max_time), num_events=10**6, **more
    )
    ticks = defaultdict(list)
    for line in lines:
        if line.task:
            ticks[line.task.client_id].append(int(line.now))
    return dict(ticks)


def test_table_worked_by_hand(drive):
    communicates = [[0], [], [1, 2], [0], [0, 3], [2], [], [1], [0, 1, 2, 3], [3]]
    lines, _ = drive(lambda: CommunicationPattern.from_table(communicates), 4, interval=1.0)
    events = [
        (t.client_id, t.pulled_version, t.arrives_at, t.num_steps)
        for t in (x.task for x in lines)
        if t
    ]
    assert events == [
        (0, 0, 1, 1),
        (1, 0, 3, 3),
        (2, 0, 3, 3),
        (0, 1, 4, 3),
        (0, 4, 5, 1),
        (3, 0, 5, 5),
        (2, 3, 6, 3),
        (1, 3, 8, 5),
        (0, 5, 9, 4),
        (1, 8, 9, 1),
        (2, 6, 9, 3),
        (3, 5, 9, 4),
        (3, 9, 10, 1),
    ]
    deadlines = [(x.now, x.version) for x in lines if x.kind is Kind.DEADLINE]
    assert deadlines == [(float(tick), tick) for tick in range(1, 11)]


def test_silent_ticks_at_the_end_of_a_table_count(drive):
    lines, _ = drive(lambda: CommunicationPattern.from_table([[0], [], []]), 2, interval=1.0)
    assert [(x.now, x.version) for x in lines if x.kind is Kind.DEADLINE] == [
        (1.0, 1),
        (2.0, 2),
        (3.0, 3),
    ]


def test_table_ends_by_itself():
    arrivals = CommunicationPattern.from_table([[0], [1, 0]])
    assert arrivals.finite
    table = arrivals.simulate(num_clients=3, interval=1.0)
    assert [(e.client, e.time) for e in table.events] == [(0, 1.0), (0, 2.0), (1, 2.0)]
    assert table.staleness().tolist() == [0, 0, 1]
    assert not CommunicationPattern.periodic(2).finite


def test_periodic(drive):
    assert ticks_of(drive, lambda: CommunicationPattern.periodic(3), 2, 10) == {
        0: [3, 6, 9],
        1: [3, 6, 9],
    }
    assert ticks_of(drive, lambda: CommunicationPattern.periodic(3, offsets=[1, 2, 3]), 3, 7) == {
        0: [1, 4, 7],
        1: [2, 5],
        2: [3, 6],
    }
    assert ticks_of(drive, lambda: CommunicationPattern.periodic([1, 4]), 2, 5) == {
        0: [1, 2, 3, 4, 5],
        1: [4],
    }


def test_random(drive):
    ticks = ticks_of(drive, lambda: CommunicationPattern.random([0.5, 0.1]), 2, 4000)
    # Binomial: 2000 and 400 of 4000, standard deviations 32 and 19.
    assert abs(len(ticks[0]) - 2000) < 130
    assert abs(len(ticks[1]) - 400) < 80
    gaps = np.diff(ticks[0])
    assert abs((gaps == 1).mean() - 0.5) < 0.05
    assert ticks[1] != ticks_of(drive, lambda: CommunicationPattern.random(0.1), 2, 4000, seed=1)[1]


def test_largest_gap(drive):
    ticks = ticks_of(
        drive, lambda: CommunicationPattern.random([0.01, 0.0, 1.0], max_gap=5), 3, 500
    )
    gaps = np.diff([0, *ticks[0]])
    assert gaps.max() == 5
    assert gaps.min() < 5
    assert ticks[1] == list(range(5, 501, 5))
    assert ticks[2] == list(range(1, 501))


def test_imbalanced(drive):
    def make():
        return CommunicationPattern.imbalanced(0.3, often=0.5, rarely=0.02, max_gap=100)

    ticks = ticks_of(drive, make, 10, 1000)
    counts = [len(ticks[client]) for client in range(10)]
    assert min(counts[:7]) > 420
    assert max(counts[7:]) < 45
    assert all(np.diff(ticks[client]).max() <= 100 for client in range(10))


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        (CommunicationPattern.periodic([2, 5]), [2, 5]),
        (CommunicationPattern.random([0.5, 0.1]), [2, 10]),
        # 1 + 0.5 + 0.25, and the largest gap itself
        (CommunicationPattern.random([0.5, 0.0], max_gap=3), [1.75, 3]),
        (CommunicationPattern.random([1.0, 1e-12], max_gap=4), [1, 4]),
        (CommunicationPattern.imbalanced(0.5, often=1.0, rarely=0.25), [1, 4]),
    ],
    ids=["periodic", "random", "largest gap", "limits", "imbalanced"],
)
def test_expected_durations(federation, arrivals, expected):
    arrivals.setup(federation(2))
    np.testing.assert_allclose(arrivals.expected_durations(), expected)


def test_expected_durations_of_a_table_are_not_known(federation):
    arrivals = CommunicationPattern.from_table([[0]])
    arrivals.setup(federation(1))
    assert arrivals.expected_durations() is None


@given(
    st.lists(st.sets(st.integers(0, 3)).map(sorted), min_size=1, max_size=12).filter(any),
    st.sampled_from([{"interval": 1.0}, {"buffer_size": 2}]),
)
def test_invariants_of_tables(drive, communicates, server):
    """Each client's steps fill the time from 0 to its last tick, whoever the server is."""
    _, tasks = drive(lambda: CommunicationPattern.from_table(communicates), 4, **server)
    for client in range(4):
        own = [task for task in tasks if task.client_id == client]
        ticks = [t for t, clients in enumerate(communicates, 1) if client in clients]
        assert [task.arrives_at for task in own] == ticks
        assert [task.dispatched_at for task in own] == [0, *ticks][: len(ticks)]
        assert sum(task.num_steps for task in own) == (ticks[-1] if ticks else 0)
        if "interval" in server:
            assert [task.pulled_version for task in own] == [task.dispatched_at for task in own]


def test_what_must_fit(federation):
    for arrivals, says in [
        (
            CommunicationPattern.from_table([[], [7]]),
            r"communicates\[1\] names client 7, but there",
        ),
        (CommunicationPattern.periodic([1, 2]), "period has 2 numbers, but there are 3 clients"),
        (CommunicationPattern.random([0.5]), "probability has 1 numbers, but there are 3 clients"),
        (
            CommunicationPattern.periodic(2, offsets=[1, 3, 1]),
            r"offsets\[1\] must be at most the period 2, got 3",
        ),
    ]:
        with pytest.raises(ValueError, match=says):
            arrivals.setup(federation(3))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: CommunicationPattern(3), TypeError, "pattern must be a TickPattern, got 3"),
        (lambda: CommunicationPattern.periodic(0), ValueError, "period must be at least 1"),
        (lambda: CommunicationPattern.periodic([]), ValueError, "period must hold one number"),
        (lambda: CommunicationPattern.periodic([2, 1.5]), TypeError, r"period\[1\] must be an int"),
        (
            lambda: CommunicationPattern.periodic(2, [0]),
            ValueError,
            r"offsets\[0\] must be at least",
        ),
        (lambda: CommunicationPattern.random(1.5), ValueError, "probability must lie between"),
        (lambda: CommunicationPattern.random(0), ValueError, "probability is 0, so the client"),
        (lambda: CommunicationPattern.random([1, 0]), ValueError, r"probability\[1\] is 0"),
        (lambda: CommunicationPattern.random([]), ValueError, "probability must hold one"),
        (lambda: CommunicationPattern.random("a"), TypeError, "probability must be a number"),
        (
            lambda: CommunicationPattern.periodic({0: 2}),
            TypeError,
            "period must be a list, got the",
        ),
        (
            lambda: CommunicationPattern.periodic(10**30),
            ValueError,
            "period must be smaller than 2",
        ),
        (
            lambda: CommunicationPattern.random(1e-300),
            ValueError,
            "the client would almost never com",
        ),
        (
            lambda: CommunicationPattern.random(0, 10**9),
            ValueError,
            "the client would never commun",
        ),
        (
            lambda: CommunicationPattern.random({0: 0.5}),
            TypeError,
            "probability must be a list, go",
        ),
        (
            lambda: CommunicationPattern.from_table(3),
            TypeError,
            "communicates must be a list, got 3",
        ),
        (
            lambda: CommunicationPattern.from_table([0, 1]),
            TypeError,
            r"communicates\[0\] must be a",
        ),
        (
            lambda: CommunicationPattern.from_table({0: [1]}),
            TypeError,
            "communicates must be a list",
        ),
        (lambda: CommunicationPattern.from_table("ab"), TypeError, "must be a list, got 'ab'"),
        (
            lambda: CommunicationPattern.from_table(np.ones((2, 3), dtype=bool)),
            TypeError,
            r"write \[np.flatnonzero\(row\) for row in table\]",
        ),
        (lambda: CommunicationPattern.random(0.5, 0), ValueError, "max_gap must be at least 1"),
        (
            lambda: CommunicationPattern.imbalanced(2, 0.5, 0.1),
            ValueError,
            "rare_share must lie between",
        ),
        (lambda: CommunicationPattern.imbalanced(0.5, 0.5, 0), ValueError, "rarely is 0"),
        (
            lambda: CommunicationPattern.imbalanced(0.5, 0.1, 0.5),
            ValueError,
            "rarely must be at most often=0.1, got 0.5",
        ),
        (
            lambda: CommunicationPattern.from_table([]),
            ValueError,
            "communicates must name a client",
        ),
        (lambda: CommunicationPattern.from_table([[0, 0]]), ValueError, "names client 0 twice"),
        (
            lambda: CommunicationPattern.from_table([[-1]]),
            ValueError,
            r"communicates\[0\] must be 0",
        ),
    ],
)
def test_bad_arguments(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_tables_in_other_forms(federation):
    rows = [[0, 2], [], [1]]
    flags = np.zeros((3, 3), dtype=bool)
    for tick, clients in enumerate(rows):
        flags[tick, clients] = True
    whole = CommunicationPattern.from_table(rows).simulate(num_clients=3, interval=1.0)
    for table in ((row for row in rows), [np.flatnonzero(row) for row in flags]):
        arrivals = CommunicationPattern.from_table(table)
        assert arrivals.simulate(num_clients=3, interval=1.0) == whole


def test_repr():
    assert [
        repr(CommunicationPattern.periodic(3)),
        repr(CommunicationPattern.random(0.1, max_gap=20)),
        repr(CommunicationPattern.imbalanced(0.5, 0.5, 0.1)),
        repr(CommunicationPattern.from_table([[0], []])).partition(", ")[0],
    ] == [
        "CommunicationPattern.periodic(3, offsets=3)",
        "CommunicationPattern.random(0.1, max_gap=20)",
        "CommunicationPattern.imbalanced(0.5, often=0.5, rarely=0.1, max_gap=None)",
        "CommunicationPattern.from_table(2 ticks",
    ]
