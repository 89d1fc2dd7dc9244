"""Which rows a client's steps use."""

import numpy as np
import pytest
import torch

from data_partitioners import Partition
from fedlight.data import ExampleTable
from fedlight.executors._stack.batches import StackedBatches, batch_rows, rows_in_turn
from fedlight.types import Task

PARTITION = Partition(rows=np.arange(100)[::-1].copy(), offsets=np.array([0, 7, 40, 47, 100]))


def task(client, steps=3, visit=0):
    return Task(client, 0, 0.0, 1.0, num_steps=steps, serial=0, visit=visit)


def test_one_client_after_the_other_or_all_at_once():
    tasks = [task(1, 3), task(3, 8), task(1, 1, visit=4)]
    together = batch_rows(PARTITION, tasks, 5, seed=3)
    assert together.shape == (8, 3, 5)
    for index, each in enumerate(tasks):
        alone = batch_rows(PARTITION, [each], 5, seed=3)[:, 0]
        assert (together[: each.num_steps, index] == alone).all()


def test_each_pass_is_a_permutation_of_what_the_client_holds():
    rows = batch_rows(PARTITION, [task(0, steps=14)], 3, seed=0)[:, 0].reshape(-1, 7)
    assert len(rows) == 6
    for one_pass in rows:
        assert sorted(one_pass) == sorted(PARTITION[0])
    assert len({tuple(one_pass) for one_pass in rows}) > 1


def test_a_small_client_uses_all_it_has_in_each_step():
    rows = batch_rows(PARTITION, [task(0), task(2)], 64, seed=0)
    assert rows.shape == (3, 2, 7)
    assert (np.sort(rows[:, 0]) == np.sort(PARTITION[0])).all()


@pytest.mark.parametrize("other", [{"seed": 1}, {"visit": 1}, {"client": 2}])
def test_seed_client_and_visit_make_it_another_order(other):
    def order(seed=0, client=0, visit=0):
        rows = batch_rows(PARTITION, [task(client, 1, visit)], 7, seed)
        return (rows[0, 0] - PARTITION[client].min()).tolist()

    assert order() == order()
    assert order() != order(**other)


@pytest.mark.parametrize("seed", [-1, 0, 1 << 70])
def test_any_integer_is_a_seed(seed):
    assert sorted(batch_rows(PARTITION, [task(0, 1)], 7, seed)[0, 0]) == sorted(PARTITION[0])


def test_all_orders_are_equally_likely():
    partition = Partition(rows=np.arange(6000), offsets=np.arange(0, 6001, 3))
    rows = batch_rows(partition, [task(client, 1) for client in range(2000)], 3, seed=0)[0]
    orders = rows - rows.min(axis=1, keepdims=True)
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6
    # chi-square with 5 degrees of freedom: beyond 25.7 once in 10,000 seeds
    assert ((counts - 2000 / 6) ** 2 / (2000 / 6)).sum() < 25.7


@pytest.mark.parametrize("at_once", [1, 30, 1000])
def test_rows_in_turn_are_those_of_each_task(at_once, monkeypatch):
    monkeypatch.setattr("fedlight.executors._stack.batches._ROWS_AT_ONCE", at_once)
    tasks = [task(0, 5), task(1, 2, visit=1), task(2, 9), task(0, 1, visit=1), task(1, 3)]
    found = list(rows_in_turn(PARTITION, tasks, 5, seed=3))
    assert len(found) == len(tasks)
    for each, rows in zip(tasks, found, strict=True):
        assert rows.tolist() == batch_rows(PARTITION, [each], 5, seed=3)[:, 0].tolist()


class Counting:
    """A table that counts its batches."""

    def __init__(self, width, keys=None):
        x = torch.arange(100 * width, dtype=torch.float32).reshape(100, width)
        self.table = ExampleTable.of_tensors([x, torch.arange(100)], keys)
        self.calls = 0

    def gather(self, rows):
        self.calls += 1
        return self.table.gather(rows)


@pytest.mark.parametrize(
    ("width", "keys", "size", "calls"),
    [
        (16, None, 72, 1),  # 64 bytes a row: each step's part begins where a tensor would
        (3, None, 20, 3 + 1),  # 2 * 5 * 12 bytes: not on a boundary
        (16, None, 2**17, 3),  # too large for one batch
        (16, ("x", "y"), 72, 3 + 1),  # dicts are gathered step by step
    ],
)
def test_small_batches_are_gathered_at_once(width, keys, size, calls):
    examples = Counting(width, keys)
    rows = torch.randint(0, 100, (3, 2, 5), generator=torch.manual_seed(0))
    batches = StackedBatches(examples, rows, size)
    found = [batches.step(k, 2 if k < 2 else 1) for k in range(3)]
    assert examples.calls == calls
    for k, batch in enumerate(found):
        x, y = batch.values() if keys else batch
        assert torch.equal(y, rows[k, : 2 if k < 2 else 1])
        assert torch.equal(x[..., 0], y * width)
        x.zero_()
        assert torch.equal(batches.gathered(k, 1)["x" if keys else 0][..., 0], rows[k, :1] * width)


def test_the_rows_of_one_client_need_no_width():
    rows = torch.tensor([[1, 2], [3, 4]])
    batches = StackedBatches(Counting(16), rows, 72)
    assert [batches.step(k)[1].tolist() for k in range(2)] == rows.tolist()
    assert batches.gathered(1)[1].tolist() == [3, 4]
