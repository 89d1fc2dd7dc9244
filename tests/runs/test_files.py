"""Files that data name count by content and by their places among each other."""

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from fedlight._runs import files as files_module
from fedlight._runs.content import content_of


def of(data):
    return content_of(data, "data", files=True)


def written(folder, **texts):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


class Rows(Dataset):
    """Reads a file for each example."""

    def __init__(self, root):
        self.root = root

    def __getitem__(self, row):
        return np.load(os.path.join(self.root, f"{row}.npy"))

    def __len__(self):
        return 2


def load(path, row):
    return Path(path).read_text()[row]


NAMED = {
    "a root": lambda folder: Rows(str(folder)),
    "a path": lambda folder: SimpleNamespace(where=folder),
    "a partial": lambda folder: partial(load, str(folder / "a")),
    "a list of files": lambda folder: [(str(folder / "a"), 0), (str(folder / "b"), 1)],
    "a closure": lambda folder: lambda row: load(str(folder / "a"), row),
}


@pytest.mark.parametrize("make", NAMED.values(), ids=NAMED.keys())
def test_a_file_that_data_name_counts_by_content_in_any_folder(make, tmp_path) -> None:
    one = of(make(written(tmp_path / "one", a="x", b="y")))
    same = of(make(written(tmp_path / "deep" / "two", a="x", b="y")))
    other = of(make(written(tmp_path / "three", a="z", b="y")))
    assert one == same
    assert one.digest != other.digest
    assert one.hidden == ()


def test_a_change_of_the_same_file_is_seen(tmp_path) -> None:
    data = Rows(str(written(tmp_path / "data", a="x")))
    first = of(data)
    (tmp_path / "data" / "a").write_text("y")
    os.utime(tmp_path / "data" / "a", ns=(1, 1))
    assert of(data) != first


def test_names_of_files_and_of_folders_within_count(tmp_path) -> None:
    pairs = [("a", "b", "xy"), ("a", "c", "xy"), ("a", "d/b", "xy"), ("b", "a", "xy")]
    cases = [{one: texts[0], other: texts[1]} for one, other, texts in pairs]
    found = [of(Rows(str(written(tmp_path / str(k), **each)))) for k, each in enumerate(cases)]
    assert len({each.digest for each in found}) == 4


def test_which_file_an_example_has_counts(tmp_path) -> None:
    folder = written(tmp_path, a="x", b="x")
    pairs = [(str(folder / "a"), 0), (str(folder / "b"), 1)]
    assert of(pairs) != of([(pairs[0][0], 1), (pairs[1][0], 0)])
    assert of(pairs) != of([(pairs[0][0], 0), (pairs[0][0], 1)])


def test_words_that_are_names_of_files_by_chance_are_words(tmp_path, monkeypatch) -> None:
    written(tmp_path, train="x")
    data = SimpleNamespace(split="train", separator="/")
    monkeypatch.chdir(tmp_path)
    first = of(data)
    written(tmp_path, train="y")
    assert of(data) == first
    monkeypatch.chdir("/")
    assert of(data) == first
    assert first.hidden == ()


def test_the_folder_of_files_that_are_named_does_not_count_itself(tmp_path) -> None:
    folder = written(tmp_path / "data", a="x")
    data = SimpleNamespace(root=str(folder), samples=[str(folder / "a")])
    first = of(data)
    written(folder, cache="made later")
    assert of(data) == first


def test_a_file_that_a_data_set_opens_and_does_not_name_is_told(tmp_path) -> None:
    data = Rows("nowhere")
    assert of(data).hidden == ("a file is read by Rows.__getitem__ and is not part of the key",)
    assert of(Rows(str(written(tmp_path, a="x")))).hidden == ()


def test_rows_in_memory_make_their_folder_irrelevant(tmp_path, monkeypatch) -> None:
    library = type("Stored", (), {"__module__": "torch.data", "__getitem__": lambda self, k: 0})
    stored = library()
    stored.root, stored.data = str(written(tmp_path, a="x")), torch.ones(2)
    first = of(stored)
    written(tmp_path, a="y")
    assert of(stored) == first
    stored.data = torch.zeros(2)
    assert of(stored) != first


def test_large_files_count_by_their_ends_and_it_is_told(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files_module, "_WHOLE_BYTES", 10_000)
    folder = written(tmp_path / "data", a="x" * 10_000, b="y" * 20_000)
    first = of(Rows(str(folder)))
    assert len(first.hidden) == 1
    assert "the middle of files" in first.hidden[0]
    for place, seen in ((0, True), (19_999, True), (10_000, False)):
        text = bytearray(b"y" * 20_000)
        text[place] = ord("z")
        (folder / "b").write_bytes(text)
        assert (of(Rows(str(folder))).digest != first.digest) == seen


def test_a_folder_with_too_many_files_ends_and_is_told(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files_module, "_MOST_FILES", 3)
    folder = written(tmp_path / "data", **{str(k): "x" for k in range(9)})
    (told,) = of(Rows(str(folder))).hidden
    assert told.startswith("files beyond the first 3 in ")


def test_pipes_and_broken_links_are_left_alone(tmp_path) -> None:
    folder = written(tmp_path / "data", a="x")
    first = of(Rows(str(folder)))
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder / "nothing")
    assert of(Rows(str(folder))) == first


def test_the_whole_disk_is_not_read() -> None:
    told = of(Rows("/")).hidden
    assert told[0] == "the folder / is held by data and is not part of the key"


KINDS = {
    "keys of a dict": lambda folder: {f"{folder}/a.txt": 1},
    "an array of texts": lambda folder: np.array([f"{folder}/a.txt"]),
    "a folder that no name tells": lambda folder: SimpleNamespace(base=str(folder)),
    "the beginning of paths": lambda folder: SimpleNamespace(prefix=f"{folder}/"),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
def test_more_places_in_which_data_name_files(make, tmp_path) -> None:
    one = written(tmp_path / "one", **{"a.txt": "1"})
    moved = written(tmp_path / "a longer name", **{"a.txt": "1"})
    first = of(make(one))
    assert of(make(moved)) == first
    written(one, **{"a.txt": "2"})
    assert of(make(one)).digest != first.digest


def test_a_name_with_an_ending_is_a_file_if_there_is_one(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(written(tmp_path, **{"a.txt": "1"}))
    first = of([SimpleNamespace(source="a.txt", other="b.txt")])
    written(tmp_path, **{"a.txt": "2"})
    assert of([SimpleNamespace(source="a.txt", other="b.txt")]).digest != first.digest
