import pytest

from fedlight.aggregators._client_times import ClientTimes
from fedlight.types import Task


def task(client, duration, dispatched=0.0):
    return Task(client, 0, dispatched, dispatched + duration, 1, 0, 0)


@pytest.mark.parametrize(
    ("duration", "interval", "windows"),
    [
        (0.3, 0.3, 1),
        (0.9, 0.3, 3),
        (1.2, 0.3, 4),
        (0.7, 0.3, 3),
        (0.3, 0.1, 3),
        (2.1, 0.7, 3),
        (1e-9, 5, 1),
    ],
)
def test_windows_are_exact(duration, interval, windows, make_federation):
    known = ClientTimes(make_federation([1], [duration]))
    assert known.windows(0, interval) == windows
    seen = ClientTimes(make_federation([1]))
    for number in range(7):
        seen.observe(task(0, duration, dispatched=13 * number))
        assert seen.windows(0, interval) == windows


def test_what_is_known_is_not_learnt(make_federation):
    times = ClientTimes(make_federation([1, 1], [1.0, 2.0]))
    times.observe(task(0, 50.0))
    assert times.share(0) == pytest.approx(1.5)
    assert times.share(1) == pytest.approx(3.0)
    assert times.state_dict()["seen"] == {}


def test_memory_is_by_clients_seen(make_federation):
    times = ClientTimes(make_federation([1] * 1000))
    for number in range(100):
        times.observe(task(number % 2, 1.0 + number % 2))
    assert len(times.state_dict()["seen"]) == 2
    # both rates are taken for half of the clients: 500 * 1/1 + 500 * 1/2
    assert times.share(0) == pytest.approx(750)


def test_a_duration_of_nothing_is_refused(make_federation):
    with pytest.raises(ValueError, match=r"expected_durations\[1\] must be larger than 0, got 0.0"):
        ClientTimes(make_federation([1, 1], [1.0, 0.0]))
