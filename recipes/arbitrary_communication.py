"""Figure 1 of Federated Learning under Arbitrary Communication Patterns.

Ten clients train logistic regression and make one local step per tick of a common clock. A share of
the images, the mixing ratio, is spread evenly over them; the rest is sorted by label and cut into
one piece each. They communicate at every tick (full), or every ten ticks: all together, in turn
(periodic), at random, or half of them with probability 1.75/10, the others with 0.25/10.

    python recipes/arbitrary_communication.py --path studies/communication
    python recipes/arbitrary_communication.py --dataset mnist-mini --mixing_ratios '[0]' --seeds 1

Source: https://proceedings.mlr.press/v139/avdiukhin21a.html
"""

from fedlight import cli

cli.help_first(__name__, __file__)

import warnings
from functools import partial

from jsonargparse.typing import ClosedUnitInterval, PositiveInt

from data_partitioners import IidPartitioner, MixingPartitioner
from fedlight import FederatedDataModule, sweep
from fedlight.aggregators import Aggregator, AsyncCommSGD
from fedlight.arrivals import CommunicationPattern
from fedlight.local_optimizers import LocalOptimizer, LocalSGD
from fedlight.models import LogisticRegression

PATTERNS = {
    "full": CommunicationPattern.periodic(1),
    "synchronous": CommunicationPattern.periodic(10),
    "periodic": CommunicationPattern.periodic([10] * 10, offsets=range(1, 11)),
    "random": CommunicationPattern.random(0.1, max_gap=100),
    "imbalanced": CommunicationPattern.imbalanced(0.5, 0.175, 0.025, max_gap=100),
}


def main(
    dataset: str = "ylecun/mnist",
    mixing_ratios: list[ClosedUnitInterval] = [1, 0.5, 0.1, 0],  # noqa: B006  # only read
    aggregator: Aggregator | None = None,
    local_optimizer: LocalOptimizer | None = None,
    max_time: PositiveInt = 1000,
    seeds: PositiveInt = 3,
    path: cli.Folder | None = None,
) -> None:
    """Compare patterns of communication at several mixing ratios.

    Args:
        dataset: A hub id, a folder with the same files, or "mnist-mini".
        mixing_ratios: Shares of the images that are spread evenly; a panel of the figure for each.
        aggregator: The server's rule; None for AsyncCommSGD.
        local_optimizer: The arithmetic of a local step; None for SGD with rate 0.1.
        max_time: Ticks; "full" ends earlier, after as many models as the others.
        seeds: Runs per curve.
        path: Folder of the study: runs, of which none is made twice, TensorBoard and the figure.
    """
    cli.distinct(mixing_ratios=mixing_ratios)
    # The warning counts updates, but here rare updates contain more local steps.
    warnings.filterwarnings("ignore", "fedlight: some clients count for more")
    split = FederatedDataModule(dataset, IidPartitioner(10)).repartition
    split(MixingPartitioner(10, 1))  # what cannot be loaded raises now
    aggregator = aggregator or AsyncCommSGD()
    full = {"arrivals": PATTERNS["full"], "max_time": max_time / 10}
    full["check_val_every_n_rounds"] = 1 if aggregator.interval else 10  # as many as the others
    ratios = {r: {"datamodule": partial(split, MixingPartitioner(10, r))} for r in mixing_ratios}
    options = {"path": path, "logger_dir": f"{path}/logs"} if path else {}
    options |= {"seeds": range(seeds), "max_time": max_time, "check_val_every_n_rounds": 10}
    options |= {"aggregator": aggregator, "local_optimizer": local_optimizer or LocalSGD(lr=0.1)}
    over = {"mixing ratio": ratios, "pattern": PATTERNS | {"full": full}}
    study = sweep(over, module=lambda: LogisticRegression(28 * 28, 10), **options)
    print(study.table(last=10).to_markdown())
    if path:
        study.plot("models", panels="mixing ratio", zoom=0.1).savefig(f"{path}/accuracy.png")


if __name__ == "__main__":
    cli.run(main)
