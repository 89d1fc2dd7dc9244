"""The experiments of the FedFix paper (Section 5): time-based weights, and a comparison of methods.

"weights" is its Figure 2: asynchronous FedAvg with identical and with time-based weights, at each
local learning rate. "methods" is its Figure 3: synchronous and asynchronous FedAvg, FedFix and
FedBuff in the same virtual time, each at its best local learning rate. Both show the loss of the
federated problem (the mean over the clients of the loss on their own data) and its standard
deviation over the clients. The table has their means over the last quarter of the run. The
durations of a task are evenly spaced between 0.2 and 1 for the clients of F80, and 1 for all
clients of F0.

    python recipes/fedfix.py --figure weights.png
    python recipes/fedfix.py --experiment methods --splits '[non-iid]' --num_clients 20 \
        --local_steps 10 --lrs '[0.001,0.01,0.1]' --max_time 20 --figure methods.png
    python recipes/fedfix.py --dataset mnist-mini --max_time 10 --seeds 2
    python recipes/fedfix.py --experiment methods --aggregator FedFix --aggregator.interval 0.2

Source: A General Theory for Federated Optimization with Asynchronous and Heterogeneous Clients
Updates, https://arxiv.org/abs/2206.10189
"""

from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np
from jsonargparse.typing import ClosedUnitInterval, PositiveInt
from rich.console import Console
from rich.progress import track

from data_partitioners import DirichletPartitioner, IidPartitioner
from fedlight import FederatedDataModule, cli, compare
from fedlight.aggregators import Aggregator, AsyncFedAvg, FedAvg, FedBuff, FedFix
from fedlight.arrivals import ContinuousArrivals, SynchronousArrivals, UniformSpeeds
from fedlight.callbacks import ClientEvaluation
from fedlight.comparison import ComparedRun
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression
from fedlight.plot import curve, curves

LABELS = {
    "clients/val_loss_mean": "loss of the federated problem",
    "clients/val_loss_std": "its std over the clients",
}
LOSS, SPREAD = LABELS


def period(aggregator: Aggregator, times: np.ndarray) -> float:
    """Mean virtual time between two updates of the server."""
    if aggregator.needs_rounds:
        return 1.0
    return aggregator.interval or aggregator.buffer_size / sum(1 / times)


def train(
    name: str, aggregator: Aggregator, times: np.ndarray, local_steps: int, **options: Any
) -> list[ComparedRun]:
    """A run for each seed, evaluated some forty times; `times` are those of the clients' tasks."""
    speeds = UniformSpeeds(1 - times[0])
    if aggregator.needs_rounds:
        arrivals = SynchronousArrivals(durations=speeds, local_steps=local_steps)
    else:
        arrivals = ContinuousArrivals(speeds, local_steps=local_steps)
    every = max(1, round(options["max_time"] / period(aggregator, times) / 40))
    return compare(
        {name: aggregator},
        arrivals=arrivals,
        module=lambda: LogisticRegression(28 * 28, 10),
        callbacks=lambda: [ClientEvaluation(every, max_clients=None)],
        metric=LOSS,
        check_val_every_n_rounds=None,
        enable_progress_bar=False,
        **options,
    ).runs


def end(run: ComparedRun, metric: str) -> float:
    """Mean of a metric over the last quarter of the run."""
    time, values = curve(run.history, metric, "virtual_time")
    return float(values[time >= 0.75 * time[-1]].mean())


def with_std(values: list[float], sign: str = "") -> str:
    return f"{fmean(values):{sign}.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def draw(file: Path, panels: dict[str, dict[str, list[ComparedRun]]]) -> None:
    """A row for each cell, a column for each metric, over virtual time."""
    from matplotlib import pyplot

    size = (9, 3.2 * len(panels))
    made, axes = pyplot.subplots(len(panels), 2, figsize=size, squeeze=False, layout="constrained")
    for row, (title, runs) in zip(axes, panels.items(), strict=True):
        for ax, metric in zip(row, LABELS, strict=True):
            histories = {name: [run.history for run in found] for name, found in runs.items()}
            ends = [end(run, metric) for found in runs.values() for run in found]
            curves(histories, metric, "virtual_time", ax=ax).set_title(title)
            ax.set_ylim(0.9 * min(ends), 2.5 * max(ends))
            ax.set_yscale("log")
            ax.set_ylabel(LABELS[metric])
        row[1].get_legend().remove()
    made.savefig(file, dpi=80)


def main(
    experiment: Literal["weights", "methods"] = "weights",
    dataset: str = "ylecun/mnist",
    splits: list[Literal["iid", "non-iid"]] = ["iid", "non-iid"],  # noqa: B006  # only read
    spreads: list[ClosedUnitInterval] = [0.8],  # noqa: B006
    num_clients: PositiveInt = 10,
    local_steps: PositiveInt = 1,
    lrs: list[cli.PositiveNumber] = [0.003],  # noqa: B006
    interval: cli.PositiveNumber = 0.5,
    buffer_size: PositiveInt = 10,
    aggregator: Aggregator | None = None,
    max_time: cli.PositiveNumber = 200,
    seeds: PositiveInt = 3,
    logger_dir: cli.Folder | None = None,
    figure: cli.Figure | None = None,
) -> None:
    """Reproduce Figure 2 or 3 with logistic regression.

    Args:
        experiment: "weights" is Figure 2, "methods" Figure 3.
        dataset: A hub id, a folder with the same files, or "mnist-mini".
        splits: Equal random shares, Dir(0.1), or both.
        spreads: Hardware scenarios, below 1; 0.8 is F80, 0 is F0.
        num_clients: Number of clients, M.
        local_steps: Steps of a local run, K.
        lrs: Local learning rates.
        interval: Virtual time between two updates of FedFix.
        buffer_size: Client updates in one server update of FedBuff.
        aggregator: One more, beside those of the experiment.
        max_time: Virtual time of a run.
        seeds: Runs per cell.
        logger_dir: Folder for TensorBoard; None writes nothing.
        figure: File for the figure, which shows the best rates, in "weights" the first one; None
            makes none.
    """
    cli.distinct(splits=splits, spreads=spreads, lrs=lrs)
    aggregators: dict[str, Aggregator] = {
        "identical": AsyncFedAvg("identical"),
        "time-based": AsyncFedAvg("time_based"),
    }
    if experiment == "methods":
        aggregators = {
            "FedAvg": FedAvg(client_weights="uniform"),
            "AsyncFedAvg": AsyncFedAvg("time_based"),
            f"FedFix-{interval:g}": FedFix(interval),
            f"FedBuff-{buffer_size}": FedBuff(buffer_size, staleness=None),
        }
    if aggregator is not None:
        aggregators[repr(aggregator)] = aggregator
    first = next(iter(aggregators))
    for spread, name in product(spreads, aggregators):
        UniformSpeeds(spread)  # raises if it is out of range
        least = 2 * max(1, period(aggregators[name], np.linspace(1 - spread, 1, num_clients)))
        if max_time < least:
            raise ValueError(f"max_time must be at least {least:g} for {name}, got {max_time:g}")
    parts = {
        "iid": IidPartitioner(num_clients),
        "non-iid": DirichletPartitioner(num_clients, alpha=0.1),
    }
    data = FederatedDataModule(dataset, parts["iid"], batch_size=64)
    for split in splits:  # an impossible partition raises now, before the first run
        data.repartition(parts[split])

    cells = {f"{split}, F{100 * s:g}": (split, s) for split, s in product(splits, spreads)}
    runs: dict[tuple[str, float, str], list[ComparedRun]] = {}
    for cell, lr, name in track([*product(cells, lrs, aggregators)], console=Console(stderr=True)):
        split, spread = cells[cell]
        runs[cell, lr, name] = train(
            name,
            aggregators[name],
            np.linspace(1 - spread, 1, num_clients),
            local_steps,
            datamodule=lambda seed, split=split: data.repartition(parts[split], seed),
            local_optimizer=LocalSGD(lr=lr),
            seeds=range(seeds),
            max_time=max_time,
            logger_dir=logger_dir and Path(logger_dir) / f"{cell}, lr {lr:g}",
        )

    def losses(cell: str, lr: float, name: str) -> list[float]:
        return [end(run, LOSS) for run in runs[cell, lr, name]]

    print(f"{num_clients} clients, {local_steps} local steps, ", end="")
    print(f"{seeds} seed{'s' * (seeds != 1)}, time {max_time:g}\n")
    print(f"| data | local rate | aggregator | loss | minus {first} | std over clients |")
    print("|---|---|---|---|---|---|")
    for cell, lr, name in runs:
        loss, base = losses(cell, lr, name), losses(cell, lr, first)
        less = with_std([a - b for a, b in zip(loss, base, strict=True)], "+")
        spread = with_std([end(run, SPREAD) for run in runs[cell, lr, name]])
        row = [cell, f"{lr:g}", name, with_std(loss), "" if name == first else less, spread]
        print("|", " | ".join(row), "|")

    def best(cell: str, name: str) -> float:
        rates = lrs if experiment == "methods" else lrs[:1]
        return min(rates, key=lambda lr: fmean(losses(cell, lr, name)))

    panels = {
        cell: {
            f"{name}, {best(cell, name):g}": runs[cell, best(cell, name), name]
            for name in aggregators
        }
        for cell in cells
    }
    if experiment == "methods":
        print("\nBest rates:", "; ".join(f"{cell}: {', '.join(panels[cell])}" for cell in cells))
    if figure is not None:
        draw(figure, panels)


if __name__ == "__main__":
    cli.run(main)
