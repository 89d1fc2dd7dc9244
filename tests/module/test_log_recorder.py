import math

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torchmetrics import MaxMetric, MeanMetric, MetricCollection

from fedlight._module.log_recorder import LogRecorder
from fedlight.types import LoggedAs, LoggedValue


class Logs(LightningModule):
    def __init__(self):
        super().__init__()
        self.mean = MeanMetric()
        self.both = MetricCollection({"mean": MeanMetric(), "max": MaxMetric()}, prefix="all_")


def recorded(*sizes_and_functions, examples=10.0):
    module = Logs()
    recorder = LogRecorder(module)
    with recorder.recording():
        for size, function in sizes_and_functions:
            recorder.batch_size = size
            function(module)
    return recorder.collect(examples)


@pytest.mark.parametrize(
    "value", [3, 3.0, torch.tensor(3), torch.tensor([[3.0]]), np.float32(3), np.int64(3)]
)
def test_numbers(value):
    assert recorded((4, lambda m: m.log("a", value))) == {"a": LoggedValue(12.0, 4)}


def test_sums_over_examples():
    got = recorded(
        (4, lambda m: m.log("a", 1.0)),
        (1, lambda m: m.log("a", 6.0)),
        (9, lambda m: m.log("a", 2.0, batch_size=5)),
        (2, lambda m: m.log("rare", 7.0)),
    )
    assert got == {"a": LoggedValue(4 + 6 + 10, 4 + 1 + 5), "rare": LoggedValue(14.0, 2)}


def test_a_graph_is_not_kept():
    w = torch.ones((), requires_grad=True)
    module = Logs()
    recorder = LogRecorder(module)
    with recorder.recording():
        module.log("a", 2 * w)
        module.log("a", 2 * w)
    assert not any(value.requires_grad for value in recorder._logged["a"].values)
    assert recorder.collect(1)["a"].total == 4


def test_dictionaries():
    got = recorded((2, lambda m: m.log_dict({"a": 1.0, "b": torch.tensor(2.0)}, batch_size=3)))
    assert got == {"a": LoggedValue(3.0, 3), "b": LoggedValue(6.0, 3)}


def test_metric_objects():
    def step(module):
        module.mean.update(torch.tensor([1.0, 3.0]))
        module.both.update(torch.tensor(5.0))
        module.log("mean", module.mean)
        module.log_dict(module.both)

    got = recorded((2, step), (2, step))
    assert got == {
        "mean": LoggedValue(20.0, 10.0),
        "all_mean": LoggedValue(50.0, 10.0),
        "all_max": LoggedValue(50.0, 10.0),
    }


def test_a_collection_logged_as_one():
    def step(module):
        module.both.update(torch.tensor(5.0))
        module.log("both", module.both)

    assert recorded((1, step)).keys() == {"all_mean", "all_max"}


def test_collecting_starts_anew():
    module = Logs()
    recorder = LogRecorder(module)
    module.mean.update(1.0)
    recorder.log("a", 1.0)
    recorder.log("mean", module.mean)
    assert recorder.collect(1).keys() == {"a", "mean"}
    assert not module.mean.update_called
    assert recorder.collect(1) == {}
    module.mean.update(1.0)
    recorder.log("a", 1.0)
    recorder.clear()
    assert recorder.collect(1) == {}
    assert not module.mean.update_called


@pytest.mark.parametrize("value", ["text", None, [1.0]])
def test_what_cannot_be_logged(value):
    with pytest.raises(TypeError, match=r"self.log\('a', …\) takes a number, a tensor of one"):
        recorded((1, lambda m: m.log("a", value)))


@pytest.mark.parametrize("value", [1j, torch.tensor(1j), np.complex64(1j)])
def test_a_complex_number_is_refused_by_name(value):
    with pytest.raises(TypeError, match=r"self.log\('a', …\) takes a real number, got the complex"):
        recorded((1, lambda m: m.log("a", value)))


@pytest.mark.parametrize(
    ("training", "given", "expected"),
    [
        (True, {}, (False, True)),  # Lightning: (True, False)
        (True, {"on_step": True}, (True, False)),
        (True, {"on_step": False}, (False, True)),  # Lightning: refused
        (True, {"on_epoch": True}, (True, True)),
        (True, {"on_epoch": False}, (True, False)),
        (False, {}, (False, True)),
        (False, {"on_step": True}, (True, True)),
        (False, {"on_step": False}, (False, True)),
        (False, {"on_epoch": True}, (False, True)),
        (False, {"on_step": True, "on_epoch": False}, (True, False)),
    ],
)
def test_when_a_value_is_kept(training, given, expected):
    recorder = LogRecorder(Logs(), training)
    recorder.log("a", 1.0, **given)
    names = {
        (True, False): {"a"},
        (False, True): {"a"},
        (True, True): {"a", "a_step", "a_epoch"},
    }
    recorder.log("a", 2.0, **given)
    values = recorder.collect(1)
    assert values.keys() == names[expected]
    assert values["a"].value == (1.5 if expected[1] else 2.0)


def test_values_that_are_not_averaged():
    got = recorded(
        (4, lambda m: m.log_dict({"a": 1.0, "b": 2.0}, reduce_fx="sum", prog_bar=True)),
        (1, lambda m: m.log_dict({"a": 6.0, "b": 7.0}, reduce_fx="sum", prog_bar=True)),
    )
    how = LoggedAs("sum", prog_bar=True)
    assert got == {"a": LoggedValue(7.0, 5, how), "b": LoggedValue(9.0, 5, how)}
    assert got["a"].value == 7.0
    nan = recorded(
        (1, lambda m: m.log("a", 1.0, reduce_fx="max")),
        (1, lambda m: m.log("a", float("nan"), reduce_fx="max")),
        (1, lambda m: m.log("a", 3.0, reduce_fx="max")),
    )
    assert math.isnan(nan["a"].value)


def test_several_data_loaders_have_names_of_their_own():
    recorder = LogRecorder(Logs())
    for recorder.dataloader_idx in (0, 1):
        recorder.log("a", 1.0 + recorder.dataloader_idx)
        recorder.log("b", 1.0 + recorder.dataloader_idx, add_dataloader_idx=False)
        recorder.log("c", 1.0, on_step=True)
    values = {name: value.value for name, value in recorder.collect(1).items()}
    assert values["a/dataloader_idx_0"] == 1.0
    assert values["a/dataloader_idx_1"] == 2.0
    assert values["b"] == 1.5
    assert "c_step/dataloader_idx_1" in values
    with pytest.raises(ValueError, match="add_dataloader_idx=True adds the number"):
        recorder.log("a/dataloader_idx_0", 1.0)
