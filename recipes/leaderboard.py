"""Asynchronous methods in four papers' settings: the time to an accuracy on non-i.i.d. MNIST.

Two seeds choose each method's local rate; five others give its time, gradients and bytes.

    python recipes/leaderboard.py --dataset mnist-mini --max_updates 500 --seeds 2
"""

from fedlight import cli

cli.help_first(__name__, __file__)

from functools import partial
from math import inf, isnan, nan
from statistics import fmean

from jsonargparse.typing import PositiveInt
from matplotlib import pyplot

from data_partitioners import PathologicalPartitioner
from fedlight import FederatedDataModule, sweep
from fedlight.callbacks import EarlyStopping
from fedlight.models import LogisticRegression
from fedlight.studies import bootstrap
from parts.leaderboard import SETTINGS, M, entries


def words(values: dict[int, float]) -> str:
    there = [value for value in values.values() if not isnan(value)]
    each, few = bootstrap(there or [nan]), f" ({len(there)})" * (len(there) < len(values))
    return f"{each.mean:.4g} [{each.low:.4g}, {each.high:.4g}]{few}" if there else "not reached"


def main(
    dataset: str = "ylecun/mnist",
    target: cli.PositiveNumber = 0.85,
    rates: list[cli.PositiveNumber] = [0.006, 0.02, 0.06, 0.2, 0.6],  # noqa: B006  # only read
    max_updates: PositiveInt = 3000,
    seeds: PositiveInt = 5,
    figure: cli.Figure | None = None,
) -> None:
    """Tune each method with two seeds, then print and draw its times; (n) if only n seeds arrive.

    Args:
        dataset: A hub id, a folder with the same files, or "mnist-mini".
        target: The accuracy to reach.
        rates: Local learning rates to choose from.
        max_updates: Client updates of a run.
        seeds: Runs per method, without the two that choose its rate.
        figure: File for the virtual times of each seed.
    """
    data = FederatedDataModule(dataset, PathologicalPartitioner(M, 2), batch_size=32)
    stop = partial(EarlyStopping, "val_acc", mode="max", patience=10**6, stopping_threshold=target)
    limits = {"max_updates": max_updates, "check_val_every_n_updates": 10, "workers": "together"}
    run = partial(sweep, module=partial(LogisticRegression, 784, 10), datamodule=data, **limits)
    drawn, panels = pyplot.subplots(1, len(SETTINGS), figsize=(12, 5), sharey=True, squeeze=False)
    print("| setting | method, rate | virtual time | minus FedBuff's | gradients | bytes |")
    print("|---" * 6 + "|")
    for setting, ax in zip(SETTINGS, panels[0], strict=True):
        cells = {f"{n}, {lr:g}": each for lr in rates for n, each in entries(setting, lr).items()}
        tuning = run({"method": cells}, seeds=[1000, 1001], callbacks=lambda: [stop()])
        times, best = tuning.time_to(target).entries.values(), tuning.table().entries
        reached = [[inf if isnan(t) else t for t in each.values.values()] for each in times]
        key = {c: (fmean(t), -best[(c,), "best"].mean) for c, t in zip(cells, reached, strict=True)}
        groups = [[f"{name}, {lr:g}" for lr in rates] for name in entries(setting, 1)]
        chosen = [min(group, key=key.__getitem__) for group in groups]
        study = run({"method": {cell: cells[cell] for cell in chosen}}, seeds=range(seeds),
                    callbacks=lambda: [stop()])  # fmt: skip
        axes = ("virtual_time", "gradients", "bytes")
        found = [[e.values for e in study.time_to(target, x).entries.values()] for x in axes]
        for cell, time, *others in zip(chosen, *found, strict=True):
            less = {seed: value - found[0][0][seed] for seed, value in time.items()}
            print(f"| {setting} | {cell} |", " | ".join(map(words, (time, less, *others))), "|")
            ax.plot(list(time.values()), [cell.split(",")[0]] * len(time), "o", alpha=0.5)
        ax.set(title=setting, xlabel="virtual time", xscale="symlog")
    if figure is not None:
        drawn.savefig(figure, dpi=80, bbox_inches="tight")


if __name__ == "__main__":
    cli.run(main)
