"""The cost of a local step does not depend on the number of clients, for every kind of data.

Work is counted: calls of functions, in Python and in C, and bytes that are allocated at once, which
show what a single call converts or copies.
"""

import gc
import sys
import tracemalloc

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split

from data_partitioners import IidPartitioner
from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import FedAvg
from fedlight.arrivals import UniformArrivals
from fedlight.callbacks import Callback
from fedlight.executors._stack.batches import batch_rows
from fedlight.executors.base import trial_task
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression


@pytest.fixture(autouse=True)
def no_collections():
    """No garbage of other tests is taken away, and counted, within these."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Pairs(Dataset):
    def __init__(self, number):
        self.number = number

    def __len__(self):
        return self.number

    def __getitem__(self, row):
        return torch.tensor([float(row)]), row % 2


def of(clients):
    return FederatedDataModule.from_client_datasets(clients, batch_size=2)


def tensors(number):
    return TensorDataset(torch.arange(float(number))[:, None], torch.arange(number) % 2)


def shares(data, clients):
    return [Subset(data, range(2 * i, 2 * i + 2)) for i in range(clients)]


KINDS = {
    "tensors of each": lambda m: of([tensors(2)] * m),
    "tensors of two shapes": lambda m: of([tensors(2)] * (m - 1) + [Pairs(2)]),
    "subsets of tensors": lambda m: of(shares(tensors(2 * m), m)),
    "nested subsets of tensors": lambda m: of(
        random_split(Subset(tensors(3 * m), range(2 * m)), [2] * m)
    ),
    "subsets of examples": lambda m: of(shares(Pairs(2 * m), m)),
    "concatenations": lambda m: of([ConcatDataset([Pairs(1), Pairs(1)])] * m),
    "lists": lambda m: of([[(torch.zeros(1), 0), (torch.ones(1), 1)]] * m),
    "named clients": lambda m: of({f"client {i}": Pairs(2) for i in range(m)}),
    "tensors with a partitioner": lambda m: FederatedDataModule(
        tensors(2 * m), IidPartitioner(m), batch_size=2
    ),
    "examples with a partitioner": lambda m: FederatedDataModule(
        Pairs(2 * m), IidPartitioner(m), batch_size=2
    ),
    "concatenation with a partitioner": lambda m: FederatedDataModule(
        ConcatDataset([Pairs(2)] * m), IidPartitioner(m), batch_size=2
    ),
    "columns with a partitioner": lambda m: FederatedDataModule(
        datasets.Dataset.from_dict({"x": np.arange(2.0 * m), "y": np.arange(2 * m) % 2}),
        IidPartitioner(m),
        batch_size=2,
    ),
}


def step(data, client):
    rows = batch_rows(data.partition, [trial_task(client, 1)], 2, seed=0)
    return data.train_data.gather(torch.from_numpy(rows[0, 0]))


def work(make, clients):
    """The calls and the bytes of the batch of a local step."""
    data = make(clients)
    data.setup()
    client = clients // 2
    for _ in range(3):  # so that what is made at first use is there
        step(data, client)
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    step(data, client)
    sys.setprofile(None)
    tracemalloc.start()
    step(data, client)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return calls, most


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_costs_the_same_with_more_clients(kind):
    few_calls, few_bytes = work(KINDS[kind], 100)
    calls, most = work(KINDS[kind], 10_000)
    assert calls <= few_calls
    # A list of all clients would have 80 kB at least.
    assert most < few_bytes + 4000


class Rounds(Callback):
    """Counts the calls in some rounds, and the bytes that are allocated at once in some others."""

    def __init__(self):
        self.calls = self.most = 0

    def on_round_end(self, trainer, module):
        if trainer.version == 4:
            sys.setprofile(self.count)
        elif trainer.version == 8:
            sys.setprofile(None)
        elif trainer.version == 9:
            tracemalloc.start()
        elif trainer.version == 12:
            _, self.most = tracemalloc.get_traced_memory()
            tracemalloc.stop()

    def count(self, frame, event, argument):
        self.calls += event in ("call", "c_call")


@pytest.mark.parametrize("kind", ["subsets of tensors", "subsets of examples"])
def test_a_round_costs_the_same_with_more_clients(kind):
    found = []
    for clients in (100, 10_000):
        counted = Rounds()
        trainer = FedTrainer(
            arrivals=UniformArrivals(per_round=3, local_steps=2),
            aggregator=FedAvg(),
            local_optimizer=LocalSGD(lr=0.1),
            max_rounds=12,
            callbacks=[counted],
            logger=False,
            enable_progress_bar=False,
        )
        trainer.fit(LogisticRegression(1, 2), KINDS[kind](clients))
        found.append(counted)
    few, many = found
    assert few.calls > 100
    assert many.calls < 1.05 * few.calls
    assert many.most < few.most + 20_000
