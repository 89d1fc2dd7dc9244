"""Figure 1 of Federated Learning under Arbitrary Communication Patterns.

All clients train logistic regression on MNIST and make one local step per tick of a common clock. A
share of the images, the mixing ratio, is spread evenly over the clients. The rest is sorted by
label and cut into one piece per client, so that at ratio 0 clients share hardly any class. The
patterns of communication are:

    full         every client at every tick
    synchronous  every client at every tenth tick, all together
    periodic     every client at every tenth tick, one after another
    random       every client at each tick with probability 1/10
    imbalanced   half of the clients with probability 1.75/10, the others with 0.25/10

The script prints a table and draws the accuracy over the number of communicated models.

    python recipes/arbitrary_communication.py --figure arbitrary_communication.png
    python recipes/arbitrary_communication.py --aggregator FedAsync --aggregator.alpha 0.1
    python recipes/arbitrary_communication.py --dataset mnist-mini --mixing_ratios '[0]' --seeds 1

Source: https://proceedings.mlr.press/v139/avdiukhin21a.html
"""

import warnings
from pathlib import Path
from statistics import fmean
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, PositiveInt
from rich.console import Console
from rich.progress import track

from data_partitioners import IidPartitioner, MixingPartitioner
from fedlight import FederatedDataModule, cli, compare, plot
from fedlight.aggregators import Aggregator, AsyncCommSGD
from fedlight.arrivals import CommunicationPattern
from fedlight.comparison import Comparison
from fedlight.local_optimizers import LocalOptimizer, LocalSGD
from fedlight.models import LogisticRegression

Pattern = Literal["full", "synchronous", "periodic", "random", "imbalanced"]


def communication(
    pattern: Pattern, num_clients: int, period: int, max_gap: int
) -> CommunicationPattern:
    match pattern:
        case "full":
            return CommunicationPattern.periodic(1)
        case "synchronous":
            return CommunicationPattern.periodic(period)
        case "periodic":
            offsets = [1 + client * period // num_clients for client in range(num_clients)]
            return CommunicationPattern.periodic([period] * num_clients, offsets)
        case "random":
            return CommunicationPattern.random(1 / period, max_gap)
        case "imbalanced":
            return CommunicationPattern.imbalanced(0.5, 1.75 / period, 0.25 / period, max_gap)


def draw(found: dict[float, dict[Pattern, Comparison]], figure: Path) -> None:
    from matplotlib import pyplot

    made, panels = pyplot.subplots(
        1,
        len(found),
        sharey=True,
        figsize=(3.3 * len(found), 3.3),
        squeeze=False,
        layout="constrained",
    )
    for panel, (ratio, results) in zip(panels[0], found.items(), strict=True):
        runs = {pattern: [run.history for run in each.runs] for pattern, each in results.items()}
        plot.curves(runs, x="models", ax=panel)
        panel.set(title=f"mixing ratio {ratio:g}", ylabel="test accuracy")
        panel.label_outer()
    for panel in panels[0, 1:]:
        panel.get_legend().remove()
    ends = [each.summary(last=10)[0].last_mean for row in found.values() for each in row.values()]
    panels[0, 0].set_ylim(bottom=min(ends) - 0.15)
    made.savefig(figure, dpi=72)
    pyplot.close(made)


def main(
    dataset: str = "ylecun/mnist",
    mixing_ratios: list[ClosedUnitInterval] = [1, 0.5, 0.1, 0],  # noqa: B006  # only read
    patterns: list[Pattern] = ["full", "synchronous", "periodic", "random", "imbalanced"],  # noqa: B006
    num_clients: PositiveInt = 10,
    period: PositiveInt = 10,
    max_gap: PositiveInt = 100,
    aggregator: Aggregator | None = None,
    local_optimizer: LocalOptimizer | None = None,
    max_time: PositiveInt = 1000,
    seeds: PositiveInt = 3,
    logger_dir: cli.Folder | None = None,
    figure: cli.Figure | None = None,
) -> None:
    """Compare patterns of communication at several mixing ratios.

    Args:
        dataset: A hub id, a folder with the same files, or "mnist-mini".
        mixing_ratios: Shares of the images that are spread evenly; a panel of the figure for each.
        patterns: Patterns of communication; a curve for each.
        num_clients: Number of clients.
        period: Mean number of ticks between two communications of a client; 1 for "full".
        max_gap: Random and imbalanced clients communicate at least every so many ticks.
        aggregator: The server's rule; None for AsyncCommSGD.
        local_optimizer: The arithmetic of a local step; None for SGD with rate 0.1.
        max_time: Ticks; "full" ends earlier, after as many models as the others.
        seeds: Runs per curve.
        logger_dir: Folder for TensorBoard; None writes nothing.
        figure: File for the figure; None draws none.
    """
    cli.distinct(mixing_ratios=mixing_ratios, patterns=patterns)
    if max_time < period:
        raise ValueError(f"max_time must be at least period={period}, got {max_time}")
    # The warning counts updates, but here rare updates contain more local steps.
    warnings.filterwarnings("ignore", "fedlight: some clients count for more")
    data = FederatedDataModule(dataset, IidPartitioner(num_clients))
    aggregator = aggregator or AsyncCommSGD()
    by_clock = aggregator.interval is not None
    local_optimizer = local_optimizer or LocalSGD(lr=0.1)
    # An impossible pattern or partition raises now, before the first run.
    for ratio in mixing_ratios:
        data.repartition(MixingPartitioner(num_clients, ratio))
    arrivals = {each: communication(each, num_clients, period, max_gap) for each in patterns}
    found = {ratio: {} for ratio in mixing_ratios}
    cells = [(ratio, pattern) for ratio in mixing_ratios for pattern in patterns]
    for ratio, pattern in track(cells, console=Console(stderr=True)):
        partitioner = MixingPartitioner(num_clients, ratio)
        folder = f"mixing_ratio={ratio:g}/{pattern}"
        found[ratio][pattern] = compare(
            {type(aggregator).__name__: aggregator},
            arrivals=arrivals[pattern],
            module=lambda: LogisticRegression(28 * 28, 10),
            datamodule=lambda seed, by=partitioner: data.repartition(by, partition_seed=seed),
            local_optimizer=local_optimizer,
            seeds=range(seeds),
            max_time=max_time / period if pattern == "full" else max_time,
            check_val_every_n_rounds=1 if pattern == "full" and by_clock else period,
            logger_dir=logger_dir and Path(logger_dir) / folder,
            enable_progress_bar=False,
        )
    print(f"{aggregator}, {num_clients} clients, {seeds} seed{'s' * (seeds != 1)}\n")
    print("| mixing ratio | pattern | models | best | mean of the last ten |")
    print("|---|---|---|---|---|")
    for ratio, pattern in cells:
        result = found[ratio][pattern]
        (row,) = result.summary(last=10)
        models = fmean(run.history[-1].metrics["fed/models"] for run in result.runs)
        best, last = f"{row.best_mean:.4f}", f"{row.last_mean:.4f}"
        if seeds > 1:
            best, last = f"{best} ± {row.best_std:.4f}", f"{last} ± {row.last_std:.4f}"
        print(f"| {ratio:g} | {pattern} | {models:.0f} | {best} | {last} |")
    if figure is not None:
        draw(found, figure)


if __name__ == "__main__":
    cli.run(main)
