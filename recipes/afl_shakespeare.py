"""The Shakespeare rows of Tables 2 and 3 of Anarchic Federated Learning: a two-layer LSTM.

The model predicts the next character in Shakespeare's plays; each speaking role is a client. In
each of 300 rounds 72 of 143 roles arrive. They start from one of the last five models and make 50
local steps (dynamic: 1 to 100). This size needs a GPU; "small" takes minutes on a CPU core. The
data set has the columns character_id, x and y. If it has no split "test", the last fifth of each
role's rows is held out, and the 80 rows before it are left out because they overlap with it.

    python recipes/afl_shakespeare.py --path studies/shakespeare
    python recipes/afl_shakespeare.py --experiment small --seeds 1 --path studies/small

Source: Anarchic Federated Learning, https://arxiv.org/abs/2108.09875
"""

from fedlight import cli

cli.help_first(__name__, __file__)

from collections import Counter
from pathlib import Path
from typing import Literal

from jsonargparse.typing import PositiveInt

from fedlight import sweep
from fedlight.aggregators import AFACD, Aggregator
from fedlight.local_optimizers import LocalOptimizer
from fedlight.models import CharLSTM
from parts import afl as afl_paper


def main(
    dataset: str = "flwrlabs/shakespeare",
    experiment: Literal["table2", "table3", "small"] = "table2",
    local_optimizer: LocalOptimizer | None = None,
    aggregator: Aggregator | None = None,
    max_rounds: PositiveInt | None = None,
    val_every: PositiveInt | None = None,
    seeds: PositiveInt = 3,
    path: cli.Folder | None = None,
) -> None:
    """Reproduce the Shakespeare row of Table 2 or 3, or make a small run.

    Args:
        dataset: A hub id, or a folder with the same files.
        experiment: What to run; small is asynchronous and dynamic, with 5 roles a round.
        local_optimizer: None for LocalSGD, in table3 FedProx and Scaffold, in small LocalAdam.
        aggregator: The server's rule; None for AFA-CD with server rate 50 (c, as FedAvg), small 5.
        max_rounds: Rounds of a run; None for 300, in small 200.
        val_every: The test accuracy is taken after every so many rounds; None for 10, in small 25.
        seeds: Runs per setting.
        path: Folder of the study: runs, of which none is made twice, TensorBoard and curves.
    """
    size = afl_paper.SMALL_PLAYS if experiment == "small" else afl_paper.PLAYS
    data = afl_paper.by_role(dataset, size.batch_size)
    rule = aggregator or AFACD(server_lr=size.server_lr)
    rounds = max_rounds or size.max_rounds
    counts = Counter(data.val_dataset["y"])
    print(f"Always the most frequent character: {max(counts.values()) / counts.total():.4f}")
    options = {"seeds": range(seeds), "datamodule": data, "max_rounds": rounds}
    for optimizer in [local_optimizer] if local_optimizer else size.optimizers[experiment]:
        folder = path and Path(path) / type(optimizer).__name__
        study = sweep(
            over={"setting": afl_paper.settings(experiment, rule, size.m, size.c)},
            module=lambda: CharLSTM(hidden_size=size.hidden_size),
            local_optimizer=optimizer,
            check_val_every_n_rounds=min(val_every or size.val_every, rounds),
            path=folder,
            logger_dir=folder and folder / "logs",
            **options,
        )
        title = afl_paper.title(rule, optimizer, size.m, data.num_clients, size.c, rounds)
        table = afl_paper.beside(study.table(), title, afl_paper.SHAKESPEARE)
        print(f"\n{table.to_markdown()}")
        if folder:
            study.plot("round").savefig(folder / "curves.png")


if __name__ == "__main__":
    cli.run(main)
