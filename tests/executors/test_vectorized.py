import math

import pytest
import torch
from lightning import LightningModule
from torch import nn

from fedlight import FederatedDataModule
from fedlight.executors import SequentialExecutor, VectorizedExecutor
from fedlight.executors.base import ClientError, Job
from fedlight.local_optimizers import LocalSGD, ModuleOptimizer
from fedlight.types import LoggedValue, Task
from tests.boring import Boring, Point, classes, points, workplace


def job(work, client=0, steps=1, visit=0):
    return Job(Task(client, 0, 0.0, 1.0, steps, serial=client, visit=visit), work.state.read())


def ready(module, data, optimizer=None, **kwargs):
    work = workplace(module, data, LocalSGD(lr=0.5) if optimizer is None else optimizer)
    executor = VectorizedExecutor(**kwargs)
    executor.setup(work)
    return executor, work


def test_results_by_hand_in_the_order_of_the_jobs():
    executor, work = ready(Point(), points([4.0], [-2.0, -2.0], [8.0]))
    jobs = [job(work), job(work, 1, steps=2), job(work, 2, steps=2)]
    one, two, three = executor.run(jobs)
    assert (one.delta.item(), two.delta.item(), three.delta.item()) == (2.0, -1.5, 6.0)
    assert [each.measured.norm for each in (one, two, three)] == [2.0, 1.5, 6.0]
    assert one.metrics == {"train_loss": LoggedValue(8.0, 1)}
    assert two.metrics == {"train_loss": LoggedValue(2 * 2.0 + 2 * 0.5, 4)}
    assert three.metrics == {"train_loss": LoggedValue(32.0 + 8.0, 2)}


@pytest.mark.parametrize("max_batch", [1, 2, 3, 100])
def test_the_size_of_a_stack_does_not_matter(max_batch):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    # BatchNorm divides by the spread of a small batch, which can enlarge rounding a hundredfold.
    executor, work = ready(Boring(net).double(), classes(), max_batch=max_batch)
    alone = SequentialExecutor()
    alone.setup(work)
    jobs = [job(work, client, steps) for client, steps in enumerate([2, 5, 1, 5])]
    for one, two in zip(executor.run(jobs), alone.run(jobs), strict=True):
        torch.testing.assert_close(one.delta, two.delta, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(one.buffers, two.buffers, rtol=1e-11, atol=1e-12)
        assert torch.equal(one.counters, two.counters)


def test_the_same_jobs_give_the_same_bits():
    module = Boring(nn.Sequential(nn.Linear(4, 5), nn.Dropout(), nn.Linear(5, 3)))
    executor, work = ready(module, classes())
    jobs = [job(work, client, steps=3) for client in range(4)]
    first, second = executor.run(jobs), executor.run(jobs)
    assert all(torch.equal(a.delta, b.delta) for a, b in zip(first, second, strict=True))


def test_the_module_is_left_as_it_was():
    module = Boring(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    executor, work = ready(module, classes())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    random = torch.get_rng_state()
    executor.run([job(work, steps=3), job(work, 1)])
    after = module.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert torch.equal(torch.get_rng_state(), random)
    assert "log" not in vars(module)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_the_users(training):
    class Asks(Point):
        modes = ()

        def training_step(self, batch, batch_idx):
            Asks.modes = (*Asks.modes, self.training)
            return super().training_step(batch, batch_idx)

    module = Asks().train(training)
    executor, work = ready(module, points([4.0]))
    executor.run([job(work)])
    assert set(Asks.modes) == {training}
    assert module.training == training


def test_an_error_names_the_client_and_leaves_its_neighbours_alone():
    class Fails(LightningModule):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                raise KeyError("column")
            return self.w.sum()

    module = Fails()
    executor, work = ready(module, points([4.0], [5.0]))
    one, error = executor.run([job(work, 0), job(work, 1, steps=3)])
    assert isinstance(error, ClientError)
    assert str(error).endswith("3 steps): KeyError: 'column'")
    assert isinstance(error.__cause__, KeyError)
    assert error.task.client_id == 1
    assert one.delta.tolist() == [-0.5]
    assert "log" not in vars(module)


def test_what_is_not_finite_is_the_clients_error():
    executor, work = ready(Point(), points([math.nan], [4.0], [3e38]))
    error, result, other = executor.run([job(work, client) for client in range(3)])
    assert isinstance(error, ClientError)
    assert isinstance(other, ClientError)
    assert "the loss is not finite" in str(error)
    assert result.delta.tolist() == [2.0]


def test_what_cannot_be_stacked():
    class Reads(Point):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("value", loss.item())
            return loss

    with pytest.raises(ValueError, match=r"Reads cannot be vectorised \(") as caught:
        ready(Reads(), points([4.0]))
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(ValueError, match=r"ModuleOptimizer\(\) works on one client at a time"):
        ready(Point(), points([4.0]), ModuleOptimizer())
    with pytest.raises(ValueError, match="no tensors of one shape"):
        ready(Point(), FederatedDataModule.from_client_datasets([["a"]]))


def test_max_batch():
    assert VectorizedExecutor(max_batch=3).max_batch == 3
    with pytest.raises(ValueError, match="max_batch must be at least 1, got 0"):
        VectorizedExecutor(max_batch=0)


def test_results_do_not_hold_the_whole_stack():
    executor, work = ready(Boring(), classes())
    results = executor.run([job(work, client) for client in range(4)])
    # a result kept for long must not keep its neighbours: at most the stack's deltas in one block
    sizes = {result.delta.untyped_storage().nbytes() for result in results}
    assert max(sizes) <= 4 * work.state.param_layout.numel * 4


def test_teardown_lets_go():
    executor, _ = ready(Point(), points([4.0]))
    executor.teardown()
    assert vars(executor).keys() <= {
        "max_batch",
        "max_bytes",
        "block_bytes",
        "_asked",
        "_reduced_to",
        "dependence",
        "_threads",
        "_one_thread",
    }
