"""10,000 client visits: resident memory stays flat, and no file is written.

    python benchmarks/memory.py --visits 10000

Prints the resident memory of the process after every tenth of the visits, for both executors, and
ends with status 1 where it grew by more than `--limit` MB over the last eight tenths, or where a
file was left behind in the working folder.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from lightning import LightningModule
from torch.utils.data import TensorDataset

from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import FedBuff
from fedlight.arrivals import ContinuousArrivals, UniformSpeeds, UniformSteps
from fedlight.local_optimizers import Scaffold
from fedlight.models import LogisticRegression


def resident() -> float:
    """Resident memory of this process in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Memory(Callback):
    """Looks at the memory after every so many visits."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.seen: list[float] = []

    def on_event_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        if trainer.num_updates >= self.every * (len(self.seen) + 1):
            self.seen.append(resident())


def run(executor: str, visits: int, clients: int) -> list[float]:
    """Memory in MB after each tenth of the visits of a run with states of all clients."""
    random = torch.Generator().manual_seed(0)
    memory = Memory(visits // 10)
    data = FederatedDataModule.from_client_datasets(
        [
            TensorDataset(
                torch.randn(40, 784, generator=random),
                torch.randint(10, (40,), generator=random),
            )
            for _ in range(clients)
        ],
        batch_size=20,
    )
    trainer = FedTrainer(
        arrivals=ContinuousArrivals(
            UniformSpeeds(0.5), concurrency=clients // 2, local_steps=UniformSteps(1, 3)
        ),
        aggregator=FedBuff(buffer_size=10),
        local_optimizer=Scaffold(lr=0.01),
        executor=executor,
        max_updates=visits,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=memory,
    )
    trainer.fit(LogisticRegression(784, 10), data)
    return memory.seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--visits", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--limit", type=float, default=20.0, help="MB of growth that are too much")
    options = parser.parse_args()
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for executor in ("sequential", "vectorized"):
            seen = run(executor, options.visits, options.clients)
            growth = seen[-1] - seen[1]
            print(f"{executor}: {options.visits} visits of {options.clients} clients")
            print("  MB after each tenth:", " ".join(f"{mb:.1f}" for mb in seen))
            print(f"  growth over the last eight tenths: {growth:+.1f} MB", flush=True)
            status |= growth > options.limit
        left = sorted(str(path) for path in Path(folder).rglob("*"))
        print(f"files written: {left or 'none'}")
        status |= bool(left)
        os.chdir("/")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
