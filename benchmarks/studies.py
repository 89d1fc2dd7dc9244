"""Runs of a study together, against one after another: CPU time, in one process, medians.

    python benchmarks/studies.py [--seeds 10] [--repeats 3]

Prints a row for each workload and strategy: updates a second in turn and together, how many times
faster, and whether all runs have the same bits.
"""

from __future__ import annotations

import argparse
import logging
import time
from statistics import median

import torch
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule, sweep
from fedlight.aggregators import FedAsync, FedAvg, FedBuff
from fedlight.arrivals import ContinuousArrivals, LogNormalDurations, UniformArrivals
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression

CLOCK = ContinuousArrivals(
    LogNormalDurations(1.0, 0.5), concurrency=20, resume="on_arrival", local_steps=5
)
STRATEGIES = {
    "FedAsync": {"aggregator": FedAsync(alpha=0.5), "arrivals": CLOCK},
    "FedBuff(10)": {"aggregator": FedBuff(buffer_size=10), "arrivals": CLOCK},
    "FedAvg of 20": {
        "aggregator": FedAvg(),
        "arrivals": UniformArrivals(per_round=20, local_steps=5),
    },
}
# features, classes, examples of a client, batch, updates of a run
WORKLOADS = {
    "linear 20 to 2": (20, 2, 32, 8, 1000),
    "784 to 10, batch 6": (784, 10, 6, 6, 400),
    "784 to 10, batch 64": (784, 10, 128, 64, 240),
}


def clients(features: int, classes: int, size: int, batch: int) -> FederatedDataModule:
    """Fifty clients with random examples."""
    random = torch.Generator().manual_seed(0)
    return FederatedDataModule.from_client_datasets(
        [
            TensorDataset(
                torch.randn(size, features, generator=random),
                torch.randint(0, classes, (size,), generator=random),
            )
            for _ in range(50)
        ],
        batch_size=batch,
    )


def main() -> None:
    """Time all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print("workload | strategy | in turn | together | times | same bits")
    for workload, (features, classes, size, batch, updates) in WORKLOADS.items():
        data = clients(features, classes, size, batch)
        for strategy, given in STRATEGIES.items():
            seconds: dict[int | str, list[float]] = {1: [], "together": []}
            bits = set()
            for _ in range(options.repeats):
                for workers, times in seconds.items():  # alternating
                    start = time.process_time()
                    study = sweep(
                        seeds=range(options.seeds),
                        module=lambda f=features, c=classes: LogisticRegression(f, c),
                        datamodule=data,
                        local_optimizer=LocalSGD(lr=0.01),
                        max_updates=updates,
                        workers=workers,
                        accelerator="cpu",
                        check_val_every_n_rounds=None,
                        enable_progress_bar=False,
                        metric="train_loss",
                        **given,
                    )
                    times.append(time.process_time() - start)
                    bits.add(tuple(run.fingerprint for run in study.runs))
            alone, together = median(seconds[1]), median(seconds["together"])
            total = updates * options.seeds
            print(
                f"{workload} | {strategy} | {total / alone:,.0f} | {total / together:,.0f} | "
                f"{alone / together:.2f} | {len(bits) == 1}",
                flush=True,
            )


if __name__ == "__main__":
    main()
