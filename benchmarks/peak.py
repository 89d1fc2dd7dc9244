"""Peak memory of runs of a large model, against what has to be in memory at once.

    (V + R + 1) * 4 P bytes

for V versions of the server's model (those that local runs in flight have pulled, the newest, and
the one that is being made), R results that the server has not used yet, and the module itself. The
peak is that of a process of its own, minus what it held before there was a module; a small model
has been trained in it by then, so that all libraries are loaded and have their own memory.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning import LightningModule
from torch import nn

from benchmarks.federations import timed
from benchmarks.workloads import LARGE
from fedlight import Callback, FedTrainer
from fedlight.aggregators import FedAsync, FedAvg, FedBuff
from fedlight.arrivals import ContinuousArrivals, ExponentialDurations

MiB = 2**20

RUNS: dict[str, Callable[[], dict[str, Any]]] = {
    "FedAvg, 5 a round": lambda: {"aggregator": FedAvg()},
    "FedAsync, 5 in flight": lambda: {
        "aggregator": FedAsync(alpha=0.6),
        "arrivals": _in_flight(5, "on_aggregation"),
    },
    "FedBuff(5), 10 in flight": lambda: {
        "aggregator": FedBuff(buffer_size=5),
        "arrivals": _in_flight(10, "on_arrival"),
    },
}


class Needed(Callback):
    """Counts the versions that have to be kept, the one that is made next included."""

    versions = 0

    def on_event_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        server = trainer.run.server
        pulled = server.clients.pulled(server.held).values()
        kept = {*server.versions, *(state.version for state in pulled)}
        self.versions = max(self.versions, len(kept) + 1)


def peak_table(quick: bool) -> list[list[str]]:
    """The peaks, each of a process of its own."""
    heads = ["versions", "results", "needed, MiB", "peak, MiB", "peak / needed"]
    rows = [["run", *heads]]
    updates = 20 if quick else 120
    for executor in ("sequential", "vectorized"):
        for name in RUNS:
            command = [sys.executable, "-m", "benchmarks.peak", executor, name, str(updates)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rows.append([f"{name}, {executor}", *json.loads(output.strip().splitlines()[-1])])
    return rows


def measured(executor: str, name: str, updates: int) -> list[str]:
    """One row of the table, without its name."""
    small = replace(LARGE, net=lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))
    data = LARGE.data()
    timed(small, data, "cpu", updates, executor=executor, **RUNS[name]())
    gc.collect()
    _forget_peak()
    before, needed = _memory("VmRSS"), Needed()
    timing = timed(
        *(LARGE, data, "cpu", updates), executor=executor, callbacks=[needed], **RUNS[name]()
    )
    peak = _memory("VmHWM") - before
    model = 4 * sum(param.numel() for param in LARGE.module().parameters())
    bytes_ = (needed.versions + timing.most + 1) * model
    numbers = [f"{each / MiB:,.0f}" for each in (bytes_, peak)]
    return [str(needed.versions), str(timing.most), *numbers, f"{peak / bytes_:.2f}"]


def _in_flight(number: int, resume: str) -> ContinuousArrivals:
    durations = ExponentialDurations(1.0)
    return ContinuousArrivals(durations, concurrency=number, resume=resume, local_steps=1)


def _memory(name: str) -> int:
    """A figure of this process in bytes."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) * 1024


def _forget_peak() -> None:
    """Let the peak be what is held now."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
