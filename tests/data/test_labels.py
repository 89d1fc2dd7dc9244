"""The labels of a torch data set, by which a partitioner divides it."""

from operator import itemgetter

import datasets
import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
)

from data_partitioners import (
    DirichletPartitioner,
    IidPartitioner,
    NaturalIdPartitioner,
    PathologicalPartitioner,
)
from fedlight import FederatedDataModule, plot
from fedlight.data import ExampleList
from fedlight.data._labels import labels_table

LABELS = [0, 1, 0, 2, 1, 2]


class Pictures(Dataset):
    """As the data sets of torchvision: examples are computed, and labels are an attribute."""

    def __init__(self, **attributes):
        self.read = []
        vars(self).update(attributes)

    def __len__(self):
        return 6

    def __getitem__(self, row):
        self.read.append(row)
        return torch.full((2,), float(row)), LABELS[row]


class Rows(Pictures):
    def __getitem__(self, row):
        x, y = super().__getitem__(row)
        return {"x": x, "digit": y, "noise": float(torch.rand(()))}


class Stream(IterableDataset):
    def __iter__(self):
        yield from LABELS


PAIRS = TensorDataset(torch.arange(6.0), torch.tensor(LABELS))


@pytest.mark.parametrize(
    "dataset",
    [
        Pictures(targets=LABELS),
        Pictures(targets=torch.tensor(LABELS)),
        Pictures(labels=np.array(LABELS, dtype=np.uint8)),
        PAIRS,
        Subset(Subset(Pictures(targets=[9, *LABELS[::-1]]), range(1, 7)), [5, 4, 3, 2, 1, 0]),
        ConcatDataset([Pictures(targets=LABELS), Subset(PAIRS, [])]),
        ConcatDataset([Subset(PAIRS, [0, 1, 2]), Subset(Pictures(labels=LABELS), [3, 4, 5])]),
        StackDataset(x=torch.zeros(6), label=torch.tensor(LABELS)),
        StackDataset(torch.zeros(6), torch.tensor(LABELS)),
    ],
)
def test_labels_that_a_data_set_is_known_to_have(dataset):
    table = labels_table(dataset, None)
    assert table.column_names == ["label"]
    assert list(table["label"]) == LABELS


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        tuple(LABELS),
        torch.tensor(LABELS),
        np.array(LABELS),
        datasets.Dataset.from_dict({"y": LABELS})["y"],
        itemgetter(1),
        lambda example: torch.tensor(example[1]),
    ],
)
def test_labels_that_are_given(labels):
    assert list(labels_table(Pictures(), labels)["label"]) == LABELS


def test_a_name_is_an_attribute_or_a_key_of_the_examples():
    ids = ["b", "a", "a", "b", "a", "b"]
    by_attribute = labels_table(Subset(Pictures(user=ids), [0, 1]), "user")
    assert by_attribute[:] == {"label": ["b", "a"], "user": ["b", "a"]}
    state = torch.get_rng_state()
    rows = Rows()
    assert labels_table(rows, "digit")[:] == {"label": LABELS, "digit": LABELS}
    assert rows.read == [0, 1, 2, 3, 4, 5]
    assert torch.equal(torch.get_rng_state(), state)


def test_several_columns():
    users = np.arange(6) % 2
    data = FederatedDataModule(
        Pictures(),
        NaturalIdPartitioner("user"),
        labels={"user": users, "digit": lambda example: example[1]},
    )
    data.setup()
    assert data.partition.client_ids == ("0", "1")
    assert data.partition[1].tolist() == [1, 3, 5]
    data = data.repartition(PathologicalPartitioner(3, 1, partition_by="digit"))
    assert sorted(sorted(LABELS[row] for row in rows) for rows in data.partition) == [
        [0, 0],
        [1, 1],
        [2, 2],
    ]


def test_who_needs_no_labels_reads_none():
    for attributes in ({}, {"targets": torch.eye(6)}, {"labels": ["only one"]}):
        pictures = Pictures(**attributes)
        data = FederatedDataModule(pictures, IidPartitioner(3))
        data.setup()
        assert data.partition.sizes.tolist() == [2, 2, 2]
        assert pictures.read == []


def test_the_examples_are_those_of_the_data_set():
    pictures = Pictures(targets=LABELS)
    data = FederatedDataModule(
        pictures,
        PathologicalPartitioner(3, 1),
        val_dataset=[PAIRS, Pictures()],
        test_dataset=PAIRS,
        collate_fn=None,
        transform=lambda batch: (batch[0] / 2, batch[1]),
    )
    assert repr(data).startswith("FederatedDataModule(Pictures of 6 examples, Path")
    data.setup()
    x, y = data.train_data.gather(torch.tensor([4, 1]))
    assert (x[:, 0].tolist(), y.tolist()) == ([2.0, 0.5], [1, 1])
    assert isinstance(data.train_data, ExampleList)
    assert [examples.stackable for examples in data.val_data] == [True, False]
    assert data.test_data.gather(torch.tensor([3]))[0].tolist() == [1.5]
    assert data.train_dataset is pictures
    for rows in data.partition:
        assert len({LABELS[row] for row in rows}) == 1
    again = FederatedDataModule(PAIRS, IidPartitioner(2), val_dataset=data.val_data[0])
    again.setup()
    assert again.val_data is data.val_data[0]


def test_a_picture_of_a_partition_of_tensors():
    data = FederatedDataModule(PAIRS, PathologicalPartitioner(3, 1))
    assert plot.partition(data).get_title() is not None
    assert data.partition.label_counts(LABELS).sum() == 6


def test_missing_labels_are_asked_for():
    data = FederatedDataModule(Pictures(), DirichletPartitioner(2, alpha=1.0))
    with pytest.raises(
        ValueError, match=r"needs labels that Pictures .*; write labels=… with"
    ) as e:
        data.setup()
    assert "row" not in str(e.value)
    assert e.value.__suppress_context__
    by_class = {"cls": lambda example: example[1]}
    data = FederatedDataModule(Pictures(), DirichletPartitioner(2, alpha=1.0), labels=by_class)
    remedy = r"column 'label', .* in \['cls'\]; write partition_by='cls' .* labels=\{'label': …\}"
    with pytest.raises(ValueError, match=remedy):
        data.setup()
    with pytest.raises(ValueError, match=r"needs labels .*; write labels=\{'user': …\} with one"):
        FederatedDataModule(Pictures(), NaturalIdPartitioner("user")).setup()
    data = FederatedDataModule(PAIRS, NaturalIdPartitioner("user"))
    with pytest.raises(ValueError, match=r"the column 'user'.* or labels=\{'user': …\}"):
        data.setup()
    # Numbers with a fraction are no classes.
    data = FederatedDataModule(
        TensorDataset(torch.zeros(6), torch.rand(6)), DirichletPartitioner(2, alpha=1.0)
    )
    with pytest.raises(ValueError, match="needs labels"):
        data.setup()


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0, 1], "labels must hold one label for each of the 6 examples of Pictures, got 2"),
        (one_hot(torch.tensor(LABELS)), r"shape \(6, 3\) and type int64; .* labels.argmax\(1\)"),
        ("digit", r"labels='digit' is neither an attribute .* \(tuple\); give an array"),
        ({"user": [1]}, r"labels\['user'\] must hold one label for each of the 6"),
        (5, "one number or text for each example"),
    ],
)
def test_labels_that_are_none(labels, says):
    with pytest.raises(ValueError, match=says):
        FederatedDataModule(Pictures(), IidPartitioner(2), labels=labels).setup()


def test_arguments_of_the_other_kind_are_refused():
    with pytest.raises(ValueError, match=r"^columns=\('x', 'y'\), val_split='valid': a torch data"):
        FederatedDataModule(PAIRS, IidPartitioner(2), columns=("x", "y"), val_split="valid")
    with pytest.raises(ValueError, match=r"labels=\[0\] are for a torch data set; .*partition_by="):
        FederatedDataModule("mnist-mini", IidPartitioner(2), labels=[0])
    with pytest.raises(TypeError, match="needs a torch data set for the clients"):
        FederatedDataModule("mnist-mini", IidPartitioner(2), val_dataset=[PAIRS])
    with pytest.raises(TypeError, match="got Stream, which can only be iterated over; read it onc"):
        FederatedDataModule(Stream(), IidPartitioner(2))
    with pytest.raises(TypeError, match=r"val_dataset must be a map-style data set.*got Stream"):
        FederatedDataModule(PAIRS, IidPartitioner(2), val_dataset=Stream())
