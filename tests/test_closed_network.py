"""Closed networks: enumerated states, a simulation with queues, and fedlight's own schedules."""

import heapq
import itertools
import math
import re
from collections import deque

import numpy as np
import pytest

from fedlight import participation_report
from fedlight.aggregators import FedAsync, FedBuff, FedFix
from fedlight.arrivals import (
    ContinuousArrivals,
    DropOut,
    ExponentialDurations,
    FixedDurations,
    LogNormalRates,
)
from fedlight.theory import ClosedNetwork, search

TIMES = [1.0, 0.5, 2.0, 5.0, 0.3]


def enumerated(times: list[float], tasks: int) -> tuple[list[float], list[float]]:
    """Rates and delays from the stationary probabilities of all sets of busy clients.

    They solve the balance equations themselves, not the product form.
    """
    clients = len(times)
    sets = list(itertools.combinations(range(clients), tasks))
    flow = np.zeros((len(sets), len(sets)))
    for here, busy in enumerate(sets):
        for client in busy:
            left = set(busy) - {client}
            for following in set(range(clients)) - left:
                there = sets.index(tuple(sorted(left | {following})))
                flow[here, there] += 1 / times[client] / (clients - tasks + 1)
    flow -= np.diag(flow.sum(1))
    equations = np.vstack([flow.T, np.ones(len(sets))])
    chances = np.linalg.lstsq(equations, np.eye(len(sets) + 1)[-1], rcond=None)[0]
    rates, met = np.zeros(clients), np.zeros(clients)
    for busy, chance in zip(sets, chances, strict=True):
        for one in busy:
            rates[one] += chance / times[one]
            met[one] += chance * sum(1 / times[other] for other in busy if other != one)
    return rates.tolist(), (met / rates).tolist()


@pytest.mark.parametrize("tasks", [1, 2, 3, 4, 5])
def test_the_product_form_solves_the_balance_equations(tasks: int) -> None:
    network = ClosedNetwork(TIMES, tasks)
    rates, delays = enumerated(TIMES, tasks)
    np.testing.assert_allclose(network.rates, rates, rtol=1e-10)
    np.testing.assert_allclose(network.delays, delays, rtol=1e-10, atol=1e-12)
    assert network.in_flight.sum() == pytest.approx(tasks)


@pytest.mark.parametrize("probabilities", [None, [0.1, 0.2, 0.3, 0.15, 0.25]])
@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_the_mean_delay_is_one_less_than_the_tasks(tasks, probabilities) -> None:
    network = ClosedNetwork(TIMES, tasks, probabilities)
    assert network.shares @ network.delays == pytest.approx(tasks - 1)
    if probabilities is not None:
        np.testing.assert_allclose(network.shares, probabilities)


def with_queues(times, probabilities, tasks, events, seed):
    """Delays by client and the time of the last event, of a plain loop over events."""
    rng = np.random.default_rng(seed)
    queues = [deque() for _ in times]
    heap, done, delays = [], 0, [[] for _ in times]

    def route(now: float) -> None:
        client = int(rng.choice(len(times), p=probabilities))
        queues[client].append(done)
        if len(queues[client]) == 1:
            heapq.heappush(heap, (now + rng.exponential(times[client]), client))

    for _ in range(tasks):
        route(0.0)
    while done < events:
        now, client = heapq.heappop(heap)
        delays[client].append(done - queues[client].popleft())
        done += 1
        if queues[client]:
            heapq.heappush(heap, (now + rng.exponential(times[client]), client))
        route(now)
    return delays, now


def within(found: list[float], expected: float, errors: float = 4.5) -> None:
    """The mean of independent repetitions is within a few standard errors."""
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    assert abs(np.mean(found) - expected) <= errors * error + 1e-9


def test_queues_are_simulated_to_the_expected_means() -> None:
    times, probabilities = [1.0, 0.5, 3.0], [0.5, 0.3, 0.2]
    network = ClosedNetwork(times, 5, probabilities)
    runs = [with_queues(times, probabilities, 5, 3000, seed) for seed in range(12)]
    for client in range(3):
        # the first tasks come into an empty network
        means = [np.mean(delays[client][100:]) for delays, _ in runs]
        within(means, network.delays[client])
    within([3000 / now for _, now in runs], network.throughput)
    assert network.shares @ network.delays == pytest.approx(4)


@pytest.mark.parametrize(
    ("concurrency", "buffer", "resume"),
    [
        (None, 1, "on_aggregation"),
        (2, 1, "on_arrival"),
        (3, 4, "on_arrival"),
        (None, 3, "on_arrival"),
    ],
)
def test_the_report_has_simulated_and_expected_beside_each_other(
    concurrency, buffer, resume
) -> None:
    arrivals = ContinuousArrivals(
        ExponentialDurations(TIMES), concurrency=concurrency, resume=resume, local_steps=1
    )
    reports = [
        participation_report(arrivals, FedBuff(buffer), num_clients=5, max_updates=1000, seed=seed)
        for seed in range(8)
    ]
    first = reports[0]
    for client in range(5):
        within([r.staleness[client] for r in reports], first.expected_staleness[client], 5.5)
    within([report.throughput for report in reports], first.expected_throughput, 5.5)
    network = ClosedNetwork(TIMES, concurrency)
    np.testing.assert_allclose(first.expected_staleness, network.delays / buffer)
    columns = [column.header for column in first.table().columns]
    assert columns[2:4] == ["mean staleness", "expected"]


def test_rates_that_are_drawn_are_a_network_too() -> None:
    arrivals = ContinuousArrivals(LogNormalRates(1.0), resume="on_arrival", local_steps=1)
    report = participation_report(arrivals, FedAsync(0.5), num_clients=4, max_updates=50)
    means = arrivals.expected_durations()
    np.testing.assert_allclose(report.expected_staleness, ClosedNetwork(means).delays)


@pytest.mark.parametrize(
    ("arrivals", "aggregator"),
    [
        (ContinuousArrivals(FixedDurations([1.0, 2.0]), local_steps=1), FedBuff(1)),
        (ContinuousArrivals(ExponentialDurations(1.0), local_steps=1), FedBuff(2)),  # they wait
        (ContinuousArrivals(ExponentialDurations(1.0), idle=0.5, local_steps=1), FedBuff(1)),
        (
            ContinuousArrivals(ExponentialDurations(1.0), local_steps=1),
            FedAsync(0.5, max_staleness=9),
        ),
        (ContinuousArrivals(ExponentialDurations(1.0), local_steps=1), FedFix(3.0)),
        (DropOut(ContinuousArrivals(ExponentialDurations(1.0), local_steps=1), 0.1), FedBuff(1)),
    ],
)
def test_other_schedules_have_no_expectation(arrivals, aggregator) -> None:
    report = participation_report(arrivals, aggregator, num_clients=2, max_updates=30)
    assert report.expected_staleness is None
    assert report.expected_throughput is None
    assert report.throughput > 0
    assert "expected" not in [column.header for column in report.table().columns]


def test_many_clients_of_very_different_speeds() -> None:
    times = np.geomspace(1e-4, 1e4, 400)
    network = ClosedNetwork(times, 200)
    assert network.shares @ network.delays == pytest.approx(199)
    assert network.in_flight.sum() == pytest.approx(200)
    queues = ClosedNetwork(times, 200, np.full(400, 1 / 400))
    assert queues.shares @ queues.delays == pytest.approx(199)
    # the slowest client is the bottleneck: it is always at work
    assert queues.throughput == pytest.approx(400 / times[-1], rel=1e-2)


def test_the_search_finds_the_best_of_a_dense_grid() -> None:
    def cost(network: ClosedNetwork) -> float:
        return (2 + network.delays.max()) * (1 / network.shares).mean() / network.throughput

    times = [1.0, 4.0]
    best, found = search(times, range(1, 6), cost, sweeps=30)
    grid = [
        (cost(ClosedNetwork(times, tasks, [p, 1 - p])), tasks, p)
        for tasks in range(1, 6)
        for p in np.linspace(0.02, 0.98, 97)
    ]
    lowest, tasks, p = min(grid)
    assert best.concurrency == tasks
    assert found <= lowest * 1.01
    assert best.probabilities[0] == pytest.approx(p, abs=0.05)
    coarse, _ = search(times, [best.concurrency], cost)
    assert found <= cost(coarse)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ClosedNetwork([1.0, 0.0]), "durations[1] must be larger than 0, got"),
        (lambda: ClosedNetwork([]), "durations must hold one number for each client"),
        (lambda: ClosedNetwork([1.0], 2), "concurrency=2 is more than the 1 clients"),
        (lambda: ClosedNetwork([1.0], 0), "concurrency must be at least 1, got 0"),
        (lambda: ClosedNetwork([1.0, 1.0], 2, [0.5, 0.4]), "that add up to 1, got 2 with the sum"),
        (lambda: ClosedNetwork([1.0, 1.0], 2, [1.0]), "2 numbers that add up to 1, got 1 with"),
        (lambda: ClosedNetwork(np.ones(50_000)), "is more than can be computed"),
        (lambda: search([1.0], [], lambda network: 0.0), "must hold at least one number each"),
        (lambda: search([1.0], [1], lambda network: math.nan), "must be finite, got nan"),
    ],
)
def test_bad_input(make, words) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        make()
