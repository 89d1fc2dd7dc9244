"""Your own LightningModule on your own rows, in a federation and under lightning.Trainer.

The rows are made up, or those of a CSV file: labels, perhaps the client of the row, and numbers.

    python recipes/bring_your_own_module.py --path studies/weather
    python recipes/bring_your_own_module.py --csv visits.csv --label returns --client shop
"""

from fedlight import cli

cli.help_first(__name__, __file__)

from jsonargparse.typing import Path_fr, PositiveInt
from lightning import LightningModule, Trainer, seed_everything
from torch import Tensor, nn, optim
from torchmetrics.classification import MulticlassAccuracy

from fedlight import sweep
from fedlight.aggregators import Aggregator, FedAsync, FedBuff
from fedlight.arrivals import ContinuousArrivals, ExponentialDurations
from parts.own_rows import OwnRows


class RainOrShine(LightningModule):  # stands for your module
    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        first, last = nn.Linear(num_inputs, 32), nn.Linear(32, num_classes)
        self.network = nn.Sequential(first, nn.ReLU(), nn.Dropout(0.1), last)
        self.accuracy = MulticlassAccuracy(num_classes)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.accuracy(self.network(batch[0]), batch[1])
        self.log("val_acc", self.accuracy)

    def configure_optimizers(self) -> optim.Optimizer:
        return optim.Adam(self.parameters(), lr=0.003)


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
        aggregator: The server's rule, in addition to FedBuff(4); None for FedAsync.
        max_updates: Local runs, each a pass over the rows of a client.
        seeds: Runs per aggregator.
        path: Folder of the study: runs, of which none is made twice, and TensorBoard.
    """
    rows, rule = OwnRows(csv, label, client), aggregator or FedAsync(alpha=0.3)
    options = {"path": path, "logger_dir": f"{path}/logs"} if path else {}
    options |= {"seeds": range(seeds), "datamodule": rows.split, "max_updates": max_updates}
    study = sweep(
        over={"aggregator": {"FedBuff": FedBuff(4), str(rule): rule}},
        module=lambda: RainOrShine(rows.num_inputs, rows.num_classes),
        arrivals=ContinuousArrivals(ExponentialDurations(1.0), resume="on_arrival"),
        **options,
    )
    print(study.table(reference="FedBuff").to_markdown())
    seed_everything(0, verbose=False)
    steps = int(study.runs[0].history[-1].metrics["fed/gradients"])
    pooled = Trainer(max_steps=steps, logger=False, enable_checkpointing=False)
    pooled.fit(RainOrShine(rows.num_inputs, rows.num_classes), rows.split(seed=0))
    print(f"\nPooled rows, {steps} steps: val_acc {pooled.callback_metrics['val_acc']:.4f}")


if __name__ == "__main__":
    cli.run(main)
