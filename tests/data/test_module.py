from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from lightning import Trainer
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

import fedlight.data
from data_partitioners import IidPartitioner, Partition, Partitioner
from fedlight.data import ExampleList, FederatedDataModule
from fedlight.models import LogisticRegression


class Halves(Partitioner):
    """Two clients: the first half of the rows, and the second but for `unused` at the end."""

    def __init__(self, unused=0):
        self.unused = unused
        self.seeds = []

    def partition(self, dataset, seed=0):
        self.seeds.append(seed)
        half, end = len(dataset) // 2, len(dataset) - self.unused
        return Partition(
            rows=np.arange(end),
            offsets=np.array([0, half, end]),
            unused=np.arange(end, len(dataset)),
            unused_reason="left over" if self.unused else "",
        )


def pixels(*values, name="image", side=28, mode="L", target="label", classes=None, labels=None):
    """A data set of uniform images, one per value."""
    features = datasets.Features(
        {
            name: datasets.Image(),
            target: datasets.ClassLabel(names=classes) if classes else datasets.Value("int64"),
        }
    )
    pictures = [Image.new(mode, (side, side), value) for value in values]
    labels = list(range(len(values))) if labels is None else labels
    return datasets.Dataset.from_dict({name: pictures, target: labels}, features=features)


def loaded(dataset, *args, **kwargs):
    module = FederatedDataModule(dataset, Halves(), *args, **kwargs)
    module.setup()
    return module


def rows(*numbers):
    return torch.tensor(numbers)


# --- what is read ---


def test_columns_of_mnist_are_normalised_like_mnist():
    x, y = loaded(pixels(0, 255)).train_data.gather(rows(0, 1))
    assert x.shape == (2, 1, 28, 28)
    assert x[0].unique().item() == pytest.approx(-0.4242, abs=1e-4)  # (0 - 0.1307) / 0.3081
    assert x[1].unique().item() == pytest.approx(2.8215, abs=1e-4)  # (1 - 0.1307) / 0.3081
    assert y.tolist() == [0, 1]
    assert y.dtype == torch.int64


def test_digits_may_be_named():
    x, _ = loaded(pixels(0, 0, classes=list("0123456789"))).train_data.gather(rows(0))
    assert x.min().item() == pytest.approx(-0.4242, abs=1e-4)


def test_columns_of_cifar_are_normalised_like_cifar():
    data = pixels((0, 255, 51), (0, 0, 0), name="img", side=32, mode="RGB")
    x, _ = loaded(data).train_data.gather(rows(0))
    assert x.shape == (1, 3, 32, 32)
    # (0 - 0.4914) / 0.2470, (1 - 0.4822) / 0.2435, (0.2 - 0.4465) / 0.2616
    assert x[0, :, 7, 9].tolist() == pytest.approx([-1.98947, 2.12649, -0.94228], abs=1e-5)


@pytest.mark.parametrize(
    "data",
    [
        pixels(0, 255, classes=["shirt", "sandal"]),
        pixels(0, 255, side=27),
        pixels(0, 255, name="img"),
        pixels(0, 255, target="target"),
    ],
    ids=["class names", "size", "image column", "label column"],
)
def test_other_images_are_only_scaled(data):
    x, _ = loaded(data).train_data.gather(rows(0, 1))
    assert x.unique().tolist() == [0.0, 1.0]


def test_statistics_given_come_first():
    x, _ = loaded(pixels(0, 255), normalize=(0.5, 0.25)).train_data.gather(rows(0, 1))
    assert x.unique().tolist() == pytest.approx([-2.0, 2.0])
    x, _ = loaded(pixels(0, 255), normalize=(0.0, 1.0)).train_data.gather(rows(0, 1))
    assert x.unique().tolist() == [0.0, 1.0]


def test_columns_of_shakespeare_become_tokens():
    table = {"character_id": ["A", "B"], "x": ["ab" * 40, " " * 80], "y": ["c", "\n"]}
    data = loaded(datasets.Dataset.from_dict(table))
    x, y = data.train_data.gather(rows(1, 0))
    assert x.dtype == y.dtype == torch.int64
    assert x.tolist() == [[1] * 80, [53, 54] * 40]
    assert y.tolist() == [0, 55]
    assert all(column.values.dtype == torch.uint8 for column in data.train_data.columns)


def test_several_inputs_and_a_target_of_floats():
    table = {"age": [1.0, 2.0], "visits": [[3, 4], [5, 6]], "cost": [0.5, 1.5], "name": ["a", "b"]}
    data = loaded(datasets.Dataset.from_dict(table), columns=(("age", "visits"), "cost"))
    age, visits, cost = data.train_data.gather(rows(1))
    assert (age.tolist(), visits.tolist(), cost.tolist()) == ([2.0], [[5, 6]], [1.5])
    assert (age.dtype, visits.dtype, cost.dtype) == (torch.float32, torch.int64, torch.float32)
    doubles = data.train_data.to("cpu", torch.float64).gather(rows(1))
    assert [part.dtype for part in doubles] == [torch.float64, torch.int64, torch.float64]


def test_numbers_are_normalised_as_they_are():
    table = datasets.Dataset.from_dict({"x": [[3.0, 9.0], [5.0, 1.0]], "y": [0, 1]})
    data = loaded(table, normalize=((1.0, 5.0), (2.0, 4.0)))
    assert data.train_data.gather(rows(0, 1))[0].tolist() == [[1.0, 1.0], [2.0, -1.0]]


def test_no_target():
    (x,) = loaded(datasets.Dataset.from_dict({"v": [1, 2]}), columns=("v", None)).train_data[1]
    assert x.item() == 2


def test_small_class_numbers_become_int64():
    features = datasets.Features({"x": datasets.Value("float32"), "y": datasets.Value("int8")})
    data = datasets.Dataset.from_dict({"x": [0.0, 1.0], "y": [3, 4]}, features=features)
    assert loaded(data).train_data.gather(rows(0))[1].dtype == torch.int64


def test_the_only_class_column_is_the_target():
    _, y = loaded(pixels(0, 1, target="character", classes=["a", "b"])).train_data.gather(rows(1))
    assert y.tolist() == [1]


def test_transform_is_applied_to_every_split():
    data = loaded(
        datasets.DatasetDict({"train": pixels(0, 0), "test": pixels(0)}),
        transform=lambda batch: (batch[0][..., 2:-2, 2:-2], batch[1]),
    )
    assert data.train_data.gather(rows(0))[0].shape == (1, 1, 24, 24)
    assert data.val_data.gather(rows(0))[0].shape == (1, 1, 24, 24)


# --- splits ---


def test_a_data_set_object_has_no_validation_split():
    data = loaded(pixels(0, 1))
    assert data.val_data is None
    assert data.val_dataset is None
    assert data.val_dataloader() == []


def test_validation_may_be_given():
    data = loaded(pixels(0, 1), val_dataset=pixels(9, 9, 9))
    assert len(data.val_data) == 3
    assert len(data.val_dataset) == 3
    assert data.test_data is None


def test_a_dict_has_its_splits():
    splits = {"train": pixels(0, 1), "validation": pixels(2), "test": pixels(3, 4, 5)}
    data = loaded(datasets.DatasetDict(splits), val_split="validation")
    sizes = len(data.train_data), len(data.val_data), len(data.test_data)
    assert sizes == (2, 1, 3)
    assert data.val_dataset is not None
    assert data.val_dataset["label"][:] == [0]


def test_validation_and_test_share_one_split_in_memory():
    data = loaded(datasets.DatasetDict({"train": pixels(0, 1), "test": pixels(3)}))
    assert data.val_data is data.test_data


def test_a_split_may_be_left_out():
    splits = datasets.DatasetDict({"train": pixels(0, 1), "test": pixels(3)})
    data = loaded(splits, val_split=None)
    assert data.val_data is None
    assert len(data.test_data) == 1


@pytest.mark.parametrize("argument", ["train_split", "val_split", "test_split"])
def test_an_unknown_split_is_refused(argument):
    splits = datasets.DatasetDict({"train": pixels(0, 1), "test": pixels(3)})
    with pytest.raises(ValueError, match=rf"{argument}='dev' is not a split.*\['train', 'test'\]"):
        loaded(splits, **{argument: "dev"})


def test_a_missing_validation_split_is_refused_where_there_are_others():
    splits = datasets.DatasetDict({"train": pixels(0, 1), "valid": pixels(3)})
    with pytest.raises(ValueError, match=r"val_split='test' is not a split.*or val_split=None"):
        loaded(splits)


# --- partition ---


def test_the_partition_of_the_training_split():
    halves = Halves()
    data = FederatedDataModule(pixels(0, 1, 2), halves, partition_seed=5)
    data.setup()
    assert data.num_clients == 2
    assert data.partition[1].tolist() == [1, 2]
    assert halves.seeds == [5]
    data.setup("fit")
    assert halves.seeds == [5]  # the second time there is nothing to do


def test_before_setup_there_is_nothing():
    data = FederatedDataModule(pixels(0, 1), Halves())
    with pytest.raises(RuntimeError, match=r"call setup\(\) first"):
        _ = data.num_clients


def test_a_partition_of_another_data_set_is_refused():
    class Wrong(Halves):
        def partition(self, dataset, seed=0):
            return super().partition(dataset.select(range(2)), seed)

    with pytest.raises(ValueError, match="returned 2 rows for a data set of 3"):
        FederatedDataModule(pixels(0, 1, 2), Wrong()).setup()


def test_a_client_without_examples_is_refused():
    class Empty(Partitioner):
        def partition(self, dataset, seed=0):
            offsets = np.array([0, len(dataset), len(dataset)])
            return Partition(np.arange(len(dataset)), offsets, client_ids=("a", "b"))

    with pytest.raises(ValueError, match="left client 1 without an example"):
        FederatedDataModule(pixels(0, 1), Empty()).setup()


# --- arguments ---


@pytest.mark.parametrize("argument", ["batch_size", "eval_batch_size"])
@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-3, ValueError), (2.0, TypeError), ("64", TypeError)]
)
def test_sizes_of_batches(argument, value, error):
    with pytest.raises(error, match=f"{argument} must be"):
        FederatedDataModule("mnist-mini", Halves(), **{argument: value})


@pytest.mark.parametrize("partitioner", [None, 10, Halves, "iid"])
def test_the_partitioner_must_be_one(partitioner):
    with pytest.raises(TypeError, match=r"must be a data_partitioners\.Partitioner"):
        FederatedDataModule("mnist-mini", partitioner)


@pytest.mark.parametrize("dataset", [None, 3, [TensorDataset(torch.zeros(1))]])
def test_the_dataset_must_be_one(dataset):
    with pytest.raises(TypeError, match=r"dataset must be a hub id.*from_client_datasets"):
        FederatedDataModule(dataset, Halves())


@pytest.mark.parametrize(
    "folder", ["/no/such/folder", "./minst", "~/minst", "a/b/c", Path("minst")]
)
def test_a_folder_that_is_not_there(folder):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        FederatedDataModule(folder, Halves())


@pytest.mark.parametrize("columns", ["label", ("image",), (3, "label"), ("image", 3), ((), "y")])
def test_columns_must_be_a_pair(columns):
    with pytest.raises(TypeError, match=r"columns must be \(INPUT, TARGET\)"):
        FederatedDataModule("mnist-mini", Halves(), columns=columns)


@pytest.mark.parametrize(
    ("normalize", "error", "message"),
    [
        (0.5, TypeError, r"must be \(mean, std\)"),
        ((0.5,), TypeError, r"must be \(mean, std\)"),
        (("a", 1.0), TypeError, r"normalize\[0\] \(mean\) must be a number"),
        ((0.5, 0.0), ValueError, r"normalize\[1\] \(std\) must be larger than 0"),
        (([0.5, 0.5], [1.0]), ValueError, "got 2 and 1"),
    ],
)
def test_normalize_must_be_a_pair(normalize, error, message):
    with pytest.raises(error, match=message):
        FederatedDataModule("mnist-mini", Halves(), normalize=normalize)


def test_transform_must_be_a_function():
    with pytest.raises(TypeError, match="transform must be a function"):
        FederatedDataModule("mnist-mini", Halves(), transform=3)


def test_val_dataset_must_be_a_data_set():
    with pytest.raises(TypeError, match=r"val_dataset must be a datasets\.Dataset"):
        FederatedDataModule("mnist-mini", Halves(), val_dataset="test")


# --- data that cannot be read ---


def test_a_missing_column_is_refused():
    with pytest.raises(ValueError, match=r"no column 'picture'; it has \['image', 'label'\]"):
        loaded(pixels(0, 1), columns=("picture", "label"))


def test_a_column_missing_in_another_split_is_refused():
    splits = datasets.DatasetDict({"train": pixels(0, 1), "test": pixels(3, target="class")})
    with pytest.raises(ValueError, match=r"split 'test' of the data set has no column 'label'"):
        loaded(splits)


def test_columns_that_cannot_be_told_are_asked_for():
    table = datasets.Dataset.from_dict({"height": [1.0], "weight": [2.0]})
    with pytest.raises(ValueError, match=r"\['height', 'weight'\]; write columns="):
        loaded(table)


def test_the_wrong_number_of_channels_is_refused():
    with pytest.raises(ValueError, match="3 means and standard deviations, but column 'image' has"):
        loaded(pixels(0, 1), normalize=((0.1, 0.2, 0.3), (1.0, 1.0, 1.0)))


def test_statistics_for_several_inputs_are_refused():
    table = datasets.Dataset.from_dict({"a": [1.0], "b": [2.0], "y": [0]})
    with pytest.raises(ValueError, match="needs one input column"):
        loaded(table, columns=(("a", "b"), "y"), normalize=(0.0, 1.0))


def test_statistics_for_text_are_refused():
    table = {"character_id": ["A"], "x": ["a" * 80], "y": ["b"]}
    with pytest.raises(ValueError, match=r"'x' \(text\)"):
        loaded(datasets.Dataset.from_dict(table), normalize=(0.0, 1.0))


@pytest.mark.parametrize("labels", [["cat", "dog"], [0.5, 1.5], [[0], [1]]])
def test_labels_must_be_class_numbers(labels):
    table = datasets.Dataset.from_dict({"x": [1.0, 2.0], "label": labels})
    with pytest.raises(ValueError, match="'label' should hold class numbers"):
        loaded(table)


def test_rows_without_a_label_are_refused():
    with pytest.raises(ValueError, match=r"class -1.*not labelled"):
        loaded(pixels(0, 1, classes=["a", "b"], labels=[1, -1]))


def test_an_empty_data_set_is_refused():
    with pytest.raises(ValueError, match="split 'train' is empty"):
        loaded(pixels())
    with pytest.raises(ValueError, match="split 'test' is empty"):
        loaded(datasets.DatasetDict({"train": pixels(0, 1), "test": pixels()}))


def test_unknown_characters_are_refused_with_the_split():
    def text(y):
        return datasets.Dataset.from_dict({"character_id": ["A"] * 2, "x": ["a" * 80] * 2, "y": y})

    splits = datasets.DatasetDict({"train": text(["a", "b"]), "test": text(["c", "~"])})
    with pytest.raises(ValueError, match=r"'y' has characters outside .* row 1: \['~'\]") as caught:
        loaded(splits)
    assert caught.value.__notes__ == ["(while reading 'test')"]


# --- hub and folders ---


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach 'ylecun/mnist' on the Hub (LocalEntryNotFoundError)"),
        FileNotFoundError("Couldn't find 'ylecun/mnist' on the Hub: LocalEntryNotFoundError"),
    ],
)
def test_without_the_hub_the_ways_out_are_named(monkeypatch, error):
    def load_dataset(*args, **kwargs):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = FederatedDataModule("ylecun/mnist", Halves())
    with pytest.raises(ConnectionError) as caught:
        data.setup()
    message = str(caught.value)
    assert message.startswith("the hub cannot be reached to load 'ylecun/mnist'")
    for way in ("a local folder with the same files", '"mnist-mini"', "a datasets.Dataset object"):
        assert way in message
    assert "\n" not in message


def test_a_data_set_that_the_hub_has_not_is_said_as_it_is(monkeypatch):
    def load_dataset(*args, **kwargs):
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'ylecun/minst' doesn't exist")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = FederatedDataModule("ylecun/minst", Halves())
    with pytest.raises(FileNotFoundError, match="doesn't exist"):
        data.setup()


def test_what_is_asked_of_the_hub(monkeypatch):
    asked = []

    def load_dataset(*args, **kwargs):
        asked.append((args, kwargs))
        return datasets.DatasetDict({"train": pixels(0, 1), "test": pixels(3)})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    loaded("owner/set", name="small", revision="v1")
    assert asked == [(("owner/set",), {"name": "small", "revision": "v1"})]


def test_a_folder_is_read_and_left_as_it_is(tmp_path, monkeypatch):
    folder, cache = tmp_path / "set", tmp_path / "cache"
    folder.mkdir()
    pixels(0, 1, 2).to_parquet(folder / "train.parquet")
    pixels(3).to_parquet(folder / "test.parquet")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    before = sorted(p.name for p in folder.iterdir())
    data = loaded(str(folder))
    assert (len(data.train_data), len(data.val_data)) == (3, 1)
    assert data.train_data.gather(rows(0))[0].min().item() == pytest.approx(-0.4242, abs=1e-4)
    assert sorted(p.name for p in folder.iterdir()) == before


# --- the bundled sample ---


@pytest.fixture(scope="module")
def sample():
    return loaded("mnist-mini")


def test_the_sample_has_as_many_of_each_digit(sample):
    for data, per_class in ((sample.train_data, 1000), (sample.val_data, 200)):
        assert torch.bincount(data.columns[1].values).tolist() == [per_class] * 10
        assert data.columns[0].values.shape == (10 * per_class, 1, 28, 28)
        assert data.columns[0].values.dtype == torch.uint8


def test_the_sample_has_the_schema_of_the_hub(sample):
    assert isinstance(sample.train_dataset.features["image"], datasets.Image)
    assert sample.train_dataset.features["label"].names == list("0123456789")


def test_the_sample_is_mnist(sample):
    x, _ = sample.train_data.gather(torch.arange(10_000))
    assert x.mean().item() == pytest.approx(0, abs=0.02)
    assert x.std().item() == pytest.approx(1, abs=0.02)


def test_the_sample_comes_with_its_licence():
    folder = Path(fedlight.data.__file__).parent / "mnist_mini"
    readme = (folder / "README.md").read_text()
    assert "MIT" in readme
    assert "LeCun" in readme
    assert sum(file.stat().st_size for file in folder.iterdir()) < 3_000_000


def test_lightning_trains_on_the_sample(sample, tmp_path):
    model = LogisticRegression(28 * 28, 10)
    trainer = Trainer(
        max_epochs=1,
        limit_train_batches=50,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(model, datamodule=sample)
    assert trainer.callback_metrics["val_acc"] > 0.6
    (tested,) = trainer.test(model, datamodule=sample, verbose=False)
    assert tested["test_acc"] == pytest.approx(trainer.callback_metrics["test_acc"].item())
    assert list(tmp_path.iterdir()) == []


# --- the pooled loaders ---


def test_the_pool_leaves_out_unused_rows():
    data = FederatedDataModule(pixels(0, 1, 2, 3, 4), Halves(unused=2), batch_size=2)
    data.setup()
    labels = torch.cat([y for _, y in data.train_dataloader()])
    assert sorted(labels.tolist()) == [0, 1, 2]


def test_loaders_have_the_sizes_of_batches():
    data = loaded(
        pixels(*range(5)), batch_size=2, eval_batch_size=3, val_dataset=pixels(1, 2, 3, 4)
    )
    assert sorted(len(y) for _, y in data.train_dataloader()) == [1, 2, 2]
    assert [y.tolist() for _, y in data.val_dataloader()] == [[0, 1, 2], [3]]


# --- clients' own data sets ---


def clients(*sizes):
    return [TensorDataset(torch.full((n, 1), float(n)), torch.full((n,), n)) for n in sizes]


def test_client_datasets_of_tensors():
    data = FederatedDataModule.from_client_datasets(clients(2, 3), batch_size=2)
    data.setup("fit")
    assert data.batch_size == 2
    assert data.num_clients == 2
    assert data.partition[1].tolist() == [2, 3, 4]
    assert data.train_data.stackable
    assert data.train_data.gather(rows(1, 2))[1].tolist() == [2, 3]
    assert data.val_data is None
    assert data.val_dataset is None
    assert sum(len(y) for _, y in data.train_dataloader()) == 5


def test_client_datasets_of_any_kind():
    words = [["a", "bb"], ["ccc"]]
    data = FederatedDataModule.from_client_datasets(
        words, collate_fn=lambda batch: "".join(sorted(batch)), val_dataset=["v"], batch_size=3
    )
    assert isinstance(data.train_data, ExampleList)
    assert data.train_data.gather(torch.from_numpy(data.partition[0])) == "abb"
    assert list(data.train_dataloader()) == ["abbccc"]
    assert list(data.val_dataloader()) == ["v"]


def test_an_empty_client_dataset_is_refused_with_its_number():
    with pytest.raises(ValueError, match=r"datasets\[1\] \(client 1\) is empty"):
        FederatedDataModule.from_client_datasets(clients(2, 0, 3))


def test_no_client_is_refused():
    with pytest.raises(ValueError, match="one data set per client, got none"):
        FederatedDataModule.from_client_datasets([])


def test_empty_validation_data_are_refused():
    with pytest.raises(ValueError, match="val_dataset is empty"):
        FederatedDataModule.from_client_datasets(clients(1), val_dataset=clients(0)[0])


def test_an_iterable_dataset_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([1])

    with pytest.raises(TypeError, match=r"\(client 0\) must be a map-style data set"):
        FederatedDataModule.from_client_datasets([Stream()])


def test_client_datasets_need_a_batch_size():
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        FederatedDataModule.from_client_datasets(clients(1), batch_size=0)


# --- the real data ---


def test_mnist(fedlight_data):
    data = loaded(fedlight_data / "mnist")
    assert data.train_data.columns[0].values.shape == (60_000, 1, 28, 28)
    assert len(data.val_data) == 10_000
    # the statistics are those of this very set
    pixel_values = data.train_data.columns[0].values.double() / 255
    assert pixel_values.mean().item() == pytest.approx(0.1307, abs=5e-5)
    assert pixel_values.std().item() == pytest.approx(0.3081, abs=5e-5)


def test_shakespeare(fedlight_data):
    data = loaded(fedlight_data / "shakespeare", val_split=None)
    x, y = data.train_data.gather(torch.arange(3))
    assert len(data.train_data) == 415_759
    assert len(data.test_data) == 83_976
    assert x.shape == (3, 80)
    # each window begins one character later: its last character is the target before
    assert torch.equal(x[1:, -1], y[:-1])
    assert torch.equal(x[0, 1:], x[1, :-1])


def test_repartition_shares_the_data_and_leaves_the_first_partition_alone() -> None:
    table = datasets.Dataset.from_dict({"x": [[float(i)] for i in range(6)], "y": [0, 1] * 3})
    data = FederatedDataModule(table, IidPartitioner(2), batch_size=2)
    other = data.repartition(IidPartitioner(3), partition_seed=1)
    assert other.train_data is data.train_data
    assert (other.num_clients, data.num_clients) == (3, 2)
    with pytest.raises(TypeError, match="partitioner must be a"):
        data.repartition(3)
    lists = FederatedDataModule.from_client_datasets([[1, 2], [3]])
    with pytest.raises(ValueError, match="one data set per client"):
        lists.repartition(IidPartitioner(2))


def test_data_know_early_that_they_lack_validation() -> None:
    rows = TensorDataset(torch.zeros(4, 1), torch.zeros(4).long())
    assert FederatedDataModule(rows, IidPartitioner(2)).lacks_validation
    assert not FederatedDataModule(rows, IidPartitioner(2), val_dataset=rows).lacks_validation
    assert FederatedDataModule.from_client_datasets([rows]).lacks_validation
    named = FederatedDataModule.from_client_datasets([rows], val_dataset=rows)
    assert not named.lacks_validation
    assert not FederatedDataModule("mnist-mini", IidPartitioner(2)).lacks_validation  # unknown yet
