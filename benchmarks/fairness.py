"""How often a run warns that clients count for more than their importance.

Run ``python -m benchmarks.fairness`` for the rates in ``docs/concepts.md``: the share of runs that
warn, in federations that are fair and in federations where half of the clients arrive twice as
often as the other half. A schedule is simulated once; the discounts weight the same updates.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedlight.aggregators import FedBuff
from fedlight.aggregators.staleness import Constant, Exponential, Hinge, Polynomial, Staleness
from fedlight.arrivals import (
    ArrivalProcess,
    BiasedArrivals,
    ContinuousArrivals,
    DurationModel,
    ExponentialDurations,
    FixedDurations,
    LogNormalDurations,
    PoissonArrivals,
    UniformArrivals,
    simulate,
)
from fedlight.arrivals.simulation import federation_of
from fedlight.participation import _report

DISCOUNTS: Mapping[str, Staleness] = {
    "Constant()": Constant(),
    "Polynomial(0.5)": Polynomial(0.5),
    "Exponential(0.1)": Exponential(0.1),
    "Hinge(1, 4)": Hinge(1, 4),
}


def _always(durations: DurationModel, concurrency: int | None = None) -> ArrivalProcess:
    return ContinuousArrivals(durations, concurrency, resume="on_arrival", local_steps=1)


FAIR: Mapping[str, Callable[[int], ArrivalProcess]] = {
    "rounds, drawn evenly": lambda M: UniformArrivals(M // 10, 3, 1),
    "M/10 work, drawn evenly": lambda M: _always(FixedDurations([1.0] * M), M // 10),
    "Poisson starts": lambda M: PoissonArrivals(M / 10, ExponentialDurations(1.0), 1),
    "all work, exponential": lambda M: _always(ExponentialDurations(1.0)),
    "all work, log-normal": lambda M: _always(LogNormalDurations(1.0, sigma=1.0)),
}


def _halves(M: int, first: float, second: float) -> list[float]:
    return [first] * (M // 2) + [second] * (M - M // 2)


BIASED: Mapping[str, Callable[[int], ArrivalProcess]] = {
    "rounds, drawn 2:1": lambda M: BiasedArrivals(
        M // 10, (np.array(_halves(M, 2, 1)) / sum(_halves(M, 2, 1))).tolist(), 3, 1
    ),
    "all work, fixed 1:2": lambda M: _always(FixedDurations(_halves(M, 1, 2))),
    "all work, exponential 1:2": lambda M: _always(ExponentialDurations(_halves(M, 1, 2))),
    "all work, log-normal 1:2": lambda M: _always(LogNormalDurations(_halves(M, 1, 2), sigma=1.0)),
}


def warnings(
    arrivals: ArrivalProcess, clients: int, updates: int, seed: int, buffer_size: int
) -> Iterator[bool]:
    """Yield for each discount whether a run would warn.

    Args:
        arrivals: The schedule.
        clients: M.
        updates: The number of updates of the run.
        seed: Its seed.
        buffer_size: The number of updates that make a version.
    """
    table = simulate(
        arrivals, num_clients=clients, buffer_size=buffer_size, max_updates=updates, seed=seed
    )
    used = [
        (event.client, number // buffer_size - event.pulled_version)
        for number, event in enumerate(table.events)
    ]
    for discount in DISCOUNTS.values():
        entries = [SimpleNamespace(client_id=i, weight=discount(t), staleness=t) for i, t in used]
        history: Any = [SimpleNamespace(updates=entries, now=1.0)]
        federation = federation_of(clients, 1, 1, seed, arrivals)
        yield _report(history, FedBuff(buffer_size), arrivals, federation, rtol=None).is_far


def rates(
    make: Callable[[int], ArrivalProcess], clients: int, per_client: float, seeds: int
) -> list[float]:
    """The share of runs that warn, in percent, for each discount.

    Args:
        make: Makes the schedule for M clients.
        clients: M.
        per_client: Updates of a run, divided by M.
        seeds: The number of runs.
    """
    updates, size = int(per_client * clients), max(1, clients // 10)
    runs = [list(warnings(make(clients), clients, updates, s, size)) for s in range(seeds)]
    return (100 * np.mean(runs, axis=0)).tolist()


def main() -> None:
    """Print the rates as a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--per-client", type=float, default=10)
    parser.add_argument("--seeds", type=int, default=300)
    args = parser.parse_args()
    print("| schedule |", " | ".join(DISCOUNTS), "|", flush=True)
    for schedules in (FAIR, BIASED):
        for name, make in schedules.items():
            shares = rates(make, args.clients, args.per_client, args.seeds)
            print(f"| {name} |", " | ".join(f"{x:.1f} %" for x in shares), "|", flush=True)


if __name__ == "__main__":
    main()
