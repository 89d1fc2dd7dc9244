"""A run of a study has the same bits alone, with other seeds, and with all runs of a study."""

from functools import cache

import pytest
import torch
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule, sweep
from fedlight.aggregators import FedAsync, FedBuff
from fedlight.arrivals import ContinuousArrivals, ExponentialDurations
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression


def data() -> FederatedDataModule:
    random = torch.Generator().manual_seed(0)
    x = [torch.randn(30, 20, generator=random) for _ in range(50)]
    return FederatedDataModule.from_client_datasets(
        [TensorDataset(each, (each[:, 0] > 0).long()) for each in x], batch_size=30
    )


AGGREGATORS = {"FedAsync": FedAsync(alpha=0.5), "FedBuff": FedBuff(5)}


@cache
def fingerprints(names, seeds, workers):
    study = sweep(
        over={"aggregator": {name: AGGREGATORS[name] for name in names}},
        seeds=seeds,
        module=lambda: LogisticRegression(20, 2),
        datamodule=data(),
        arrivals=ContinuousArrivals(ExponentialDurations(1.0), local_steps=3),
        local_optimizer=LocalSGD(lr=0.1),
        executor="vectorized",
        max_updates=30,
        metric="train_loss",
        workers=workers,
        accelerator="cpu",
    )
    return {(run.cell["aggregator"], run.seed): run.fingerprint for run in study.runs}


@pytest.mark.parametrize("name", AGGREGATORS)
def test_company_of_other_runs_changes_no_bit(name):
    alone = fingerprints((name,), (0,), "together")
    some = fingerprints((name,), range(3), "together")
    every = fingerprints(tuple(AGGREGATORS), range(3), "together")
    assert len(set(every.values())) == 6
    assert alone.items() <= some.items() <= every.items()
    assert fingerprints((name,), (0,), 1) == alone
