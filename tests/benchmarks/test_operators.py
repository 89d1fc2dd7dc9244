"""What `benchmarks/operators.py` counts: on a CPU, every read counts as a wait for the device."""

import pytest
import torch
from torchmetrics import MaxMetric, SumMetric

from benchmarks.operators import LOCAL_RUN, SERVER, counted
from fedlight.aggregators import FedAvg
from fedlight.executors import SequentialExecutor, VectorizedExecutor
from fedlight.local_optimizers import LocalSGD, Scaffold
from tests.boring import Boring, classes


def counts_of(module=None, executor=VectorizedExecutor, **given):
    return counted(
        Boring() if module is None else module,
        classes(sizes=(8,) * 6),
        executor=executor(),
        per_round=3,
        rounds=(2, 5),
        **given,
    )


@pytest.mark.parametrize("executor", [VectorizedExecutor, SequentialExecutor])
@pytest.mark.parametrize("optimizer", [LocalSGD, Scaffold])
def test_two_reads_a_stack_none_within_and_none_at_the_server(executor, optimizer):
    counts = counts_of(executor=executor, optimizer=optimizer(0.1))
    assert counts.stacks == (9 if executor is SequentialExecutor else 3)
    assert counts.versions == 3
    assert counts.waits[LOCAL_RUN].total() == 0
    assert counts.waits_per_stack() == 2, counts.waits
    assert counts.waits_per_version() == 0, counts.waits
    assert counts.per_step > 5


class Counts(Boring):
    """Feeds metric objects that read nothing themselves, and logs them in all ways."""

    def __init__(self):
        super().__init__()
        self.total, self.most = SumMetric(nan_strategy="disable"), MaxMetric("disable")

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.total.update(loss)
        self.log("total", self.total)
        self.log("so_far", self.total.compute())
        self.log("most", self.most(loss.detach()), on_step=True, on_epoch=True)
        return loss


@pytest.mark.parametrize("executor", [VectorizedExecutor, SequentialExecutor])
def test_values_of_metric_objects_are_read_together(executor):
    counts = counts_of(Counts(), executor=executor)
    assert counts.waits[LOCAL_RUN].total() == 0
    assert counts.waits_per_stack() == (3 if executor is VectorizedExecutor else 2), counts.waits


class Reads(Boring):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        assert loss.item() > -1
        return loss


class Curious(FedAvg):
    def step(self, state):
        assert bool(torch.isfinite(state.params).all())
        return super().step(state)


def test_what_is_read_is_found():
    counts = counts_of(Reads(), SequentialExecutor)
    # five steps; what precedes the first one belongs to the stack
    assert counts.waits[LOCAL_RUN].total() == 4 * counts.stacks
    assert counts.waits_per_stack() == 5 + 2
    counts = counts_of(aggregator=Curious())
    assert sum(counts.waits[SERVER].values()) == 3
