"""Ringleader ASGD, by hand, and what its paper says about weights and delays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlight import participation_report
from fedlight.aggregators import Malenia, Ringleader
from fedlight.arrivals import ContinuousArrivals, ExponentialDurations, FixedDurations
from fedlight.arrivals.simulation import federation_of
from fedlight.loop import Limits
from fedlight.participation import dry_run
from tests import by_hand


@pytest.fixture
def play(make_update, make_state, make_federation):
    """Give a server updates (client, delta); returns the model after each, or None for no step."""

    def run(aggregator, clients, arrivals):
        state, seen = make_state([0.0]), []
        aggregator.setup(make_federation([1] * clients), state)
        for client, delta in arrivals:
            due = aggregator.receive(make_update(client, [delta]))
            assert due is aggregator.full
            if due:
                state = aggregator.step(state)
            seen.append(state.params.item() if due else None)
        return seen

    return run


def test_ten_events_by_hand(play):
    """Two clients, eta = 1; the page on Ringleader has the same ten events.

    Table 1: client 0 sends 2 and 4, client 1 sends 6, which completes it. (3 + 6)/2 = 4.5.
    Client 1 has stepped: its 1 is for table 2. Client 0 sends 6: its mean is 4; 4.5 + (4 + 6)/2.
    Table 2: client 1 has sent 1, and sends 3; client 0 completes it with -2.
    9.5 + (-2 + 2)/2 = 9.5. Client 0's 8 is for table 3; client 1's 5: 9.5 + (-2 + 3)/2 = 10.
    Table 3: client 1 completes it with 2, at once: 10 + (8 + 2)/2 = 15.
    """
    events = [(0, 2.0), (0, 4.0), (1, 6.0), (1, 1.0), (0, 6.0)]
    events += [(1, 3.0), (0, -2.0), (0, 8.0), (1, 5.0), (1, 2.0)]
    models = [None, None, 4.5, None, 9.5, None, 9.5, None, 10.0, 15.0]
    assert play(Ringleader(), 2, events) == models
    page = [(int(row[1]), row[2]) for row in by_hand.rows("Ringleader")]
    page = [(client, float(delta.replace("\N{MINUS SIGN}", "-"))) for client, delta in page]
    assert page == events
    assert [*by_hand.versions("Ringleader").values()] == [x for x in models if x is not None]


def test_the_weights_recorded_are_those_of_the_clients(play, make_update, make_state):
    aggregator = Ringleader()
    play(aggregator, 2, [(0, 2.0), (0, 4.0)])
    aggregator.receive(make_update(1, [6.0]))
    used = aggregator.step(make_state([0.0])).used
    assert [(each.update.client_id, each.weight) for each in used] == [(0, 0.0), (0, 0.5), (1, 0.5)]


def test_one_client_steps_with_each_update(play):
    assert play(Ringleader(), 1, [(0, 1.0), (0, 2.0), (0, -4.0)]) == [1.0, 3.0, -1.0]


def test_the_first_step_of_a_table_is_that_of_malenia(play):
    events = [(0, 2.0), (2, 1.0), (0, 5.0), (1, -3.0)]
    *_, ours = play(Ringleader(), 3, events)
    *_, theirs = play(Malenia(), 3, events)
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_failed_updates_are_forgotten(play, make_update, make_state):
    aggregator = Ringleader()
    play(aggregator, 3, [(0, 2.0), (1, 4.0)])
    failing = make_update(2, [9.0])
    assert aggregator.receive(failing)
    assert not aggregator.discard([failing])
    assert aggregator.receive(make_update(2, [3.0]))
    state = aggregator.step(make_state([0.0]))
    assert state.params.item() == 3.0
    failing = make_update(0, [9.0])  # in phase 2: client 0 has its step still to make
    assert not aggregator.receive(make_update(2, [1.0]))
    assert aggregator.receive(failing)
    assert not aggregator.discard([failing])
    assert aggregator.receive(make_update(0, [4.0]))
    assert aggregator.step(state).params.item() == 3.0 + (3 + 4 + 3) / 3
    assert [update.client_id for update in aggregator.held] == [2]


@pytest.mark.filterwarnings("ignore:fedlight")
def test_clients_of_unequal_speed_count_the_same():
    arrivals = ContinuousArrivals(FixedDurations([1.0, 0.3, 4.0]), resume="on_arrival")
    report = participation_report(arrivals, Ringleader(), num_clients=3, max_rounds=90)
    assert report.share == pytest.approx([1 / 3] * 3, abs=1e-12)
    assert report.arrivals[1] > 3 * report.arrivals[2]


@settings(max_examples=15, deadline=None)
@given(clients=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_the_staleness_is_at_most_twice_the_clients_less_two(clients, seed):
    arrivals = ContinuousArrivals(
        ExponentialDurations([0.2 * 3**client for client in range(clients)]), resume="on_arrival"
    )
    federation = federation_of(clients, 1, 1, seed, arrivals)
    rounds = dry_run(arrivals, Ringleader(), federation, Limits(25, None, None)).history
    assert len(rounds) == 25
    assert max(u.staleness for each in rounds for u in each.updates) <= 2 * clients - 2
