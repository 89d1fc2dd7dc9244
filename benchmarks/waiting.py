"""The waits of a user outside of the inner loop, each against the same by hand, in turns.

    OMP_NUM_THREADS=1 python benchmarks/waiting.py [--turns N] [--only widths evaluation …]

- widths: one local run in stacks for 20 to 500 clients a round, in microseconds
- evaluation: 10,000 images with a torchmetrics accuracy, and `ClientEvaluation` of 100 x 600
- checkpoint: one of a small model, with `FedCheckpoint`

Process CPU time; medians over the turns, and of the ratios within a turn.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from benchmarks.run import machine, show
from benchmarks.workloads import A, Workload
from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import FedAvg
from fedlight.arrivals import UniformArrivals
from fedlight.callbacks import ClientEvaluation, FedCheckpoint
from fedlight.executors import Job, VectorizedExecutor, Workplace
from fedlight.local_optimizers import LocalSGD
from fedlight.parameters import ModuleState
from fedlight.types import Task

WIDTHS = (20, 50, 100, 200, 500)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


def widths(turns: int) -> None:
    """Microseconds of a local run, in the stacks that the executor makes of a round's clients."""
    wide = replace(A, clients=500, examples=120)
    network = Workload("MLP 784-200-10", mlp, (784,), 10, 500, 60, 20, 20, 5)
    rows = [["clients a round", *map(str, WIDTHS)]]
    for name, load in (("A", wide), (network.name, network)):
        found = _local_runs(load, turns)
        rows.append([f"{name}, us", *(f"{statistics.median(found[n]):,.0f}" for n in WIDTHS)])
        first = found[WIDTHS[0]]
        ratios = [
            statistics.median(a / b for a, b in zip(first, found[n], strict=True)) for n in WIDTHS
        ]
        rows.append([f"{name}, rate / with 20", *(f"{ratio:.2f}" for ratio in ratios)])
    show("Wide rounds, vectorized", rows)


def _local_runs(load: Workload, turns: int) -> dict[int, list[float]]:
    data, module = load.data(), load.module()
    data.prepare_data()
    data.setup("fit")
    state = ModuleState(module)
    examples = data.train_data.to(torch.device("cpu"), torch.float32)
    work = Workplace(
        module, state, LocalSGD(0.1), data.partition, examples, data.batch_size, seed=0
    )
    start, found = state.read(), {n: [] for n in WIDTHS}
    executors = {n: VectorizedExecutor() for n in WIDTHS}
    for executor in executors.values():
        executor.setup(work)
    for turn in range(turns + 1):  # the first is for tracing
        for n, executor in executors.items():
            tasks = [Task(c, 0, 0.0, 1.0, load.steps, c, turn) for c in range(500 // n * n)]
            jobs = [Job(task, start) for task in tasks]
            rounds = [jobs[at : at + n] for at in range(0, len(jobs), n)]
            for each in rounds * (1 if turn else 60 // len(rounds) + 1):
                executor.run(each)
            begun = time.process_time()
            for each in rounds:
                executor.run(each)
            if turn:
                found[n].append((time.process_time() - begun) / len(jobs) * 1e6)
    return found


class Scored(LightningModule):
    """Logistic regression with a torchmetrics accuracy.

    Args:
        calls: Whether the metric is called, which also computes the batch's own value, or updated.
    """

    def __init__(self, calls: bool) -> None:
        super().__init__()
        self.net, self.calls = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), calls
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        scores = self.net(batch[0])
        self.log("val_loss", functional.cross_entropy(scores, batch[1]))
        if self.calls:
            self.accuracy(scores, batch[1])
        else:
            self.accuracy.update(scores, batch[1])
        self.log("val_acc", self.accuracy)


class Stopwatch(Callback):
    """Times the validations."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_validation_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        self._begun = time.process_time()

    def on_validation_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        self.seconds.append(time.process_time() - self._begun)


class TimedClients(ClientEvaluation):
    """Times itself."""

    def on_round_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        begun = time.process_time()
        super().on_round_end(trainer, module)
        self.seconds = [*getattr(self, "seconds", []), time.process_time() - begun]


class TimedCheckpoint(FedCheckpoint):
    """Times itself."""

    def on_event_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        begun = time.perf_counter(), time.process_time()
        super().on_event_end(trainer, module)
        taken = time.perf_counter() - begun[0], time.process_time() - begun[1]
        self.seconds = [*getattr(self, "seconds", []), taken]


def fitted(module: LightningModule, data: FederatedDataModule, rounds: int, *own: Any) -> None:
    FedTrainer(
        arrivals=UniformArrivals(2, local_steps=1),
        aggregator=FedAvg(),
        local_optimizer=LocalSGD(lr=0.1),
        max_rounds=rounds,
        callbacks=list(own),
        check_val_every_n_rounds=1 if any(isinstance(each, Stopwatch) for each in own) else None,
        logger=False,
        enable_progress_bar=False,
        accelerator="cpu",
    ).fit(module, data)


def by_hand(net: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], calls: bool) -> float:
    """Seconds of an evaluation as one writes it: the loss, and the same metric."""
    begun, metric, total = time.process_time(), MulticlassAccuracy(10, average="micro"), 0.0
    net.eval()
    with torch.inference_mode():
        for x, y in batches:
            scores = net(x)
            total += functional.cross_entropy(scores, y).item() * len(y)
            metric(scores, y) if calls else metric.update(scores, y)
        metric.compute().item()
    return time.process_time() - begun


def evaluation(turns: int) -> None:
    """An evaluation, and one of all clients, against a plain loop over the same batches."""
    x, y = torch.rand(10_000, 784), torch.randint(0, 10, (10_000,))
    small = [TensorDataset(x[i::20][:60], y[i::20][:60]) for i in range(20)]
    data = FederatedDataModule.from_client_datasets(
        small, batch_size=20, val_dataset=TensorDataset(x, y)
    )
    clients = A.data()
    batches = list(zip(x.split(1000), y.split(1000), strict=True))
    rows = [["", "by hand, ms", "fedlight, ms", "ratio"]]
    for calls, words in ((False, "metric.update(…)"), (True, "metric(…)")):
        net, found = Scored(calls).net, []
        for _ in range(turns):
            watch = Stopwatch()
            hand = [by_hand(net, batches, calls) for _ in range(40)]
            fitted(Scored(calls), data, 40, watch)
            found.append((statistics.median(hand), statistics.median(watch.seconds)))
        rows.append([f"10,000 images, {words}", *_compared(found)])
    found = []
    for _ in range(turns):
        own, module = TimedClients(every_n_rounds=1), Scored(calls=False)
        fitted(module, clients, 5, own)
        examples = clients.train_data.to("cpu", torch.float32)
        hand = [by_hand(module.net, examples.batches(1000), calls=False) for _ in range(5)]
        found.append((statistics.median(hand), statistics.median(own.seconds)))
    rows.append(["`ClientEvaluation`, 100 clients of 600", *_compared(found)])
    show("Evaluation", rows)


def _compared(found: list[tuple[float, float]]) -> list[str]:
    hand, own = zip(*found, strict=True)
    ratio = statistics.median(b / a for a, b in found)
    return [f"{statistics.median(each) * 1e3:.1f}" for each in (hand, own)] + [f"{ratio:.2f}"]


def checkpoint(turns: int) -> None:
    """One checkpoint of a small model, synced to the disk."""
    seconds: list[list[float]] = []
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            own = TimedCheckpoint(folder, every_n_rounds=1)
            fitted(A.module(), A.data(), 30, own)
        written = sorted(own.seconds)[-30:]  # most events write none
        seconds.append([statistics.median(each) for each in zip(*written, strict=True)])
    wall, cpu = (f"{statistics.median(each) * 1e3:.1f}" for each in zip(*seconds, strict=True))
    rows = [["", "wall, ms", "CPU, ms"], ["7,850 parameters, each round, synced", wall, cpu]]
    show("A checkpoint", rows)


PARTS = {
    "widths": widths,
    "evaluation": evaluation,
    "checkpoint": checkpoint,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS))
    chosen = parser.parse_args()
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    print(machine("cpu"), flush=True)
    for name in chosen.only:
        partial(PARTS[name], chosen.turns)()


if __name__ == "__main__":
    main()
