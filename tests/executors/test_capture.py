from contextlib import suppress

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torchmetrics import MaxMetric, MeanMetric, MetricCollection

from fedlight.executors._capture import LogRecorder, replaced_log, step_function
from fedlight.types import LoggedValue


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
    assert not any(value.requires_grad for value in recorder._values["a"])
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


@pytest.mark.parametrize("value", ["text", None, [1.0], 1j])
def test_what_cannot_be_logged(value):
    with pytest.raises(TypeError):
        recorded((1, lambda m: m.log("a", value)))
    if not isinstance(value, complex):
        with pytest.raises(TypeError, match=r"self.log\('a', …\) takes a number, a tensor of one"):
            recorded((1, lambda m: m.log("a", value)))


def test_log_is_put_back():
    module = Logs()
    mine = []
    with suppress(RuntimeError), replaced_log(module, print, print):
        assert module.log is print
        raise RuntimeError
    assert "log" not in vars(module)
    module.log = mine.append
    with replaced_log(module, print, print), replaced_log(module, len, len):
        assert module.log is module.log_dict is len
    assert module.log == mine.append
    assert "log_dict" not in vars(module)


class Steps(LightningModule):
    def both(self, batch, batch_idx):
        return batch, batch_idx

    def named_otherwise(self, batch, number):
        return batch, number

    def short(self, batch):
        return batch

    def open(self, *args):
        return args

    def named(self, *, batch_idx, batch=None):
        return batch_idx


@pytest.mark.parametrize(
    ("name", "expected"),
    [("both", (1, 2)), ("named_otherwise", (1, 2)), ("short", 1)],
)
def test_a_step_may_leave_the_number_out(name, expected):
    assert step_function(Steps(), name)(1, 2) == expected
