"""The job with fedlight.

    FEDLIGHT_DATA=FOLDER python -m benchmarks.job_scripts.with_fedlight [--logger]

`--logger` leaves the default logger and the progress bar on.
"""

from __future__ import annotations

import os
import sys
import warnings

from lightning import seed_everything

from benchmarks.job_scripts.marks import BATCH, CLIENTS, LR, PER_ROUND, ROUNDS, STEPS, Marks
from data_partitioners import IidPartitioner
from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import FedAvg
from fedlight.arrivals import UniformArrivals
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression

marks = Marks()


class Watch(Callback):
    """Tells evaluation, the first round and the other rounds apart."""

    def __init__(self) -> None:
        self.part = "first round"

    def on_validation_start(self, trainer, module) -> None:  # type: ignore[no-untyped-def]
        marks.end_of(self.part)

    def on_validation_end(self, trainer, module) -> None:  # type: ignore[no-untyped-def]
        marks.end_of("evaluation")
        self.part = "training"


def main() -> None:
    warnings.filterwarnings("ignore")
    marks.end_of("imports")
    seed_everything(0, verbose=False)
    data = FederatedDataModule(
        os.path.join(os.environ["FEDLIGHT_DATA"], "mnist"),
        IidPartitioner(num_partitions=CLIENTS),
        batch_size=BATCH,
    )
    data.setup()  # `fit` would do it
    marks.end_of("data")
    trainer = FedTrainer(
        arrivals=UniformArrivals(per_round=PER_ROUND, local_steps=STEPS),
        aggregator=FedAvg(),
        local_optimizer=LocalSGD(lr=LR),
        max_rounds=ROUNDS,
        callbacks=Watch(),
        accelerator="cpu",
        logger="--logger" in sys.argv,
        enable_progress_bar="--logger" in sys.argv,
    )
    trainer.fit(LogisticRegression(28 * 28, 10), data)
    marks.end_of("training")
    marks.report(trainer.num_updates, float(trainer.callback_metrics["val_acc"]))


if __name__ == "__main__":
    main()
