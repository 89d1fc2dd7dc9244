"""Data sets with a transform of their own, and collate functions: read anew at each access."""

import io

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from data_partitioners import IidPartitioner
from fedlight.data import ExampleList, ExampleTable, FederatedDataModule

TABLE = datasets.Dataset.from_dict(
    {"x": [float(i) for i in range(40)], "v": [[i, 2 * i] for i in range(40)], "y": [0, 1] * 20}
)


def small(batch):
    return {**batch, "x": [x / 39 for x in batch["x"]]}


def loaded(dataset, **kwargs):
    data = FederatedDataModule(dataset, IidPartitioner(4), **kwargs)
    data.setup()
    return data


def png(side=28, value=3):
    file = io.BytesIO()
    Image.new("L", (side, side), value).save(file, "PNG")
    return file.getvalue()


def pictures(*files):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    cells = [{"bytes": file, "path": None} for file in files]
    columns = {"image": cells, "label": list(range(len(files)))}
    return datasets.Dataset.from_dict(columns, features=features)


ALL = torch.arange(40)


@pytest.mark.parametrize("how", ["with", "set"])
def test_a_transform_of_its_own_is_applied_to_each_split(how):
    def transformed(table):
        if how == "with":
            return table.with_transform(small)
        table = table.select(range(40))
        table.set_transform(small)
        return table

    splits = {name: transformed(TABLE) for name in ("train", "validation", "test")}
    data = loaded(datasets.DatasetDict(splits), val_split="validation")
    for examples in (data.train_data, data.val_data, data.test_data):
        x, y = examples.to("cpu", torch.float32).gather(ALL)
        torch.testing.assert_close(x, ALL / 39)
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert y.tolist() == TABLE["y"][:]


def test_images_are_as_the_transform_returns_them():
    def as_tensors(batch):
        pixels = [torch.from_numpy(np.array(image)).float() / 255 for image in batch["image"]]
        return {"image": pixels, "label": batch["label"]}

    data = pictures(png(value=255), png(value=0))
    # without a transform of its own it would be recognised as MNIST and normalised
    raw = FederatedDataModule(data, IidPartitioner(2))
    raw.setup()
    assert raw.train_data.gather(torch.tensor([0]))[0].max() > 2
    own = FederatedDataModule(data.with_transform(as_tensors), IidPartitioner(2), val_dataset=data)
    own.setup()
    x, _ = own.train_data.gather(torch.tensor([0, 1]))
    assert x.shape == (2, 28, 28)
    assert x.unique().tolist() == [0.0, 1.0]
    # nor is the other split, which has no transform: both would differ
    assert isinstance(own.val_data, ExampleTable)
    assert own.val_data.gather(torch.tensor([0, 1]))[0].unique().tolist() == [0.0, 1.0]


def test_a_random_transform_is_drawn_at_each_access():
    def noisy(batch):
        return {**batch, "x": torch.rand(len(batch["x"]))}

    data = loaded(TABLE.with_transform(noisy))
    torch.manual_seed(0)
    first, second = (data.train_data.gather(ALL)[0] for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(first, data.train_data.gather(ALL)[0])


def test_setting_up_draws_no_global_random_numbers():
    def noisy(batch):
        return {**batch, "x": torch.rand(len(batch["x"]))}

    before = torch.get_rng_state()
    loaded(TABLE.with_transform(noisy))
    assert torch.equal(torch.get_rng_state(), before)


def test_lists_of_numbers_become_one_tensor():
    data = loaded(TABLE.with_transform(small), columns=("v", "y"))
    v, _ = data.train_data.gather(torch.tensor([3, 1]))
    assert v.tolist() == [[3, 6], [1, 2]]


def test_batches_are_dicts_with_a_dict_of_columns():
    own = loaded(TABLE.with_transform(small), columns={"inputs": "x", "labels": "y"})
    batch = own.train_data.gather(torch.tensor([39, 0]))
    assert batch["inputs"].tolist() == [1.0, 0.0]
    assert list(batch) == ["inputs", "labels"]


def test_the_transform_argument_comes_last():
    data = loaded(TABLE.with_transform(small), transform=lambda batch: {"z": batch[0] * 2})
    assert data.train_data.gather(torch.tensor([39]))["z"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("transform", "kwargs", "error", "says"),
    [
        (small, {"normalize": (0.0, 1.0)}, ValueError, "normalise in that transform and leave"),
        (
            lambda b: {"z": b["x"], "q": b["y"]},
            {},
            ValueError,
            r"cannot be told from the names \['z', 'q'\]; write columns=\(INPUT, TARGET\), or",
        ),
        (
            lambda b: {"x": b["x"]},
            {"columns": ("x", "y")},
            ValueError,
            r"returns the columns \['x'\], without 'y'",
        ),
        (
            lambda b: {**b, "x": [None] * len(b["x"])},
            {},
            TypeError,
            "column 'x' holds NoneType after the data set's own transform.*or give a collate_fn",
        ),
        (
            lambda b: {**b, "x": [["a"]] * len(b["x"])},
            {},
            TypeError,
            "column 'x' holds list after the data set's own transform",
        ),
    ],
)
def test_a_transform_that_cannot_be_used(transform, kwargs, error, says):
    with pytest.raises(error, match=says):
        loaded(TABLE.with_transform(transform), **kwargs)


def test_a_transform_that_fails_in_a_row():
    def fails(batch):
        if 7.0 in batch["x"]:
            raise OSError("broken")
        return batch

    data = loaded(TABLE.with_transform(fails))
    with pytest.raises(OSError, match="broken") as caught:
        data.train_data.gather(torch.tensor([3, 7, 8]))
    assert caught.value.__notes__ == ["(while reading row 7 of 'train')"]


# --- collate functions ---


def padded(rows):
    longest = max(len(row["tokens"]) for row in rows)
    tokens = [row["tokens"] + [0] * (longest - len(row["tokens"])) for row in rows]
    return {"input_ids": torch.tensor(tokens), "labels": torch.tensor([row["y"] for row in rows])}


TEXTS = datasets.Dataset.from_dict(
    {"tokens": [[1] * (1 + i % 4) for i in range(8)], "y": [0, 1] * 4}
)


def test_a_collate_function_gets_rows_and_pads_each_batch():
    data = FederatedDataModule(TEXTS, IidPartitioner(2), val_dataset=TEXTS, collate_fn=padded)
    data.setup()
    assert isinstance(data.train_data, ExampleList)
    for examples in (data.train_data, data.val_data):
        batch = examples.gather(torch.tensor([0, 2]))
        assert batch["input_ids"].tolist() == [[1, 0, 0], [1, 1, 1]]
        assert examples.gather(torch.tensor([0, 1]))["input_ids"].shape == (2, 2)
    (loader,) = [data.val_dataloader()]
    assert next(iter(loader))["input_ids"].shape == (8, 4)


def test_a_collate_function_excludes_columns():
    for kwargs in ({"columns": ("x", "y")}, {"normalize": (0.0, 1.0)}):
        with pytest.raises(ValueError, match="excludes columns= and normalize="):
            FederatedDataModule(TEXTS, IidPartitioner(2), collate_fn=padded, **kwargs)
    with pytest.raises(TypeError, match="collate_fn must be a function of a list of examples"):
        FederatedDataModule(TEXTS, IidPartitioner(2), collate_fn=3)


# --- images that cannot be decoded ---


def test_a_corrupt_image_is_named_with_its_row():
    with pytest.raises(ValueError, match="'image' has an image that cannot be decoded in row 2"):
        FederatedDataModule(pictures(png(), png(), png()[:30]), IidPartitioner(1)).setup()


def test_a_corrupt_image_is_named_with_its_split():
    splits = datasets.DatasetDict(
        {"train": pictures(png()), "test": pictures(png(), png()[:-40] + bytes(10))}
    )
    with pytest.raises(ValueError, match="cannot be decoded in row 1") as caught:
        FederatedDataModule(splits, IidPartitioner(1)).setup()
    assert caught.value.__notes__ == ["(while reading 'test')"]
    first = pictures(png()[:30])
    with pytest.raises(ValueError, match="cannot be decoded in row 0") as caught:
        FederatedDataModule(first, IidPartitioner(1)).setup()
    assert caught.value.__notes__ == ["(while reading 'train')"]


def test_a_corrupt_image_read_at_each_access_is_named_too():
    data = FederatedDataModule(
        pictures(png(), png(), png()[:30]), IidPartitioner(1), collate_fn=len
    )
    data.setup()
    assert data.train_data.gather(torch.tensor([0, 1])) == 2
    with pytest.raises(Exception, match="image") as caught:
        data.train_data.gather(torch.tensor([1, 2]))
    assert caught.value.__notes__ == ["(while reading column 'image' of row 2 of 'train')"]
