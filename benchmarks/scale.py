"""How cost and memory grow: with clients, with clients in flight, with parameters, with rounds."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.clock import now
from benchmarks.federations import timed
from benchmarks.workloads import A
from fedlight._runs.setting import Setting
from fedlight.aggregators import AFACS, Aggregator, FedAvg, FedBuff
from fedlight.arrivals import ContinuousArrivals, ExponentialDurations
from fedlight.arrivals.schedule import Schedule
from fedlight.arrivals.simulation import CountingServer
from fedlight.clients import Clients
from fedlight.clients.pool import Pool
from fedlight.executors import Executor, Job
from fedlight.local_optimizers import LocalSGD
from fedlight.loop import Limits, play
from fedlight.server import Server, Watcher
from fedlight.types import (
    ClientUpdate,
    Federation,
    LocalResult,
    Measured,
    RoundRecord,
    ServerState,
    Task,
)


class Nothing(Executor):
    """Computes nothing: what is left is the loop."""

    max_batch = 256

    def __init__(self, parameters: int) -> None:
        deltas, none = torch.ones(self.max_batch, parameters), torch.empty(0)
        self.results = [
            LocalResult(delta, none, none, measured=Measured(delta, delta._version, 1.0))
            for delta in deltas.unbind()
        ]

    def setup(self, workplace: object) -> None:
        """Nothing to do."""

    def run(self, jobs: Sequence[Job]) -> list[LocalResult]:
        return self.results[: len(jobs)]


def events_per_second(clients: int, in_flight: int, parameters: int, events: int) -> float:
    """Events a second of schedule, pool, FedBuff(10) and records, without any training.

    An event is a dispatch, an arrival or a server update, as `EventLog` has them.
    """
    federation = Federation(clients, np.ones(clients, dtype=np.int64), batch_size=1)
    arrivals = ContinuousArrivals(
        ExponentialDurations(1.0), concurrency=in_flight, resume="on_arrival", local_steps=1
    )
    schedule = Schedule(arrivals, federation)
    pool = Pool(Nothing(parameters))
    runs = Clients(pool, federation, keep_states=False)
    history = _History()
    setting = Setting(arrivals, FedBuff(buffer_size=10), LocalSGD(0.1))
    server = Server(setting, federation, runs, schedule, _state(parameters), history)
    counts, begun, before = server.counts, now(), 0
    for waiting in play(schedule, server, Limits()):
        if waiting:
            pool.compute(waiting)
            continue
        seen = counts.num_pulls + counts.num_updates + counts.version
        if not before and seen >= events // 4:
            begun, before = now(), seen
        if seen >= events:
            break
    assert len(history.records) == counts.version
    return (seen - before) / (now() - begun)


class _History(Watcher):
    """Keeps the records, as a run does."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def on_version(self, record: RoundRecord) -> None:
        self.records.append(record)


def simulated_per_second(clients: int, in_flight: int, events: int) -> float:
    """The same events of the schedule alone, as `simulate` goes through them."""
    federation = Federation(clients, np.ones(clients, dtype=np.int64), batch_size=1)
    arrivals = ContinuousArrivals(
        ExponentialDurations(1.0), concurrency=in_flight, resume="on_arrival", local_steps=1
    )
    schedule = Schedule(arrivals, federation)
    server = CountingServer(schedule, buffer_size=10, by_rounds=False)
    counts, begun, before = server.counts, now(), 0
    for _ in play(schedule, server, Limits()):
        seen = counts.num_pulls + counts.num_updates + counts.version
        if not before and seen >= events // 4:
            begun, before = now(), seen
        if seen >= events:
            break
    return (seen - before) / (now() - begun)


def step_seconds(
    aggregator: Aggregator, clients: int, parameters: int, updates: int = 10, repeats: int = 30
) -> float:
    """Seconds of one server step over some updates."""
    federation = Federation(clients, np.ones(clients, dtype=np.int64), batch_size=1)
    state = _state(parameters)
    aggregator.setup(federation, state)
    rng, times = np.random.default_rng(0), []
    for _ in range(repeats):
        for client in rng.choice(clients, updates, replace=False).tolist():
            task = Task(client, state.version, 0.0, 1.0, num_steps=1, serial=0, visit=0)
            empty = torch.empty(0)
            aggregator.receive(
                ClientUpdate(task, 1, LocalResult(torch.ones(parameters), empty, empty))
            )
        begun = now()
        state = replace(aggregator.step(state), used=())
        times.append(now() - begun)
    return statistics.median(times)


def _state(parameters: int) -> ServerState:
    return ServerState(0, torch.zeros(parameters), torch.empty(0), torch.empty(0))


def growth_tables(quick: bool) -> list[tuple[str, list[list[str]]]]:
    """The tables of growth, each with its title; first row: the heads of the columns."""
    events = 8_000 if quick else 80_000
    heads = ["events a second, simulated", "with server and history"]
    rows = [["clients M", *heads]]
    for clients in (100, 1_000, 10_000, 100_000, 1_000_000):
        rates = [simulated_per_second(clients, 50, events)]
        rates.append(events_per_second(clients, 50, 10, events))
        rows.append([f"{clients:,}", *(f"{rate:,.0f}" for rate in rates)])
    tables = [("The loop alone: 50 in flight, 10 parameters", rows)]
    rows = [["in flight", *heads]]
    for in_flight in (10, 100, 1_000, 10_000):
        enough = max(events, 8 * in_flight)
        rates = [simulated_per_second(100_000, in_flight, enough)]
        rates.append(events_per_second(100_000, in_flight, 10, enough))
        rows.append([f"{in_flight:,}", *(f"{rate:,.0f}" for rate in rates)])
    tables.append(("The loop alone: 100,000 clients, 10 parameters", rows))
    rows = [["parameters P", "FedAvg, ms a step", "AFA-CS, ms a step"]]
    for parameters in (1_000, 10_000, 100_000, 1_000_000):
        seconds = [step_seconds(make(buffer_size=10), 100, parameters) for make in (FedAvg, AFACS)]
        rows.append([f"{parameters:,}", *(f"{1e3 * value:.3f}" for value in seconds)])
    tables.append(("A server step of 10 updates, 100 clients", rows))
    rows = [["clients M", "AFA-CS, ms a step", "its memory, MiB"]]
    for clients in (100, 1_000, 10_000):
        seconds_ = step_seconds(AFACS(buffer_size=10), clients, 7_850, repeats=100)
        rows.append([f"{clients:,}", f"{1e3 * seconds_:.3f}", f"{clients * 7_850 * 4 / 2**20:.0f}"])
    tables.append(("An AFA-CS step of 10 updates, 7,850 parameters", rows))
    return tables


def memory_table(quick: bool) -> list[list[str]]:
    """Peak resident memory of whole runs, each in a process of its own."""
    rows = [["run", "set-up, s", "updates a second", "peak memory, MiB"]]
    few, many = (20, 200) if quick else (100, 10_000)
    for rounds in (few, many):
        rows.append([f"10 clients a round, {rounds:,} rounds", *_apart("rounds", rounds)])
    clients = 100_000 if quick else 1_000_000
    rows.append([f"{clients:,} clients of 784 bytes, 100 in flight", *_apart("clients", clients)])
    return rows


def _apart(kind: str, number: int) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.scale", kind, str(number)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return output.strip().splitlines()[-1].split()


def _main(kind: str, number: int) -> None:
    begun = now()
    if kind == "rounds":
        load = replace(
            A, net=lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), shape=(4,), classes=2,
            examples=4, batch_size=4, per_round=10, steps=1,
        )  # fmt: skip
        data = load.data()
        arrivals, updates = None, number * 10
        aggregator = None
    else:
        load = replace(A, clients=number, examples=1, steps=1)
        data = load.data()
        arrivals = ContinuousArrivals(
            ExponentialDurations(1.0), concurrency=100, resume="on_arrival", local_steps=1
        )
        aggregator, updates = FedBuff(buffer_size=10), 3_000
    ready = now()
    timing = timed(load, data, "cpu", updates, arrivals=arrivals, aggregator=aggregator)
    print(f"{ready - begun:.1f} {timing.updates:.0f} {_peak_mib():.0f}")


def _peak_mib() -> float:
    """Peak resident memory; what getrusage says includes the parent's on Linux."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
