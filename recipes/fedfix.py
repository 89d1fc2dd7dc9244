"""The experiments of the FedFix paper (Section 5): time-based weights, and a comparison of methods.

"weights" is its Figure 2: asynchronous FedAvg with identical and with time-based weights. "methods"
is its Figure 3: FedAvg, AsyncFedAvg, FedFix and FedBuff, each at its best local learning rate. Both
show the loss of the federated problem (the mean over the clients of the loss on their own data) and
its standard deviation over the clients; tables have the means over the last quarter of a run.

    python recipes/fedfix.py --path studies/weights
    python recipes/fedfix.py --experiment methods --spreads '[0,0.8]' --path studies/methods

Source: https://arxiv.org/abs/2206.10189
"""

from fedlight import cli

cli.help_first(__name__, __file__)

from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, PositiveInt

from data_partitioners import IidPartitioner
from fedlight import FederatedDataModule, Study, sweep
from fedlight.aggregators import Aggregator
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression
from parts import fedfix as fedfix_paper

METRICS = ["clients/val_loss_mean", "clients/val_loss_std"]


def main(
    experiment: Literal["weights", "methods"] = "weights",
    dataset: str = "ylecun/mnist",
    spreads: list[ClosedUnitInterval] = [0.8],  # noqa: B006  # only read
    lrs: list[cli.PositiveNumber] | None = None,
    aggregator: Aggregator | None = None,
    max_time: cli.PositiveNumber | None = None,
    seeds: PositiveInt = 3,
    path: cli.Folder | None = None,
) -> None:
    """Train the methods of Figure 2 or 3; print a table of their losses, draw the figure.

    Args:
        experiment: "weights" is Figure 2, "methods" Figure 3.
        dataset: A hub id, a folder with the same files, or "mnist-mini".
        spreads: Below 1; 0.8 is F80, tasks of 0.2 to 1, evenly spaced over the clients; 0 is F0.
        lrs: Local learning rates; None for 0.003, or 0.001, 0.01 and 0.1.
        aggregator: One more, in addition to those of the experiment.
        max_time: Virtual time of a run; None for 200, or 20.
        seeds: Runs per cell.
        path: Folder of the study: runs, of which none is made twice, TensorBoard and the figure.
    """
    setting = fedfix_paper.METHODS if experiment == "methods" else fedfix_paper.WEIGHTS
    lrs, max_time = setting.lrs if lrs is None else lrs, max_time or setting.max_time
    cli.distinct(spreads=spreads, lrs=lrs)
    split = FederatedDataModule(dataset, IidPartitioner(1)).repartition
    scenarios = {each: setting.methods(each, max_time, aggregator) for each in spreads}
    options = {"path": path, "logger_dir": f"{path}/logs"} if path else {}
    options |= {"seeds": range(seeds), "max_time": max_time, "metric": METRICS[0]}
    rates, runs = {lr: LocalSGD(lr=lr) for lr in lrs}, []
    for spread, methods in scenarios.items():
        runs += sweep(
            over={"data": setting.data(split, spread), "lr": rates, "aggregator": methods},
            module=lambda: LogisticRegression(28 * 28, 10),
            check_val_every_n_rounds=None,
            **options,
        ).runs
    study = Study(runs, METRICS[0])
    for metric in METRICS:
        table = study.table(None, None, metric, setting.first, value="last", last=0.25)
        print(f"\n{table.to_markdown()}")
    shown = study.best("lr", last=0.25) if experiment == "methods" else study.only(lr=lrs[0])
    if path:
        shown.plot(panels="data", metric=METRICS, log=True, zoom=0.1).savefig(f"{path}/losses.png")


if __name__ == "__main__":
    cli.run(main)
