"""Stacks that are filled up, cut to those who still work, and handed out as rows of a block."""

import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule
from fedlight.executors import SequentialExecutor, VectorizedExecutor, vectorized
from fedlight.executors._stack import blocks, local_runs
from fedlight.executors._stack.stack_size import stack_size
from fedlight.executors._tracing import TracedStep
from fedlight.executors.base import Job, Workplace
from fedlight.local_optimizers import LocalSGD
from fedlight.parameters import ModuleState, block_of
from fedlight.types import Task


class Net(LightningModule):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(dropout), nn.Linear(6, 3)
        )

    def training_step(self, batch, batch_idx):
        loss = functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss


def workplace(clients=30, dropout=0.0, dtype=torch.float32):
    torch.manual_seed(0)
    data = FederatedDataModule.from_client_datasets(
        [
            TensorDataset(torch.randn(8, 5, dtype=dtype), torch.randint(3, (8,)))
            for _ in range(clients)
        ],
        batch_size=4,
    )
    module = Net(dropout).to(dtype)
    state = ModuleState(module)
    return Workplace(
        module, state, LocalSGD(0.1, momentum=0.5), data.partition, data.train_data, 4, seed=0
    )


def jobs(work, steps):
    state = work.state.read()
    return [
        Job(Task(client, 0, 0.0, 1.0, k, serial=client, visit=0), state)
        for client, k in enumerate(steps)
    ]


def results(executor, work, steps):
    executor.setup(work)
    return executor.run(jobs(work, steps))


@pytest.mark.parametrize("n", [1, 2, 16, 17, 19, 30])
def test_filling_up_changes_nothing(n, monkeypatch):
    work, steps = workplace(dtype=torch.float64), [1 + i % 7 for i in range(n)]
    filled = results(VectorizedExecutor(), work, steps)
    monkeypatch.setattr(local_runs, "stack_size", lambda n: n)
    exact = results(VectorizedExecutor(), work, steps)
    alone = results(SequentialExecutor(), work, steps)
    assert len(filled) == n
    for one, two, three in zip(filled, exact, alone, strict=True):
        for other in (two, three):
            torch.testing.assert_close(one.delta, other.delta, rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(one.buffers, other.buffers, rtol=1e-11, atol=1e-12)
            assert torch.equal(one.counters, other.counters)
            assert one.metrics["loss"][:2] == pytest.approx(other.metrics["loss"][:2], rel=1e-12)


def test_a_stack_is_filled_up_by_a_sixteenth_at_most():
    sizes = [stack_size(n) for n in range(1, 1025)]
    assert all(n <= size <= n * 17 / 16 for n, size in enumerate(sizes, start=1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 32 + 5 * 16


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_when_a_shape_is_traced_changes_no_bit(dropout, monkeypatch):
    def deltas(after):
        monkeypatch.setattr(vectorized, "TracedStep", lambda step: TracedStep(step, after=after))
        executor, work = VectorizedExecutor(), workplace(dropout=dropout)
        executor.setup(work)
        found = []
        for _ in range(3):
            found += executor.run(jobs(work, [3 + i % 4 for i in range(19)]))
        return found, executor._step.traces

    (untraced, none), (traced, some) = deltas(10**9), deltas(2)
    assert not none
    assert None not in some.values()
    assert some
    for one, two in zip(untraced, traced, strict=True):
        assert torch.equal(one.delta, two.delta)
        assert torch.equal(one.buffers, two.buffers)
        assert one.metrics == two.metrics


def test_the_results_of_a_stack_are_the_rows_of_one_block():
    found = results(VectorizedExecutor(), workplace(), [2] * 19)
    deltas = [result.delta for result in found]
    block = block_of(deltas)
    assert block.data_ptr() == deltas[0].data_ptr()
    assert torch.equal(block, torch.stack(deltas))


def test_a_large_block_is_not_kept_alive_by_a_row(monkeypatch):
    monkeypatch.setattr(blocks, "_SHARED_BYTES", 100)
    found = results(VectorizedExecutor(), workplace(), [2] * 3)
    assert all(result.delta._base is None for result in found)
    assert all(result.buffers._base is None for result in found)


def test_a_stack_has_no_more_bytes_than_it_may():
    work = workplace()
    params, batch = work.state.param_layout.numel, 4 * (5 * 4 + 8)
    per_client = 3 * params * 4 + batch
    for allowed, expected in ((per_client - 1, 1), (3 * per_client, 3), (10**9, 20)):
        executor = VectorizedExecutor(max_batch=20, max_bytes=allowed)
        executor.setup(work)
        assert executor.max_batch == expected
    with pytest.raises(ValueError, match="max_bytes must be at least 1, got 0"):
        VectorizedExecutor(max_bytes=0)


# The model has 6 * 5 + 6 + 2 * 6 + 3 * 6 + 3 = 69 numbers; a batch of 4 examples has 20.
@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (1.99, 1),
        (2, 2),
        (39, 38),  # from 33 clients on, stacks are padded to even numbers
        (10**6, 256),
        (0.1, 1),  # one client is computed whatever it takes
    ],
)
def test_the_largest_block_of_a_stack_is_limited(models, expected):
    executor = VectorizedExecutor(block_bytes=int(models * 69 * 4))
    executor.setup(workplace())
    assert executor.max_batch == expected


def test_examples_count_as_blocks_too():
    wide = TensorDataset(torch.randn(8, 100), torch.randint(3, (8,)))
    data = FederatedDataModule.from_client_datasets([wide] * 10, batch_size=32)

    class First(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step((batch[0][:, :5], batch[1]), batch_idx)

    module = First()
    work = Workplace(
        module, ModuleState(module), LocalSGD(0.1), data.partition, data.train_data, 32, seed=0
    )
    executor = VectorizedExecutor(block_bytes=3 * 8 * 100 * 4)  # batches of the 8 that one has
    executor.setup(work)
    assert executor.max_batch == 3
    with pytest.raises(ValueError, match="block_bytes must be at least 1, got 0"):
        VectorizedExecutor(block_bytes=0)


def test_by_default_blocks_are_limited_on_a_cpu(monkeypatch):
    monkeypatch.setattr("fedlight.executors._stack.stack_size._CPU_BLOCK_BYTES", 5 * 69 * 4)
    executor = VectorizedExecutor()
    executor.setup(workplace())
    assert executor.max_batch == 5
