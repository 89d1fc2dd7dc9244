"""Your own LightningModule on your own rows, in a federation and under lightning.Trainer.

`RainOrShine` stands for your module. It is an ordinary module for `lightning.Trainer`, with its own
optimizer, dropout and torchmetrics. The rows are synthetic, or come from a CSV file with a column
of labels, optionally a column that names the client of the row, and numbers in all other columns.

    python recipes/bring_your_own_module.py --logger_dir logs
    python recipes/bring_your_own_module.py --csv visits.csv --label returns --client shop
    python recipes/bring_your_own_module.py --aggregator AFACD --aggregator.buffer_size 4
"""

from copy import deepcopy

import numpy as np
import torch
from datasets import Dataset
from jsonargparse.typing import NonNegativeInt, Path_fr, PositiveInt
from lightning import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from pyarrow import ArrowInvalid
from pyarrow.csv import read_csv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from data_partitioners import DirichletPartitioner, NaturalIdPartitioner
from fedlight import FederatedDataModule, FedTrainer, cli
from fedlight.aggregators import Aggregator, FedBuff
from fedlight.arrivals import ContinuousArrivals, ExponentialDurations
from fedlight.callbacks import TensorBoardMetrics


class RainOrShine(LightningModule):
    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        layers = nn.Linear(num_inputs, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, num_classes)
        self.network = nn.Sequential(*layers)
        self.train_acc = MulticlassAccuracy(num_classes)
        metrics = {"acc": MulticlassAccuracy(num_classes), "f1": MulticlassF1Score(num_classes)}
        self.val_metrics = MetricCollection(metrics, prefix="val_")

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        scores = self.network(x)
        self.train_acc(scores, y)
        self.log("train_acc", self.train_acc)
        return cross_entropy(scores, y)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x, y = batch
        scores = self.network(x)
        self.val_metrics(scores, y)
        self.log_dict(self.val_metrics)
        self.log("val_loss", cross_entropy(scores, y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.003)


def weather() -> Dataset:
    random = np.random.default_rng(0)
    station = random.integers(12, size=6000)  # each has its own climate
    x = random.normal(size=(12, 3))[station] + random.normal(size=(6000, 3))
    rains = x[:, 0] - x[:, 1] * x[:, 2] + 0.5 * random.normal(size=6000) > 0
    columns = {"humidity": 60 + 15 * x[:, 0], "pressure": 1013 + 8 * x[:, 1], "wind": x[:, 2]}
    return Dataset.from_dict({"station": station, **columns, "sky": np.where(rains, "rain", "sun")})


def main(
    csv: Path_fr | None = None,
    label: str = "sky",
    client: str | None = "station",
    aggregator: Aggregator | None = None,
    max_rounds: PositiveInt = 100,
    seed: NonNegativeInt = 0,
    logger_dir: cli.Folder | None = None,
) -> None:
    """Train a module in a federation, and on the pooled rows for as many steps.

    Args:
        csv: A file with a header; None for rows that are made up.
        label: The column of labels.
        client: The column that says whose row it is; null deals the rows out to ten clients.
        aggregator: The server's rule; None for FedBuff with a buffer of four.
        max_rounds: Server updates.
        seed: All randomness follows from it.
        logger_dir: Folder for TensorBoard; None writes nothing.
    """
    try:
        rows = Dataset(read_csv(csv)) if csv else weather()
    except ArrowInvalid as error:
        raise ValueError(f"csv must be a file of comma-separated rows: {error}") from error
    for argument, name in {"label": label, "client": client}.items():
        if name not in (None, *rows.column_names):
            raise ValueError(f"{argument} must be one of {rows.column_names}, got {name!r}")
    inputs = [name for name in rows.column_names if name not in (label, client)]
    for name in inputs:
        if not all(isinstance(value, int | float) for value in rows[name]):
            raise ValueError(f"column {name!r} must hold a number in each row; leave it out")
    rows = rows.class_encode_column(label)
    x = np.stack([rows[name] for name in inputs], axis=1).astype(np.float32)
    rows = rows.add_column("inputs", list((x - x.mean(0)) / x.std(0).clip(1e-6)))
    splits = rows.train_test_split(test_size=0.2, seed=seed)
    partitioner = NaturalIdPartitioner(client) if client else DirichletPartitioner(10, 1.0, label)
    data = FederatedDataModule(splits, partitioner, batch_size=32, columns=("inputs", label))
    names = ("federated", "pooled")
    loggers = [TensorBoardLogger(logger_dir, name) if logger_dir else False for name in names]
    seed_everything(seed % 2**32, verbose=False)
    module = RainOrShine(len(inputs), rows.features[label].num_classes)

    federated = FedTrainer(
        arrivals=ContinuousArrivals(
            ExponentialDurations(1.0)
        ),  # each task is one pass over the rows
        aggregator=aggregator or FedBuff(buffer_size=4),
        max_rounds=max_rounds,
        seed=seed,
        callbacks=TensorBoardMetrics(),
        logger=loggers[0],
    )
    federated.fit(deepcopy(module), data)

    steps = int(federated.history[-1].metrics["fed/gradients"])
    pooled = Trainer(max_steps=steps, logger=loggers[1], enable_checkpointing=False)
    pooled.fit(module, data)

    print(f"| metric | federated, {data.num_clients} clients | pooled |\n|---|---|---|")
    for name in ("val_acc", "val_f1", "val_loss"):
        one, other = federated.callback_metrics[name], pooled.callback_metrics[name]
        print(f"| {name} | {one:.4f} | {other:.4f} |")


if __name__ == "__main__":
    cli.run(main)
