"""Labels outside the classes, batches of another form: the error says what the data are."""

import re

import datasets
import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import StackDataset, TensorDataset

from data_partitioners import IidPartitioner
from fedlight import FederatedDataModule
from fedlight._module.labels import hint_about
from fedlight.arrivals import SynchronousArrivals
from fedlight.executors import ClientError, SequentialExecutor, VectorizedExecutor
from tests.boring import fitted, trainer, workplace

EXECUTORS = ("sequential", "vectorized", "auto")


class Ten(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 10)

    def training_step(self, batch, batch_idx):
        x, y = batch.values() if isinstance(batch, dict) else batch
        return functional.cross_entropy(self.net(x), y)


class Two(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return functional.cross_entropy(self.net(x), y)


class Words(LightningModule):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 2)

    def training_step(self, batch, batch_idx):
        return self.words(batch[0]).mean()


def data(labels, kind=TensorDataset):
    y = torch.tensor(labels)
    x = torch.ones(len(y), 4)
    client = StackDataset(x=x, labels=y) if kind is StackDataset else kind(x, y)
    return FederatedDataModule.from_client_datasets([client] * 2, batch_size=len(y))


def failed(module, labels, executor, **kwargs):
    # "vectorized" tries a step before the first round
    with pytest.raises((ClientError, ValueError)) as caught:
        fitted(module, data(labels, **kwargs), executor=executor)
    return str(caught.value)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_labels_that_start_at_one(executor):
    message = failed(Ten(), list(range(1, 11)), executor)
    assert "out of bounds" in message
    assert "The client's integers are batch[1] from 1 to 10; 10 classes have the labels 0 … 9" in (
        message
    )
    assert message.rstrip(")").endswith("subtract 1 from each")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_labels_above_and_below(executor):
    message = failed(Ten(), [0, 3, 17], executor)
    assert "batch[1] from 0 to 17" in message
    assert "subtract" not in message
    assert "batch[1] from -1 to 3" in failed(Ten(), [0, 3, -1], executor)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_labels_in_a_dict_are_named_by_their_key(executor):
    message = failed(Ten(), list(range(1, 11)), executor, kind=StackDataset)
    assert "batch['labels'] from 1 to 10" in message


@pytest.mark.parametrize("executor", [SequentialExecutor(), VectorizedExecutor()])
def test_tokens_outside_of_an_embedding(executor):
    clients = [TensorDataset(torch.tensor([[1, 7], [2, 3]]))] * 2
    tokens = FederatedDataModule.from_client_datasets(clients, batch_size=2)
    with pytest.raises((ClientError, ValueError), match=r"integers are batch\[0\] from 1 to 7"):
        fitted(Words(), tokens, executor=executor)


def test_other_errors_get_no_hint():
    rows = torch.arange(3).numpy()
    examples = workplace(Ten(), data([1, 2, 3])).examples
    assert hint_about(ValueError("no"), examples, rows) == ""
    assert "from 1 to 3" in hint_about(IndexError("index out of range in self"), examples, rows)

    class Broken:
        def gather(self, rows):
            raise OSError

    assert hint_about(IndexError("Target 10 is out of bounds."), Broken(), rows) == ""
    floats = data([1.0, 2.0])
    floats.setup()
    assert hint_about(IndexError("Target 1 is out of bounds."), floats.train_data, rows[:2]) == ""


def test_the_row_of_an_example_that_fails_is_in_the_message():
    class Fails(list):
        def __getitem__(self, row):
            raise OSError("broken")

    clients = FederatedDataModule.from_client_datasets([Fails([1, 2]), [3, 4]], batch_size=1)
    with pytest.raises(
        ClientError, match=r"OSError: broken \(while reading row \d of datasets\[0\]"
    ):
        fitted(Ten(), clients)


class Validates(Ten):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", super().training_step(batch, batch_idx))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", super().training_step(batch, batch_idx))


@pytest.mark.parametrize("verb", ["fit", "validate", "test"])
def test_labels_of_validation_and_test_data(verb):
    good, bad = ([*range(10)], [*range(1, 11)])
    x = torch.ones(10, 4)
    sets = FederatedDataModule.from_client_datasets(
        [TensorDataset(x, torch.tensor(good))],
        val_dataset=TensorDataset(x, torch.tensor(bad)),
        test_dataset=TensorDataset(x, torch.tensor(bad)),
    )
    with pytest.raises(IndexError, match="Target 10 is out of bounds") as caught:
        getattr(trainer(arrivals=SynchronousArrivals()), verb)(Validates(), sets)
    (note,) = caught.value.__notes__
    assert note.startswith("(The batch's integers are batch[1] from 1 to 10; ")


class Named(Ten):
    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self.net(batch["x"]), batch["labels"])


class Numbered(Ten):
    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self.net(batch[0]), batch[1])


class Unpacks(Ten):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return functional.cross_entropy(self.net(x), y)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_tuple_that_is_taken_for_a_dict(executor):
    message = failed(Named(), [0, 1], executor)
    assert "A batch of these data is a tuple of 2 parts; for one that is a dict write " in message


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("module", [Numbered, Unpacks])
def test_a_dict_that_is_taken_for_a_tuple(module, executor):
    message = failed(module(), [0, 1], executor, kind=StackDataset)
    assert "A batch of these data is a dict with the keys ['x', 'labels']" in message


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_batch_of_more_parts_than_a_step_unpacks(executor):
    """The remedy that the error names is the one that works."""
    ages = {"age": [0.0, 1.0, 2.0, 3.0], "income": [3.0, 2.0, 1.0, 0.0], "label": [0, 1, 0, 1]}
    given = {"columns": (("age", "income"), "label"), "batch_size": 2, "val_split": None}
    table = datasets.Dataset.from_dict(ages)
    people = FederatedDataModule(table, IidPartitioner(2), **given)
    with pytest.raises((ClientError, ValueError)) as raised:
        fitted(Two(), people, executor=executor)
    assert "A batch of these data is a tuple of 3 parts; to make one input" in str(raised.value)
    remedy = re.search(r"transform=(.*batch\[-1\]\))\)", str(raised.value))
    assert remedy is not None
    joined = FederatedDataModule(
        table, IidPartitioner(2), **given, transform=eval(remedy[1], {"torch": torch})
    )
    assert fitted(Two(), joined, executor=executor, max_rounds=2).version == 2


def test_a_batch_of_fewer_parts_and_what_is_unpacked_elsewhere():
    rows = torch.arange(2).numpy()
    examples = workplace(Ten(), data([1, 2])).examples
    short = ValueError("not enough values to unpack (expected 3, got 2)")
    assert hint_about(short, examples, rows) == ". A batch of these data is a tuple of 2 parts"
    assert hint_about(ValueError("too many values to unpack (expected 2)"), examples, rows) == ""


def test_a_key_that_is_not_there_and_a_key_error_of_something_else():
    class Elsewhere(Named):
        def training_step(self, batch, batch_idx):
            return {}["x"]

    class Misspelt(Named):
        def training_step(self, batch, batch_idx):
            return batch["label"].float().mean()

    assert "the keys ['x', 'labels']" in failed(Misspelt(), [0, 1], "sequential", kind=StackDataset)
    assert "the keys" not in failed(Elsewhere(), [0, 1], "sequential", kind=StackDataset)
