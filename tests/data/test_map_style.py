"""What a user may hand over as the clients' data sets, and the sentence that each mistake gets."""

import datasets
import numpy as np
import pandas
import pyarrow
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, StackDataset, TensorDataset

from data_partitioners import IidPartitioner, Partitioner
from fedlight.data import ExampleList, ExampleTable, FederatedDataModule

HF = datasets.Dataset.from_dict({"x": [0.0, 1.0, 2.0, 3.0], "y": [0, 1, 0, 1]})
X, Y = np.ones((3, 2)), np.ones(3)
of = FederatedDataModule.from_client_datasets


def tensors(number):
    return TensorDataset(torch.ones(number, 2))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ([(X, Y)], TypeError, r"datasets\[0\] \(client 0\) is a tuple of arrays; write Tensor"),
        ([tensors(1), (torch.ones(3), Y)], TypeError, r"datasets\[1\] .*is a tuple of arrays"),
        ([[X, Y]], TypeError, r"datasets\[0\] .*is a list of arrays; write TensorDataset"),
        ([[torch.ones(3, 2), torch.ones(3)]], TypeError, "is a list of tensors; write Tensor"),
        ([{"x": X, "y": Y}], TypeError, r"is a dict with the keys \['x', 'y'\]; .*StackDataset"),
        ([pandas.DataFrame({"x": [1]})], TypeError, "is a DataFrame; write datasets.Dataset.from"),
        ({"ann": HF, "bob": "text"}, TypeError, r"datasets\['bob'\] is the text 'text'"),
        ([datasets.DatasetDict(train=HF)], TypeError, r"give one of its splits \['train'\]"),
        ([b"abc"], TypeError, r"datasets\[0\] .*is bytes, whose examples would be single bytes"),
        ([pyarrow.table({"x": [1]})], TypeError, r"is a Table of pyarrow; write datasets.Dataset"),
        ([[DataLoader(HF)]], TypeError, r"a list of DataLoaders; give .* loader.dataset"),
        ([[tensors(1), tensors(2)]], TypeError, "a list of data sets; write .*ConcatDataset"),
        ([Stream()], TypeError, "must be a map-style data set, .*got Stream"),
        ([DataLoader(HF)], TypeError, "must be a map-style data set, .*got DataLoader"),
        (
            datasets.DatasetDict(train=HF),
            TypeError,
            r"the splits \['train'\], which are no clients",
        ),
        (tensors(3), TypeError, r"got a single TensorDataset; write \[data\] for one client"),
        (HF, TypeError, "got a single Dataset"),
        (torch.ones(3, 2), TypeError, "got a single Tensor"),
        (pandas.DataFrame({"x": [1]}), TypeError, "got a single DataFrame"),
        ("abc", TypeError, "got a single str"),
        (None, TypeError, "must be a sequence with one data set per client, got None"),
        ({1: tensors(1), "1": tensors(2)}, ValueError, "two clients have the same name"),
        ({}, ValueError, "must hold one data set per client, got none"),
        (iter(()), ValueError, "must hold one data set per client, got none"),
        ({"ann": []}, ValueError, r"datasets\['ann'\] is empty"),
    ],
)
def test_data_sets_that_are_none(given, error, says):
    with pytest.raises(error, match=says):
        of(given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((X, Y), "val_dataset is a tuple of arrays"),
        ({"x": X, "y": Y}, "val_dataset is a dict with the keys"),
        ([HF, 3], r"val_dataset\[1\] must be a map-style data set"),
        ({"a": HF, "b": datasets.DatasetDict(t=HF)}, "val_dataset is a dict with the keys"),
    ],
)
def test_validation_data_sets_that_are_none(given, says):
    with pytest.raises(TypeError, match=says):
        of([HF], val_dataset=given)


def test_a_mapping_keeps_the_names_of_the_clients():
    data = of({"ann": tensors(2), "bob": tensors(3)})
    assert data.partition.client_ids == ("ann", "bob")
    assert data.partition.sizes.tolist() == [2, 3]
    assert len(data.train_data) == 5


def test_a_generator_of_data_sets():
    data = of(tensors(n) for n in (2, 3))
    assert data.partition.sizes.tolist() == [2, 3]
    assert isinstance(data.train_data, ExampleTable)


def test_examples_by_number_are_a_data_set():
    data = of([{0: 1.0, 1: 2.0}, [torch.ones(2), torch.zeros(2)]])
    assert data.partition.sizes.tolist() == [2, 2]
    assert isinstance(data.train_data, ExampleList)


def test_named_tensors_become_a_table_of_dicts():
    parts = [
        StackDataset(x=torch.full((n, 2), float(n)), labels=torch.full((n,), n)) for n in (1, 2)
    ]
    data = of(parts)
    assert isinstance(data.train_data, ExampleTable)
    batch = data.train_data.gather(torch.tensor([[2], [0]]))
    assert batch["x"].tolist() == [[[2.0, 2.0]], [[1.0, 1.0]]]
    assert batch["labels"].tolist() == [[2], [1]]
    positions = of([StackDataset(torch.ones(2, 3), torch.ones(2))]).train_data
    assert [part.shape for part in positions.gather(torch.tensor([0]))] == [(1, 3), (1,)]
    other = of([parts[0], StackDataset(x=torch.ones(1, 2), y=torch.ones(1))])
    assert isinstance(other.train_data, ExampleList)


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (pandas.DataFrame({"x": [1]}), "got DataFrame; write datasets.Dataset.from_pandas"),
        (
            {"x": [1]},
            r"got .'x': .1.}; for columns write datasets.Dataset.from_dict\(dataset\)",
        ),
        (HF.to_iterable_dataset(), "got IterableDataset; .*without streaming=True"),
        (X, r"got ndarray; write TensorDataset\(\*map\(torch.as_tensor, \(x, y\)\)\)"),
        ((X, X[:, 0]), r"; write TensorDataset\(\*map\(torch.as_tensor, \(x, y\)\)\)"),
        ([HF, HF], "; for a list of torch data sets"),
    ],
)
def test_a_source_that_is_none(dataset, says):
    with pytest.raises(TypeError, match=says):
        FederatedDataModule(dataset, IidPartitioner(2))


def test_a_partitioner_that_returns_lists():
    class Lists(Partitioner):
        def partition(self, dataset, seed=0):
            return [[0, 1], [2, 3]]

    with pytest.raises(TypeError, match=r"returned list; .*return a data_partitioners.Partition"):
        FederatedDataModule(HF, Lists()).setup()
    data = FederatedDataModule(HF, IidPartitioner(2))
    with pytest.raises(TypeError, match="returned list"):
        data.repartition(Lists())


def test_the_class_of_a_partitioner():
    with pytest.raises(TypeError, match="is a class; call it"):
        FederatedDataModule(HF, IidPartitioner)


@pytest.mark.parametrize("several", [[HF, HF.select([0])], {"a": HF, "b": HF.select([0])}])
def test_several_data_sets_for_validation_and_test(several):
    data = FederatedDataModule(HF, IidPartitioner(2), val_dataset=several, test_dataset=several)
    data.setup()
    for made in (data, of([HF], val_dataset=several, test_dataset=several)):
        assert [len(each) for each in made.val_data] == [4, 1]
        assert [len(each) for each in made.test_data] == [4, 1]
        assert [len(loader.dataset) for loader in made.val_dataloader()] == [4, 1]
    assert [len(each) for each in data.val_dataset] == [4, 1]


@pytest.mark.parametrize("value", [[HF, 3], [], {}, "test", HF.to_iterable_dataset()])
def test_several_data_sets_must_be_data_sets(value):
    with pytest.raises(TypeError, match=r"val_dataset must be a datasets\.Dataset, or several"):
        FederatedDataModule(HF, IidPartitioner(2), val_dataset=value)


def test_the_repr_says_what_it_holds():
    data = FederatedDataModule(HF, IidPartitioner(2), batch_size=3, val_dataset=[HF, HF])
    start = (
        "FederatedDataModule(Dataset of 4 rows, IidPartitioner(num_partitions=2), batch_size=3, "
    )
    assert repr(data) == str(data) == f"{start}not loaded yet)"
    data.setup()
    assert repr(data) == f"{start}2 clients with 2 examples, 4 + 4 for validation)"
    own = of([tensors(1), tensors(5)], test_dataset=tensors(2))
    assert repr(own) == (
        "FederatedDataModule(batch_size=64, 2 clients with 1 to 5 examples, 2 for test)"
    )
    splits = FederatedDataModule(datasets.DatasetDict(train=HF), IidPartitioner(1))
    assert "DatasetDict of train: 4" in repr(splits)
    assert repr(FederatedDataModule("mnist-mini", IidPartitioner(1))).startswith(
        "FederatedDataModule('mnist-mini', "
    )


def test_loaders_and_frames_are_no_validation_data():
    with pytest.raises(TypeError, match=r"val_dataset is a list of DataLoaders; give the data s"):
        of([tensors(1)], val_dataset=[DataLoader(HF), DataLoader(HF)])
    with pytest.raises(TypeError, match=r"val_dataset .*got DataFrame; write datasets.Dataset.fro"):
        FederatedDataModule(HF, IidPartitioner(2), val_dataset=pandas.DataFrame({"x": [1]}))
    with pytest.raises(TypeError, match=r"got Table; write datasets.Dataset\(dataset\)"):
        FederatedDataModule(pyarrow.table({"x": [1]}), IidPartitioner(2))
