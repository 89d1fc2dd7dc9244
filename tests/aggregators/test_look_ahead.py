"""Momentum look-ahead, and what clients pull in place of a version."""

import pytest
import torch
from lightning import LightningModule
from torch import nn

from fedlight import Callback
from fedlight.aggregators import BufferedAggregator, LookAhead
from fedlight.arrivals import ContinuousArrivals, UniformDurations
from fedlight.executors import ProcessExecutor, SequentialExecutor, VectorizedExecutor
from fedlight.local_optimizers import LocalSGD
from tests.boring import Boring, classes, fitted, points, replay, trainer


class Halfway(LightningModule):
    """The loss is (w - x)^2 / 2, so a step of SGD with rate 1/2 goes half the way to x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def training_step(self, batch, batch_idx):
        return ((self.w - batch[0].double()) ** 2).mean() / 2

    def validation_step(self, batch, batch_idx):
        self.log("w", self.w.sum())


# Each client pulls the newest version but the last one, which pulls version 1.
EVENTS = [(0, 0, 1.0, 1), (1, 1, 2.0, 1), (0, 1, 3.0, 1)]


def run(aggregator, executor=None):
    module = Halfway()
    done = fitted(
        module,
        points([8.0], [-4.0]),
        arrivals=replay(*EVENTS),
        aggregator=aggregator,
        local_optimizer=LocalSGD(0.5),
        executor=executor or SequentialExecutor(),
    )
    return module.w.item(), [record.metrics["w"] for record in done.history]


@pytest.mark.parametrize("executor", [SequentialExecutor, VectorizedExecutor])
def test_three_updates_by_hand(executor):
    """g = 1/2, eta = 1; what is sent is s = x + v/2.

    0: x = 0, s = 0: delta = 4. v = 2, x1 = 0 + 1 + 4 = 5, s1 = 6.
    1: from 6 towards -4: delta = -5. v = 1 - 2.5 = -1.5, x2 = 5 - 0.75 - 5 = -0.75.
    2: from s1 = 6 towards 8: delta = 1. v = -0.75 + 0.5 = -0.25, x3 = -0.75 - 0.125 + 1 = 0.125.
    The validation sees the model, not what is sent.
    """
    assert run(LookAhead(0.5), executor()) == (0.125, [5.0, -0.75, 0.125])


def test_the_model_may_be_sent():
    """0: as above, x1 = 5. 1: from 5: delta = -4.5. v = 1 - 2.25 = -1.25,
    x2 = 5 - 0.625 - 4.5 = -0.125. 2: from 5: delta = 1.5. v = -0.625 + 0.75 = 0.125,
    x3 = -0.125 + 0.0625 + 1.5 = 1.4375.
    """
    assert run(LookAhead(0.5, send="model")) == (1.4375, [5.0, -0.125, 1.4375])


def boring() -> Boring:
    torch.manual_seed(0)
    return Boring()


def options(rounds=9):
    return {
        "arrivals": ContinuousArrivals(UniformDurations(0.2, 1.7), concurrency=3, local_steps=2),
        "aggregator": LookAhead(0.8, server_lr=lambda version: 0.5 / (1 + version)),
        "max_rounds": rounds,
    }


@pytest.mark.parametrize("rounds", [1, 4, 8])
def test_a_resumed_run_sends_the_same(rounds, tmp_path):
    whole, first, second = trainer(**options()), trainer(**options(rounds)), trainer(**options())
    whole.fit(boring(), classes())
    first.fit(boring(), classes())
    first.save_checkpoint(tmp_path / "run.ckpt")
    second.fit(boring(), classes(), ckpt_path=tmp_path / "run.ckpt")
    assert second.fingerprint() == whole.fingerprint()
    assert second.history == whole.history


def test_processes_pull_what_is_sent():
    bits = {
        fitted(boring(), classes(), executor=executor, **options()).fingerprint()
        for executor in (SequentialExecutor(), ProcessExecutor(workers=2))
    }
    assert len(bits) == 1


class Ahead(BufferedAggregator):
    """The mean of the deltas; clients pull the model plus 1."""

    def weights(self, updates, version):
        return [1 / len(updates)] * len(updates)

    def outgoing(self, state):
        return state.params + 1


class Sets(Callback):
    """Sets the model to 10 after the first update."""

    def on_round_end(self, trainer, module):
        if trainer.version == 1:
            with torch.no_grad():
                module.w.fill_(10.0)


def test_a_version_that_a_hook_has_changed_is_sent_anew():
    """0: from 1 towards 8: delta = 3.5, then 10. 1: from 11 towards -4: -7.5, so 2.5."""
    module = Halfway()
    fitted(
        module,
        points([8.0], [-4.0]),
        arrivals=replay(*EVENTS[:2]),
        aggregator=Ahead(1),
        local_optimizer=LocalSGD(0.5),
        callbacks=[Sets()],
    )
    assert module.w.item() == 2.5


class Reused(Ahead):
    """As `Ahead`, but in one tensor, which it writes anew for each version."""

    def start(self, federation, state):
        self.sent = state.params.clone()

    def outgoing(self, state):
        return self.sent.copy_(state.params).add_(1)


@pytest.mark.parametrize("executor", [SequentialExecutor, VectorizedExecutor])
def test_what_was_pulled_does_not_change_with_the_aggregators_tensor(executor):
    runs = [
        fitted(boring(), classes(), executor=executor(), **{**options(), "aggregator": kind(1)})
        for kind in (Ahead, Reused)
    ]
    assert runs[0].fingerprint() == runs[1].fingerprint()


def test_what_is_sent_must_not_change_the_version():
    class Changes(Ahead):
        def outgoing(self, state):
            return state.params.add_(1)

    with pytest.raises(ValueError, match=r"Changes.outgoing has changed the parameters of the ver"):
        fitted(boring(), classes(), aggregator=Changes(2))


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (3.0, TypeError, r"outgoing must return a tensor of shape \(15,\).*got float"),
        (torch.ones(2), TypeError, r"outgoing must return a tensor.*got shape \(2,\)"),
        (torch.full((15,), torch.nan), ValueError, r"outgoing must return finite numbers"),
    ],
    ids=["a number", "another shape", "nan"],
)
def test_what_cannot_be_sent_is_refused(returned, error, message):
    class Wrong(Ahead):
        def outgoing(self, state):
            return returned

    with pytest.raises(error, match=message):
        fitted(boring(), classes(), aggregator=Wrong(2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": 1.0}, "momentum must be smaller than 1, got 1"),
        ({"send": "x"}, "send must be one of 'look_ahead', 'model', got 'x'"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LookAhead(**arguments)
