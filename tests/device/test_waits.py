"""How often the host waits for the device, and how many operators a step has."""

import sys

import pytest
import torch
from torch import nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from benchmarks.operators import LOCAL_RUN, counted
from fedlight.aggregators import AFACD, AREA, CA2FL, FADAS, FedAvg, FedBuff
from fedlight.executors import SequentialExecutor, VectorizedExecutor
from fedlight.local_optimizers import FedProx, LocalSGD, Scaffold
from tests.boring import Boring, classes

if "_pretended" not in sys.modules:
    pytest.skip(
        "needs the pretended device: python tests/on_device.py builds it", allow_module_level=True
    )

MODULES = {
    "linear": lambda: nn.Linear(4, 3),
    "norm": lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)),
}


@pytest.mark.parametrize("executor", [VectorizedExecutor, SequentialExecutor])
@pytest.mark.parametrize(
    ("net", "aggregator"),
    [
        *(("linear", FedAvg), ("norm", AFACD), ("norm", lambda: FedBuff(3, server_lr=0.5))),
        *(("linear", lambda: CA2FL(3)), ("linear", lambda: FADAS(3)), ("linear", lambda: AREA(3))),
    ],
    ids=["FedAvg", "AFACD", "FedBuff", "CA2FL", "FADAS", "AREA"],
)
@pytest.mark.parametrize(
    "optimizer",
    [lambda: LocalSGD(0.1, momentum=0.9), lambda: FedProx(0.1, mu=0.1), lambda: Scaffold(0.1)],
    ids=["sgd", "prox", "scaffold"],
)
def test_no_wait_in_a_local_run_two_a_stack_and_none_at_the_server(
    executor, net, aggregator, optimizer
):
    counts = counted(
        Boring(MODULES[net]()),
        classes(sizes=(8,) * 12),
        executor=executor(),
        aggregator=aggregator(),
        optimizer=optimizer(),
        per_round=4,
        rounds=(20, 24),
    )
    assert counts.stacks >= 3
    assert counts.waits[LOCAL_RUN].total() == 0
    assert counts.waits_per_stack() <= 2, counts.waits
    assert counts.waits_per_version() <= 1, counts.waits


class Hosted(Boring):
    """Logs numbers of the host."""

    def training_step(self, batch, batch_idx):
        self.log_dict({"lr": 0.1, "host": torch.tensor(2.0), "one": torch.ones(1)})
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("executor", [VectorizedExecutor, SequentialExecutor])
def test_numbers_of_the_host_are_logged_without_a_wait(executor):
    data = classes(sizes=(8,) * 12)
    counts = counted(Hosted(), data, executor=executor(), per_round=4, rounds=(20, 22))
    assert counts.waits[LOCAL_RUN].total() == 0
    assert counts.waits_per_stack() == 2


class Scores(Boring):
    """Feeds metric objects, whose values are read together with the others."""

    def __init__(self):
        super().__init__()
        self.acc = MulticlassAccuracy(3, average="micro")
        self.mean = MeanMetric(nan_strategy="disable")

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.acc.update(self(batch[0]), batch[1])
        self.mean.update(loss)
        self.log_dict({"acc": self.acc, "mean": self.mean})
        return loss


@pytest.mark.parametrize("executor", [VectorizedExecutor, SequentialExecutor])
def test_metric_objects_are_read_once_a_stack(executor):
    data = classes(sizes=(8,) * 12)
    counts = counted(Scores(), data, executor=executor(), per_round=4, rounds=(20, 22))
    assert counts.waits[LOCAL_RUN].total() == 0
    assert counts.waits_per_stack() == (3 if executor is VectorizedExecutor else 2), counts.waits


def test_a_traced_step_has_few_operators():
    counts = counted(Boring(), classes(sizes=(8,) * 12), per_round=4)
    # 25 with the loss, an accuracy, the gradients and one launch of SGD; 40 as `vmap` makes them
    assert counts.per_step <= 28
