"""The workloads: random examples of the right shapes, so that they run anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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


class Residual(nn.Module):
    """Two 3x3 convolutions beside a way around them."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.one = _convolution(channels, out, 3, stride)
        self.two = _convolution(out, out, 3, 1)
        same = stride == 1 and channels == out
        self.around = nn.Identity() if same else _convolution(channels, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.two(functional.relu(self.one(x))) + self.around(x))


def _convolution(channels: int, out: int, size: int, stride: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, out, size, stride, padding=size // 2, bias=False),
        nn.GroupNorm(2, out),
    )


def resnet18() -> nn.Module:
    """ResNet18 for images of 32 x 32, with GroupNorm in place of BatchNorm; 11 million weights."""
    blocks: list[nn.Module] = [_convolution(3, 64, 3, 1), nn.ReLU()]
    for channels, out in ((64, 64), (64, 128), (128, 256), (256, 512)):
        blocks += [Residual(channels, out, out // channels), Residual(out, out, 1)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


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
    partial(CNN, in_channels=1, image_size=28),
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
LARGE = Workload(
    "MLP 784-3000-2500-10, ten million parameters, batch 8, 1 step, 5 per round",
    lambda: nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 3000),
        nn.ReLU(),
        nn.Linear(3000, 2500),
        nn.ReLU(),
        nn.Linear(2500, 10),
    ),
    (1, 28, 28),
    classes=10,
    clients=20,
    examples=8,
    batch_size=8,
    per_round=5,
    steps=1,
)
RESNET = Workload(
    "ResNet18 with GroupNorm, 3 x 32 x 32, batch 32, 5 steps, 2 per round",
    resnet18,
    (3, 32, 32),
    classes=10,
    clients=10,
    examples=160,
    batch_size=32,
    per_round=2,
    steps=5,
)
