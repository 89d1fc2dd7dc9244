"""The cost of a server step of each aggregator against FedBuff's, and memories of many clients.

    OMP_NUM_THREADS=1 python -m benchmarks.aggregators

The first table has the CPU time of a step, the median of steps that take turns, and its share of
that of FedBuff's step of as many updates. The second fills the memory of `--clients` clients and
steps on with it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedlight.aggregators import (
    AFACD,
    AFACS,
    AREA,
    CA2FL,
    DCASGD,
    FADAS,
    MIFA,
    Aggregator,
    AsyncFedAvg,
    FedAsync,
    FedAvg,
    FedBuff,
    FedDynServer,
    FedFix,
    FedNova,
    FedVARP,
    GeneralizedAsyncSGD,
    Malenia,
    Rennala,
    Ringmaster,
)
from fedlight.types import ClientUpdate, Federation, LocalResult, ServerState, Task

CLIENTS = 100
# How it is made, and the updates of a step.
METHODS: dict[str, tuple[Callable[[], Aggregator], int]] = {
    "FedBuff(10)": (lambda: FedBuff(10), 10),
    "FedAvg(10)": (lambda: FedAvg(10), 10),
    "AFACD(10)": (lambda: AFACD(10), 10),
    "AFACS(10)": (lambda: AFACS(10), 10),
    "FedFix": (lambda: FedFix(1.0), 10),
    "MIFA(10)": (lambda: MIFA(10), 10),
    "FedVARP(10, 0.5)": (lambda: FedVARP(10, 0.5), 10),
    "CA2FL(10)": (lambda: CA2FL(10), 10),
    "FADAS(10)": (lambda: FADAS(10), 10),
    "AREA(10)": (lambda: AREA(10), 10),
    "Rennala(10)": (lambda: Rennala(10), 10),
    "Malenia, 10 clients came": (lambda: Malenia(), 10),
    "FedNova(10)": (lambda: FedNova(10), 10),
    "FedDynServer(buffer_size=10)": (lambda: FedDynServer(0.1, 10), 10),
    "FedBuff(1)": (lambda: FedBuff(1), 1),
    "FedAsync": (lambda: FedAsync(0.5), 1),
    "AsyncFedAvg": (lambda: AsyncFedAvg("identical"), 1),
    "MIFA(1)": (lambda: MIFA(), 1),
    "Ringmaster": (lambda: Ringmaster(5), 1),
    "DCASGD": (lambda: DCASGD(0.04), 1),
    "GeneralizedAsyncSGD": (lambda: GeneralizedAsyncSGD([1 / CLIENTS] * CLIENTS), 1),
}


def steps(
    aggregator: Aggregator, clients: int, parameters: int, updates: int
) -> Iterator[tuple[float, Aggregator]]:
    """Make one step after another; yields the CPU seconds of each."""
    empty = torch.empty(0)
    state = ServerState(0, torch.zeros(parameters), empty, empty)
    ones = np.ones(clients, dtype=np.int64)
    aggregator.setup(Federation(clients, ones, batch_size=1), state)
    order = deque(np.random.default_rng(0).permutation(clients).tolist())
    while True:
        for _ in range(updates):
            task = Task(order[0], state.version, 0.0, 1.0, num_steps=1, serial=0, visit=0)
            order.rotate(-1)
            local = LocalResult(torch.full((parameters,), 0.1), empty, empty)
            aggregator.receive(ClientUpdate(task, 1, local, pulled=state))
        begun = time.process_time()
        state = replace(aggregator.step(state), used=())
        yield time.process_time() - begun, aggregator


def step_table(parameters: int, turns: int) -> Table:
    """A step of each aggregator, in turns."""
    table = Table("aggregator", "ms a step", "/ FedBuff", title=f"P = {parameters:,}")
    running = {
        name: steps(make(), CLIENTS, parameters, updates)
        for name, (make, updates) in METHODS.items()
    }
    times: dict[str, list[float]] = {name: [] for name in METHODS}
    for turn in range(turns + 20):
        for name, each in running.items():
            seconds, _ = next(each)
            if turn >= 20:  # by then each client has come
                times[name].append(seconds)
    for name, (_, updates) in METHODS.items():
        median = statistics.median(times[name])
        share = median / statistics.median(times[f"FedBuff({updates})"])
        table.add_row(name, f"{1e3 * median:.3f}", f"{share:.2f}")
    return table


def memory_table(clients: int, parameters: int) -> Table:
    """Methods with memory: a step before and after all clients have come."""
    title = f"{clients:,} clients, {parameters:,} parameters, 100 updates a step"
    heads = ["first steps, ms", "later, ms", "rows, MiB", "process, MiB"]
    table = Table("aggregator", *heads, title=title)
    for make in (lambda: FedBuff(100), lambda: MIFA(100), lambda: CA2FL(100), lambda: AREA(100)):
        each = steps(make(), clients, parameters, 100)
        before = _resident_mib()
        times = [next(each)[0] for _ in range(clients // 100 + 200)]
        grown = _resident_mib() - before
        rows = 0 if isinstance(next(each)[1], FedBuff) else clients * parameters * 4 / 2**20
        first, later = (1e3 * statistics.median(part) for part in (times[:200], times[-200:]))
        name = repr(next(each)[1])
        table.add_row(name, f"{first:.2f}", f"{later:.2f}", f"{rows:.0f}", f"+{grown:.0f}")
    return table


def _resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=200)
    options = parser.parse_args()
    console = Console(width=120)
    for parameters in (1_000, 7_850, 100_000):
        console.print(step_table(parameters, options.turns))
    console.print(memory_table(options.clients, parameters=2_000))


if __name__ == "__main__":
    main()
