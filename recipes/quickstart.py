"""A study: three aggregators on asynchronous arrivals, with three seeds; a minute on two CPU cores.

Each of a hundred clients holds two of MNIST's ten classes. In every round twenty clients arrive.
Each has started from a model up to four rounds old and has made one to ten local steps. All
aggregators see the same arrivals and start from the same weights, so their runs are compared seed
by seed: the table has the differences from FedAvg with a 95 % interval.
"""

from argparse import ArgumentParser

if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()  # --help, and no other option

import shlex
import sys

from rich.console import Console

from data_partitioners import PathologicalPartitioner
from fedlight import FederatedDataModule, sweep
from fedlight.aggregators import AFACD, AFACS, FedAvg
from fedlight.arrivals import UniformArrivals, UniformSteps
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression

LOGS = "fedlight_logs/quickstart"


def main() -> None:
    study = sweep(
        over={"aggregator": {"AFACD": AFACD(), "AFACS": AFACS(), "FedAvg": FedAvg()}},
        seeds=range(3),
        module=lambda: LogisticRegression(28 * 28, 10),
        datamodule=FederatedDataModule(
            "mnist-mini",
            PathologicalPartitioner(num_partitions=100, num_classes_per_partition=2),
            batch_size=64,
        ),
        arrivals=UniformArrivals(per_round=20, max_staleness=4, local_steps=UniformSteps(1, 10)),
        local_optimizer=LocalSGD(lr=0.1),
        max_rounds=60,
        logger_dir=LOGS,
    )
    Console().print(study.table(last=10, reference="FedAvg"))
    picture = f"{LOGS}/curves.png"
    study.plot("round").savefig(picture)
    print("Picture:", picture)
    # As a module: the command itself may not be on the PATH.
    print("Curves:", shlex.join([sys.executable, "-m", "tensorboard.main", "--logdir", LOGS]))


if __name__ == "__main__":
    main()
