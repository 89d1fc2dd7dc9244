import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlight.events import EventQueue, Kind, to_ticks, to_time


def test_periods_are_exact():
    assert to_ticks(0.3) * 3 == to_ticks(0.9)
    assert to_ticks(0.1) * 3 == to_ticks(0.1 + 0.2) == 300_000_000
    assert to_ticks(1.0) // to_ticks(0.1) == 10
    assert 1.0 // 0.1 == 9  # what it is there for


@pytest.mark.parametrize(
    ("time", "ticks"),
    [
        (0.0, 0),
        (1, 10**9),
        (-0.25, -250_000_000),
        (1e-9, 1),
        (0.5e-9, 0),  # a tie goes to the even one
        (1.5e-9, 2),
        (2.5e-9, 2),
        (0.49e-9, 0),
        (0.51e-9, 1),
        (123456.789012345, 123456789012345),
        (1e12, 10**21),
        (np.float64(0.7), 700_000_000),
    ],
)
def test_ticks(time, ticks):
    assert to_ticks(time) == ticks
    assert type(to_ticks(time)) is int


@given(st.floats(-2e4, 2e4))
def test_short_and_long_way_agree(time):
    from decimal import Decimal

    assert to_ticks(time) == int((Decimal(repr(time)) * 10**9).to_integral_value())


@given(st.integers(0, 10**15))
def test_there_and_back(ticks):
    assert to_ticks(to_time(ticks)) == ticks


@pytest.mark.parametrize("time", [math.inf, -math.inf, math.nan])
def test_infinite_times_are_refused(time):
    with pytest.raises(ValueError, match="must be finite"):
        to_ticks(time)


def test_order_at_equal_times():
    queue = EventQueue()
    queue.push(5, "wake", kind=Kind.WAKE)
    queue.push(5, "deadline", kind=Kind.DEADLINE)
    queue.push(5, "client 2", kind=Kind.ARRIVAL, client=2)
    queue.push(5, "client 1, later", kind=Kind.ARRIVAL, client=1)
    queue.push(5, "client 1, last", kind=Kind.ARRIVAL, client=1)
    queue.push(5, "dispatch", kind=Kind.DISPATCH, client=0)
    queue.push(5, "round end", kind=Kind.ROUND_END)
    queue.push(4, "first", kind=Kind.WAKE)
    assert [queue.pop() for _ in range(len(queue))] == [
        "first",
        "client 1, later",
        "client 1, last",
        "client 2",
        "round end",
        "deadline",
        "wake",
        "dispatch",
    ]


def test_events_that_cannot_be_compared():
    queue = EventQueue()
    queue.push(1, {"a": 1})
    queue.push(1, {"b": 2})
    assert [queue.pop(), queue.pop()] == [{"a": 1}, {"b": 2}]


def test_time_never_goes_back():
    queue = EventQueue()
    queue.push(2 * 10**9, "a")
    queue.push(3 * 10**9, "b")
    log = []
    assert queue.now == 0.0
    while len(queue):
        queue.pop()
        log.append(queue.now)
    assert log == [2.0, 3.0]
    with pytest.raises(ValueError, match=r"2\.5 .* 3\.0"):
        queue.push(to_ticks(2.5), "late")
    queue.push(queue.ticks, "now is allowed")
    assert queue.peek_ticks() == queue.ticks


def test_empty():
    queue = EventQueue()
    assert queue.peek_ticks() is None
    with pytest.raises(IndexError):
        queue.pop()


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(list(Kind)), st.integers(0, 3)), max_size=30
    ),
    st.integers(0, 30),
)
def test_order_survives_a_save(entries, taken):
    queue = EventQueue()
    for number, (ticks, kind, client) in enumerate(entries):
        queue.push(ticks, number, kind=kind, client=client)
    expected = sorted(range(len(entries)), key=lambda i: (*entries[i], i))
    taken = min(taken, len(entries))
    assert [queue.pop() for _ in range(taken)] == expected[:taken]
    state = json.loads(json.dumps(queue.state_dict(str)))
    other = EventQueue()
    other.load_state_dict(state, int)
    assert other.now == queue.now
    other.push(9, len(entries))
    assert [other.pop() for _ in range(len(other))] == [*expected[taken:], len(entries)]
