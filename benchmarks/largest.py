"""The largest federation: a million clients of workload B, 100,000 of them in flight, FedBuff.

    OMP_NUM_THREADS=1 python -m benchmarks.largest [--quick]

Each client has its own 6 examples, 4.7 GB of bytes in all. Tasks last exponential times; 5 local
steps. Each row is a process of its own, so that its peak memory is its own. Everything is counted
in CPU seconds. The raw PyTorch floor is measured in the process of the first row, over the 10,000
clients of B: as floats, the examples of a million would take 19 GB.

Shares of the time, from the first version on: the local runs are what the executor takes, a server
step is what the aggregator takes, and events are the same schedule played alone, without a model.
The rest is the pool, the records, and what the server does besides its step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time

import numpy as np
from lightning import LightningModule

from benchmarks import clock
from benchmarks.floors import Floor
from benchmarks.scale import _peak_mib
from benchmarks.workloads import B
from fedlight import Callback, FedTrainer
from fedlight.aggregators import FedBuff
from fedlight.arrivals import ArrivalProcess, ContinuousArrivals, ExponentialDurations
from fedlight.arrivals.schedule import Schedule
from fedlight.arrivals.simulation import CountingServer
from fedlight.checkpoint import read_checkpoint
from fedlight.executors import Job, VectorizedExecutor
from fedlight.executors.base import Outcome
from fedlight.local_optimizers import LocalSGD
from fedlight.loop import Limits, play
from fedlight.types import Federation, ServerState

_HEADS = (
    "updates a CPU second", "raw loop", "closed form", "local runs", "server steps", "events",
    "rest", "versions alive", "peak, MiB", "of these data", "set-up, s", "checkpoint, s",
    "its size, MiB", "its reading, s",
)  # fmt: skip


class TimedExecutor(VectorizedExecutor):
    """Counts the CPU seconds of the local runs."""

    seconds = 0.0

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        begun = process_time()
        outcomes = super().run(jobs)
        self.seconds += process_time() - begun
        return outcomes


class TimedBuff(FedBuff):
    """Counts the CPU seconds of the steps."""

    def start(self, federation: Federation, state: ServerState) -> None:
        super().start(federation, state)
        self.seconds = 0.0

    def step(self, state: ServerState) -> ServerState:
        begun = process_time()
        new = super().step(state)
        self.seconds += process_time() - begun
        return new


class Readings(Callback):
    """Reads the clocks at the first version and at the end, and counts the versions alive."""

    def __init__(self, executor: TimedExecutor, rule: TimedBuff) -> None:
        self.executor, self.rule = executor, rule
        self.read: list[list[float]] = []

    def on_round_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        if trainer.version == 1:
            self._take(trainer)

    def on_train_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        self._take(trainer)
        server = trainer.run.server
        pulled = server.clients.pulled(server.held).values()
        self.alive = len({*server.versions, *(state.version for state in pulled)})

    def _take(self, trainer: FedTrainer) -> None:
        now = process_time()
        self.read.append([now, trainer.num_updates, self.executor.seconds, self.rule.seconds])


def arrivals(in_flight: int) -> ArrivalProcess:
    """So many clients in flight; as one arrives, the next one is drawn."""
    durations = ExponentialDurations(1.0)
    return ContinuousArrivals(
        durations, concurrency=in_flight, resume="on_arrival", local_steps=B.steps
    )


def events_alone(clients: int, in_flight: int, buffer_size: int, updates: int) -> float:
    """CPU seconds of the schedule alone, from the first version on."""
    federation = Federation(clients, np.full(clients, B.examples), batch_size=B.batch_size)
    schedule = Schedule(arrivals(in_flight), federation)
    server, begun = CountingServer(schedule, buffer_size=buffer_size, by_rounds=False), 0.0
    for _ in play(schedule, server, Limits(max_updates=updates)):
        if not begun and server.counts.version:
            begun = process_time()
    return process_time() - begun


def measured(
    clients: int, in_flight: int, buffer_size: int, updates: int, floors: bool
) -> list[str]:
    """One row of the table, without its name."""
    clock.chosen = "cpu"
    raw = ["", ""]
    if floors:
        floor = Floor(B, "cpu")
        raw = [f"{each:,.0f}" for each in (floor.module_loop(10), floor.closed_form(200))]
        del floor
    load = replace(B, clients=clients)
    begun = process_time()
    data = load.data()
    set_up = process_time() - begun
    executor, rule = TimedExecutor(), TimedBuff(buffer_size)
    readings = Readings(executor, rule)
    trainer = FedTrainer(
        arrivals=arrivals(in_flight),
        aggregator=rule,
        local_optimizer=LocalSGD(lr=0.1),
        executor=executor,
        max_updates=updates,
        callbacks=[readings],
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        check_val_every_n_rounds=None,
    )
    trainer.fit(load.module(), data)
    peak = _peak_mib()
    seconds, used, local, steps = np.subtract(readings.read[1], readings.read[0])
    events = events_alone(clients, in_flight, buffer_size, updates)
    parts = [local, steps, events, seconds - local - steps - events]
    with tempfile.TemporaryDirectory() as folder:
        path, times = Path(folder) / "once.ckpt", [process_time()]
        trainer.save_checkpoint(path)
        times.append(process_time())
        read_checkpoint(path)
        times.append(process_time())
        size = os.path.getsize(path) / 2**20
    bytes_ = sum(column.values.nbytes for column in data.train_data.columns)
    return [
        f"{used / seconds:,.0f}", *raw, *(f"{100 * each / seconds:.0f} %" for each in parts),
        f"{readings.alive:,}", f"{peak:,.0f}", f"{bytes_ / 2**20:,.0f}", f"{set_up:.1f}",
        f"{times[1] - times[0]:.1f}", f"{size:.0f}", f"{times[2] - times[1]:.1f}",
    ]  # fmt: skip


def main() -> None:
    """Measure all rows, each in a process of its own, and print the table, a run in a column."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a hundredth of everything")
    parser.add_argument("--row", nargs=5, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        print(json.dumps(measured(*given.row[:4], bool(given.row[4]))))
        return
    part = 100 if given.quick else 1
    columns = [["", *_HEADS]]
    for in_flight, buffer_size in ((100_000, 1000), (100_000, 100), (1000, 100)):
        sizes = [1_000_000 // part, in_flight // part, buffer_size, 300_000 // part]
        row = [*map(str, sizes), str(int(len(columns) == 1))]
        command = [sys.executable, "-m", "benchmarks.largest", "--row", *row]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        name = f"{sizes[1]:,} of {sizes[0]:,} in flight, FedBuff({buffer_size})"
        columns.append([name, *json.loads(output.strip().splitlines()[-1])])
    print("\n### The largest federation\n")
    for number, cells in enumerate(zip(*columns, strict=True)):
        print("| " + " | ".join(cells) + " |" + ("\n" + "|---" * len(cells) + "|") * (not number))


if __name__ == "__main__":
    main()
