"""When a validation is due."""

import pytest
import torch
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import AFACD, Aggregator, FedAsync, FedAvg, FedBuff, FedFix, next_version
from fedlight.arrivals import ContinuousArrivals, FixedDurations, SynchronousArrivals
from fedlight.local_optimizers import LocalSGD
from fedlight.types import UsedUpdate
from tests.boring import Point


class Own(Aggregator):
    """Makes a version of each update and declares nothing."""

    def __repr__(self):
        return "Own()"

    def receive(self, update):
        self.update = update
        return True

    def step(self, state):
        return next_version(state, state.params, [UsedUpdate(self.update, 1.0)])


def validated(aggregator, clients=12, arrivals=None, updates=48, **options):
    """The rounds that have a validation."""
    data = FederatedDataModule.from_client_datasets(
        [TensorDataset(torch.tensor([float(c)])) for c in range(clients)],
        batch_size=1,
        val_dataset=TensorDataset(torch.tensor([0.0])),
    )
    trainer = FedTrainer(
        arrivals=arrivals or ContinuousArrivals(FixedDurations([1.0] * clients)),
        aggregator=aggregator,
        local_optimizer=LocalSGD(lr=0.1),
        max_updates=updates,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        **options,
    )
    trainer.fit(Point(), data)
    return [record.version for record in trainer.history if "val_error" in record.metrics]


@pytest.mark.parametrize(
    ("aggregator", "clients", "expected"),
    [
        (FedAsync(alpha=0.5), 12, [10, 20, 30, 40]),
        (FedAsync(alpha=0.5), 3, [*range(3, 49, 3)]),  # not rarer than once for each client
        (FedBuff(buffer_size=4), 12, [3, 5, 8, 10]),  # 12, 20, 32 and 40 updates
        (FedBuff(buffer_size=10), 12, [1, 2, 3, 4]),
        (FedFix(interval=1.0), 12, [1, 2, 3]),
        (Own(), 12, [10, 20, 30, 40]),
    ],
    ids=repr,
)
def test_by_default_a_validation_comes_after_ten_updates_at_least(aggregator, clients, expected):
    assert validated(aggregator, clients) == expected


@pytest.mark.parametrize("aggregator", [FedAvg(), AFACD()], ids=repr)
def test_by_default_rounds_of_the_arrivals_are_all_validated(aggregator):
    arrivals = SynchronousArrivals(per_round=2)
    assert validated(aggregator, arrivals=arrivals, updates=9) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"check_val_every_n_rounds": 1}, [*range(1, 49)]),
        ({"check_val_every_n_rounds": 20}, [20, 40]),
        ({"check_val_every_n_rounds": None}, []),
        ({"check_val_every_n_updates": 16}, [16, 32, 48]),
        ({"check_val_every_n_rounds": None, "check_val_every_n_updates": 40}, [40]),
        ({"fast_dev_run": 2}, [1, 2]),
    ],
    ids=repr,
)
def test_an_interval_of_ones_own(options, expected):
    assert validated(FedAsync(alpha=0.5), **options) == expected


def test_other_values_are_refused():
    with pytest.raises(ValueError, match="None for never or \"auto\", got 'often'"):
        validated(FedAsync(alpha=0.5), check_val_every_n_rounds="often")
    with pytest.raises(ValueError, match="give one of the two"):
        validated(FedAsync(alpha=0.5), check_val_every_n_rounds=1, check_val_every_n_updates=3)
