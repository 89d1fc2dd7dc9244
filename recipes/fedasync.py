"""FedAsync against FedAvg and single-thread SGD, on the three axes of its paper (Section 6).

There are a hundred clients with 500 images each. In each round of FedAsync one client arrives. It
has started from a version that is 0 to `max_staleness` rounds old, drawn uniformly, and has trained
for one pass over its images. The server mixes its model in with weight alpha, which is halved after
a given round, times a constant, a polynomial or a hinge of the staleness. FedAvg waits for ten
clients with its newest model; SGD is one client with all images. The network is that of the paper's
Table 2, with BatchNorm and dropout. The table has the test accuracy at the points where each method
has computed a quarter, half and all of the gradients of FedAsync.

    python recipes/fedasync.py --alphas '[0.6,0.3,0.9]' --figure axes.png --alpha_figure alpha.png
    python recipes/fedasync.py --dataset mnist-mini --max_rounds 40 --width 4 --shrink 2 --seeds 1
    python recipes/fedasync.py --aggregator FedBuff --aggregator.buffer_size 5
    python recipes/fedasync.py --partitioner PathologicalPartitioner \
        --partitioner.num_partitions 100 --partitioner.num_classes_per_partition 2

Source: Asynchronous Federated Optimization, https://arxiv.org/abs/1903.03934
"""

from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch
from jsonargparse import lazy_instance
from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from data_partitioners import IidPartitioner, Partitioner
from fedlight import FederatedDataModule, cli, compare
from fedlight.aggregators import Aggregator, FedAsync, FedAvg
from fedlight.aggregators.staleness import Hinge, Polynomial
from fedlight.arrivals import UniformArrivals
from fedlight.local_optimizers import FedProx, LocalOptimizer, LocalSGD
from fedlight.models import Classifier
from fedlight.plot import curve, curves
from fedlight.types import RoundRecord

Runs = dict[str, list[list[RoundRecord]]]  # by method, a history for each seed
SGD = "single-thread SGD"


class PaperCNN(Classifier):
    """Four convolutions with BatchNorm and two dense layers, with dropout (Table 2)."""

    def __init__(self, channels: int, side: int, width: int) -> None:
        super().__init__(num_classes=10, lr=0.1)

        def block(inputs: int, outputs: int) -> list[nn.Module]:
            convolutions = [(inputs, outputs), (outputs, outputs)]
            layers = [
                (nn.Conv2d(*sizes, kernel_size=3, padding=1), nn.ReLU(), nn.BatchNorm2d(outputs))
                for sizes in convolutions
            ]
            return [*sum(layers, ()), nn.MaxPool2d(2), nn.Dropout(0.25)]

        self.layers = nn.Sequential(
            *block(channels, width),
            *block(width, 2 * width),
            nn.Flatten(),
            nn.Linear(2 * width * (side // 4) ** 2, 8 * width),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Linear(8 * width, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def accuracy(histories: list[list[RoundRecord]], gradients: float) -> list[float]:
    """That of each seed after so many gradients, by straight lines between the evaluations."""
    points = [curve(history, "val_acc", "gradients") for history in histories]
    return [float(np.interp(gradients, where, values)) for where, values in points]


def with_std(values: list[float]) -> str:
    return f"{fmean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def draw(file: Path, rows: dict[int, Runs], gradients: float) -> None:
    """A row for each maximum staleness, a column for each axis; SGD has gradients only."""
    from matplotlib import pyplot

    size = (10, 2.9 * len(rows))
    made, axes = pyplot.subplots(
        len(rows), 3, figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for row, (max_staleness, runs) in zip(axes, rows.items(), strict=True):
        for ax, x in zip(row, ("gradients", "round", "models"), strict=True):
            shown = runs if x == "gradients" else {k: v for k, v in runs.items() if k != SGD}
            curves(shown, "val_acc", x, ax=ax).set_title(f"staleness up to {max_staleness}")
            ax.set_xlim(0, curve(runs["FedAsync"][0], "val_acc", x)[0][-1])
            ax.set_ylabel("test accuracy" if x == "gradients" else "")
            if x != "gradients":
                ax.get_legend().remove()
    worst = min(
        fmean(accuracy(each, gradients / 4)) for runs in rows.values() for each in runs.values()
    )
    axes[0, 0].set_ylim(bottom=worst)
    made.savefig(file, dpi=80)


def draw_alpha(file: Path, runs: dict[tuple[int, float], Runs], gradients: float) -> None:
    """The accuracy at the end by alpha, a panel for each maximum staleness."""
    from matplotlib import pyplot

    panels = list(dict.fromkeys(max_staleness for max_staleness, _ in runs))
    size = (3.6 * len(panels), 3.2)
    made, axes = pyplot.subplots(
        1, len(panels), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for ax, panel in zip(axes[0], panels, strict=True):
        alphas = sorted(alpha for max_staleness, alpha in runs if max_staleness == panel)
        for name, style in zip(runs[panel, alphas[0]], ("o-", "s--", "^-.", "v:"), strict=False):
            ends = np.array([accuracy(runs[panel, alpha][name], gradients) for alpha in alphas])
            error = ends.std(1, ddof=1) if ends.shape[1] > 1 else None
            ax.errorbar(alphas, ends.mean(1), error, fmt=style, capsize=3, label=name)
        ax.set(xlabel="alpha", title=f"staleness up to {panel}")
        ax.legend(frameon=False)
    axes[0, 0].set_ylabel("test accuracy at the end")
    made.savefig(file, dpi=80)


def main(
    dataset: str = "uoft-cs/cifar10",
    partitioner: Partitioner = lazy_instance(IidPartitioner, num_partitions=100),  # noqa: B008
    max_staleness: list[NonNegativeInt] = [4, 16],  # noqa: B006  # only read
    alphas: list[ClosedUnitInterval] = [0.6],  # noqa: B006
    aggregator: Aggregator | None = None,
    local_optimizer: LocalOptimizer = lazy_instance(FedProx, lr=0.1, mu=0.005),  # noqa: B008
    baseline_optimizer: LocalOptimizer = lazy_instance(LocalSGD, lr=0.1),  # noqa: B008
    local_steps: PositiveInt = 10,
    per_round: PositiveInt = 10,
    max_rounds: PositiveInt = 2000,
    fedavg_rounds: PositiveInt | None = None,
    decay_round: PositiveInt = 800,
    evaluate_every: PositiveInt = 10,
    width: PositiveInt = 64,
    crop: PositiveInt = 24,
    shrink: PositiveInt = 1,
    seeds: PositiveInt = 3,
    logger_dir: cli.Folder | None = None,
    figure: cli.Figure | None = None,
    alpha_figure: cli.Figure | None = None,
) -> None:
    """Train them all; print the table, draw the figures.

    Args:
        dataset: A hub id, a folder with the same files, or "mnist-mini".
        partitioner: Who holds which images.
        max_staleness: Largest staleness, in server updates; each value is a setting.
        alphas: Mixing weights of FedAsync; the curves show the first one.
        aggregator: One more, on the same arrivals.
        local_optimizer: Local step of FedAsync; FedProx with the paper's rho as mu is option II.
        baseline_optimizer: Local step of FedAvg and SGD.
        local_steps: Steps of a client in a round.
        per_round: Clients in a round of FedAvg.
        max_rounds: Server updates of FedAsync.
        fedavg_rounds: Server updates of FedAvg; None for as many.
        decay_round: The update from which on alpha is halved.
        evaluate_every: Client updates between two evaluations.
        width: Channels of the first convolutions; 64 in the paper.
        crop: Side of the images in pixels, cut from the middle.
        shrink: Factor by which the cut images are made smaller.
        seeds: Runs per cell.
        logger_dir: Folder for TensorBoard; None writes nothing.
        figure: File for the curves on the three axes; None makes none.
        alpha_figure: File for the accuracy at the end by alpha; None makes none.
    """
    cli.distinct(max_staleness=max_staleness, alphas=alphas)
    for staleness, alpha in product(max_staleness, alphas):  # values out of range raise now
        UniformArrivals(1, staleness, local_steps)
        FedAsync(alpha)
    side = crop // shrink
    if side < 4:
        raise ValueError(f"crop / shrink must be at least 4 pixels, got {crop} / {shrink}")

    def cut(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        images, *rest = batch
        edge = (images.shape[-1] - crop) // 2
        if edge < 0:
            raise ValueError(f"crop must be at most {images.shape[-1]}, got {crop}")
        images = images[..., edge : edge + crop, edge : edge + crop]
        return functional.avg_pool2d(images, shrink), *rest

    data = FederatedDataModule(dataset, partitioner, batch_size=50, transform=cut)
    data.setup()
    channels = data.train_data.gather(torch.tensor([0]))[0].shape[1]

    def train(
        folder: str,
        methods: dict[str, Aggregator],
        optimizer: LocalOptimizer,
        parts: Partitioner = partitioner,
        rounds: int = max_rounds,
        per_round: int = 1,
        staleness: int = 0,
    ) -> Runs:
        return compare(
            methods,
            arrivals=UniformArrivals(per_round, staleness, local_steps),
            module=lambda: PaperCNN(channels, side, width),
            datamodule=lambda seed: data.repartition(parts, partition_seed=seed),
            local_optimizer=optimizer,
            seeds=range(seeds),
            max_rounds=rounds,
            schedule="live",  # the arrivals are the same for all, because they come by rounds
            check_val_every_n_rounds=min(rounds, max(1, evaluate_every // per_round)),
            logger_dir=logger_dir and Path(logger_dir) / folder,
        ).histories

    rounds = max_rounds if fedavg_rounds is None else fedavg_rounds
    fedavg = train(
        "FedAvg", {"FedAvg": FedAvg()}, baseline_optimizer, partitioner, rounds, per_round
    )
    sgd = train("SGD", {SGD: FedAvg()}, baseline_optimizer, IidPartitioner(1))
    hinge = Hinge(a=10, b=4)
    runs: dict[tuple[int, float], Runs] = {}
    for staleness, alpha in product(max_staleness, alphas):

        def decayed(version: int, alpha: float = alpha) -> float:
            return alpha / 2 if version + 1 >= decay_round else alpha

        methods: dict[str, Aggregator] = {
            "FedAsync": FedAsync(decayed),
            "FedAsync+Poly": FedAsync(decayed, Polynomial(a=0.5)),
            "FedAsync+Hinge": FedAsync(decayed, hinge),
        }
        if aggregator is not None:
            methods[repr(aggregator)] = aggregator
        # up to b the hinge is 1, so these runs would equal those of FedAsync
        trained = {k: v for k, v in methods.items() if staleness > hinge.b or "Hinge" not in k}
        folder = f"staleness {staleness}, alpha {alpha:g}"
        found = train(folder, trained, local_optimizer, staleness=staleness)
        runs[staleness, alpha] = {name: found.get(name, found["FedAsync"]) for name in methods}

    gradients = max_rounds * local_steps
    print(f"{local_steps} local steps, {max_rounds} updates of FedAsync, ", end="")
    print(f"{seeds} seed{'s' * (seeds != 1)}\n")
    print("| staleness | alpha | method | a quarter | half | all of the gradients |")
    print("|---|---|---|---|---|---|")
    cells = [(("", ""), fedavg | sgd), *runs.items()]
    for (staleness, alpha), found in cells:
        for name, histories in found.items():
            shares = [with_std(accuracy(histories, gradients * share)) for share in (0.25, 0.5, 1)]
            print("|", " | ".join([str(staleness), str(alpha), name, *shares]), "|")
    if figure is not None:
        draw(
            figure,
            {each: fedavg | runs[each, alphas[0]] | sgd for each in max_staleness},
            gradients,
        )
    if alpha_figure is not None:
        draw_alpha(alpha_figure, runs, gradients)


if __name__ == "__main__":
    cli.run(main)
