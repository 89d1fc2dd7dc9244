"""Your own LightningModule on your own rows, in a federation and under lightning.Trainer.

`RainOrShine` stands for your module: an ordinary one, with its own optimizer, dropout and metric.
The rows are made up, or come from a CSV file with a column of labels, optionally a column that
names the client of the row, and numbers in all other columns. A task is a pass over its rows.

    python recipes/bring_your_own_module.py --path studies/weather
    python recipes/bring_your_own_module.py --csv visits.csv --label returns --client shop
    python recipes/bring_your_own_module.py --aggregator AFACD --aggregator.buffer_size 4
"""

from pathlib import Path

import torch
from jsonargparse.typing import Path_fr, PositiveInt
from lightning import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAccuracy

from fedlight import cli, sweep
from fedlight.aggregators import Aggregator, FedAsync, FedBuff
from fedlight.arrivals import ContinuousArrivals, ExponentialDurations
from own_rows import OwnRows


class RainOrShine(LightningModule):
    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        layers = nn.Linear(num_inputs, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, num_classes)
        self.network = nn.Sequential(*layers)
        self.accuracy = MulticlassAccuracy(num_classes)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return cross_entropy(self.network(x), y)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x, y = batch
        self.accuracy(self.network(x), y)
        self.log("val_acc", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.003)


def main(
    csv: Path_fr | None = None,
    label: str = "sky",
    client: str | None = "station",
    aggregator: Aggregator | None = None,
    max_updates: PositiveInt = 400,
    seeds: PositiveInt = 3,
    path: cli.Folder | None = None,
) -> None:
    """Train a module in a federation, and on the pooled rows for as many steps.

    Args:
        csv: A file with a header; None for rows that are made up.
        label: The column of labels.
        client: The column that says whose row it is; null deals the rows out to ten clients.
        aggregator: One more, beside FedBuff and FedAsync.
        max_updates: Local runs that the server receives.
        seeds: Runs per aggregator.
        path: Folder of the study: runs, of which none is made twice, and TensorBoard.
    """
    rows = OwnRows(csv, label, client)
    rules = {"FedBuff": FedBuff(buffer_size=4), "FedAsync": FedAsync(alpha=0.3)}
    study = sweep(
        over={"aggregator": rules | ({str(aggregator): aggregator} if aggregator else {})},
        seeds=range(seeds),
        module=lambda: RainOrShine(rows.num_inputs, rows.num_classes),
        datamodule=rows.split,
        arrivals=ContinuousArrivals(ExponentialDurations(1.0)),
        max_updates=max_updates,
        path=path,
        logger_dir=path and Path(path) / "logs",
    )
    print(study.table(reference="FedBuff").to_markdown())
    seed_everything(0, verbose=False)
    steps = int(study.runs[0].history[-1].metrics["fed/gradients"])
    pooled = Trainer(max_steps=steps, logger=False, enable_checkpointing=False)
    pooled.fit(RainOrShine(rows.num_inputs, rows.num_classes), rows.split(0))
    print(f"\nPooled rows, {steps} steps: val_acc {pooled.callback_metrics['val_acc']:.4f}")


if __name__ == "__main__":
    cli.run(main)
