"""The Shakespeare rows of Tables 2 and 3 of Anarchic Federated Learning: a two-layer LSTM.

The model predicts the next character in Shakespeare's plays; each speaking role is a client. In
each of 300 rounds 72 of 143 roles arrive. They start from one of the last five models and make 50
local steps (dynamic: 1 to 100). This size needs a GPU; the second command takes minutes on a CPU
core.

    python recipes/afl_shakespeare.py --dataset flwrlabs/shakespeare
    python recipes/afl_shakespeare.py --dataset flwrlabs/shakespeare \
        --settings '[async-dynamic]' --seeds 1 --hidden_size 64 --per_round 5 --local_steps 10 \
        --batch_size 32 --max_rounds 200 --val_every 25 --aggregator.server_lr 5 \
        --local_optimizer LocalAdam --local_optimizer.lr 0.005

The data set has the columns character_id, x and y (`flwrlabs/shakespeare`). If it has no split
"test", the last fifth of each role's rows is held out, and the 80 rows before it are left out
because they overlap with it.

Source: Anarchic Federated Learning, https://arxiv.org/abs/2108.09875
"""

from collections import Counter
from typing import Literal

import datasets
import numpy as np
from jsonargparse import lazy_instance
from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.progress import track

from data_partitioners import NaturalIdPartitioner
from fedlight import FederatedDataModule, cli, compare
from fedlight.aggregators import AFACD, Aggregator
from fedlight.arrivals import ConstantSteps, UniformArrivals, UniformSteps
from fedlight.local_optimizers import LocalOptimizer, LocalSGD
from fedlight.models import CharLSTM
from fedlight.plot import curves

Setting = Literal["sync-constant", "sync-dynamic", "async-constant", "async-dynamic"]

SGD = lazy_instance(LocalSGD, lr=0.8)
AFA_CD = lazy_instance(AFACD, server_lr=50.0)

TABLE_2 = ("sync-constant", "sync-dynamic", "async-constant", "async-dynamic")
TABLE_3 = ("sync-constant", "async-dynamic")
PAPER = {
    "LocalSGD(lr=0.8)": dict(zip(TABLE_2, (0.4683, 0.4831, 0.4606, 0.4687), strict=True)),
    "FedProx(mu=0.1, LocalSGD(lr=0.8))": dict(zip(TABLE_3, (0.4690, 0.4550), strict=True)),
    "Scaffold(lr=0.8, option=2)": dict(zip(TABLE_3, (0.4794, 0.4515), strict=True)),
}
PAPER_SIZE = (143, 72, 50, 10, 100, 300)


def by_role(dataset: str, batch_size: int) -> FederatedDataModule:
    """Each role a client."""
    roles = NaturalIdPartitioner("character_id")
    data = FederatedDataModule(dataset, roles, batch_size)
    data.setup()
    if data.val_dataset is not None:
        return data
    rows = [np.sort(data.partition[client]) for client in range(data.num_clients)]
    train = np.concatenate([each[: max(1, len(each) * 4 // 5 - 80)] for each in rows])
    test = np.concatenate([each[len(each) * 4 // 5 :] for each in rows if len(each) > 1])
    whole = data.train_dataset
    splits = datasets.DatasetDict(train=whole.select(train), test=whole.select(test))
    data = FederatedDataModule(splits, roles, batch_size)
    data.setup()
    return data


def main(
    dataset: str = "flwrlabs/shakespeare",
    settings: list[Setting] = ["sync-constant", "async-dynamic"],  # noqa: B006  # only read
    per_round: PositiveInt = 72,
    local_steps: PositiveInt = 50,
    batch_size: PositiveInt = 10,
    hidden_size: PositiveInt = 100,
    local_optimizer: LocalOptimizer = SGD,
    aggregator: Aggregator = AFA_CD,
    max_rounds: PositiveInt = 300,
    val_every: PositiveInt = 10,
    seeds: PositiveInt = 3,
    logger_dir: cli.Folder | None = None,
    figure: cli.Figure | None = None,
) -> None:
    """Reproduce the Shakespeare row of Table 2 or 3.

    Args:
        dataset: A hub id, or a folder with the same files.
        settings: Columns of the table.
        per_round: Clients that arrive in each round, m.
        local_steps: Local steps of a client in a round, c; the mean if they are dynamic.
        batch_size: Examples per local step.
        hidden_size: Units of each of the two LSTM layers.
        local_optimizer: LocalSGD is Table 2, FedProx and Scaffold are Table 3.
        aggregator: The server's rule. With a server rate of c, AFA-CD is FedAvg.
        max_rounds: Rounds of a run.
        val_every: The test accuracy is taken after every so many rounds.
        seeds: Runs per setting.
        logger_dir: A folder for TensorBoard; None writes nothing.
        figure: A file for the curves; None draws none.
    """
    cli.distinct(settings=settings)
    data = by_role(dataset, batch_size)
    size = (data.num_clients, per_round, local_steps, batch_size, hidden_size, max_rounds)
    table_2_or_3 = {}
    if size == PAPER_SIZE and isinstance(aggregator, AFACD) and aggregator.server_lr == 50:
        table_2_or_3 = PAPER.get(str(local_optimizer), {})
    histories, rows = {}, []
    for setting in track(settings, console=Console(stderr=True)):
        steps = ConstantSteps(local_steps)
        if setting.endswith("dynamic"):
            steps = UniformSteps(1, 2 * local_steps)
        result = compare(
            {setting: aggregator},
            arrivals=UniformArrivals(per_round, 4 if setting.startswith("async") else 0, steps),
            module=lambda: CharLSTM(hidden_size=hidden_size),
            datamodule=data,
            local_optimizer=local_optimizer,
            seeds=range(seeds),
            max_rounds=max_rounds,
            schedule="live",
            logger_dir=logger_dir,
            check_val_every_n_rounds=min(val_every, max_rounds),
            enable_progress_bar=False,
        )
        histories |= result.histories
        (found,) = result.summary()
        reached = [f"{found.best_mean:.4f}", f"{found.last_mean:.4f}"]
        if seeds > 1:
            reached = [f"{found.best_mean:.4f} ± {found.best_std:.4f}"]
            reached += [f"{found.last_mean:.4f} ± {found.last_std:.4f}"]
        paper = table_2_or_3.get(setting)
        beside = [f"{paper:.4f}", f"{found.best_mean - paper:+.4f}"] if paper else []
        rows.append(" | ".join([f"| {setting}", reached[0], *beside, f"{reached[1]} |"]))

    characters = Counter(data.val_dataset["y"])
    share = max(characters.values()) / characters.total()
    print(f"{aggregator}, {local_optimizer}, {per_round}/{data.num_clients} clients, ", end="")
    print(f"{local_steps} local steps of {batch_size}, {max_rounds} rounds, ", end="")
    print(f"{seeds} seed{'s' * (seeds != 1)}")
    print(f"Always the most frequent character: {share:.4f}\n")
    beside = ["paper", "difference"] if table_2_or_3 else []
    print(" | ".join(["| setting", "best", *beside, "last |"]))
    print("|---" * (3 + len(beside)) + "|")
    print("\n".join(rows))
    if figure is not None:
        curves(histories).figure.savefig(figure)


if __name__ == "__main__":
    cli.run(main)
