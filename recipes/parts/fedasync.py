"""What the FedAsync paper trains: its network, and the size of its runs; not a recipe.

Source: https://arxiv.org/abs/1903.03934, Section 6
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from data_partitioners import IidPartitioner
from fedlight import FederatedDataModule
from fedlight.aggregators import Aggregator, FedAsync, FedAvg
from fedlight.aggregators.staleness import Hinge, Polynomial
from fedlight.arrivals import UniformArrivals
from fedlight.local_optimizers import LocalSGD
from fedlight.models import Classifier


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


@dataclass(frozen=True)
class Size:
    """The size of the runs.

    Attributes:
        max_rounds: Server updates of FedAsync, and of single-thread SGD.
        fedavg_rounds: Server updates of FedAvg.
        decay_round: The update from which on alpha is halved.
        baseline_lr: Local rate of FedAvg and SGD.
        width: Channels of the first convolutions.
        shrink: Factor by which the images, cut to 24 pixels, are made smaller.
        local_steps: Steps of a client in a round.
        val_every: Client updates between two evaluations.
    """

    max_rounds: int = 2000
    fedavg_rounds: int = 2000
    decay_round: int = 800
    baseline_lr: float = 0.1
    width: int = 64
    shrink: int = 1
    local_steps: int = 10
    val_every: int = 10

    def limits(self, rounds: int, per_round: int = 1) -> dict[str, int]:
        """Return the limit of a run, and how often it is evaluated."""
        every = min(rounds, max(1, self.val_every // per_round))
        return {"max_rounds": rounds, "check_val_every_n_rounds": every}

    def arrivals(self, max_staleness: int, per_round: int = 1) -> UniformArrivals:
        """Return those of FedAsync, or of FedAvg."""
        return UniformArrivals(per_round, max_staleness, self.local_steps)

    def baselines(self, data: FederatedDataModule) -> dict[str, dict[str, Any]]:
        """Return FedAvg with ten clients a round, and one client with all images."""
        fedavg = {"arrivals": self.arrivals(0, 10), **self.limits(self.fedavg_rounds, 10)}
        sgd = {"arrivals": self.arrivals(0), **self.limits(self.max_rounds)}
        fedavg["datamodule"], sgd["datamodule"] = self.split(data, 100), self.split(data, 1)
        both = {"FedAvg": fedavg, "single-thread SGD": sgd}
        rules = {"aggregator": FedAvg(), "local_optimizer": LocalSGD(lr=self.baseline_lr)}
        return {name: each | rules for name, each in both.items()}

    def split(self, data: FederatedDataModule, number: int) -> Callable[[int], FederatedDataModule]:
        """Return a function of the seed that deals the images out to so many clients."""
        return partial(data.repartition, IidPartitioner(number))

    @property
    def gradients(self) -> list[float]:
        """A quarter, half and all of the gradients of FedAsync."""
        return [self.max_rounds * self.local_steps * share for share in (0.25, 0.5, 1)]

    def rules(self, alpha: float, own: Aggregator | None) -> dict[str, Aggregator]:
        """Return FedAsync with constant, polynomial and hinged weights, and one more."""

        def decayed(version: int) -> float:
            return alpha / 2 if version + 1 >= self.decay_round else alpha

        return {
            "FedAsync": FedAsync(decayed),
            "FedAsync+Poly": FedAsync(decayed, Polynomial(a=0.5)),
            "FedAsync+Hinge": FedAsync(decayed, Hinge(a=10, b=4)),
            **({str(own): own} if own else {}),
        }

    def load(self, dataset: str) -> tuple[FederatedDataModule, Callable[[], PaperCNN]]:
        """Load the images, cut and shrunk, and make a function that makes the network."""

        def cut(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            images, *rest = batch
            edge = (images.shape[-1] - 24) // 2
            if edge < 0:
                raise ValueError(f"images must have 24 pixels or more, got {images.shape[-1]}")
            images = images[..., edge : edge + 24, edge : edge + 24]
            return functional.avg_pool2d(images, self.shrink), *rest

        data = FederatedDataModule(dataset, IidPartitioner(100), batch_size=50, transform=cut)
        data.setup()
        channels = data.train_data.gather(torch.tensor([0]))[0].shape[1]
        return data, lambda: PaperCNN(channels, 24 // self.shrink, self.width)


SIZES = {"paper": Size(), "small": Size(100, 30, 40, 0.3, width=8, shrink=2)}
