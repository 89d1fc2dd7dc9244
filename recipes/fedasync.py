"""FedAsync against FedAvg and single-thread SGD, on the three axes of its paper (Section 6).

In each round of FedAsync one of a hundred clients arrives. It has started from a version that is 0
to `max_staleness` rounds old, and has made ten local steps. The server mixes its model in with
weight alpha, which is halved after a while, times a constant, a polynomial or a hinge of the
staleness. FedAvg waits for ten clients with its newest model; SGD is one client with all images.
The table has the test accuracy after a quarter, half and all of the gradients of FedAsync.

    python recipes/fedasync.py --alphas '[0.6,0.3,0.9]' --path studies/fedasync
    python recipes/fedasync.py --dataset mnist-mini --size small --seeds 1

Source: Asynchronous Federated Optimization, https://arxiv.org/abs/1903.03934
"""

from fedlight import cli

cli.help_first(__name__, __file__)

from dataclasses import replace
from itertools import product
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, PositiveInt

from fedlight import Study, sweep
from fedlight.aggregators import Aggregator
from fedlight.local_optimizers import FedProx, LocalOptimizer
from parts.fedasync import SIZES


def main(
    dataset: str = "uoft-cs/cifar10",
    size: Literal["paper", "small"] = "paper",
    max_staleness: list[NonNegativeInt] = [4, 16],  # noqa: B006  # only read
    alphas: list[ClosedUnitInterval] = [0.6],  # noqa: B006
    aggregator: Aggregator | None = None,
    local_optimizer: LocalOptimizer | None = None,
    seeds: PositiveInt = 3,
    path: cli.Folder | None = None,
) -> None:
    """Train FedAsync, FedAvg and SGD; print their accuracies, draw the figures of Section 6.

    Args:
        dataset: A hub id, a folder with the same files, or "mnist-mini".
        size: "paper" has 2,000 updates of a wide network, for a GPU; "small" has 100.
        max_staleness: Largest staleness, in server updates; each value is a setting.
        alphas: Mixing weights of FedAsync; the curves show the first one.
        aggregator: One more, on the same arrivals.
        local_optimizer: Local step of FedAsync; None for FedProx, the paper's option II.
        seeds: Runs per cell.
        path: Folder of the study: runs, of which none is made twice, TensorBoard and figures.
    """
    cli.distinct(max_staleness=max_staleness, alphas=alphas)
    data, module = (setting := SIZES[size]).load(dataset)
    options = {"seeds": range(seeds), "module": module}
    options |= {"path": path, "logger_dir": f"{path}/logs"} if path else {}
    baselines = sweep({"method": setting.baselines(data)}, **options)
    options |= {"datamodule": setting.split(data, 100)}
    options |= {"local_optimizer": local_optimizer or FedProx(lr=0.1, mu=0.005)}
    staleness = {each: setting.arrivals(each) for each in max_staleness}
    runs = []
    for alpha in alphas:  # of which the rules depend
        over = {"staleness": staleness, "alpha": {alpha: setting.limits(setting.max_rounds)}}
        runs += sweep(over | {"method": setting.rules(alpha, aggregator)}, **options).runs
    for study in (baselines, Study(runs)):
        print(study.at(setting.gradients, "gradients").to_markdown(), end="\n\n")
    if path:
        first = {"alpha": alphas[0]}
        cells = [{"staleness": each, **first} for each in max_staleness]
        beside = [replace(r, cell=cell | r.cell) for r, cell in product(baselines.runs, cells)]
        shown = Study([*Study(runs).only(**first).runs, *beside])
        axes = ["gradients", "round", "models"]
        shown.plot(axes, panels="staleness", zoom=0.25).savefig(f"{path}/axes.png")
        if len(alphas) > 1:
            Study(runs).plot("alpha", panels="staleness").savefig(f"{path}/alpha.png")


if __name__ == "__main__":
    cli.run(main)
