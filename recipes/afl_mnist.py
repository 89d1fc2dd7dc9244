"""Tables 2 and 3 of Anarchic Federated Learning (Appendix E): logistic regression on MNIST.

Ten clients hold p of the ten classes each; in every round five of them arrive. Asynchronous clients
start from one of the last five models; dynamic ones make 1 to 2c local steps instead of c. Prints,
for each cell, the mean over the seeds of the best test accuracy over the rounds (what the paper
reports), the paper's number, and the mean of the last ten rounds.

    python recipes/afl_mnist.py --dataset ylecun/mnist
    python recipes/afl_mnist.py --dataset ylecun/mnist --local_optimizer Scaffold
    python recipes/afl_mnist.py --dataset mnist-mini --p [2] --settings [async-dynamic] --seeds 1
"""

from statistics import fmean, pstdev
from typing import Literal

from jsonargparse import auto_cli
from lightning import seed_everything
from rich.console import Console
from rich.progress import track

from data_partitioners import PathologicalPartitioner
from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import AFACD, AFACS, FedAvg
from fedlight.arrivals import ConstantSteps, UniformArrivals, UniformSteps
from fedlight.local_optimizers import FedProx, LocalSGD, Scaffold
from fedlight.models import LogisticRegression

Setting = Literal["sync-constant", "sync-dynamic", "async-constant", "async-dynamic"]

# Rows of LR/MNIST by (local optimizer, per_round, num_clients, local_steps, p): cells of Table 2
# for LocalSGD, of Table 3 for the others, in the order of the settings that the table has.
TABLE_2 = ("sync-constant", "sync-dynamic", "async-constant", "async-dynamic")
TABLE_3 = ("sync-constant", "async-dynamic")
PAPER = {
    ("LocalSGD", 5, 10, 5, 1): (0.8916, 0.8915, 0.8888, 0.8868),
    ("LocalSGD", 5, 10, 5, 2): (0.8906, 0.8981, 0.8901, 0.8931),
    ("LocalSGD", 5, 10, 5, 5): (0.9072, 0.9075, 0.9059, 0.9048),
    ("LocalSGD", 5, 10, 5, 10): (0.9114, 0.9111, 0.9129, 0.9143),
    ("LocalSGD", 5, 10, 10, 1): (0.8743, 0.8786, 0.8701, 0.8734),
    ("LocalSGD", 5, 10, 10, 2): (0.8687, 0.8813, 0.8661, 0.8819),
    ("LocalSGD", 5, 10, 10, 5): (0.9016, 0.9050, 0.9034, 0.9065),
    ("LocalSGD", 5, 10, 10, 10): (0.9124, 0.9135, 0.9112, 0.9111),
    ("LocalSGD", 20, 100, 5, 1): (0.8898, 0.8973, 0.8909, 0.8938),
    ("LocalSGD", 20, 100, 5, 2): (0.8968, 0.9007, 0.8955, 0.9000),
    ("LocalSGD", 20, 100, 5, 5): (0.9088, 0.9088, 0.9097, 0.9078),
    ("LocalSGD", 20, 100, 5, 10): (0.9111, 0.9106, 0.9126, 0.9125),
    ("FedProx", 5, 10, 5, 1): (0.8893, 0.8775),
    ("FedProx", 5, 10, 5, 2): (0.8868, 0.8832),
    ("FedProx", 5, 10, 5, 5): (0.9036, 0.9004),
    ("FedProx", 5, 10, 5, 10): (0.9075, 0.9054),
    ("FedProx", 5, 10, 10, 1): (0.8752, 0.8669),
    ("FedProx", 5, 10, 10, 2): (0.8685, 0.8789),
    ("FedProx", 5, 10, 10, 5): (0.9019, 0.8998),
    ("FedProx", 5, 10, 10, 10): (0.9072, 0.9052),
    ("Scaffold", 5, 10, 5, 1): (0.8928, 0.8946),
    ("Scaffold", 5, 10, 5, 2): (0.8970, 0.8954),
    ("Scaffold", 5, 10, 5, 5): (0.9032, 0.9019),
    ("Scaffold", 5, 10, 5, 10): (0.9057, 0.9022),
    ("Scaffold", 5, 10, 10, 1): (0.8789, 0.8838),
    ("Scaffold", 5, 10, 10, 2): (0.8967, 0.8978),
    ("Scaffold", 5, 10, 10, 5): (0.9047, 0.9029),
    ("Scaffold", 5, 10, 10, 10): (0.9071, 0.9038),
}
AGGREGATORS = {"AFACD": AFACD, "AFACS": AFACS, "FedAvg": FedAvg}
OPTIMIZERS = {
    "LocalSGD": LocalSGD(lr=0.1),
    "FedProx": FedProx(lr=0.1, mu=0.1),
    "Scaffold": Scaffold(lr=0.1),
}


def run(data: FederatedDataModule, trainer: FedTrainer) -> list[float]:
    """Train from a fresh model; the test accuracy after each round."""
    seed_everything(trainer.seed, verbose=False)
    trainer.fit(LogisticRegression(28 * 28, 10), data)
    return [record.metrics["val_acc"] for record in trainer.history]


def main(
    dataset: str = "ylecun/mnist",
    p: list[int] = [1, 2, 5, 10],  # noqa: B006  # only read
    settings: list[Setting] = ["sync-constant", "async-dynamic"],  # noqa: B006
    per_round: int = 5,
    num_clients: int = 10,
    local_steps: int = 5,
    local_optimizer: Literal["LocalSGD", "FedProx", "Scaffold"] = "LocalSGD",
    aggregator: Literal["AFACD", "AFACS", "FedAvg"] = "AFACD",
    max_rounds: int = 150,
    seeds: int = 3,
) -> None:
    """Reproduce cells of Tables 2 and 3.

    Args:
        dataset: A hub id, a folder with the same files, or "mnist-mini".
        p: Classes per client.
        settings: Columns of the table.
        per_round: m, clients per round.
        num_clients: M.
        local_steps: c.
        local_optimizer: LocalSGD is Table 2, the others are Table 3; FedProx has mu = 0.1.
        aggregator: The server's rule.
        max_rounds: Rounds.
        seeds: Runs per cell.
    """
    data = FederatedDataModule(dataset, PathologicalPartitioner(num_clients, p[0]))
    cells = [(classes, setting) for classes in p for setting in settings]
    rows = []
    for classes, setting in track(cells, console=Console(stderr=True)):
        asynchronous, dynamic = setting.startswith("async"), setting.endswith("dynamic")
        steps = UniformSteps(1, 2 * local_steps) if dynamic else ConstantSteps(local_steps)
        curves = [
            run(
                data.repartition(
                    PathologicalPartitioner(num_clients, classes), partition_seed=seed
                ),
                FedTrainer(
                    arrivals=UniformArrivals(per_round, 4 if asynchronous else 0, steps),
                    local_optimizer=OPTIMIZERS[local_optimizer],
                    aggregator=AGGREGATORS[aggregator](server_lr=1.0),
                    max_rounds=max_rounds,
                    seed=seed,
                    logger=False,
                    enable_progress_bar=False,
                ),
            )
            for seed in range(seeds)
        ]
        best = [max(curve) for curve in curves]
        last = fmean(fmean(curve[-10:]) for curve in curves)
        row = PAPER.get((local_optimizer, per_round, num_clients, local_steps, classes), ())
        columns = TABLE_2 if local_optimizer == "LocalSGD" else TABLE_3
        paper = dict(zip(columns, row, strict=False)).get(setting)
        beside = f"{paper:.4f} | {fmean(best) - paper:+.4f}" if paper else " | "
        spread = f"{fmean(best):.4f} ± {pstdev(best):.4f}"
        rows.append(f"| {classes} | {setting} | {spread} | {beside} | {last:.4f} |")
    print(f"{aggregator}, {local_optimizer}, {per_round}/{num_clients} clients, ", end="")
    print(f"{local_steps} local steps, {seeds} seeds\n")
    print("| p | setting | best | paper | difference | mean of the last ten |")
    print("|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    auto_cli(main)
