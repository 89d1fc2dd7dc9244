import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics import MeanMetric

from fedlight._module.evaluation import evaluate
from fedlight._module.evaluation_batches import EvaluationBatches
from fedlight.data.examples import ExampleList, examples_of


def numbers(*values):
    return examples_of([TensorDataset(torch.tensor(values, dtype=torch.float32))])


def run(module, examples, batch_size=2, limit=None, stage="validation", seed=0):
    batches = EvaluationBatches(examples, batch_size, limit)
    return evaluate(module, batches, stage, nullcontext(), seed)


class Seen(LightningModule):
    def __init__(self):
        super().__init__()
        self.batches = []
        self.calls = []

    def validation_step(self, batch, batch_idx):
        self.batches.append((batch_idx, batch[0].tolist()))
        self.log("mean", batch[0].mean())

    def on_validation_epoch_start(self):
        self.calls.append("start")

    def on_validation_epoch_end(self):
        self.calls.append("end")
        self.log("at_end", float(len(self.batches)))


def test_numbers_are_averaged_over_examples():
    module = Seen()
    metrics = run(module, numbers(1, 2, 3, 4, 8))
    assert module.batches == [(0, [1, 2]), (1, [3, 4]), (2, [8])]
    assert metrics == {"mean": pytest.approx((1 + 2 + 3 + 4 + 8) / 5), "at_end": 3.0}
    assert module.calls == ["start", "end"]


def test_a_batch_size_given_to_log_is_its_weight():
    class Own(Seen):
        def validation_step(self, batch, batch_idx):
            self.log("mean", batch[0].mean(), batch_size=1)

    assert run(Own(), numbers(1, 3, 8))["mean"] == pytest.approx((2 + 8) / 2)


def test_batches_of_any_kind_need_no_guess_of_their_size():
    class Words(LightningModule):
        def validation_step(self, batch, batch_idx):
            self.log("length", sum(map(len, batch["word"])) / len(batch["word"]))

    items = [{"word": "a"}, {"word": "bbb"}, {"word": "cccccccc"}]
    assert run(Words(), ExampleList([items])) == {"length": pytest.approx((1 + 3 + 8) / 3)}


def test_metric_objects_are_computed_over_all_and_reset():
    class Measured(LightningModule):
        def __init__(self):
            super().__init__()
            self.mean = MeanMetric()

        def validation_step(self, batch, batch_idx):
            self.mean.update(batch[0])
            self.log("mean", self.mean)

    module = Measured()
    for _ in range(2):
        assert run(module, numbers(1, 2, 6)) == {"mean": 3.0}
    assert not module.mean.update_called


def test_metric_objects_are_reset_after_an_error():
    class Fails(LightningModule):
        def __init__(self):
            super().__init__()
            self.mean = MeanMetric()

        def validation_step(self, batch, batch_idx):
            self.mean.update(batch[0])
            raise RuntimeError("no")

    module = Fails()
    with pytest.raises(RuntimeError, match="no"):
        run(module, numbers(1))
    assert not module.mean.update_called
    assert module.training
    assert "log" not in vars(module)


def test_the_mode_of_each_part_is_restored():
    class Parts(LightningModule):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Dropout().eval()
            self.free = nn.Dropout()
            self.modes = None

        def validation_step(self, batch, batch_idx):
            self.modes = [self.training, self.frozen.training, self.free.training]
            assert not torch.is_grad_enabled()

    module = Parts()
    assert run(module, numbers(1)) == {}
    assert module.modes == [False, False, False]
    assert (module.training, module.frozen.training, module.free.training) == (True, False, True)


def test_random_numbers_are_seeded_and_the_global_ones_untouched():
    class Draws(LightningModule):
        def validation_step(self, batch, batch_idx):
            drawn = [torch.rand(()).item(), np.random.rand(), random.random()]  # noqa: NPY002
            self.log_dict({f"draw{k}": value for k, value in enumerate(drawn)})

    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    first, second, other = (run(Draws(), numbers(1), seed=seed) for seed in (3, 3, 4))
    assert first == second
    assert all(first[name] != other[name] for name in first)
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


@pytest.mark.parametrize("seed", [-1, 2**63, 2**100])
def test_any_integer_is_a_seed(seed):
    assert run(Seen(), numbers(1), seed=seed)["mean"] == 1


def test_a_step_need_not_take_the_number_of_its_batch():
    class Short(LightningModule):
        def test_step(self, batch):
            self.log("sum", batch[0].sum())

    assert run(Short(), numbers(1, 2), stage="test") == {"sum": 3.0}
