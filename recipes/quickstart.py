"""Three aggregators on one asynchronous schedule; this takes a minute on two CPU cores.

Each of a hundred clients holds two of MNIST's ten classes. In every round twenty clients arrive.
Each has started from a model up to four rounds old and has made one to ten local steps. The
schedule is simulated once and replayed, so the runs differ in the aggregator alone.
"""

import shlex
import sys
from argparse import ArgumentParser
from copy import deepcopy
from statistics import fmean

from lightning import seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.table import Table

from data_partitioners import PathologicalPartitioner
from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import AFACD, AFACS, FedAvg
from fedlight.arrivals import ReplayArrivals, UniformArrivals, UniformSteps
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression

LOGS = "fedlight_logs"
ROUNDS = 60


def main() -> None:
    seed_everything(0, verbose=False)
    data = FederatedDataModule(
        "mnist-mini",
        PathologicalPartitioner(num_partitions=100, num_classes_per_partition=2),
        batch_size=64,
    )
    arrivals = UniformArrivals(per_round=20, max_staleness=4, local_steps=UniformSteps(1, 10))
    schedule = arrivals.simulate(num_clients=100, max_rounds=ROUNDS)
    start = LogisticRegression(28 * 28, 10)

    table = Table("aggregator", "best accuracy", "mean of the last ten", "fingerprint")
    for aggregator in (AFACD(), AFACS(), FedAvg()):
        name = type(aggregator).__name__
        trainer = FedTrainer(
            arrivals=ReplayArrivals(schedule),
            local_optimizer=LocalSGD(lr=0.1),
            aggregator=aggregator,
            max_rounds=ROUNDS,
            logger=TensorBoardLogger(LOGS, name="quickstart", version=name),
        )
        trainer.fit(deepcopy(start), data)
        accuracy = [record.metrics["val_acc"] for record in trainer.history]
        best, last = f"{max(accuracy):.4f}", f"{fmean(accuracy[-10:]):.4f}"
        table.add_row(name, best, last, trainer.fingerprint())

    Console().print(table)
    # As a module: the command itself may not be on the PATH.
    print("Curves:", shlex.join([sys.executable, "-m", "tensorboard.main", "--logdir", LOGS]))


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()  # --help, and no other option
    main()
