"""What ``workers="auto"`` chooses, and how long it takes, against one run after another.

    python benchmarks/auto_workers.py [--runs 2 10] [--repeats 3]

Prints a row for each workload, strategy and number of runs: what was chosen, how many times faster
it was by the wall clock (medians; both ways in turn, in one process), and whether all runs have the
same bits. The time of the choice is part of it. Nothing else should use the machine meanwhile.
"""

from __future__ import annotations

import argparse
import logging
import re
import time
from statistics import median
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn

import fedlight.studies.workers_choice
from benchmarks.studies import STRATEGIES, WORKLOADS, clients
from fedlight import FederatedDataModule, sweep
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression


class SmallCNN(LightningModule):
    """A network whose clients are not stacked: its step looks at numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 36, 10)
        )

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The cross entropy, logged as a number."""
        x, y = batch
        loss = nn.functional.cross_entropy(self.layers(x.view(-1, 1, 14, 14)), y)
        self.log("train_loss", loss.item())
        return loss


CASES: dict[str, tuple[Any, tuple[int, int, int, int, int]]] = {
    **{
        name: (lambda f=sizes[0], c=sizes[1]: LogisticRegression(f, c), sizes)
        for name, sizes in WORKLOADS.items()
    },
    "CNN, not stacked": (SmallCNN, (196, 10, 32, 16, 120)),
}


def timed(workers: str | int, seeds: int, module: Any, **given: Any) -> tuple[float, list[str]]:
    """The seconds of a study and the fingerprints of its runs."""
    start = time.perf_counter()
    study = sweep(
        seeds=range(seeds),
        module=module,
        local_optimizer=LocalSGD(lr=0.01),
        workers=workers,
        accelerator="cpu",
        check_val_every_n_rounds=None,
        enable_progress_bar=False,
        metric="train_loss",
        **given,
    )
    return time.perf_counter() - start, [run.fingerprint for run in study.runs]


def main() -> None:
    """Time all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    said: list[str] = []
    fedlight.studies.workers_choice.rank_zero_info = said.append  # type: ignore[assignment]
    print("| workload | strategy | runs | auto chooses | times | same bits |")
    print("|---|---|---:|---|---:|---|")
    for workload, (module, (features, classes, size, batch, updates)) in CASES.items():
        data: FederatedDataModule = clients(features, classes, size, batch)
        for strategy, given in STRATEGIES.items():
            for runs in options.runs:
                seconds: dict[int | str, list[float]] = {1: [], "auto": []}
                bits = set()
                for _ in range(options.repeats):
                    for workers, times in seconds.items():  # alternating
                        taken, prints = timed(
                            workers, runs, module, datamodule=data, max_updates=updates, **given
                        )
                        times.append(taken)
                        bits.add(tuple(prints))
                words = re.sub(r"fedlight: \d+ runs (.*?)[:,].*", r"\1", said[-1])
                times_faster = median(seconds[1]) / median(seconds["auto"])
                print(
                    f"| {workload} | {strategy} | {runs} | {words} | {times_faster:.2f} | "
                    f"{len(bits) == 1} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
