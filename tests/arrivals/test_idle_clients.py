from hypothesis import given
from hypothesis import strategies as st

from fedlight.arrivals._idle_clients import IdleClients
from fedlight.randomness import Concern, Uniforms


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
