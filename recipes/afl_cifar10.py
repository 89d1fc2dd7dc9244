"""The CIFAR-10 rows of Tables 2 and 3, and Figure 6, of Anarchic Federated Learning: a CNN.

Each of ten clients holds p of the ten classes. In each of 10,000 rounds five of them arrive. They
start from the newest model (synchronous) or from one of the last five (asynchronous), and make 5
local steps (dynamic: 1 to 10) on batches of 500. The network is that of the paper's Table 1. The
full size needs a GPU; the last command is a short trial.

    python recipes/afl_cifar10.py --dataset uoft-cs/cifar10
    python recipes/afl_cifar10.py --dataset uoft-cs/cifar10 --local_optimizer FedProx
    python recipes/afl_cifar10.py --dataset uoft-cs/cifar10 --experiment figure6 --figure 6.png
    python recipes/afl_cifar10.py --dataset uoft-cs/cifar10 --p '[2]' --seeds 1 --max_rounds 50

The table has the mean over the seeds of the best test accuracy, the paper's number if the paper has
this run, and the mean of the last ten accuracies. Figure 6 shows AFA-CD under uniform and under
biased arrivals, and AFA-CS under biased ones.

Source: Anarchic Federated Learning, https://arxiv.org/abs/2108.09875
"""

from pathlib import Path
from typing import Literal

from jsonargparse import lazy_instance
from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.progress import track

from data_partitioners import PathologicalPartitioner
from fedlight import FederatedDataModule, cli, compare
from fedlight.aggregators import AFACD, AFACS, Aggregator
from fedlight.arrivals import BiasedArrivals, ConstantSteps, UniformArrivals, UniformSteps
from fedlight.comparison import Comparison
from fedlight.local_optimizers import LocalOptimizer, LocalSGD
from fedlight.models import CNN
from fedlight.plot import curves

Setting = Literal["sync-constant", "sync-dynamic", "async-constant", "async-dynamic"]

SGD = lazy_instance(LocalSGD, lr=0.1)
AFA_CD = lazy_instance(AFACD, server_lr=1.0)
BIASED = [0.19, 0.19, *[0.1] * 6, 0.01, 0.01]

# CNN/CIFAR-10 with 5 of 10 clients and 5 local steps: a row for each p of P, with the settings of
# Table 2 for LocalSGD and of Table 3 for the others.
P = (1, 2, 5, 10)
TABLE_2 = ("sync-constant", "sync-dynamic", "async-constant", "async-dynamic")
TABLE_3 = ("sync-constant", "async-dynamic")
PAPER_SIZE = (5, 10, 5, 500, 10_000)
PAPER = {
    "LocalSGD(lr=0.1)": (
        (0.7474, 0.7606, 0.7319, 0.7350),
        (0.7677, 0.7944, 0.7662, 0.777),
        (0.7981, 0.802, 0.8065, 0.799),
        (0.8081, 0.8072, 0.8065, 0.8119),
    ),
    "FedProx(mu=0.1, LocalSGD(lr=0.1))": (
        (0.7488, 0.7415),
        (0.7728, 0.7890),
        (0.7931, 0.8031),
        (0.8150, 0.8143),
    ),
    "Scaffold(lr=0.1, option=2)": (
        (0.1641, 0.3935),
        (0.6315, 0.6971),
        (0.7828, 0.7884),
        (0.8083, 0.8051),
    ),
}


def is_cifar10(data: FederatedDataModule) -> bool:
    """Whether these are as many images as the paper's, under the same name."""
    return len(data.train_dataset) == 50_000 and "img" in data.train_dataset.features


def main(
    dataset: str = "uoft-cs/cifar10",
    experiment: Literal["tables", "figure6"] = "tables",
    p: list[PositiveInt] = [1, 2, 5, 10],  # noqa: B006  # only read
    settings: list[Setting] = ["sync-constant", "async-dynamic"],  # noqa: B006
    per_round: PositiveInt = 5,
    num_clients: PositiveInt = 10,
    local_steps: PositiveInt = 5,
    batch_size: PositiveInt = 500,
    local_optimizer: LocalOptimizer = SGD,
    aggregator: Aggregator = AFA_CD,
    probabilities: list[float] = BIASED,
    max_rounds: PositiveInt = 10_000,
    val_every: PositiveInt = 10,
    seeds: PositiveInt = 3,
    logger_dir: cli.Folder | None = None,
    figure: cli.Figure | None = None,
) -> None:
    """Reproduce cells of Tables 2 and 3, or the lines of Figure 6.

    Args:
        dataset: A hub id, or a folder with the same files.
        experiment: What to run.
        p: Classes per client.
        settings: Columns of the tables.
        per_round: Clients that arrive in each round, m.
        num_clients: Number of clients, M.
        local_steps: Local steps of a client in a round, c; the mean if they are dynamic.
        batch_size: Examples per local step.
        local_optimizer: LocalSGD is Table 2, FedProx and Scaffold are Table 3.
        aggregator: The server's rule; in Figure 6 it takes the place of AFA-CD.
        probabilities: Figure 6: the weight of each client where arrivals are biased.
        max_rounds: Rounds of a run.
        val_every: The test accuracy is taken after every so many rounds.
        seeds: Runs per line.
        logger_dir: A folder for TensorBoard; None writes nothing.
        figure: A file for the curves, an axis for each p; None draws none.
    """
    cli.distinct(p=p, settings=settings)
    data = FederatedDataModule(dataset, PathologicalPartitioner(num_clients, p[0]), batch_size)
    data.setup()
    for classes in p:  # an impossible partition raises now, before the first run
        data.repartition(PathologicalPartitioner(num_clients, classes))

    def arrivals(setting: str, biased: bool = False) -> UniformArrivals | BiasedArrivals:
        steps = ConstantSteps(local_steps)
        if setting.endswith("dynamic"):
            steps = UniformSteps(1, 2 * local_steps)
        staleness = 4 if setting.startswith("async") else 0
        if biased:
            return BiasedArrivals(per_round, probabilities, staleness, steps)
        return UniformArrivals(per_round, staleness, steps)

    # "AFACS" has its default arguments
    name = repr(aggregator) if isinstance(aggregator, AFACS) else type(aggregator).__name__
    if experiment == "tables":
        lines = {setting: (aggregator, arrivals(setting)) for setting in settings}
    else:
        biased = arrivals("async-dynamic", biased=True)
        lines = {f"{name}, even": (aggregator, arrivals("async-dynamic"))}
        lines |= {f"{name}, biased": (aggregator, biased), "AFACS, biased": (AFACS(), biased)}

    for _, process in lines.values():
        process.simulate(num_clients, max_rounds=1)  # more clients than there are: this raises

    def run(classes: int, line: str) -> Comparison:
        rule, process = lines[line]
        return compare(
            {line: rule},
            arrivals=process,
            module=CNN,
            datamodule=lambda seed: data.repartition(
                PathologicalPartitioner(num_clients, classes), partition_seed=seed
            ),
            local_optimizer=local_optimizer,
            seeds=range(seeds),
            max_rounds=max_rounds,
            schedule="live",
            logger_dir=logger_dir and Path(logger_dir) / f"p={classes}",
            check_val_every_n_rounds=min(val_every, max_rounds),
            enable_progress_bar=False,
        )

    cells = [(classes, line) for classes in p for line in lines]
    found = {cell: run(*cell) for cell in track(cells, console=Console(stderr=True))}

    paper = {}
    afa_cd = isinstance(aggregator, AFACD) and aggregator.server_lr == 1
    size = (per_round, num_clients, local_steps, batch_size, max_rounds)
    if afa_cd and size == PAPER_SIZE and is_cifar10(data):
        table = PAPER.get(str(local_optimizer), ())
        for classes, numbers in zip(P, table, strict=bool(table)):
            columns = TABLE_2 if len(numbers) == 4 else TABLE_3
            paper |= {(classes, column): n for column, n in zip(columns, numbers, strict=True)}
    beside = " paper | difference |" if paper.keys() & found.keys() else ""
    print(f"{aggregator}, {local_optimizer}, {per_round}/{num_clients} clients, ", end="")
    print(f"{local_steps} local steps, ", end="")
    print(f"{max_rounds} rounds, {seeds} seed{'s' * (seeds != 1)}\n")
    print(f"| p | setting | best |{beside} mean of the last ten |")
    print("|---" * (6 if beside else 4) + "|")
    for (classes, line), result in found.items():
        (reached,) = result.summary(last=10)
        spread = f" ± {reached.best_std:.4f}" if seeds > 1 else ""
        best = f"| {classes} | {line} | {reached.best_mean:.4f}{spread} |"
        if (classes, line) in paper:
            number = paper[classes, line]
            best += f" {number:.4f} | {reached.best_mean - number:+.4f} |"
        elif beside:
            best += " | |"
        print(best, f"{reached.last_mean:.4f} |")
    if figure is not None:
        from matplotlib import pyplot

        size = (4.5 * len(p), 3.5)
        sheet, axes = pyplot.subplots(1, len(p), figsize=size, squeeze=False, layout="constrained")
        for ax, classes in zip(axes[0], p, strict=True):
            curves({line: found[classes, line].histories[line] for line in lines}, ax=ax)
            ax.set_title(f"p = {classes}")
        sheet.savefig(figure)


if __name__ == "__main__":
    cli.run(main)
