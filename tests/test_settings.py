"""The named settings have the numbers of their papers."""

import inspect
import math

import numpy as np
import pytest

from fedlight import settings
from fedlight.arrivals import ArrivalProcess, ContinuousArrivals, DurationModel
from fedlight.types import Federation


def federation(clients: int, seed: int = 0) -> Federation:
    return Federation(clients, np.ones(clients), 1, seed)


def means(model: DurationModel, clients: int, steps: float = 1.0) -> list[float]:
    return model.expected(federation(clients), np.full(clients, steps)).tolist()


def test_quafl() -> None:
    assert means(settings.quafl(), 10) == [8.0] * 3 + [2.0] * 7
    assert means(settings.quafl(0.5), 4, steps=5) == [40.0, 40.0, 10.0, 10.0]
    assert means(settings.quafl(0), 2) == [2.0, 2.0]
    assert means(settings.quafl(1.0), 2) == [8.0, 8.0]


def test_fadas() -> None:
    for delay, slow in (("mild", 6.5), ("large", 65.0)):
        found = means(settings.fadas(delay), 5000)
        assert set(found) == {1.5, 4.0, slow}
        # the largest of Dirichlet(3, 2, 1), drawn anew
        draws = np.random.default_rng(0).dirichlet([3, 2, 1], 100_000).argmax(1)
        for number, mean in enumerate((1.5, 4.0, slow)):
            assert (draws == number).mean() == pytest.approx(
                settings.FADAS_SHARES[number], abs=0.01
            )
            assert found.count(mean) / 5000 == pytest.approx(
                settings.FADAS_SHARES[number], abs=0.03
            )
    with pytest.raises(ValueError, match="delay must be one of 'mild', 'large', got 'wild'"):
        settings.fadas("wild")


def test_area() -> None:
    logs = -np.log(means(settings.area(0.5), 4000))
    assert logs.mean() == pytest.approx(0, abs=0.05)
    assert logs.std() == pytest.approx(0.5, abs=0.03)
    assert set(means(settings.area(0), 3)) == {1.0}


def test_times_that_grow_with_the_number_of_the_client() -> None:
    half = math.sqrt(2 / math.pi)
    assert means(settings.sqrt_fixed(4), 4) == pytest.approx([1, 2**0.5, 3**0.5, 2])
    expected = [1 + i**0.5 + half * (i + 1) ** 0.5 for i in range(3)]
    assert means(settings.sqrt_random(3), 3) == pytest.approx(expected)
    shuffled = settings.sqrt_random(50, noise=1e-6, seed=1)
    assert means(shuffled, 50) != sorted(means(shuffled, 50))
    assert sorted(means(shuffled, 50)) == pytest.approx([1 + i**0.5 for i in range(50)], abs=1e-4)
    expected = [i + half * i**0.5 for i in (1, 2, 3)]
    assert means(settings.linear_random(3), 3) == pytest.approx(expected)


def test_fedfix_and_fedbuff() -> None:
    assert means(settings.fedfix(80), 5) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert set(means(settings.fedfix(0), 5)) == {1.0}
    assert means(settings.fedbuff(2.0), 1) == pytest.approx([2 * math.sqrt(2 / math.pi)])
    with pytest.raises(ValueError, match="percent must be from 0 to below 100, got 100: 80 for"):
        settings.fedfix(100)


def test_anarchic() -> None:
    table = settings.anarchic(steps=5, dynamic=True).simulate(10, max_rounds=40)
    steps = {event.num_steps for event in table.events}
    assert steps == set(range(1, 11))
    ages = {int(event.time - event.dispatched_at) for event in table.events}
    assert ages == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("name", settings.__all__)
def test_each_setting_makes_a_schedule(name: str) -> None:
    make = getattr(settings, name)
    needs = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty]
    given = {"num_clients": 12, "percent": 40}
    model = make(*(given[p.name] for p in needs))
    arrivals = (
        model if isinstance(model, ArrivalProcess) else ContinuousArrivals(model, local_steps=2)
    )
    limits = {} if arrivals.by_rounds else {"buffer_size": 2}
    table = arrivals.simulate(num_clients=12, max_updates=50, **limits)
    assert len(table.events) >= 50
    assert "https://arxiv.org/abs/" in make.__doc__


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"noise": -1}, ValueError, "noise must be larger than 0, got -1"),
        ({"noise": "loud"}, TypeError, "noise must be a number, got 'loud'"),
        ({"seed": -4}, ValueError, "seed must be 0 or larger, got -4"),
        ({"seed": "s"}, TypeError, "seed must be an integer, got 's'"),
    ],
)
def test_bad_numbers_of_random_times(given, kind, words) -> None:
    with pytest.raises(kind, match=words):
        settings.sqrt_random(3, **given)
