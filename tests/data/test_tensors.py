"""Subsets of tensors, at any depth, are read from their tensors and not one by one."""

import re

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset
from torch.utils.data import random_split as split

from fedlight import FedTrainer
from fedlight.aggregators import FedAvg
from fedlight.arrivals import SynchronousArrivals
from fedlight.data import ExampleList, ExampleTable, FederatedDataModule
from fedlight.data.examples import examples_of
from fedlight.executors import VectorizedExecutor
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression

X = torch.arange(40.0).reshape(20, 2)
Y = torch.arange(20) % 2
PAIRS = TensorDataset(X, Y)
NAMED = StackDataset(x=X, label=Y)


class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, row):
        return torch.tensor(float(row**2))


def nested():
    return Subset(Subset(Subset(PAIRS, range(4, 20)), torch.arange(10)), [9, -1, 0, 3])


@pytest.mark.parametrize(
    "dataset",
    [
        Subset(PAIRS, [3, 1, 1]),
        Subset(PAIRS, range(2, 18, 3)),
        Subset(PAIRS, np.array([5, -2])),
        Subset(PAIRS, torch.tensor([7])),
        nested(),
        *split(PAIRS, [13, 7], torch.Generator().manual_seed(0)),
        ConcatDataset([Subset(PAIRS, [2, 4]), PAIRS]),
        Subset(ConcatDataset([PAIRS, nested()]), [21, 0, 23]),
        Subset(NAMED, [8, 6]),
    ],
)
def test_subsets_have_the_examples_that_torch_reads(dataset):
    examples = examples_of([dataset])
    assert isinstance(examples, ExampleTable)
    assert examples.how_read == "batches are gathered from tensors"
    assert len(examples) == len(dataset)
    for row in range(len(dataset)):
        torch.testing.assert_close(examples[row], dataset[row], rtol=0, atol=0)


def test_subsets_of_one_data_set_lie_side_by_side():
    first, second = TensorDataset(X, Y), TensorDataset(-X, Y)
    parts = [Subset(first, [3]), Subset(first, [0, 2]), second, Subset(first, [1])]
    x, _ = examples_of(parts).gather(torch.tensor([0, 1, 2, 3, 23]))
    assert x[:, 0].tolist() == [6, 0, 4, 0, 2]


class Doubled(TensorDataset):
    def __getitem__(self, row):
        return tuple(2 * part for part in super().__getitem__(row))


class Shuffled(Subset):
    def __getitem__(self, row):
        return self.dataset[len(self) - 1 - row]

    def __getitems__(self, rows):
        return [self[row] for row in rows]


@pytest.mark.parametrize(
    ("datasets", "says"),
    [
        ([Subset(Squares(), [1])], r"they are read one at a time \(Subset of Squares\)"),
        ([Subset(Subset(Doubled(X), [1]), [0]), PAIRS], r"\(Subset of Subset of Doubled\)"),
        ([Shuffled(PAIRS, [0, 1])], r"one at a time \(Shuffled\)"),
        ([ConcatDataset([PAIRS, NAMED])], r"one at a time \(ConcatDataset\)"),
        (
            [PAIRS, Subset(TensorDataset(X, Y.float()), [0])],
            r"their tensors differ: \[\(2,\) float32, \(\) int64\], \[.*, \(\) float32\]",
        ),
        ([NAMED, PAIRS], r"their tensors differ: \[x: \(2,\) float32, label: .*\], \[\(2,\)"),
    ],
)
def test_other_data_sets_say_why_they_are_read_one_by_one(datasets, says):
    examples = examples_of(datasets)
    assert isinstance(examples, ExampleList)
    assert re.search(says, examples.how_read), examples.how_read


def test_overlapping_subsets_do_not_fill_the_memory(monkeypatch):
    overlapping = [Subset(PAIRS, range(20))] * 50
    assert isinstance(examples_of(overlapping), ExampleTable)
    monkeypatch.setattr("fedlight.data._tensors._REPEATED", 1000)
    examples = examples_of(overlapping)
    assert isinstance(examples, ExampleList)
    assert examples.how_read == "a table of their overlapping subsets would take 0.0 GiB"
    assert isinstance(examples_of([Subset(PAIRS, [0]), Subset(PAIRS, [1])]), ExampleTable)


def test_an_index_that_is_not_there():
    for dataset in (Subset(PAIRS, [20]), Subset(Subset(PAIRS, [3]), [1])):
        with pytest.raises(IndexError, match="has an index that is not in it"):
            examples_of([dataset])


def test_clients_that_random_split_makes_are_stacked():
    def trained(parts, **options):
        torch.manual_seed(0)
        module = LogisticRegression(2, 2)
        trainer = FedTrainer(
            arrivals=SynchronousArrivals(per_round=2, local_steps=3),
            aggregator=FedAvg(),
            local_optimizer=LocalSGD(lr=0.01),
            max_rounds=2,
            logger=False,
            enable_progress_bar=False,
            **options,
        )
        data = FederatedDataModule.from_client_datasets(parts, batch_size=2, val_dataset=parts[0])
        trainer.fit(module, data)
        return [p.detach().clone() for p in module.parameters()], data

    generator = torch.Generator().manual_seed(0)
    parts = split(split(PAIRS, [16, 4], generator)[0], [4, 4, 4, 4], generator)
    own = [
        TensorDataset(*(torch.stack(column) for column in zip(*part, strict=True)))
        for part in parts
    ]
    weights, data = trained(parts, executor=VectorizedExecutor())
    assert data.val_data.stackable
    assert all(map(torch.equal, weights, trained(own, executor=VectorizedExecutor())[0]))
