import os
import random
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedlight import FederatedDataModule
from fedlight._module.current_stage import Moment, moment_of
from fedlight.executors import SequentialExecutor, VectorizedExecutor
from fedlight.executors._choice.choose_executor import (
    _operators_in_a_loop,
    check_executor,
    describe_device,
    resolve_executor,
)
from fedlight.executors._choice.trial import Trial
from fedlight.local_optimizers import ModuleOptimizer
from tests.boring import Boring, Measured, classes, fitted, workplace


class Reads(Boring):
    """Asks for a value in the middle of a step."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss if loss.item() < 1e9 else 2 * loss


class Decides(Boring):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss if loss > 0 else 2 * loss


def chosen(module, data=None, optimizer=None):
    choice = resolve_executor("auto", workplace(module, data or classes(), optimizer))
    executor, reason = choice.executor, choice.reason
    return type(executor), reason


def test_plain_modules_are_stacked():
    assert chosen(Boring()) == (VectorizedExecutor, "the module can be stacked")
    assert chosen(Measured())[0] is VectorizedExecutor
    norm = Boring(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    assert chosen(norm)[0] is VectorizedExecutor


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.Conv1d(1, 1, 1), "Conv1d"),
        (nn.LSTM(1, 1), "LSTM"),
        (nn.GRUCell(1, 1), "GRUCell"),
        (nn.MultiheadAttention(4, 1), "MultiheadAttention"),
    ],
)
@pytest.mark.parametrize(
    ("cores", "faster"),
    [({0}, ""), ({0, 1}, '; on 2 cores executor="processes" may be faster')],
)
def test_slow_layers_run_one_by_one_on_a_cpu(layer, name, cores, faster, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores, raising=False)
    module = Boring()
    module.layer = layer
    reason = f"stacking {name} layers does not pay on a CPU{faster}"
    assert chosen(module) == (SequentialExecutor, reason)


def test_operators_that_vmap_computes_one_by_one_are_found_whoever_calls_them():
    def attention(q):
        return nn.functional.scaled_dot_product_attention(q, q, q)

    heads = torch.ones(3, 1, 1, 2, 4)
    with warnings.catch_warnings(record=True) as passed_on:
        warnings.simplefilter("always")
        with _operators_in_a_loop() as found:
            torch.vmap(attention)(heads)
            warnings.warn("the module's own", stacklevel=1)
    assert [str(each.message) for each in passed_on] == ["the module's own"]
    (name,) = set(found)
    assert name.startswith("aten::_scaled_dot_product")
    with _operators_in_a_loop() as found:
        torch.vmap(torch.sin)(heads)
    assert found == []


class Mixes(Boring):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * np.random.beta(1, 1)  # noqa: NPY002


class Counts(Boring):
    calls = 0

    def training_step(self, batch, batch_idx):
        self.calls += 1
        return super().training_step(batch, batch_idx)


class Detached(Boring):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx).detach()


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Mixes(), "a local step draws from numpy.random, which stacked clients would share"),
        (Counts(), "changes calls, which stacked clients would share"),
        (Detached(), "training_step fails (NoGradientError: the loss of Detached has no gradient"),
    ],
)
def test_what_stacked_clients_would_share_runs_one_by_one(module, reason):
    python, numpy = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    executor, why = chosen(module)
    assert executor is SequentialExecutor
    assert reason in why
    assert random.getstate() == python
    assert (np.random.get_state()[1] == numpy).all()  # noqa: NPY002
    assert getattr(module, "calls", 0) == 0


def test_a_loss_without_a_gradient_is_refused_when_stacked():
    with pytest.raises(ValueError, match="the loss of Detached has no gradient"):
        resolve_executor("vectorized", workplace(Detached(), classes()))


@pytest.mark.parametrize("module", [Reads, Decides])
def test_what_cannot_be_stacked_runs_one_by_one(module):
    executor, reason = chosen(module())
    assert executor is SequentialExecutor
    assert f"{module.__name__} cannot be vectorised (" in reason
    assert "\n" not in reason


def test_data_and_optimizers_that_cannot_be_stacked():
    executor, reason = chosen(Boring(), optimizer=ModuleOptimizer())
    assert (executor, reason) == (
        SequentialExecutor,
        "ModuleOptimizer() works on one client at a time",
    )
    text = FederatedDataModule.from_client_datasets([["a"]])
    assert chosen(Boring(), text) == (
        SequentialExecutor,
        "the clients' data are no tensors of one shape: they are read one at a time (list)",
    )


def test_trying_leaves_no_trace():
    module = Boring(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    random = torch.get_rng_state()
    chosen(module)
    after = module.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert torch.equal(torch.get_rng_state(), random)
    assert module.training
    assert "log" not in vars(module)


@pytest.mark.parametrize(
    ("given", "expected"), [("sequential", SequentialExecutor), ("vectorized", VectorizedExecutor)]
)
def test_what_was_asked_for(given, expected):
    choice = resolve_executor(given, workplace(Boring(), classes()))
    executor, reason = choice.executor, choice.reason
    assert (type(executor), reason) == (expected, "as given")
    own = expected()
    assert resolve_executor(own, workplace(Boring(), classes())).executor is own


def test_an_executor_asked_for_does_not_fall_back():
    with pytest.raises(ValueError, match="Reads cannot be vectorised"):
        resolve_executor("vectorized", workplace(Reads(), classes()))


def test_names():
    assert check_executor("auto") == "auto"
    with pytest.raises(ValueError, match="got 'fast'"):
        check_executor("fast")
    with pytest.raises(TypeError, match="NoneType"):
        check_executor(None)


def test_the_device_in_words():
    assert describe_device(torch.device("cpu")) == "cpu"


class Settles(Boring):
    """Makes a mask and a setting in its first step, as libraries do, and uses them ever after."""

    def __init__(self):
        super().__init__()
        self.settings = {}

    def training_step(self, batch, batch_idx):
        if not hasattr(self, "mask"):
            self.mask = torch.ones(3, device=self.device)
            self.settings["checked"] = True
        return functional.cross_entropy(self.net(batch[0]) * self.mask, batch[1])


def test_what_a_first_step_makes_once_is_no_state():
    module = Settles()
    assert chosen(module) == (VectorizedExecutor, "the module can be stacked")
    assert not hasattr(module, "mask")
    assert module.settings == {}
    found = []
    for executor in ("sequential", "vectorized"):
        torch.manual_seed(0)
        run = fitted(
            Settles(), classes((8, 8)), executor=executor, precision="64-true", max_rounds=3
        )
        found.append(run.history[-1].metrics["val_loss"])
    assert found[1] == pytest.approx(found[0], abs=1e-12)


class Keeps(Boring):
    """Leaves its loss for those who want to look at it."""

    last = None

    def training_step(self, batch, batch_idx):
        self.last = super().training_step(batch, batch_idx)
        return self.last


class Asks(Boring):
    def __init__(self):
        super().__init__()
        self.trainer = Moment()

    def training_step(self, batch, batch_idx):
        moment_of(self).ask("callback_metrics")
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("asked", ["auto", "vectorized"])
@pytest.mark.parametrize("kind", [Boring, Mixes, Counts, Detached, Keeps, Asks, Reads])
@pytest.mark.parametrize("words", ["", "as given", "the module can be stacked", "keeps tensors"])
def test_no_words_decide(kind, asked, words, monkeypatch):
    def decided():
        try:
            choice = resolve_executor(asked, workplace(kind(), classes()))
        except ValueError as error:
            return type(error)
        return type(choice.executor), choice.shares

    before = decided()
    monkeypatch.setattr(Trial, "in_words", lambda self: words)
    monkeypatch.setattr(Trial, "keeps_in_words", lambda self: words)
    monkeypatch.setattr("fedlight.executors._choice.choose_executor._AS_GIVEN", words)
    assert decided() == before
