"""A problem whose optimum is known; `evidence.py` tries methods on it in seconds."""

from typing import Any

import torch
from lightning import LightningModule
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule


class Quadratic(LightningModule):
    """The loss is the sum over ten coordinates of a * (x - c)**2 / 2, c an example.

    The metric "error" is the Euclidean distance from the optimum.
    """

    def __init__(self) -> None:
        super().__init__()
        self.x, self.a = torch.nn.Parameter(torch.zeros(10)), torch.linspace(0.2, 1, 10)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return (self.a * (self.x - batch[0]) ** 2).sum(-1).mean() / 2

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("error", (self.x - batch[0]).norm())


def quadratics(num_clients: int, alike: bool = False) -> FederatedDataModule:
    """One example for each client, which grows with its number; or the same twenty for all.

    The validation data are the optimum, the mean of the clients' examples.
    """
    c = torch.randn(num_clients, 20 if alike else 1, 10, generator=torch.Generator().manual_seed(0))
    if alike:
        c = 1 + c[:1].expand_as(c) / 10
    else:
        c = c + torch.linspace(-1, 1, num_clients)[:, None, None]
    optimum = TensorDataset(c.mean((0, 1))[None])
    return FederatedDataModule.from_client_datasets(map(TensorDataset, c), 1, val_dataset=optimum)
