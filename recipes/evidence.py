"""What four papers claim of their methods, on quadratics with a known optimum and on MNIST.

Each method runs at several local rates; the table has the error (or accuracy) at each of them, and
the difference between its best rate and that of the first method, seed by seed.

    python recipes/evidence.py --claim delays --figure delays.png
    python recipes/evidence.py --claim bias --dataset mnist-mini --seeds 1
"""

from fedlight import cli

cli.help_first(__name__, __file__)

from functools import partial
from typing import Literal

from jsonargparse.typing import PositiveInt
from matplotlib import pyplot

from data_partitioners import IidPartitioner, PathologicalPartitioner
from fedlight import FederatedDataModule, plot, sweep
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression
from fedlight.studies import Entry, bootstrap
from parts.claims import methods
from parts.quadratics import Quadratic, quadratics


def main(
    claim: Literal["floor", "delays", "stops", "bias"] = "floor",
    dataset: str = "quadratic",
    rates: list[cli.PositiveNumber] = [0.02, 0.1, 0.5],  # noqa: B006  # only read
    max_updates: PositiveInt = 1000,
    seeds: PositiveInt = 5,
    figure: cli.Figure | None = None,
) -> None:
    """Print and draw one claim; each method is compared, at its best rate, with the first one.

    Args:
        claim: floor (biased arrivals), delays (adaptive rates), stops (late runs) or bias (polls).
        dataset: quadratic, a hub id, a folder with the same files, or "mnist-mini".
        rates: Local learning rates.
        max_updates: Client updates of a run.
        seeds: Runs per method and rate.
        figure: File for the curves of each method at its best rate.
    """
    exact, timed, every = dataset == "quadratic", claim == "stops", list(methods(claim, 1))
    M = {"floor": 10, "delays": 50, "stops": 32, "bias": 20}[claim]
    parts = IidPartitioner(M) if timed else PathologicalPartitioner(M, 1 + (M > 10))
    data = quadratics(M, timed) if exact else FederatedDataModule(dataset, parts, batch_size=32)
    metric, sign, scale = ("error", 1, "log") if exact else ("val_acc", 2 * timed - 1, "linear")
    cells = {f"{name}, {rate:g}": {"aggregator": x, "arrivals": y, "local_optimizer": LocalSGD(lr)}
             for rate in rates for name, (x, y, lr) in methods(claim, rate).items()}  # fmt: skip
    form = {"metric": metric, "datamodule": data, "max_updates": max_updates, "workers": "together"}
    form["module"] = Quadratic if exact else partial(LogisticRegression, 784, 10)
    study = sweep({"method": cells}, seeds=range(seeds), check_val_every_n_updates=10, **form)
    table = study.time_to(0.3 if exact else 0.85) if timed else study.table(last=10)
    column = "virtual_time" if timed else "mean of the last 10"
    print("| rate |", *(f"{r} |" for r in rates), "paired |\n" + "|---" * (len(rates) + 2) + "|")
    groups = list(dict.fromkeys(name.split(", ")[0] for name in every))
    figures, panels = pyplot.subplots(1, len(groups), sharey=True, squeeze=False, figsize=(9, 3.5))
    for scene, ax in zip(groups, panels[0], strict=True):
        base, lines = None, {}
        for name in [each for each in every if each.startswith(scene)]:
            found = {rate: table.entries[(f"{name}, {rate:g}",), column] for rate in rates}
            best = min((-len(e.reached), e.mean * sign, rate) for rate, e in found.items())[-1]
            base = base or found[best]
            less = [value - base.values[seed] for seed, value in found[best].values.items()]
            words = [e.words(3) for e in (*found.values(), Entry({}, difference=bootstrap(less)))]
            print(f"| {name} |", " | ".join(words), "|")
            lines[f"{name}, {best:g}"] = study.histories[f"{name}, {best:g}"]
        plot.curves(lines, metric, "virtual_time", ax=ax).set(title=scene, yscale=scale)
    if figure is not None:
        figures.savefig(figure, dpi=80, bbox_inches="tight")


if __name__ == "__main__":
    cli.run(main)
