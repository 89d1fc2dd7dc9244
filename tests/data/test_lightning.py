"""`FederatedDataModule.from_lightning` and the loaders that it refuses."""

import datasets
import pytest
import torch
from lightning import LightningDataModule
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from data_partitioners import IidPartitioner, PathologicalPartitioner
from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import FedAvg
from fedlight.arrivals import SynchronousArrivals
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression

X = torch.arange(24.0).reshape(12, 2)
Y = torch.arange(12) % 3
PAIRS = TensorDataset(X, Y)


def halved(examples):
    x, y = zip(*examples, strict=True)
    return torch.stack(x) / 2, torch.stack(y)


class Own(LightningDataModule):
    """As in Lightning's guide: data sets are made in `setup`."""

    def __init__(self, **loader):
        super().__init__()
        self.loader = {"batch_size": 4, "shuffle": True, **loader}
        self.calls = []

    def prepare_data(self):
        self.calls.append("prepare_data")

    def setup(self, stage):
        self.calls.append(stage)
        if stage == "fit":
            generator = torch.Generator().manual_seed(0)
            self.train, self.val = random_split(PAIRS, [9, 3], generator)
        else:
            self.test = TensorDataset(X[:2], Y[:2])

    def train_dataloader(self):
        return DataLoader(self.loader.pop("dataset", self.train), **self.loader)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=2)

    def test_dataloader(self):
        return DataLoader(self.test, batch_size=5, collate_fn=halved)


def test_all_parts_are_taken():
    own = Own()
    data = FederatedDataModule.from_lightning(own, PathologicalPartitioner(3, 1))
    data.setup()
    assert own.calls == ["prepare_data", "fit", "test"]
    assert (data.batch_size, data.eval_batch_size, data.num_clients) == (4, 5, 3)
    assert data.train_data.stackable
    for rows in data.partition:
        x, y = data.train_data.gather(torch.from_numpy(rows))
        assert len(set(y.tolist())) == 1
        assert torch.equal((x[:, 0] / 2 % 3).long(), y)
    torch.testing.assert_close(data.val_data[1], own.val[1])
    assert data.test_data.gather(torch.tensor([1]))[0].tolist() == [[1.0, 1.5]]
    other = FederatedDataModule.from_lightning(
        Own(), IidPartitioner(2), labels=list("aaabbbccc"), batch_size=1, eval_batch_size=7
    )
    other.setup()
    assert (other.batch_size, other.eval_batch_size) == (1, 7)
    assert other.repartition(PathologicalPartitioner(3, 1)).partition.sizes.tolist() == [3, 3, 3]


def test_it_trains():
    torch.manual_seed(0)
    trainer = FedTrainer(
        arrivals=SynchronousArrivals(per_round=2, local_steps=2),
        aggregator=FedAvg(),
        local_optimizer=LocalSGD(lr=0.01),
        max_rounds=2,
        logger=False,
        enable_progress_bar=False,
    )
    data = FederatedDataModule.from_lightning(Own(collate_fn=halved), IidPartitioner(3))
    trainer.fit(LogisticRegression(2, 3), data)
    assert "val_acc" in trainer.callback_metrics
    assert "test_acc" in trainer.test()[0]
    with pytest.raises(TypeError, match=r"got Own; write FederatedDataModule\.from_lightning"):
        trainer.fit(LogisticRegression(2, 3), Own())
    with pytest.raises(TypeError, match=r"got Own; write FederatedDataModule\.from_lightning"):
        FederatedDataModule(Own(), IidPartitioner(2))


@pytest.mark.parametrize("kind", [list, tuple, lambda pair: dict(zip("ab", pair, strict=True))])
def test_several_validation_loaders(kind):
    class Several(Own):
        def val_dataloader(self):
            return kind([DataLoader(self.val, 2), DataLoader(PAIRS, 50, collate_fn=halved)])

    class Combined(Own):
        def val_dataloader(self):
            return CombinedLoader(Several.val_dataloader(self), "sequential")

    for own in (Several(), Combined()):
        data = FederatedDataModule.from_lightning(own, IidPartitioner(3))
        data.setup()
        assert [len(examples) for examples in data.val_data] == [3, 12]
        assert data.val_data[1].gather(torch.tensor([2]))[0].tolist() == [[2.0, 2.5]]
        assert data.eval_batch_size == 50


def test_only_training_data():
    own = LightningDataModule.from_datasets(PAIRS, batch_size=3)
    data = FederatedDataModule.from_lightning(own, IidPartitioner(3))
    data.setup()
    assert (data.val_data, data.test_data, data.batch_size) == (None, None, 3)


def test_data_sets_of_the_hub_and_lists_keep_their_batches():
    table = datasets.Dataset.from_dict({"x": X.numpy(), "label": Y.numpy()}).with_format("torch")
    for source, labels in ((table, None), (table, "label"), (list(table), "label")):
        data = FederatedDataModule.from_lightning(
            Own(dataset=source), PathologicalPartitioner(3, 1), labels
        )
        data.setup()
        batch = data.train_data.gather(torch.from_numpy(data.partition[0]))
        assert set(batch) == {"x", "label"}
        assert len(set(batch["label"].tolist())) == 1


def test_a_subset_of_a_sampler():
    own = Own(shuffle=False, dataset=PAIRS, sampler=SubsetRandomSampler([0, 3, 6, 7]))
    data = FederatedDataModule.from_lightning(own, PathologicalPartitioner(2, 1))
    data.setup()
    assert data.train_data.gather(torch.arange(4))[1].tolist() == [0, 0, 0, 1]
    assert data.train_data.stackable


class Stream(IterableDataset):
    def __iter__(self):
        yield from PAIRS


class Backwards(Sampler):
    def __iter__(self):
        return iter(range(11, -1, -1))

    def __len__(self):
        return 12


@pytest.mark.parametrize(
    ("loader", "error", "says"),
    [
        ({"sampler": WeightedRandomSampler([1.0] * 9, 9)}, ValueError, "Weighted.* would be lost;"),
        ({"sampler": RandomSampler(PAIRS, replacement=True)}, ValueError, "has a RandomSampler th"),
        ({"sampler": RandomSampler(PAIRS, num_samples=4)}, ValueError, "has a RandomSampler that"),
        ({"sampler": Backwards()}, ValueError, "has a Backwards that chooses"),
        (
            {"batch_sampler": BatchSampler(Backwards(), 2, False), "batch_size": 1},
            ValueError,
            "has a batch_sampler, but",
        ),
        ({"batch_size": None}, ValueError, "has batch_size=None, but"),
        ({"dataset": Stream()}, TypeError, "Stream, which can only be iterated over; read it once"),
    ],
)
def test_loaders_that_a_federation_cannot_use(loader, error, says):
    own = Own(**{"shuffle": False, "dataset": PAIRS, **loader})
    with pytest.raises(error, match=rf"Own\.train_dataloader\(\).*{says}"):
        FederatedDataModule.from_lightning(own, IidPartitioner(2))


def test_data_modules_that_have_no_such_loaders():
    class Two(Own):
        def train_dataloader(self):
            return [DataLoader(PAIRS), DataLoader(PAIRS)]

    class Plain(Own):
        def val_dataloader(self):
            return [[(X, Y)]]

    class Moved(Own):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch

    with pytest.raises(ValueError, match=r"returned 2 loaders, .*ConcatDataset"):
        FederatedDataModule.from_lightning(Two(), IidPartitioner(2))
    with pytest.raises(TypeError, match=r"Plain\.val_dataloader\(\) returned list, .*DataLoader, "):
        FederatedDataModule.from_lightning(Plain(), IidPartitioner(2))
    with pytest.raises(ValueError, match="LightningDataModule has no train_dataloader"):
        FederatedDataModule.from_lightning(LightningDataModule(), IidPartitioner(2))
    with pytest.raises(TypeError, match=r"must be a lightning\.LightningDataModule, got .*Tensor"):
        FederatedDataModule.from_lightning(PAIRS, IidPartitioner(2))
    with pytest.raises(TypeError, match="got the class Own; call it"):
        FederatedDataModule.from_lightning(Own, IidPartitioner(2))
    federated = FederatedDataModule(PAIRS, IidPartitioner(2))
    with pytest.raises(TypeError, match=r"already; write datamodule\.repartition\(partitioner\)"):
        FederatedDataModule.from_lightning(federated, IidPartitioner(3))
    with pytest.warns(UserWarning, match=r"Moved\.on_after_batch_transfer is not called"):
        FederatedDataModule.from_lightning(Moved(), IidPartitioner(2))
