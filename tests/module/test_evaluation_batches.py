import copy
import random
import weakref
from collections import UserDict

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, default_collate

from fedlight._module.evaluation_batches import EvaluationBatches
from fedlight.data.examples import ExampleList, ExampleTable
from tests.module.test_evaluation import numbers


@pytest.mark.parametrize(
    ("limit", "batches"), [(None, 3), (1, 1), (2, 2), (7, 3), (1.0, 3), (0.67, 2), (0.01, 1)]
)
def test_the_limit_is_a_number_or_a_share(limit, batches):
    for examples in (numbers(1, 2, 3, 4, 5), ExampleList([[torch.ones(1)] * 5])):
        assert len(list(EvaluationBatches(examples, 2, limit))) == batches


def test_small_tables_are_gathered_once(monkeypatch):
    gathered = []
    table = numbers(1, 2, 3)
    original = ExampleTable.gather
    monkeypatch.setattr(
        ExampleTable, "gather", lambda self, rows: gathered.append(1) or original(self, rows)
    )
    batches = EvaluationBatches(table, 2, None)
    first, second = list(batches), list(batches)
    made = len(gathered)
    assert [size for size, _ in first] == [2, 1]
    assert first[0][1][0] is second[0][1][0]
    assert len(list(batches)) == 2
    assert len(gathered) == made

    with_nan = EvaluationBatches(numbers(1, float("nan")), 2, None)
    assert next(iter(list(with_nan)))[1][0] is next(iter(list(with_nan)))[1][0]

    monkeypatch.setattr("fedlight._module.evaluation_batches._KEPT_BYTES", 1)
    large = EvaluationBatches(numbers(1, 2, 3), 2, None)
    values = [[part.tolist() for part in batch] for _, batch in large]
    assert values == [[[1, 2]], [[3]]] == [[p.tolist() for p in batch] for _, batch in large]
    assert next(iter(large))[1][0] is not next(iter(large))[1][0]


def only(batches):
    """The tensor of the only batch."""
    ((_, (tensor,)),) = batches
    return tensor


def test_evaluations_of_a_table_share_their_batches():
    table = numbers(1, 2)
    one, other = EvaluationBatches(table, 2, None), EvaluationBatches(table, 2, None)
    assert only(one) is only(other) is only(one)
    assert only(EvaluationBatches(table, 2, None, dtype=torch.float64)).dtype == torch.float64
    assert len(list(EvaluationBatches(table, 1, None))) == 2
    assert only(EvaluationBatches(numbers(1, 2), 2, None)) is not only(one)
    there = weakref.ref(only(one))
    del one
    assert there() is only(other)
    del other
    assert there() is None


def test_a_table_with_a_transform_is_read_by_each():
    drawn = iter(range(9))
    column = numbers(1, 2).columns[0]
    table = ExampleTable([column], lambda batch: (batch[0] + next(drawn),))
    first, second = EvaluationBatches(table, 2, None), EvaluationBatches(table, 2, None)
    assert [only(first).tolist() for _ in range(2)] == [[1, 2]] * 2
    assert [only(second).tolist() for _ in range(2)] == [[2, 3]] * 2


@pytest.mark.parametrize("write", ["x.mul_(2)", "x.data.mul_(2)", "x.numpy()[:] = 7"])
@pytest.mark.parametrize("later", [False, True])
def test_what_one_evaluation_writes_no_other_reads(write, later):
    table = numbers(1, 2)
    one, other = EvaluationBatches(table, 2, None), EvaluationBatches(table, 2, None)
    x = only(one)
    if later:  # as a hook may do, between two passes; torch does not count the other writes
        x.mul_(2)
    else:
        for _, (x,) in other:
            exec(write, {"x": x})
    assert only(one).tolist() == only(other).tolist() == [1, 2]


class Counted(Dataset):
    """Three examples, of each of which it counts the readings."""

    def __init__(self, example=lambda row: (torch.tensor([float(row)]), f"row {row}"), **parts):
        self.example = example
        self.reads = [0, 0, 0]
        vars(self).update(parts)

    def __len__(self):
        return 3

    def __getitem__(self, row):
        self.reads[row] += 1
        return self.example(row)


def passes(data, number, step=lambda batch: None, collate_fn=default_collate):
    """The batches of several passes, as values."""
    batches = EvaluationBatches(ExampleList([data], collate_fn), 2, None)
    values = []
    for _ in range(number):
        values.append([])
        for _, batch in batches:
            values[-1].append(copy.deepcopy(batch))
            step(batch)
    return values


@pytest.mark.parametrize("inference", [False, True])
def test_examples_of_any_kind_are_read_once(inference):
    data = Counted()
    with torch.inference_mode(inference):
        first, *more = passes(Subset(data, [2, 0, 1]), 4)
    assert data.reads == [1, 1, 1]
    assert first[0][1] == ("row 2", "row 0")
    assert first[1][0].tolist() == [[1.0]]
    for each in more:
        assert str(each) == str(first)

    padded = Counted(lambda row: {"x": torch.ones(row + 1), "n": row})
    passes(padded, 3, collate_fn=lambda rows: UserDict(x=[row["x"] for row in rows], n=None))
    assert padded.reads == [1, 1, 1]


def drawing(row):
    return torch.rand(1)


GENERATORS = [
    np.random.default_rng(0),
    np.random.RandomState(0),
    random.Random(0),
    torch.Generator(),
]


@pytest.mark.parametrize(
    "data",
    [
        Counted(drawing),
        Counted(lambda row: np.random.rand(1)),  # noqa: NPY002
        Counted(lambda row: random.random()),
        Counted(lambda row: GENERATORS[0].normal(), rng=GENERATORS[0]),
        Counted(lambda row: GENERATORS[1].normal(), parts={"rng": GENERATORS[1]}),
        Counted(lambda row: GENERATORS[2].random(), transforms=[Counted(rng=GENERATORS[2])]),
        Counted(lambda row: torch.rand(1, generator=GENERATORS[3]), transform=(GENERATORS[3],)),
        Counted(lambda row: torch.rand(1) if row == 2 else torch.ones(1)),
        Counted(lambda row: object()),
    ],
    ids=range(9),
)
def test_what_is_drawn_anew_is_not_kept(data):
    collate_fn = list if type(data[0]) is object else default_collate
    data.reads = [0, 0, 0]
    passes(Subset(data, range(3)), 3, collate_fn=collate_fn)
    assert data.reads == [3, 3, 3]


def test_examples_that_are_large_are_read_again(monkeypatch):
    monkeypatch.setattr("fedlight._module.evaluation_batches._KEPT_BYTES", 12)
    data = Counted()
    passes(data, 3)
    assert data.reads == [3, 3, 3]
    # The first batch says that there is room, the last that there is none.
    data = Counted(lambda row: torch.ones(1 if row < 2 else 9))
    passes(data, 2)
    assert data.reads == [2, 2, 2]


@pytest.mark.parametrize("write", ["x.mul_(2)", "x.data.mul_(2)", "x.numpy()[:] = 7"])
def test_a_step_that_writes_to_its_batch_gets_what_was_read(write):
    data = Counted()
    first, *more = passes(data, 3, step=lambda batch: exec(write, {"x": batch[0]}))
    assert all(str(each) == str(first) for each in more)


def test_a_step_may_change_containers():
    data = Counted(lambda row: {"x": torch.ones(1), "names": ["a"]})

    def step(batch):
        batch.pop("x")
        batch["names"].clear()

    first, second = passes(data, 2, step)
    assert str(first) == str(second)
    assert data.reads == [1, 1, 1]
    table = ExampleTable.of_tensors([torch.ones(3)], keys=["x"])
    batches = EvaluationBatches(table, 2, None)
    assert [batch.pop("x").tolist() for _ in range(2) for _, batch in batches] == [[1, 1], [1]] * 2
