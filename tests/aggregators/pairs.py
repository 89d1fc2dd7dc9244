"""Small runs whose models are compared with those of other runs."""

import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.arrivals import FixedDurations
from fedlight.local_optimizers import LocalSGD

SIZES = [12, 7, 9, 16]
DURATIONS = FixedDurations([1.0, 0.8, 0.45, 0.2])
EXECUTORS = pytest.mark.parametrize("executor", ["sequential", "vectorized"])


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return functional.cross_entropy(self.net(x), y)


class Watch(Callback):
    def __init__(self) -> None:
        self.states = []

    def on_round_end(self, trainer, module):
        self.states.append(trainer.state)


def data():
    generator = torch.Generator().manual_seed(0)
    clients = [
        TensorDataset(
            torch.randn(size, 3, generator=generator, dtype=torch.float64) + client,
            torch.randint(2, (size,), generator=generator),
        )
        for client, size in enumerate(SIZES)
    ]
    return FederatedDataModule.from_client_datasets(clients, batch_size=4)


def fit(arrivals, aggregator, optimizer=None, executor="vectorized", **limits):
    watch = Watch()
    trainer = FedTrainer(
        arrivals=arrivals,
        aggregator=aggregator,
        local_optimizer=LocalSGD(0.05) if optimizer is None else optimizer,
        executor=executor,
        precision="64-true",
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=watch,
        **(limits or {"max_rounds": 4}),
    )
    trainer.fit(Net(), data())
    return watch.states


def same(ours, theirs):
    assert len(ours) == len(theirs) > 1
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.params, other.params)
        torch.testing.assert_close(one.buffers, other.buffers)
        assert torch.equal(one.counters, other.counters)
    assert not torch.allclose(ours[0].params, ours[-1].params, atol=1e-4)
