"""Tables 2 and 3 and Figures 1, 5 and 6 of Anarchic Federated Learning, for MNIST and CIFAR-10.

Each of M clients holds p of the ten classes, and in every round m of them arrive. Asynchronous
clients start from one of the last five models; dynamic ones make 1 to 2c local steps instead of c.
Grey images train logistic regression in 150 rounds; coloured ones the CNN of the paper's Table 1
in 10,000 rounds, for which the full size needs a GPU. A table has the best test accuracy over the
rounds, with the paper's number in brackets if it has this run, and the mean of the last ten.

    python recipes/afl_images.py --path studies/table2
    python recipes/afl_images.py --experiment table3 --path studies/table3
    python recipes/afl_images.py --experiment figure1 --path studies/figure1
    python recipes/afl_images.py --dataset uoft-cs/cifar10 --path studies/cifar10
    python recipes/afl_images.py --dataset mnist-mini --experiment figure5 --p '[2]' --seeds 1

Source: Anarchic Federated Learning, https://arxiv.org/abs/2108.09875
"""

from fedlight import cli

cli.help_first(__name__, __file__)

from pathlib import Path
from typing import Literal

from jsonargparse import lazy_instance
from jsonargparse.typing import PositiveInt

from fedlight import sweep
from fedlight.aggregators import AFACD, Aggregator
from fedlight.local_optimizers import LocalOptimizer
from parts import afl as afl_paper


def main(
    dataset: str = "ylecun/mnist",
    experiment: Literal["table2", "table3", "figure1", "figure5"] = "table2",
    p: list[PositiveInt] = [1, 2, 5, 10],  # noqa: B006  # only read
    local_optimizer: LocalOptimizer | None = None,
    aggregator: Aggregator = lazy_instance(AFACD, server_lr=1.0),  # noqa: B008
    max_rounds: PositiveInt | None = None,
    seeds: PositiveInt = 3,
    path: cli.Folder | None = None,
) -> None:
    """Reproduce all blocks of a table, or the curves of a figure.

    Args:
        dataset: A hub id, a folder with the same files, or "mnist-mini".
        experiment: Table 2 or 3; figure1 is FedAvg beside AFA-CD and AFA-CS; figure5 (of CIFAR-10,
            Figure 6) is AFA-CD under uniform and biased arrivals, and AFA-CS under biased ones.
        p: Classes per client.
        local_optimizer: None for the paper's: LocalSGD, and in table3 FedProx and Scaffold.
        aggregator: The server's rule; in the figures it takes the place of AFA-CD.
        max_rounds: Rounds of a run; None for the paper's.
        seeds: Runs per line.
        path: Folder of the study: runs, of which none is made twice, TensorBoard and curves.
    """
    cli.distinct(p=p)
    task, data = afl_paper.load(dataset)
    rounds = max_rounds or task.max_rounds
    options = {"seeds": range(seeds), "module": task.module, "max_rounds": rounds}
    for optimizer, (m, M, c) in task.runs(experiment, local_optimizer):
        folder = path and Path(path) / f"{m} of {M}, {c} steps, {type(optimizer).__name__}"
        splits = {each: {"datamodule": afl_paper.split(data, M, each)} for each in p}
        study = sweep(
            over={"p": splits, "setting": afl_paper.settings(experiment, aggregator, m, c)},
            local_optimizer=optimizer,
            check_val_every_n_rounds=(every := min(task.val_every, rounds)),
            path=folder,
            logger_dir=folder and folder / "logs",
            **options,
        )
        title = afl_paper.title(aggregator, optimizer, m, M, c, rounds)
        table = study.table(["p", "setting"], last=min(10, rounds // every))
        print(f"\n{afl_paper.beside(table, title, task.numbers).to_markdown()}")
        if folder:
            study.plot("round", panels="p").savefig(folder / "curves.png")


if __name__ == "__main__":
    cli.run(main)
