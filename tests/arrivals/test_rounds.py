from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlight import participation_report
from fedlight.aggregators import FedBuff
from fedlight.arrivals import (
    BiasedArrivals,
    ConstantStaleness,
    ConstantSteps,
    UniformArrivals,
    UniformSteps,
)
from fedlight.events import Kind

PAPER = [0.19, 0.19, *[0.1] * 6, 0.01, 0.01]


def by_round(lines):
    """The tasks that arrived in each round."""
    rounds, present = [], []
    for line in lines:
        if line.task:
            present.append(line.task)
        else:
            rounds.append(present)
            present = []
    return rounds


@given(
    num_clients=st.integers(1, 8),
    data=st.data(),
    max_staleness=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_invariants(drive, num_clients, data, max_staleness, seed):
    per_round = data.draw(st.integers(1, num_clients))
    lines, tasks = drive(
        lambda: UniformArrivals(per_round, max_staleness, ConstantSteps(3)),
        num_clients,
        num_events=20 * (per_round + 1),
        seed=seed,
    )
    rounds = by_round(lines)
    assert len(rounds) == 20
    assert [task.serial for task in tasks] == list(range(len(tasks)))
    for number, arrived in enumerate(rounds):
        assert len({task.client_id for task in arrived}) == per_round  # without replacement
        for task in arrived:
            age = number - task.pulled_version
            assert 0 <= age <= min(max_staleness, number)
            assert task.arrives_at == number + 1
            assert task.dispatched_at == number - age
    ends = [line.now for line in lines if line.kind is Kind.ROUND_END]
    assert ends == [float(t) for t in range(1, 21)]


def test_clients_and_ages_are_drawn_evenly(drive):
    lines, _ = drive(lambda: UniformArrivals(5, max_staleness=4), 10, num_events=6 * 2000)
    rounds = by_round(lines)
    clients = Counter(task.client_id for tasks in rounds for task in tasks)
    # Each client is in half of the 2000 rounds, standard deviation 22.
    assert max(abs(count - 1000) for count in clients.values()) < 90
    ages = Counter(n - task.pulled_version for n, tasks in enumerate(rounds) for task in tasks)
    assert set(ages) == {0, 1, 2, 3, 4}
    # Each age of a fifth of 10,000, standard deviation 40; fewer old ones in the first four rounds.
    assert max(abs(count - 2000) for count in ages.values()) < 170


def test_the_same_clients_come_with_and_without_staleness(drive):
    def clients(max_staleness, steps):
        lines, _ = drive(lambda: UniformArrivals(3, max_staleness, steps), 9, num_events=200)
        return [sorted(task.client_id for task in tasks) for tasks in by_round(lines)]

    assert clients(0, 5) == clients(4, 5) == clients(4, UniformSteps(1, 9))


def test_biased_arrivals(drive):
    """Drawn one by one without replacement: a client's chance with m = 2 follows by hand."""
    weights = [0.5, 0.3, 0.2]
    lines, _ = drive(lambda: BiasedArrivals(2, weights), 3, num_events=3 * 5000)
    absent = Counter(
        ({0, 1, 2} - {task.client_id for task in tasks}).pop() for tasks in by_round(lines)
    )
    # Client 2 is left out by (0, 1) or (1, 0): 0.5*0.3/0.5 + 0.3*0.5/0.7 = 0.514; and so on.
    expected = {
        2: 0.5 * 0.3 / 0.5 + 0.3 * 0.5 / 0.7,
        1: 0.5 * 0.2 / 0.5 + 0.2 * 0.5 / 0.8,
        0: 0.3 * 0.2 / 0.7 + 0.2 * 0.3 / 0.8,
    }
    assert sum(expected.values()) == pytest.approx(1)
    for client, share in expected.items():
        assert abs(absent[client] / 5000 - share) < 0.03


def test_the_weights_of_the_paper(drive):
    lines, _ = drive(lambda: BiasedArrivals(5, PAPER, max_staleness=4), 10, num_events=6 * 1000)
    counts = np.bincount([t.client_id for tasks in by_round(lines) for t in tasks], minlength=10)
    assert counts[:2].min() > counts[2:8].max()
    assert counts[2:8].min() > 4 * counts[8:].max()


def test_client_of_weight_0_never_comes(drive):
    lines, _ = drive(lambda: BiasedArrivals(2, [0.5, 0.5, 0.0]), 3, num_events=90)
    assert {task.client_id for tasks in by_round(lines) for task in tasks} == {0, 1}


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: UniformArrivals(0), ValueError, "per_round must be at least 1, got 0"),
        (lambda: UniformArrivals(2.0), TypeError, "per_round must be an integer, got 2.0"),
        (lambda: UniformArrivals(2, -1), ValueError, "max_staleness must be 0 or larger, got -1"),
        (lambda: UniformArrivals(2, 0, None), TypeError, "local_steps must be a LocalSteps policy"),
        (lambda: BiasedArrivals(1, []), ValueError, "probabilities must hold one number"),
        (lambda: BiasedArrivals(1, [0.5, 0.4]), ValueError, "must sum to 1, got a sum of 0.9"),
        (lambda: BiasedArrivals(1, [1.5, -0.5]), ValueError, r"probabilities\[1\] must be"),
        (lambda: BiasedArrivals(1, [1, np.nan]), ValueError, r"probabilities\[1\] must be finite"),
        (lambda: BiasedArrivals(1, {0: 0.5, 1: 0.5}), TypeError, "must be a list, got the mapping"),
        (lambda: BiasedArrivals(1, 1.0), TypeError, "probabilities must be a list of one number"),
        (lambda: BiasedArrivals(1, "ab"), TypeError, "one number for each client, got 'ab'"),
        (lambda: BiasedArrivals(2, [1.0, 0.0]), ValueError, "leave only 1 clients that can be"),
    ],
)
def test_bad_arguments(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_what_must_fit(federation):
    with pytest.raises(ValueError, match="per_round=5 is more than the 4 clients"):
        UniformArrivals(5).setup(federation(4))
    with pytest.raises(ValueError, match="probabilities has 2 numbers, but there are 3 clients"):
        BiasedArrivals(1, [0.5, 0.5]).setup(federation(3))


def test_repr():
    assert repr(UniformArrivals(5, 4, 3)) == (
        "UniformArrivals(per_round=5, max_staleness=4, local_steps=ConstantSteps(3))"
    )
    assert repr(BiasedArrivals(1, [0.5, 0.5])).startswith("BiasedArrivals(per_round=1, prob")
    assert UniformArrivals(1).by_rounds
    assert not UniformArrivals(1).finite


def test_constant_staleness_is_a_pipeline(drive):
    """tau = 2 and three of nine clients a round; each version is pulled by three."""
    lines, tasks = drive(lambda: ConstantStaleness(2, 3, 1), 9, max_time=8)
    arrived = [line.task for line in lines if line.kind is Kind.ARRIVAL]
    by_round = {t: [task for task in arrived if task.arrives_at == t + 1.0] for t in range(8)}
    for t, group in by_round.items():
        assert [task.pulled_version for task in group] == [t - min(t, 2)] * 3
    assert [len({task.client_id for task in by_round[t]}) for t in range(8)] == [3] * 8
    # None has two tasks at a time, and all come equally often.
    free = {}
    for task in sorted(tasks, key=lambda task: task.dispatched_at):
        assert free.get(task.client_id, 0.0) <= task.dispatched_at
        free[task.client_id] = task.arrives_at
    assert Counter(task.client_id for t in range(6) for task in by_round[t]) == dict.fromkeys(
        range(9), 2
    )


def test_a_staleness_of_0_is_synchronous(drive):
    _, tasks = drive(lambda: ConstantStaleness(0, 2, 1), 5, max_time=10)
    assert [task.pulled_version for task in tasks] == [int(task.dispatched_at) for task in tasks]
    assert {task.arrives_at - task.dispatched_at for task in tasks} == {1.0}


def test_the_staleness_with_a_buffer_is_the_same():
    process = ConstantStaleness(3, 2, 1)
    report = participation_report(process, FedBuff(2), num_clients=8, max_rounds=43)
    # Rounds 0 to 2 have 0, 1 and 2; the other 40 have 3.
    assert (report.staleness * report.arrivals).sum() == 2 * (0 + 1 + 2 + 3 * 40)


def test_a_constant_staleness_needs_enough_clients(federation):
    with pytest.raises(ValueError, match=r"need \(tau \+ 1\) \* per_round = 9 clients"):
        ConstantStaleness(2, 3).setup(federation(8))
    ConstantStaleness(2, 3).setup(federation(9))
