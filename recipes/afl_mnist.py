"""Tables 2 and 3 and Figures 1 and 5 of Anarchic Federated Learning: logistic regression on MNIST.

Each of ten clients holds p of the ten classes, and in every round five clients arrive. Asynchronous
clients start from one of the last five models; dynamic ones make 1 to 2c local steps instead of c.
Each line has the mean over the seeds of the best test accuracy over the rounds (as the paper
reports), the paper's number if the paper has this run, and the mean of the last ten rounds.

    python recipes/afl_mnist.py --dataset ylecun/mnist
    python recipes/afl_mnist.py --dataset ylecun/mnist --local_optimizer Scaffold
    python recipes/afl_mnist.py --dataset ylecun/mnist --experiment figure1 --figure figure1.png
    python recipes/afl_mnist.py --dataset ylecun/mnist --experiment figure5 --figure figure5.png
    python recipes/afl_mnist.py --dataset mnist-mini --p '[2]' --aggregator FedAvg \
        --aggregator.server_lr 0.5

Figure 1 compares FedAvg (newest model, constant number of steps, server rate 1/c, as in the first
column of Table 2) with AFA-CD and AFA-CS, asynchronous and dynamic. Figure 5 shows AFA-CD under
uniform and under biased arrivals, and AFA-CS under biased ones.

Source: Anarchic Federated Learning, https://arxiv.org/abs/2108.09875
"""

from collections import Counter
from pathlib import Path
from typing import Literal

from jsonargparse import lazy_instance
from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.progress import track

from data_partitioners import PathologicalPartitioner
from fedlight import FederatedDataModule, cli, compare
from fedlight.aggregators import AFACD, AFACS, Aggregator, FedAvg
from fedlight.arrivals import BiasedArrivals, ConstantSteps, UniformArrivals, UniformSteps
from fedlight.comparison import Comparison
from fedlight.local_optimizers import LocalOptimizer, LocalSGD
from fedlight.models import LogisticRegression
from fedlight.plot import curves

Setting = Literal["sync-constant", "sync-dynamic", "async-constant", "async-dynamic"]

SGD = lazy_instance(LocalSGD, lr=0.1)
AFA_CD = lazy_instance(AFACD, server_lr=1.0)
BIASED = [0.19, 0.19, *[0.1] * 6, 0.01, 0.01]

# LR/MNIST by local optimizer and (per_round, num_clients, local_steps): a row for each p of P, with
# the settings of Table 2 for LocalSGD and of Table 3 for the others.
P = (1, 2, 5, 10)
TABLE_2 = ("sync-constant", "sync-dynamic", "async-constant", "async-dynamic")
TABLE_3 = ("sync-constant", "async-dynamic")
PAPER = {
    "LocalSGD(lr=0.1)": {
        (5, 10, 5): (
            (0.8916, 0.8915, 0.8888, 0.8868),
            (0.8906, 0.8981, 0.8901, 0.8931),
            (0.9072, 0.9075, 0.9059, 0.9048),
            (0.9114, 0.9111, 0.9129, 0.9143),
        ),
        (5, 10, 10): (
            (0.8743, 0.8786, 0.8701, 0.8734),
            (0.8687, 0.8813, 0.8661, 0.8819),
            (0.9016, 0.9050, 0.9034, 0.9065),
            (0.9124, 0.9135, 0.9112, 0.9111),
        ),
        (20, 100, 5): (
            (0.8898, 0.8973, 0.8909, 0.8938),
            (0.8968, 0.9007, 0.8955, 0.9000),
            (0.9088, 0.9088, 0.9097, 0.9078),
            (0.9111, 0.9106, 0.9126, 0.9125),
        ),
    },
    "FedProx(mu=0.1, LocalSGD(lr=0.1))": {
        (5, 10, 5): ((0.8893, 0.8775), (0.8868, 0.8832), (0.9036, 0.9004), (0.9075, 0.9054)),
        (5, 10, 10): ((0.8752, 0.8669), (0.8685, 0.8789), (0.9019, 0.8998), (0.9072, 0.9052)),
    },
    "Scaffold(lr=0.1, option=2)": {
        (5, 10, 5): ((0.8928, 0.8946), (0.8970, 0.8954), (0.9032, 0.9019), (0.9057, 0.9022)),
        (5, 10, 10): ((0.8789, 0.8838), (0.8967, 0.8978), (0.9047, 0.9029), (0.9071, 0.9038)),
    },
}


def is_mnist(data: FederatedDataModule) -> bool:
    """Whether these are the paper's images: 60,000 of them, 5,923 of which are zeros."""
    train = data.train_dataset
    return len(train) == 60_000 and Counter(train["label"][:])[0] == 5923


def main(
    dataset: str = "ylecun/mnist",
    experiment: Literal["tables", "figure1", "figure5"] = "tables",
    p: list[PositiveInt] = [1, 2, 5, 10],  # noqa: B006  # only read
    settings: list[Setting] = ["sync-constant", "async-dynamic"],  # noqa: B006
    per_round: PositiveInt = 5,
    num_clients: PositiveInt = 10,
    local_steps: PositiveInt = 5,
    local_optimizer: LocalOptimizer = SGD,
    aggregator: Aggregator = AFA_CD,
    probabilities: list[float] = BIASED,
    max_rounds: PositiveInt = 150,
    seeds: PositiveInt = 3,
    logger_dir: cli.Folder | None = None,
    figure: cli.Figure | None = None,
) -> None:
    """Reproduce cells of Tables 2 and 3, or the lines of Figure 1 or 5.

    Args:
        dataset: A hub id, a folder with the same files, or "mnist-mini".
        experiment: What to run.
        p: Classes per client.
        settings: Columns of the tables.
        per_round: Clients that arrive in each round, m.
        num_clients: Number of clients, M.
        local_steps: Local steps of a client in a round, c; the mean if they are dynamic.
        local_optimizer: LocalSGD is Table 2, FedProx and Scaffold are Table 3.
        aggregator: The server's rule; in the figures it takes the place of AFA-CD.
        probabilities: Figure 5: the weight of each client where arrivals are biased.
        max_rounds: Rounds of a run.
        seeds: Runs per line.
        logger_dir: A folder for TensorBoard; None writes nothing.
        figure: A file for the curves, an axis for each p; None draws none.
    """
    cli.distinct(p=p, settings=settings)
    data = FederatedDataModule(dataset, PathologicalPartitioner(num_clients, p[0]))
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
    even = arrivals("async-dynamic")
    if experiment == "tables":
        lines = {setting: (aggregator, arrivals(setting)) for setting in settings}
    elif experiment == "figure1":
        classical = FedAvg(server_lr=1 / local_steps)
        lines = {"FedAvg, sync-constant": (classical, arrivals("sync-constant"))}
        lines |= {name: (aggregator, even), "AFACS": (AFACS(), even)}
    else:
        biased = arrivals("async-dynamic", biased=True)
        lines = {f"{name}, even": (aggregator, even), f"{name}, biased": (aggregator, biased)}
        lines["AFACS, biased"] = (AFACS(), biased)

    for _, process in lines.values():
        process.simulate(num_clients, max_rounds=1)  # more clients than there are: this raises

    def run(classes: int, line: str) -> Comparison:
        rule, process = lines[line]
        return compare(
            {line: rule},
            arrivals=process,
            module=lambda: LogisticRegression(28 * 28, 10),
            datamodule=lambda seed: data.repartition(
                PathologicalPartitioner(num_clients, classes), partition_seed=seed
            ),
            local_optimizer=local_optimizer,
            seeds=range(seeds),
            max_rounds=max_rounds,
            schedule="live",
            logger_dir=logger_dir and Path(logger_dir) / f"p={classes}",
            enable_progress_bar=False,
        )

    cells = [(classes, line) for classes in p for line in lines]
    found = {cell: run(*cell) for cell in track(cells, console=Console(stderr=True))}

    paper = {}
    afa_cd = isinstance(aggregator, AFACD) and aggregator.server_lr == 1
    if afa_cd and max_rounds == 150 and is_mnist(data):
        table = PAPER.get(str(local_optimizer), {}).get((per_round, num_clients, local_steps), ())
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
