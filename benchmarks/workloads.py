"""The workloads: random examples of the right shapes, so that they run anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import datasets
import numpy as np
import pyarrow as pa
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional

from data_partitioners import IidPartitioner
from fedlight import FederatedDataModule
from fedlight.models import CNN, CharLSTM


class Plain(LightningModule):
    """A network that scores classes; its step does and logs no more than the loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss


@dataclass(frozen=True)
class Workload:
    """A module, its data, and how much of both a round takes.

    Attributes:
        name: Name in the tables.
        net: Makes the network.
        shape: Shape of one example, of uint8.
        classes: Number of classes.
        clients: M.
        examples: n_i, examples per client.
        batch_size: Examples per local step.
        per_round: Clients per round.
        steps: K, local steps.
        values: Number of different values that an example's numbers take.
        scale: Whether examples are pixels, which are scaled and normalised, or tokens.
    """

    name: str
    net: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    clients: int
    examples: int
    batch_size: int
    per_round: int
    steps: int
    values: int = 256
    scale: bool = True

    def module(self) -> Plain:
        """The module, with the same initial weights each time."""
        torch.manual_seed(0)
        return Plain(self.net())

    def data(self) -> FederatedDataModule:
        """The federation's data, loaded."""
        table = random_table(self.clients * self.examples, self.shape, self.classes, self.values)
        data = FederatedDataModule(
            table,
            IidPartitioner(self.clients),
            batch_size=self.batch_size,
            columns=("x", "y"),
            normalize=(33.3, 78.6) if self.scale else None,
            transform=lambda batch: (self._shaped(batch[0]), batch[1]),
        )
        data.setup()
        return data

    def _shaped(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, *self.shape)
        return x if self.scale else x.long()


def random_table(rows: int, shape: tuple[int, ...], classes: int, values: int) -> datasets.Dataset:
    """Random examples: a column "x" of lists of bytes, a column "y" of labels."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(values, size=rows * int(np.prod(shape)), dtype=np.uint8)
    x = pa.FixedSizeListArray.from_arrays(pa.array(numbers), int(np.prod(shape)))
    y = pa.array(rng.integers(classes, size=rows))
    table = datasets.table.InMemoryTable(pa.table({"x": x, "y": y}))
    return datasets.Dataset(table, fingerprint=f"random-{rows}-{shape}")  # or all is hashed


A = Workload(
    "A: logistic regression, 100 clients of 600, batch 64, 5 steps, 20 per round",
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
    (1, 28, 28),
    classes=10,
    clients=100,
    examples=600,
    batch_size=64,
    per_round=20,
    steps=5,
)
B = Workload(
    "B: the same, 10,000 clients of 6, 100 per round",
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
    (1, 28, 28),
    classes=10,
    clients=10_000,
    examples=6,
    batch_size=64,
    per_round=100,
    steps=5,
)
DROPOUT = tuple(
    Workload(
        f"MLP 784-200-10, 100 clients of 600, batch {batch_size}, 5 steps, 20 per round",
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)),
        (1, 28, 28),
        classes=10,
        clients=100,
        examples=600,
        batch_size=batch_size,
        per_round=20,
        steps=5,
    )
    for batch_size in (20, 64)
)
SMALL_CNN = Workload(
    "CNN: two 5x5 convolutions, 100 clients of 100, batch 20, 5 steps, 10 per round",
    lambda: CNN(in_channels=1, image_size=28),
    (1, 28, 28),
    classes=10,
    clients=100,
    examples=100,
    batch_size=20,
    per_round=10,
    steps=5,
)
LSTM = Workload(
    "LSTM: two layers of 100, 80 characters, 100 clients of 100, batch 10, 5 steps, 10 per round",
    CharLSTM,
    (80,),
    classes=80,
    clients=100,
    examples=100,
    batch_size=10,
    per_round=10,
    steps=5,
    values=80,
    scale=False,
)
