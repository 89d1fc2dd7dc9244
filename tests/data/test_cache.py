"""Decoded columns that are kept on disk for the next run."""

import errno
import multiprocessing
import os
import time

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

import fedlight.data.layouts
from data_partitioners import IidPartitioner
from fedlight.data import FederatedDataModule


@pytest.fixture
def decoded(monkeypatch):
    """The lengths of the columns of images that are decoded, in their order."""
    lengths = []
    read = fedlight.data.layouts.read_images

    def counting(dataset, name):
        lengths.append(len(dataset))
        return read(dataset, name)

    monkeypatch.setattr("fedlight.data.layouts.read_images", counting)
    return lengths


def in_memory(values=(0, 10, 20, 30)):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    table = {
        "image": [Image.new("L", (5, 5), value) for value in values],
        "label": [value // 10 for value in values],
    }
    return datasets.Dataset.from_dict(table, features=features)


@pytest.fixture
def on_disk(tmp_path):
    """A data set of four images, the pixels of the i-th of which are all 10 i."""
    in_memory().save_to_disk(tmp_path / "saved")
    return datasets.load_from_disk(tmp_path / "saved")


def values(data, cache, **options):
    """The first pixel of each image."""
    module = FederatedDataModule(
        data, IidPartitioner(1), normalize=(0.0, 1.0), cache=cache, **options
    )
    module.setup()
    table = module.train_data
    return table.gather(torch.arange(len(table)))[0][:, 0, 0, 0].mul(255).round().int().tolist()


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_second_time_nothing_is_decoded(on_disk, tmp_path, decoded):
    assert values(on_disk, tmp_path / "kept") == [0, 10, 20, 30]
    (file,) = files(tmp_path / "kept")
    assert np.load(file).shape == (4, 1, 5, 5)
    assert values(on_disk, str(tmp_path / "kept")) == [0, 10, 20, 30]
    again = datasets.load_from_disk(tmp_path / "saved")
    assert values(again, tmp_path / "kept") == [0, 10, 20, 30]
    assert decoded == [4]
    assert files(tmp_path / "kept") == [file]


def test_by_default_it_is_in_the_cache_of_the_datasets_library(
    on_disk, tmp_path, decoded, monkeypatch
):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hub")
    for _ in range(2):
        assert values(on_disk, cache=True) == [0, 10, 20, 30]
    assert decoded == [4]
    assert [file.parent for file in files(tmp_path / "hub")] == [tmp_path / "hub" / "fedlight"]
    assert values(on_disk, cache=False) == [0, 10, 20, 30]
    assert decoded == [4, 4]
    datasets.disable_caching()
    try:
        assert values(on_disk, cache=True) == [0, 10, 20, 30]
    finally:
        datasets.enable_caching()
    assert decoded == [4, 4, 4]


def test_data_made_in_memory_are_not_kept(tmp_path, decoded):
    both = datasets.DatasetDict(train=in_memory(), test=in_memory((1, 2)))
    for _ in range(2):
        assert values(both, tmp_path / "kept") == [0, 10, 20, 30]
    assert decoded == [4, 2, 4, 2]
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data.select([2, 0]), [20, 0]),
        (lambda data: data.select([0, 2]), [0, 20]),
        (lambda data: data.select(range(4)[::-1]), [30, 20, 10, 0]),
        (lambda data: data.filter(lambda label: label > 1, input_columns="label"), [20, 30]),
        (lambda data: data.train_test_split(2, shuffle=False)["test"], [20, 30]),
        (lambda data: datasets.concatenate_datasets([data, data.select([1])]), [0, 10, 20, 30, 10]),
        (
            lambda data: data.rename_columns({"image": "img"}).map(
                lambda row: {"image": Image.new("L", (5, 5), 10 * row["label"] + 1)}
            ),
            [1, 11, 21, 31],
        ),
    ],
    ids=["select", "other", "reverse", "filter", "split", "concatenate", "map"],
)
def test_other_rows_or_another_order(on_disk, tmp_path, change, expected, decoded):
    kept = tmp_path / "kept"
    assert values(on_disk, kept) == [0, 10, 20, 30]
    options = {"columns": ("image", "label")}
    changed = change(on_disk)
    for _ in range(2):
        assert values(changed, kept, **options) == expected
    assert values(on_disk, kept) == [0, 10, 20, 30]
    assert [length for length in decoded if length > 1] == [4, len(expected)]


def test_shuffled_rows(on_disk, tmp_path):
    kept = tmp_path / "kept"
    for seed in (0, 1, 0):
        shuffled = on_disk.shuffle(seed=seed)
        assert values(shuffled, kept) == [10 * label for label in shuffled["label"][:]]


def test_another_decoding_of_the_same_column(on_disk, tmp_path):
    kept = tmp_path / "kept"
    assert values(on_disk, kept) == [0, 10, 20, 30]
    colours = on_disk.cast_column("image", datasets.Image(mode="RGB"))
    module = FederatedDataModule(colours, IidPartitioner(1), cache=kept)
    module.setup()
    assert module.train_data.gather(torch.tensor([1]))[0].shape == (1, 3, 5, 5)


def test_text_is_kept_too(tmp_path, monkeypatch):
    table = {"character_id": ["A", "B"], "x": ["ab" * 40, " " * 80], "y": ["c", "\n"]}
    datasets.Dataset.from_dict(table).save_to_disk(tmp_path / "saved")
    data = datasets.load_from_disk(tmp_path / "saved")
    found = []
    for _ in range(2):
        module = FederatedDataModule(data, IidPartitioner(1), cache=tmp_path / "kept")
        module.setup()
        found.append(module.train_data.gather(torch.tensor([1, 0])))
        monkeypatch.setattr("fedlight.data.layouts.read_text", None)
    assert len(files(tmp_path / "kept")) == 2
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def flip(path, start, length):
    """Change bytes in the middle of a file."""
    data = bytearray(path.read_bytes())
    for place in range(start, start + length):
        data[place] ^= 1
    path.write_bytes(data)


def write_npy(path, array):
    with path.open("wb") as file:
        np.save(file, array)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, path.stat().st_size - 1),
        lambda path: os.truncate(path, 20),
        lambda path: os.truncate(path, 0),
        lambda path: path.write_bytes(path.read_bytes() + b"more"),
        lambda path: flip(path, 160, 16),
        lambda path: flip(path, -1, 1),
        lambda path: flip(path, 100, 1),
        lambda path: path.write_bytes(b"something else entirely"),
        lambda path: path.write_bytes(b"PK\x03\x04 a zip file"),
        lambda path: write_npy(path, np.zeros((3, 1, 5, 5), dtype=np.uint8)),
        lambda path: write_npy(path, np.zeros((4, 1, 5, 5))),
        lambda path: write_npy(path, np.asfortranarray(np.zeros((4, 1, 5, 5), dtype=np.uint8))),
        lambda path: write_npy(path, np.uint8(1)),
        lambda path: path.unlink(),
    ],
    ids=[
        "short",
        "torn header",
        "empty",
        "long",
        "changed",
        "changed hash",
        "changed header",
        "no array",
        "zip",
        "other rows",
        "floats",
        "other order",
        "no rows",
        "missing",
    ],
)
def test_a_damaged_or_foreign_file_is_made_anew(on_disk, tmp_path, damage, decoded, caplog):
    kept = tmp_path / "kept"
    values(on_disk, kept)
    (file,) = files(kept)
    whole = file.read_bytes()
    damage(file)
    there = file.exists()
    with caplog.at_level("INFO"):
        assert values(on_disk, kept) == [0, 10, 20, 30]
    assert caplog.text.count("'image', was damaged or changed since it was written") == there
    assert values(on_disk, kept) == [0, 10, 20, 30]
    assert decoded == [4, 4]
    assert file.read_bytes() == whole


def test_a_full_disk_is_a_warning(on_disk, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("numpy.lib.format.write_array", full)
    with pytest.warns(UserWarning, match="'image' cannot be kept.*No space left.*cache=FOLDER"):
        assert values(on_disk, tmp_path / "kept") == [0, 10, 20, 30]
    assert files(tmp_path / "kept") == []


def test_a_folder_that_cannot_be_written_is_a_warning(on_disk, tmp_path):
    (tmp_path / "file").write_text("")  # root may write to any folder, but not below a file
    with pytest.warns(UserWarning, match="cannot be kept.*Not a directory"):
        assert values(on_disk, tmp_path / "file" / "kept") == [0, 10, 20, 30]


def test_a_folder_of_which_one_may_only_read_serves_what_it_has(
    on_disk, tmp_path, decoded, monkeypatch
):
    values(on_disk, tmp_path / "kept")

    def refused(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("os.utime", refused)
    assert values(on_disk, tmp_path / "kept") == [0, 10, 20, 30]
    assert decoded == [4]


def test_a_run_does_not_change_the_file(on_disk, tmp_path):
    kept = tmp_path / "kept"
    values(on_disk, kept)
    module = FederatedDataModule(on_disk, IidPartitioner(1), normalize=(0.0, 1.0), cache=kept)
    module.setup()
    module.train_data.columns[0].values.fill_(255)
    assert values(on_disk, kept) == [0, 10, 20, 30]


def test_two_processes_at_once(on_disk, tmp_path):
    context = multiprocessing.get_context("fork")
    both, found = context.Barrier(2), context.Queue()

    def other():
        both.wait()
        found.put(values(datasets.load_from_disk(tmp_path / "saved"), tmp_path / "kept"))

    started = [context.Process(target=other) for _ in range(2)]
    for process in started:
        process.start()
    assert [found.get(timeout=600) for _ in started] == [[0, 10, 20, 30]] * 2
    for process in started:
        process.join()
    assert values(on_disk, tmp_path / "kept") == [0, 10, 20, 30]
    assert len(files(tmp_path / "kept")) == 1


def test_files_that_nobody_uses_are_removed(on_disk, tmp_path):
    kept = tmp_path / "kept"
    values(on_disk, kept)
    values(on_disk.select([0]), kept)
    old, other = files(kept)
    (kept / "mine.npy").write_text("")
    long_ago = time.time() - 31 * 24 * 60 * 60
    for path in (old, kept / "mine.npy"):
        os.utime(path, (long_ago, long_ago))
    values(on_disk.select([1]), kept)
    assert old not in files(kept)
    assert {other, kept / "mine.npy"} < set(files(kept))
    os.utime(other, (long_ago, long_ago))
    for data in (on_disk, on_disk.select([0]), on_disk.select([2])):  # it is one of the first two
        values(data, kept)
    assert other in files(kept)


@pytest.mark.parametrize("cache", [None, 1, b"folder", ["folder"]])
def test_what_cache_may_be(cache):
    with pytest.raises(TypeError, match=r"cache must be True .*False or a folder, got"):
        FederatedDataModule("mnist-mini", IidPartitioner(1), cache=cache)


def test_cache_must_not_be_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file; give a folder"):
        FederatedDataModule("mnist-mini", IidPartitioner(1), cache=tmp_path / "file")


def test_every_changed_byte_is_found(on_disk, tmp_path, decoded):
    kept = tmp_path / "kept"
    values(on_disk, kept)
    (file,) = files(kept)
    for place in range(file.stat().st_size):
        flip(file, place, 1)
        assert values(on_disk, kept) == [0, 10, 20, 30]
    assert len(decoded) == 1 + file.stat().st_size
