import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule
from fedlight.data import ExampleTable
from fedlight.executors import SequentialExecutor
from fedlight.executors.base import ClientError, Job
from fedlight.local_optimizers import LocalSGD, ModuleOptimizer
from fedlight.types import LoggedValue, Task
from tests.boring import Boring, Point, classes, points, workplace


def job(work, client=0, steps=1, visit=0):
    return Job(Task(client, 0, 0.0, 1.0, steps, serial=client, visit=visit), work.state.read())


def ready(module, data, optimizer=None):
    work = workplace(module, data, LocalSGD(lr=0.5) if optimizer is None else optimizer)
    executor = SequentialExecutor()
    executor.setup(work)
    return executor, work


def test_results_by_hand():
    executor, work = ready(Point(), points([4.0], [-2.0, -2.0]))
    one, two = executor.run([job(work), job(work, client=1, steps=2)])
    assert (one.delta.tolist(), two.delta.tolist()) == ([2.0], [-1.5])
    assert one.metrics == {"train_loss": LoggedValue(8.0, 1)}
    assert two.metrics == {"train_loss": LoggedValue(2 * 2.0 + 2 * 0.5, 4)}
    assert (one.measured.norm, two.measured.norm) == (2.0, 1.5)
    assert one.client_state is None
    assert one.buffers.numel() == one.counters.numel() == 0


def test_the_modules_own_optimizer_starts_anew_with_each_task():
    class Momentum(Point):
        made = 0

        def configure_optimizers(self):
            self.made += 1
            optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.5)
            halves = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
            return {"optimizer": optimizer, "lr_scheduler": halves}

    module = Momentum()
    executor, work = ready(module, points([4.0]), ModuleOptimizer())
    assert module.made == 1
    one, two = executor.run([job(work, steps=2), job(work, steps=2, visit=1)])
    # w = 0.5·4 = 2; then v = 0.5·(-4) + (2 - 4) = -4 at the rate 0.25: w = 3
    assert one.delta.tolist() == two.delta.tolist() == [3.0]
    assert module.made == 3
    assert module.w.grad is None


def test_a_task_does_not_depend_on_the_ones_beside_it():
    module = Boring(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    executor, work = ready(module, classes())
    assert executor.independent
    jobs = [job(work, client, steps=3) for client in range(4)]
    together = executor.run(jobs)
    for alone, result in zip(reversed(jobs), reversed(together), strict=True):
        (again,) = executor.run([alone])
        assert torch.equal(again.delta, result.delta)
        assert again.metrics == result.metrics


def test_the_module_is_left_as_it_was():
    module = Boring(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    executor, work = ready(module, classes())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    (result,) = executor.run([job(work, steps=3)])
    after = module.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert result.counters.tolist() == [3]
    assert (result.buffers != work.state.read().buffers).all()


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_the_users(training):
    class Asks(Point):
        modes = ()

        def training_step(self, batch, batch_idx):
            self.modes = (*self.modes, self.training)
            return super().training_step(batch, batch_idx)

    module = Asks().train(training)
    executor, work = ready(module, points([4.0]))
    executor.run([job(work)])
    assert module.modes == (training,)
    assert module.training == training


@pytest.mark.parametrize(("draws", "expected"), [(False, [2, 2, 1, 6]), (True, [2] * 7)])
def test_small_batches_are_gathered_at_once_unless_examples_are_random(draws, expected):
    """The first run looks whether numbers are drawn, and is then repeated or shows the size."""

    def transform(batch):
        asked.append(len(batch[0]))
        return batch[0] + torch.rand(1) if draws else batch[0], batch[1]

    asked = []
    clients = [TensorDataset(torch.ones(4, 16), torch.arange(4) % 3) for _ in range(2)]
    data = FederatedDataModule.from_client_datasets(clients, batch_size=2)
    work = workplace(Boring(nn.Linear(16, 3)), data)
    work = replace(work, examples=ExampleTable(work.examples.columns, transform))
    executor = SequentialExecutor()
    executor.setup(work)
    executor.run([job(work, 0, steps=2), job(work, 1, steps=3)])
    assert asked == expected


def test_batches_and_their_numbers():
    class Sees(Point):
        seen = ()

        def training_step(self, batch, batch_idx):
            self.seen = (*self.seen, (batch_idx, sorted(batch[0].flatten().tolist())))
            return super().training_step(batch, batch_idx)

    module = Sees()
    executor, work = ready(module, points([1.0, 2.0], [3.0], batch_size=8))
    executor.run([job(work, 0, steps=2), job(work, 1)])
    assert module.seen == ((0, [1.0, 2.0]), (1, [1.0, 2.0]), (0, [3.0]))


def test_an_error_names_the_client_and_cleans_up():
    class Fails(Point):
        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)
            if batch_idx == 1:
                raise KeyError("column")
            return self.w.sum()

    module = Fails()
    executor, work = ready(module, points([4.0], [5.0]))
    one, error, two = executor.run([job(work, 0), job(work, 1, steps=2), job(work, 0)])
    assert isinstance(error, ClientError)
    assert str(error).startswith("client 1 failed in its local run from version 0")
    assert str(error).endswith("2 steps): KeyError: 'column'")
    assert isinstance(error.__cause__, KeyError)
    assert module.w.item() == 0
    assert "log" not in vars(module)
    assert one.metrics == two.metrics == {"train_loss": LoggedValue(8.0, 1)}


def test_what_is_no_loss_is_the_clients_error():
    class Nothing(Point):
        def training_step(self, batch, batch_idx):
            return "a loss"

    executor, work = ready(Nothing(), points([4.0]))
    (error,) = executor.run([job(work)])
    assert isinstance(error, ClientError)
    assert "Nothing returned str; return the loss" in str(error)


@pytest.mark.parametrize(
    ("value", "reason"), [(math.nan, "the loss is not finite"), (3e38, "the loss is not finite")]
)
def test_what_is_not_finite_is_the_clients_error(value, reason):
    executor, work = ready(Point(), points([value], [4.0]))
    error, result = executor.run([job(work), job(work, 1)])
    assert isinstance(error, ClientError)
    assert reason in str(error)
    assert result.delta.tolist() == [2.0]


def test_an_unused_parameter_does_not_move():
    module = Point()
    module.unused = nn.Linear(1, 1)
    executor, work = ready(module, points([4.0]))
    (result,) = executor.run([job(work)])
    layout = work.state.param_layout
    moved = dict(zip(layout.names, layout.views(result.delta), strict=True))
    assert moved["w"].item() == 2.0
    assert result.delta.count_nonzero() == 1


def test_teardown_lets_go():
    executor, _ = ready(Point(), points([4.0]))
    executor.teardown()
    assert vars(executor) == {}


def test_what_the_first_steps_of_random_numbers_change_is_changed_once():
    class Collects(Boring):
        def __init__(self):
            super().__init__()
            self.drawn, self.total, self.count = [], torch.zeros(1), 0

        def training_step(self, batch, batch_idx):
            number = torch.rand(1)
            self.drawn.append(number.item())
            self.total.add_(number)
            self.count += 1
            return super().training_step(batch, batch_idx)

    module = Collects()
    executor, work = ready(module, classes())
    executor.run([job(work, steps=3)])
    # The first local run is computed again once it is known to draw random numbers.
    assert (len(module.drawn), module.count) == (3, 3)
    assert module.total.item() == pytest.approx(sum(module.drawn))
