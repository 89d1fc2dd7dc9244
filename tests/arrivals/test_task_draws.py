from hypothesis import given
from hypothesis import strategies as st

from fedlight.arrivals import ExponentialDurations, UniformSpeeds, UniformSteps
from fedlight.arrivals._idle_clients import IdleClients
from fedlight.arrivals._task_draws import TaskDraws, Visits
from fedlight.randomness import Concern, Uniforms, stream


@given(st.integers(1, 12), st.lists(st.integers(0, 2), max_size=80), st.integers(0, 99))
def test_idle_clients_are_a_list_with_swaps(federation, num_clients, commands, seed):
    """Against a plain list: take the drawn place out, put the last one into it."""
    pool = IdleClients(federation(num_clients, seed))
    plain, out = list(range(num_clients)), []
    uniforms = Uniforms(seed, Concern.NEXT_CLIENT)
    for number, command in enumerate(commands):
        if command and plain:
            place = int(uniforms.next() * len(plain))
            plain[place], plain[-1] = plain[-1], plain[place]
            out.append(plain.pop())
            assert pool.draw() == out[-1]
        elif out:
            client = out.pop(number % len(out))
            plain.append(client)
            pool.add(client)
        assert len(pool) == len(plain)
        fresh = IdleClients(federation(num_clients, seed))
        fresh.load_state_dict(pool.state_dict())
        pool = fresh
    assert len(pool.state_dict()["changed"]) <= 2 * len(commands)
    assert sorted(pool.draw() for _ in range(len(pool))) == sorted(plain)


def test_clients_that_rest(federation):
    pool = IdleClients(federation(3))
    first, second = pool.draw(), pool.draw()
    pool.rest(first, 2 * 10**9)
    pool.rest(second, 10**9)
    assert pool.next_wake == 10**9
    pool.wake(0.999)
    assert len(pool) == 1
    pool.wake(1.0)
    assert (len(pool), pool.next_wake) == (2, 2 * 10**9)
    pool.wake(5.0)
    assert (len(pool), pool.next_wake) == (3, None)


def test_visits():
    visits = Visits()
    assert [visits.next(client) for client in (0, 5, 0, 0)] == [0, 0, 1, 2]
    other = Visits()
    other.load_state_dict(visits.state_dict())
    assert [other.next(client) for client in (5, 0, 1)] == [1, 3, 0]


def test_streams_are_named_by_client_and_task(federation):
    here = federation(3, seed=8)
    draws = TaskDraws(ExponentialDurations(2.0), UniformSteps(1, 99))
    draws.setup(here)
    drawn = [draws.draw(client, starts_at=0.0) for client in (2, 0, 2)]
    for (duration, num_steps), (client, visit) in zip(drawn, [(2, 0), (0, 0), (2, 1)], strict=True):
        assert num_steps == stream(8, Concern.STEPS, client, visit).integers(1, 100)
        rng = stream(8, Concern.DURATIONS, client, visit)
        assert duration == 2 * rng.standard_exponential()


def test_what_is_not_random_counts_nothing(federation):
    draws = TaskDraws(UniformSpeeds(0.8), 5)
    draws.setup(federation(3))
    drawn = [draws.draw(client, starts_at=0.0) for client in (0, 1, 2)]
    assert drawn == [(0.2, 5), (0.6, 5), (1.0, 5)]
    assert draws.state_dict() == []
