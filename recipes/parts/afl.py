"""What Anarchic Federated Learning runs and finds: the settings of its tables and figures; numbers.

Not a recipe: the recipes ``afl_*.py`` import it. Numbers are the test accuracies of Tables 2 and 3,
by the parts of a run, and then by row and column.

Source: https://arxiv.org/abs/2108.09875
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import datasets
import numpy as np
import torch
from lightning import LightningModule

from data_partitioners import IidPartitioner, NaturalIdPartitioner, PathologicalPartitioner
from fedlight import FederatedDataModule
from fedlight.aggregators import AFACD, AFACS, Aggregator, FedAvg
from fedlight.arrivals import BiasedArrivals, ConstantSteps, UniformArrivals, UniformSteps
from fedlight.local_optimizers import FedProx, LocalAdam, LocalOptimizer, LocalSGD, Scaffold
from fedlight.models import CNN, LogisticRegression
from fedlight.studies import StudyTable

SGD, PROX, SCAFFOLD = LocalSGD(lr=0.1), FedProx(lr=0.1, mu=0.1), Scaffold(lr=0.1)
Size: TypeAlias = tuple[int, int, int]
SMALL, LONG, WIDE = (5, 10, 5), (5, 10, 10), (20, 100, 5)  # m of M clients arrive, after c steps
BIASED = [0.19, 0.19, *[0.1] * 6, 0.01, 0.01]  # weights of the ten clients of Figures 5 and 6


def title(
    rule: Aggregator, optimizer: object, m: int, num_clients: int, c: int, rounds: int
) -> str:
    """Say what is run: the key of the published numbers."""
    return f"{rule}, {optimizer}, {m}/{num_clients} clients, {c} local steps, {rounds} rounds"


def split(data: FederatedDataModule, M: int, p: int) -> Callable[[int], FederatedDataModule]:
    """Return a function of the seed that gives each of M clients p classes."""
    partitioner = PathologicalPartitioner(M, p)
    data.repartition(partitioner)  # an impossible partition raises now
    return partial(data.repartition, partitioner)


def settings(experiment: str, rule: Aggregator, m: int, c: int) -> dict[str, dict[str, Any]]:
    """Return the columns of a table, or the curves of a figure: aggregator and arrivals by name."""
    steps = {"constant": ConstantSteps(c), "dynamic": UniformSteps(1, 2 * c)}
    found = {
        f"{word}-{kind}": {"aggregator": rule, "arrivals": UniformArrivals(m, old, steps[kind])}
        for word, old in (("sync", 0), ("async", 4))
        for kind in steps
    }
    if experiment == "table2":
        return found
    first, even = found["sync-constant"], found["async-dynamic"]
    if experiment == "small":
        return {"async-dynamic": even}
    if experiment == "table3":
        return {"sync-constant": first, "async-dynamic": even}
    # "AFACS" has its default arguments
    name = repr(rule) if isinstance(rule, AFACS) else type(rule).__name__
    if experiment == "figure1":
        classical = first | {"aggregator": FedAvg(server_lr=1 / c)}
        afacs = even | {"aggregator": AFACS()}
        return {"FedAvg, sync-constant": classical, name: even, "AFACS": afacs}
    biased = even | {"arrivals": BiasedArrivals(m, BIASED, 4, steps["dynamic"])}
    afacs = biased | {"aggregator": AFACS()}
    return {f"{name}, even": even, f"{name}, biased": biased, "AFACS, biased": afacs}


_FOUR = ("sync-constant", "sync-dynamic", "async-constant", "async-dynamic")
_TWO = ("sync-constant", "async-dynamic")


def _by_place(*rows: tuple[float, ...]) -> dict[tuple[int, str], float]:
    """Numbers by p, the classes of a client, and setting."""
    return {
        (p, setting): number
        for p, numbers in zip((1, 2, 5, 10), rows, strict=True)
        for setting, number in zip(_FOUR if len(numbers) == 4 else _TWO, numbers, strict=True)
    }


MNIST = {
    title(AFACD(), SGD, *SMALL, 150): _by_place(
        (0.8916, 0.8915, 0.8888, 0.8868),
        (0.8906, 0.8981, 0.8901, 0.8931),
        (0.9072, 0.9075, 0.9059, 0.9048),
        (0.9114, 0.9111, 0.9129, 0.9143),
    ),
    title(AFACD(), SGD, *LONG, 150): _by_place(
        (0.8743, 0.8786, 0.8701, 0.8734),
        (0.8687, 0.8813, 0.8661, 0.8819),
        (0.9016, 0.9050, 0.9034, 0.9065),
        (0.9124, 0.9135, 0.9112, 0.9111),
    ),
    title(AFACD(), SGD, *WIDE, 150): _by_place(
        (0.8898, 0.8973, 0.8909, 0.8938),
        (0.8968, 0.9007, 0.8955, 0.9000),
        (0.9088, 0.9088, 0.9097, 0.9078),
        (0.9111, 0.9106, 0.9126, 0.9125),
    ),
    title(AFACD(), PROX, *SMALL, 150): _by_place(
        (0.8893, 0.8775), (0.8868, 0.8832), (0.9036, 0.9004), (0.9075, 0.9054)
    ),
    title(AFACD(), PROX, *LONG, 150): _by_place(
        (0.8752, 0.8669), (0.8685, 0.8789), (0.9019, 0.8998), (0.9072, 0.9052)
    ),
    title(AFACD(), SCAFFOLD, *SMALL, 150): _by_place(
        (0.8928, 0.8946), (0.8970, 0.8954), (0.9032, 0.9019), (0.9057, 0.9022)
    ),
    title(AFACD(), SCAFFOLD, *LONG, 150): _by_place(
        (0.8789, 0.8838), (0.8967, 0.8978), (0.9047, 0.9029), (0.9071, 0.9038)
    ),
}


CIFAR10 = {
    title(AFACD(), SGD, *SMALL, 10_000): _by_place(
        (0.7474, 0.7606, 0.7319, 0.7350),
        (0.7677, 0.7944, 0.7662, 0.777),
        (0.7981, 0.802, 0.8065, 0.799),
        (0.8081, 0.8072, 0.8065, 0.8119),
    ),
    title(AFACD(), PROX, *SMALL, 10_000): _by_place(
        (0.7488, 0.7415), (0.7728, 0.7890), (0.7931, 0.8031), (0.8150, 0.8143)
    ),
    title(AFACD(), SCAFFOLD, *SMALL, 10_000): _by_place(
        (0.1641, 0.3935), (0.6315, 0.6971), (0.7828, 0.7884), (0.8083, 0.8051)
    ),
}


SHAKESPEARE = {
    title(AFACD(server_lr=50.0), optimizer, 72, 143, 50, 300): {
        (setting,): number for setting, number in zip(settings, numbers, strict=True)
    }
    for optimizer, settings, numbers in (
        (LocalSGD(lr=0.8), _FOUR, (0.4683, 0.4831, 0.4606, 0.4687)),
        (FedProx(lr=0.8, mu=0.1), _TWO, (0.4690, 0.4550)),
        (Scaffold(lr=0.8), _TWO, (0.4794, 0.4515)),
    )
}


@dataclass(frozen=True)
class Task:
    """Images and the module that learns them.

    Attributes:
        module: Makes the module.
        batch_size: Examples per local step.
        max_rounds: Rounds of a run.
        val_every: The test accuracy is taken after every so many rounds.
        sizes: m, M and c of the blocks of Table 2; the first of them is that of the figures.
        numbers: Test accuracies of Tables 2 and 3 by `title`, p and setting.
    """

    module: Callable[[], LightningModule]
    batch_size: int
    max_rounds: int
    val_every: int
    sizes: list[Size]
    numbers: dict[str, dict[tuple[int, str], float]]

    def runs(
        self, experiment: str, optimizer: LocalOptimizer | None
    ) -> list[tuple[LocalOptimizer, Size]]:
        """Return the blocks of an experiment: local optimizer (None for the paper's) and size."""
        number = {"table2": 3, "table3": 2}.get(experiment, 1)
        papers = [PROX, SCAFFOLD] if experiment == "table3" else [SGD]
        optimizers = papers if optimizer is None else [optimizer]
        return [*product(optimizers, self.sizes[:number])]


@dataclass(frozen=True)
class Plays:
    """A size of the runs on Shakespeare's plays.

    Attributes:
        m: Roles that arrive in a round.
        c: Local steps, or their mean.
        batch_size: Examples per local step.
        hidden_size: Units of each LSTM layer.
        server_lr: Rate of the server.
        max_rounds: Rounds of a run.
        val_every: The test accuracy is taken after every so many rounds.
        optimizers: Local optimizers by experiment.
    """

    m: int
    c: int
    batch_size: int
    hidden_size: int
    server_lr: float
    max_rounds: int
    val_every: int
    optimizers: dict[str, list[LocalOptimizer]]


_OF_TABLES = {"table2": [LocalSGD(lr=0.8)], "table3": [FedProx(lr=0.8, mu=0.1), Scaffold(lr=0.8)]}
PLAYS = Plays(72, 50, 10, 100, 50.0, 300, 10, _OF_TABLES)
SMALL_PLAYS = Plays(5, 10, 32, 64, 5.0, 200, 25, {"small": [LocalAdam(lr=0.005)]})


def beside(table: StudyTable, title: str, published: dict[str, dict[Any, float]]) -> StudyTable:
    """Return a table that says what was run, with those numbers of the paper that have a row."""
    numbers = {p: n for p, n in published.get(title, {}).items() if p in table.rows}
    return table.with_entries(table.entries, f"{title}: {table.title}").beside(numbers)


def load(dataset: str) -> tuple[Task, FederatedDataModule]:
    """Load images; the task has the paper's numbers if they are the paper's images."""
    data = FederatedDataModule(dataset, IidPartitioner(1))
    data.setup()
    channels = data.train_data.gather(torch.tensor([0]))[0].shape[1]
    if channels == 1:
        zeros = Counter(data.train_dataset["label"][:])[0]
        numbers = MNIST if zeros == 5923 else {}
        sizes = [SMALL, LONG, WIDE]
        return Task(lambda: LogisticRegression(28 * 28, 10), 64, 150, 1, sizes, numbers), data
    known = len(data.train_dataset) == 50_000 and "img" in data.train_dataset.features
    task = Task(CNN, 500, 10_000, 10, [SMALL], CIFAR10 if known else {})
    return task, FederatedDataModule(dataset, IidPartitioner(1), task.batch_size)


def by_role(dataset: str, batch_size: int) -> FederatedDataModule:
    """Load plays, each role a client; without a test split, a part of each role is held out."""
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
