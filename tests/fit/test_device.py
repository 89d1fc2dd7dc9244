"""The device and the precision of a run, as far as they can be tested without a GPU."""

import pytest
import torch
from lightning.fabric.plugins.precision import MixedPrecision
from torch import nn

from fedlight._fit.device import check_precision
from tests.boring import Boring, classes, fitted, trainer


def test_precision_that_scales_the_loss_is_refused():
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match=r"precision='16-mixed' .* write precision='bf16-mixed'"):
        check_precision(MixedPrecision("16-mixed", "cuda", scaler))
    check_precision(MixedPrecision("bf16-mixed", "cpu"))
    check_precision(trainer(precision="16-true").fabric.strategy.precision)


@pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU:UserWarning")
def test_on_a_cpu_lightning_itself_takes_the_other_half_precision():
    run = trainer(precision="16-mixed")
    assert run.fabric.strategy.precision.precision == "bf16-mixed"


@pytest.fixture
def two_cards(monkeypatch):
    """A machine with two GPUs, on which CUDA must not be started."""

    def start():
        raise AssertionError("CUDA was started")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for place in (torch.cuda, torch.cuda.random):
        monkeypatch.setattr(place, "device_count", lambda: 2)
        monkeypatch.setattr(place, "_lazy_init", start)


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_a_run_on_the_cpu_starts_no_cuda(two_cards, executor):
    run = fitted(Boring(), classes(), executor=executor, deterministic=True)
    run.validate()
    run.test()
    dropout = Boring(nn.Sequential(nn.Linear(4, 3), nn.Dropout()))
    fitted(dropout, classes(), executor=executor)


def test_a_card_can_be_chosen(two_cards):
    assert trainer(accelerator="cuda", devices=[1]).fabric.device == torch.device("cuda", 1)


class There(Exception):
    """Something was put on the device."""


@pytest.mark.parametrize(("devices", "card"), [([1], 1), ("1,", 1), (1, 0), ("auto", 0)])
def test_the_chosen_card_is_the_current_one_before_anything_is_put_there(
    two_cards, monkeypatch, devices, card
):
    calls = []

    def put(module):
        raise There

    run = trainer(accelerator="cuda", devices=devices)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(run.fabric._strategy, "module_to_device", put)
    with pytest.raises(There):
        run.fit(Boring(), classes())
    assert calls == [torch.device("cuda", card)]


def test_a_card_that_is_not_there_is_refused(two_cards):
    with pytest.raises(ValueError, match=r"(?s)devices=\[5\] do not fit .*only has: \[0, 1\]"):
        trainer(accelerator="cuda", devices=[5])
    with pytest.raises(ValueError, match="devices must be 1, got 2: all clients share one device"):
        trainer(accelerator="cuda", devices=2)
