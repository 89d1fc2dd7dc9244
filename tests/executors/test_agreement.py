"""One by one or stacked: the same weights, whatever the module has in it."""

from copy import deepcopy

import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from data_partitioners import PathologicalPartitioner
from fedlight import FederatedDataModule
from fedlight.arrivals import UniformArrivals, UniformSteps
from fedlight.executors import VectorizedExecutor
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression
from tests.boring import Boring, Measured, classes, fitted

# Frozen layers are in eval mode on purpose here.
pytestmark = pytest.mark.filterwarnings("ignore:.*are in eval mode:UserWarning")

# Logged values are summed in float32, whatever the module's precision: some hundred roundings.
METRICS = {"rel": 1e-5, "abs": 1e-5}
ARRIVALS = UniformArrivals(per_round=3, max_staleness=2, local_steps=UniformSteps(1, 6))


class Tied(nn.Module):
    """The same matrix there and back, a scale without a dimension, and a gain never used."""

    def __init__(self):
        super().__init__()
        self.there = nn.Linear(4, 3, bias=False)
        self.back = nn.Linear(3, 4, bias=False)
        self.back.weight = nn.Parameter(self.there.weight.detach().t().clone())
        self.again = nn.Linear(4, 3, bias=False)
        self.again.weight = self.there.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Linear(7, 7)

    def forward(self, x):
        return self.scale * self.again(torch.tanh(self.back(self.there(x))))


class Counts(nn.Module):
    """Buffers of its own: one that is replaced, one changed in place, a mask."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, True, False, True]))

    def forward(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x.mean(0).detach()
        self.calls += 1
        return self.inner((x - self.mean) * self.mask)


def frozen():
    backbone = nn.Linear(4, 6).requires_grad_(False)
    return nn.Sequential(backbone, nn.Tanh(), nn.Linear(6, 3))


def half_frozen():
    """A frozen backbone whose norm stands still, in front of one that learns."""
    backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).requires_grad_(False).eval()
    return nn.Sequential(backbone, nn.BatchNorm1d(6), nn.Linear(6, 3))


def batch_norm():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


NETS = {
    "linear": lambda: nn.Linear(4, 3),
    "batch norm": batch_norm,
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)),
    "tied": Tied,
    "frozen": frozen,
    "half frozen": half_frozen,
    "buffers": Counts,
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(-1, (1, 4)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 3)
    ),
}


def both(module, data, **kwargs):
    """A run one by one, and the same one stacked, in float64: they add up in different orders."""
    given = {"arrivals": ARRIVALS, "max_rounds": 5, "precision": "64-true", **kwargs}
    return [
        fitted(deepcopy(module), data(), executor=executor, **given)
        for executor in ("sequential", "vectorized")
    ]


def assert_near(one, two, tolerance=1e-11):
    assert one.shape == two.shape
    if one.numel():
        assert torch.dist(one, two) <= tolerance * one.norm()


PLAIN = LocalSGD(lr=0.1)
EVERYTHING = LocalSGD(
    lr=lambda version: 0.1 / (1 + version),
    momentum=0.9,
    weight_decay=0.01,
    nesterov=True,
    max_grad_norm=0.5,
)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("linear", PLAIN),
        ("batch norm", EVERYTHING),
        ("layer norm", PLAIN),
        ("tied", EVERYTHING),
        ("frozen", EVERYTHING),
        ("half frozen", PLAIN),
        ("buffers", EVERYTHING),
        ("convolution", PLAIN),
        ("convolution", EVERYTHING),
    ],
)
def test_they_agree_after_five_rounds(name, optimizer):
    net = NETS[name]
    torch.manual_seed(0)
    module = Boring(net()).double()
    start = module.state_dict()
    one, two = both(module, classes, local_optimizer=optimizer)
    assert_near(one.state.params, two.state.params)
    assert_near(one.state.buffers, two.state.buffers)
    assert torch.equal(one.state.counters, two.state.counters)
    moved = [not torch.equal(v, start[k]) for k, v in one.module.state_dict().items()]
    assert any(moved)
    for first, second in zip(one.history, two.history, strict=True):
        assert first.metrics == pytest.approx(second.metrics, **METRICS)


def test_they_agree_on_mnist():
    data = FederatedDataModule("mnist-mini", PathologicalPartitioner(10, 2), batch_size=32)
    torch.manual_seed(0)
    one, two = both(
        LogisticRegression(28 * 28, 10), lambda: data, max_rounds=20, check_val_every_n_rounds=20
    )
    assert_near(one.state.params, two.state.params)
    assert one.history[-1].metrics["val_acc"] > 0.5


def test_buffers_move_and_frozen_norms_do_not():
    torch.manual_seed(0)
    run = fitted(Boring(half_frozen()), classes(), arrivals=ARRIVALS, executor="sequential")
    still, moving = run.module.net[0][1], run.module.net[1]
    assert still.running_mean.tolist() == [0.0] * 6
    assert still.num_batches_tracked == 0
    assert moving.running_mean.abs().min() > 0
    assert moving.num_batches_tracked > 0


def test_what_is_logged_agrees():
    torch.manual_seed(0)
    one, two = both(Measured(), classes, max_rounds=6)
    names = {"f1", "mean", "both_acc", "both_f1", "one", "two", "even_loss", "val_acc"}
    for first, second in zip(one.history, two.history, strict=True):
        assert names <= first.metrics.keys()
        assert first.metrics == pytest.approx(second.metrics, **METRICS)
    assert not two.module.train_f1.update_called
    assert not two.module.both["acc"].update_called


class OwnWeights(Boring):
    """Says itself how much its logged values weigh."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.log("one", loss, batch_size=1)
        self.log_dict({"two": loss}, batch_size=2 + len(y) ** 2)
        return loss


class OwnState(Metric):
    """Gives its own state, a whole number, which the next update changes in place."""

    def __init__(self):
        super().__init__()
        self.add_state("count", torch.tensor(2**24), dist_reduce_fx="sum")

    def update(self, y):
        self.count += y.numel()

    def compute(self):
        return {"count": self.count, "half": self.count / 2}


class LogsState(Boring):
    def __init__(self):
        super().__init__()
        self.seen = OwnState()

    def training_step(self, batch, batch_idx):
        self.seen.update(batch[1])
        self.log("seen", self.seen)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_metric_s_whole_numbers_keep_all_digits(executor):
    arrivals = UniformArrivals(2, local_steps=3)
    run = fitted(LogsState(), classes((3, 3)), executor=executor, arrivals=arrivals, max_rounds=1)
    metrics = run.history[-1].metrics
    assert metrics["count"] == 2**24 + 3 * 3  # float32 has no odd numbers there
    assert metrics["half"] == 2**23 + 4


class Seen(OwnState):
    def compute(self):
        return self.count


class LogsSoFar(LogsState):
    def __init__(self):
        super().__init__()
        self.seen = Seen()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("so_far", self.seen.compute())
        return loss


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_state_that_is_logged_and_then_changed_keeps_its_value(executor):
    arrivals = UniformArrivals(2, local_steps=5)
    run = fitted(LogsSoFar(), classes((4, 4)), executor=executor, arrivals=arrivals, max_rounds=1)
    metrics = run.history[-1].metrics
    assert metrics["seen"] == 2**24 + 5 * 4
    assert metrics["so_far"] == 2**24 + 3 * 4


class LogsTheValue(Boring):
    """Logs what a metric's call returns, batch by batch, rather than the metric."""

    def __init__(self):
        super().__init__()
        self.f1 = MulticlassAccuracy(3, average="macro")

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        self.log("batch_f1", self.f1(scores, y))
        return functional.cross_entropy(scores, y)


class LogsAllValues(Boring):
    def __init__(self):
        super().__init__()
        self.both = MetricCollection([MulticlassAccuracy(3), MeanMetric()])

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        loss = functional.cross_entropy(scores, y)
        self.log_dict(
            {
                "acc": self.both["MulticlassAccuracy"](scores, y),
                "mean": self.both["MeanMetric"](loss),
            }
        )
        return loss


class LogsTwice(Boring):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("twice", 1.0 + loss)
        self.log("twice", 3.0)
        return loss


@pytest.mark.parametrize("module", [OwnWeights, LogsTheValue, LogsAllValues, LogsTwice])
def test_other_ways_of_logging_agree(module):
    torch.manual_seed(0)
    one, two = both(module(), classes, max_rounds=4)
    for first, second in zip(one.history, two.history, strict=True):
        assert first.metrics == pytest.approx(second.metrics, **METRICS)


def test_a_metric_that_is_fed_and_not_logged_is_no_trouble():
    class Quiet(Boring):
        def __init__(self):
            super().__init__()
            self.matrix = MulticlassConfusionMatrix(3)

        def training_step(self, batch, batch_idx):
            x, y = batch
            scores = self(x)
            self.matrix.update(scores, y)
            return functional.cross_entropy(scores, y)

    one, two = both(Quiet(), classes, max_rounds=2)
    assert one.history[0].metrics.keys() == two.history[0].metrics.keys()


@pytest.mark.parametrize("executor", ["sequential", VectorizedExecutor(max_batch=3)])
def test_dropout_is_reproducible(executor):
    torch.manual_seed(0)
    module = Boring(nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)))
    prints = {
        fitted(deepcopy(module), classes(), executor=executor, arrivals=ARRIVALS).fingerprint()
        for _ in range(2)
    }
    assert len(prints) == 1


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_dropout_differs_between_clients_and_steps(executor):
    masks = []

    class Drops(LightningModule):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(64))

        def training_step(self, batch, batch_idx):
            return functional.dropout(self.w, 0.5).sum()  # the gradient is the mask, times 2

    class Notes(LocalSGD):
        def step(self, run, grads):
            masks.extend(grads[0].clone())

    arrivals = UniformArrivals(per_round=3, local_steps=2)
    fitted(
        Drops(),
        classes(),
        executor=executor,
        arrivals=arrivals,
        local_optimizer=Notes(lr=1.0),
        max_rounds=1,
    )
    masks = masks[-6:]  # what the vectorized executor tries first does not count
    assert len({tuple(mask.tolist()) for mask in masks}) == 6
    assert all(10 < (mask == 2).sum() < 54 for mask in masks)
