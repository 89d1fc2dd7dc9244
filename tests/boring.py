"""The one small module, its data and a silent trainer that the tests of the core share."""

from __future__ import annotations

import os

import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import FedAvg
from fedlight.arrivals import ReplayArrivals, ReplayEvent, UniformArrivals, UniformSteps
from fedlight.executors import Executor, SequentialExecutor
from fedlight.executors.base import Workplace
from fedlight.local_optimizers import LocalSGD
from fedlight.parameters import ModuleState


class Point(LightningModule):
    """One number w and the loss (w - x)²/2, whose gradient w - x can be worked by hand."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start]))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = ((self.w - x) ** 2).mean() / 2
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_error", (self.w - batch[0]).abs().mean())

    def test_step(self, batch, batch_idx):
        self.log("test_error", (self.w - batch[0]).abs().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Boring(LightningModule):
    """A classifier of four numbers with a bit of everything that Lightning modules have."""

    def __init__(self, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3) if net is None else net

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        loss = functional.cross_entropy(scores, y)
        self.log("train_loss", loss)
        self.log("train_acc", (scores.argmax(-1) == y).float().mean())
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", functional.cross_entropy(self(x), y))

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", functional.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Measured(Boring):
    """`Boring` with torchmetrics in both steps, and a value logged in every second step only."""

    def __init__(self) -> None:
        super().__init__()
        self.train_f1 = MulticlassF1Score(3, average="macro")
        self.train_mean = MeanMetric()
        self.both = MetricCollection(
            {"acc": MulticlassAccuracy(3), "f1": MulticlassF1Score(3)}, prefix="both_"
        )
        self.val_acc = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        loss = functional.cross_entropy(scores, y)
        self.train_f1(scores, y)
        self.train_mean.update(loss)
        self.both(scores, y)
        self.log("f1", self.train_f1)
        self.log("mean", self.train_mean)
        self.log_dict(self.both)
        self.log_dict({"one": 1, "two": torch.tensor([2.0])})
        if batch_idx % 2 == 0:
            self.log("even_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.val_acc(self(x), y)
        self.log("val_acc", self.val_acc)


def points(*clients, val=(0.0,), test=(0.0,), batch_size=64, **kwargs) -> FederatedDataModule:
    """Clients that hold the numbers given, one list each."""

    def table(values):
        return TensorDataset(torch.tensor(values, dtype=torch.float32).reshape(-1, 1))

    return FederatedDataModule.from_client_datasets(
        [table(values) for values in clients],
        batch_size=batch_size,
        val_dataset=None if val is None else table(val),
        test_dataset=None if test is None else table(test),
        **kwargs,
    )


def classes(sizes=(6, 10, 3, 8), batch_size=4, seed=0) -> FederatedDataModule:
    """Clients of unequal sizes whose examples are four numbers of three classes."""
    random = torch.Generator().manual_seed(seed)

    def table(number):
        x = torch.randn(number, 4, generator=random)
        return TensorDataset(x, (2 * x[:, 0] + x[:, 1]).round().long().remainder(3))

    return FederatedDataModule.from_client_datasets(
        [table(size) for size in sizes],
        batch_size=batch_size,
        val_dataset=table(17),
        test_dataset=table(9),
        eval_batch_size=5,
    )


def replay(*events, **kwargs) -> ReplayArrivals:
    """A schedule of (client, pulled version, time, steps), each perhaps with its dispatch."""
    return ReplayArrivals([ReplayEvent(*event) for event in events], **kwargs)


def trainer(**kwargs) -> FedTrainer:
    """A `FedTrainer` that writes and draws nothing: on the CPU, five rounds unless told."""
    given = {
        "arrivals": UniformArrivals(per_round=2, max_staleness=2, local_steps=UniformSteps(1, 5)),
        "aggregator": FedAvg(),
        "local_optimizer": LocalSGD(lr=0.1),
        "accelerator": os.environ.get("FEDLIGHT_ACCELERATOR", "cpu"),
        "logger": False,
        "enable_progress_bar": False,
    }
    if "check_val_every_n_updates" not in kwargs:
        given["check_val_every_n_rounds"] = 1
    given.update(kwargs)
    limits = ("max_rounds", "max_time", "max_updates")
    if not any(name in given for name in limits) and not given["arrivals"].finite:
        given["max_rounds"] = 5
    return FedTrainer(**given)


def fitted(module, data, **kwargs) -> FedTrainer:
    """A trainer that has fitted."""
    run = trainer(**kwargs)
    run.fit(module, data)
    return run


def workplace(module, data, optimizer=None, seed=0) -> Workplace:
    """What an executor is set up with."""
    state = ModuleState(module)
    data.setup()
    return Workplace(
        module=module,
        state=state,
        optimizer=LocalSGD(lr=0.1) if optimizer is None else optimizer,
        partition=data.partition,
        examples=data.train_data.to(state.device, state.param_layout.dtype),
        batch_size=data.batch_size,
        seed=seed,
    )


class Recorder(Callback):
    """Writes down which hooks were called, with what."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __getattribute__(self, name):
        hooks = ("setup", "teardown")
        if name.startswith("on_") or name in hooks:
            return lambda trainer, module, *rest: self.calls.append((name, *rest))
        return super().__getattribute__(name)

    @property
    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


class Counting(Executor):
    """Computes one by one, but takes batches, and writes down which jobs it got together."""

    def __init__(self, max_batch: int = 100, independent: bool = False) -> None:
        self.max_batch, self.independent = max_batch, independent
        self.batches: list[list[int]] = []
        self.pulled: list[int] = []
        self._inner = SequentialExecutor()

    def setup(self, workplace) -> None:
        self._inner.setup(workplace)

    def run(self, jobs):
        self.batches.append([job.task.serial for job in jobs])
        return self._inner.run(jobs)

    def teardown(self) -> None:
        self._inner.teardown()
