import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import StackDataset, TensorDataset

import fedlight.plot._pictures
from data_partitioners import IidPartitioner, Partition
from data_partitioners.partitioner import Partitioner
from fedlight import FederatedDataModule
from fedlight.plot._pictures import (
    Bar,
    Timeline,
    Work,
    draw_participation,
    draw_partition,
    draw_timeline,
    label_table,
    lanes,
    shade,
    work_of,
)
from fedlight.types import RoundRecord, UpdateRecord

WHITE = (255, 255, 255)
ORANGE = (230, 97, 1)


def colours(picture):
    pixels = picture.reshape(-1, 3).astype(np.int64) @ (1 << 16, 1 << 8, 1)
    return {(each >> 16, each >> 8 & 255, each & 255) for each in np.unique(pixels).tolist()}


class Given(Partitioner):
    def partition(self, dataset, seed=0):
        return Partition(np.array([0, 1, 2, 3]), np.array([0, 1, 4]))


def test_labels_are_counted_with_the_names_of_the_data_set():
    features = datasets.Features(
        {"x": datasets.Value("float32"), "label": datasets.ClassLabel(names=["cat", "dog", "owl"])}
    )
    rows = datasets.Dataset.from_dict({"x": [0.0] * 4, "label": [0, 2, 2, 0]}, features)
    data = FederatedDataModule(rows, Given(), columns=("x", "label"))
    data.setup()
    counts, names = label_table(data)
    assert counts.tolist() == [[1, 0], [1, 2]]
    assert names == ["cat", "owl"]


def test_labels_of_tensors_are_their_own_names():
    clients = [TensorDataset(torch.zeros(n, 2), torch.arange(n) + 5) for n in (1, 3)]
    data = FederatedDataModule.from_client_datasets(clients)
    counts, names = label_table(data)
    assert counts.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert names == ["5", "6", "7"]


@pytest.mark.parametrize(
    "tensors",
    [
        [torch.zeros(200, 2)],
        [torch.zeros(200, 2), torch.zeros(200)],
        [torch.zeros(200, 2), torch.zeros(200, 3, dtype=torch.long)],
        [torch.zeros(200, 2), torch.arange(200)],
    ],
    ids=["no target", "numbers", "several", "too many"],
)
def test_what_has_no_labels_has_no_table(tensors):
    data = FederatedDataModule.from_client_datasets([TensorDataset(*tensors)])
    assert label_table(data) is None
    words = FederatedDataModule.from_client_datasets([["a", "b"]])
    assert label_table(words) is None


def test_a_darker_cell_is_more_and_an_empty_one_is_white():
    picture = draw_partition(np.array([[0, 400], [100, 100]]), ["a", "b"])
    # two rows of 124 pixels from 128 on; columns from 84 on, of (640 - 84 - 130 - 16) / 2 = 205
    corner = [
        [tuple(picture[132 + 124 * row, 88 + 205 * column]) for column in (0, 1)] for row in (0, 1)
    ]
    assert corner == [[WHITE, shade(1.0)], [shade(0.25), shade(0.25)]]


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 10), (500, 10), (1000, 128)])
def test_any_number_of_clients_fits(clients, classes):
    counts = np.random.default_rng(0).integers(0, 50, (clients, classes))
    picture = draw_partition(counts, [f"class {k}" for k in range(classes)])
    assert picture.dtype == np.uint8
    assert picture.shape == (460, 640, 3)


def record(version, now, *updates, dropped=()):
    def one(client, start, end, staleness):
        return UpdateRecord(client, 0, 0, staleness, 1, 1, 1.0, start, end, 1.0)

    return RoundRecord(version, now, {}, [one(*u) for u in updates], [one(*u) for u in dropped])


def test_work_is_what_was_used_and_what_was_dropped():
    records = [record(1, 1.0, (3, 0.0, 1.0, 0)), record(2, 2.0, dropped=[(4, 0.5, 1.5, 7)])]
    assert work_of(records) == [Work(3, 0.0, 1.0, 0), Work(4, 0.5, 1.5, None)]


def test_overlapping_tasks_of_a_client_lie_beside_each_other():
    work = [Work(0, 1.0, 3.0, 0), Work(1, 0.0, 9.0, 0), Work(0, 0.0, 2.0, 0), Work(0, 2.0, 3.0, 0)]
    assert lanes(work) == [(1, 2), (0, 1), (0, 2), (0, 2)]


def test_bars_lie_where_the_work_was():
    work = [Work(0, 0.0, 5.0, 0), Work(1, 5.0, 10.0, 4)]
    picture = draw_timeline(work, [10.0], 0.0, 10.0, num_clients=2)
    # two rows of 138 pixels from 100 on; 540 pixels of width from 84 on
    middle = [
        [tuple(picture[100 + 138 * row + 69, 84 + round(540 * at)]) for at in (0.25, 0.75)]
        for row in (0, 1)
    ]
    assert middle == [[shade(0.25), WHITE], [WHITE, shade(1.0)]]
    assert tuple(picture[100 - 8, 84 + 540]) == ORANGE


def test_a_timeline_is_laid_out_once_for_all_ways_of_drawing_it():
    work = [
        Work(7, 0.0, 4.0, 0),
        Work(7, 2.0, 6.0, 2),
        Work(3, 1.0, 2.0, None),
        Work(9, 8.0, 9.0, 5),  # after the right edge
        Work(1, 0.0, 1.0, 4),  # not chosen
    ]
    made = Timeline.of(work, [0.5, 6.0, 7.0], 0.0, 6.0, lambda clients: clients[1:])
    assert made.clients == [3, 7]
    assert made.bars == [
        Bar(1, 0.0, 0.5, 0.0, 4.0, 0.25),
        Bar(1, 0.5, 1.0, 2.0, 6.0, 1.0),
        Bar(0, 0.0, 1.0, 1.0, 2.0, None),
    ]
    assert made.updates == [0.5, 6.0]
    assert made.most == 2
    assert made.overlaps
    assert not Timeline.of(work[1:], [], 0.0, 6.0, lambda clients: clients).overlaps


def test_overlapping_tasks_are_explained(monkeypatch):
    told = []
    canvas = fedlight.plot._pictures._Canvas
    monkeypatch.setattr(
        fedlight.plot._pictures, "_Canvas", lambda *words: told.append(words) or canvas(*words)
    )
    for work in ([Work(0, 0.0, 2.0, 0)], [Work(0, 0.0, 2.0, 0), Work(0, 1.0, 3.0, 0)]):
        draw_timeline(work, [], 0.0, 3.0, 1)
    assert set(told[1]) - set(told[0]) == {"thin: tasks that overlap"}


def test_a_card_of_tensorboard_shows_letters_of_a_readable_size():
    """A card has room for 303 by 225 pixels; a digit needs 8 pixels of height there."""
    picture = draw_partition(np.array([[8]]), ["a"])
    shown = min(303 / picture.shape[1], 225 / picture.shape[0])
    cell = picture[130:370, 100:480]
    ink = np.flatnonzero((cell.min(axis=2) > 128).any(axis=1))
    assert (ink[-1] - ink[0] + 1) * shown > 7.5


def test_words_below_a_title_take_as_many_lines_as_they_need():
    tops = [fedlight.plot._pictures._Canvas("t", *["twenty signs of text"] * n).top for n in (2, 3)]
    assert tops[1] - tops[0] == 28


def test_many_updates_do_not_hide_the_work():
    work = [Work(0, 0.0, 10.0, 0)]
    picture = draw_timeline(work, np.linspace(0, 10, 501).tolist(), 0.0, 10.0, num_clients=1)
    assert tuple(picture[94, 84 + 270]) == ORANGE
    assert ORANGE not in colours(picture[100:376])


def test_a_stretch_without_work_can_be_drawn():
    assert draw_timeline([], [1.0], 0.0, 1.0, num_clients=3).shape[1] == 640
    assert draw_timeline([Work(0, 0.0, 1.0, None)], [], 0.0, 0.0, 1).shape[1] == 640


@pytest.mark.parametrize("clients", [1, 30, 5000])
def test_participation_of_any_number_of_clients(clients):
    counts = np.arange(clients) % 7
    picture = draw_participation(counts)
    assert picture.shape == (460, 640, 3)
    assert ORANGE in colours(picture)
    assert (shade(0.6) in colours(picture)) == (clients > 1)


def test_shades_get_darker():
    brightness = [sum(shade(k / 20)) for k in range(21)]
    assert brightness == sorted(brightness, reverse=True)
    assert shade(-1) == shade(0)
    assert shade(2) == shade(1)


def test_a_partition_of_the_bundled_sample():
    data = FederatedDataModule("mnist-mini", IidPartitioner(4))
    data.setup()
    counts, names = label_table(data)
    assert counts.shape == (4, 10)
    assert counts.sum() == 10_000
    assert names == [str(k) for k in range(10)]


def test_labels_of_dict_batches_are_found_by_their_key():
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 1, 1])
    for keys, counts in ((("labels", "length"), [[1, 1], [0, 2]]), (("length", "count"), None)):
        clients = [
            StackDataset(**{keys[0]: y[rows], "x": x[rows], keys[1]: 5 + y[rows]})
            for rows in (slice(2), slice(2, 4))
        ]
        found = label_table(FederatedDataModule.from_client_datasets(clients))
        assert (found is None) if counts is None else found[0].tolist() == counts
