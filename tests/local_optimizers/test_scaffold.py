import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import AFACD, FedAsync, FedAvg
from fedlight.arrivals import ReplayArrivals, ReplayEvent
from fedlight.local_optimizers import LocalSGD, Scaffold
from fedlight.types import ServerState, UsedUpdate

EXECUTORS = pytest.mark.parametrize("executor", ["sequential", "vectorized"])


def test_step_and_control_variate_by_hand(toy, rate):
    run = toy.run(Scaffold(0.1), rate)
    states = Scaffold(0.1).finish(run)
    lr = [rate] * 4 if isinstance(rate, float) else rate
    for client, steps in enumerate([5, 3, 3, 1]):
        params, seen = [t[client : client + 1] for t in toy.start], []
        for step in range(steps):
            stacked = [t.expand(client + 1, *t.shape[1:]) for t in params]
            grads = [g[client : client + 1] for g in toy.grads(stacked, step)]
            seen.append(grads)
            params = [
                y - lr[client] * (g - own[client] + shared[client])
                for y, g, own, shared in zip(params, grads, toy.own, toy.shared, strict=True)
            ]
        for number in range(2):
            actual, state = run.params[number][client], states[number][client]
            torch.testing.assert_close(actual, params[number][0], rtol=1e-12, atol=1e-12)
            mean = torch.stack([grads[number][0] for grads in seen]).mean(dim=0)
            torch.testing.assert_close(state, mean, rtol=1e-12, atol=1e-12)


def test_the_server_adds_the_changes_over_all_clients():
    def used(state, replaced):
        class Update:
            class local:
                client_state = torch.tensor([state])

            replaced_state = None if replaced is None else (lambda: torch.tensor([replaced]))

        return UsedUpdate(Update, 123.0)  # weights do not matter

    empty = torch.empty(0)
    version = ServerState(4, torch.zeros(1), empty, empty, used=(used(8.0, None), used(3.0, 5.0)))
    after = Scaffold(0.1).absorb(version, num_clients=4)
    assert after.shared.tolist() == [(8 + 3 - 5) / 4]
    again = Scaffold(0.1).absorb(
        ServerState(5, torch.zeros(1), empty, empty, after.shared, (used(-2.0, 8.0),)), 4
    )
    assert again.shared.tolist() == [1.5 - 10 / 4]
    assert after.shared.tolist() == [1.5]
    unused = ServerState(5, torch.zeros(1), empty, empty, after.shared)
    assert Scaffold(0.1).absorb(unused, 4) is unused


class Net(LightningModule):
    """Two layers and, if wanted, BatchNorm; keeps the gradient of each training step apart."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        middle = nn.BatchNorm1d(5) if norm else nn.Tanh()
        self.net = nn.Sequential(nn.Linear(3, 5), middle, nn.Linear(5, 2)).double()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss


def client_data(sizes):
    generator = torch.Generator().manual_seed(0)
    return [
        TensorDataset(
            torch.randn(size, 3, generator=generator, dtype=torch.float64) + client,
            torch.randint(2, (size,), generator=generator),
        )
        for client, size in enumerate(sizes)
    ]


def fit(module, data, events, executor, *, optimizer, aggregator, batch_size=4, callbacks=None):
    trainer = FedTrainer(
        arrivals=ReplayArrivals([ReplayEvent(*event) for event in events]),
        aggregator=aggregator,
        local_optimizer=optimizer,
        executor=executor,
        precision="64-true",
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=callbacks,
    )
    trainer.fit(module, FederatedDataModule.from_client_datasets(data, batch_size=batch_size))
    return trainer


def full_gradient(module, data):
    x, y = data.tensors
    loss = functional.cross_entropy(module.net(x), y)
    grads = torch.autograd.grad(loss, list(module.net.parameters()))
    return torch.cat([grad.flatten() for grad in grads])


@EXECUTORS
def test_option_1_is_the_gradient_over_all_examples_at_the_pulled_model(executor):
    # Batches of 4 and 5; 7; 4 and 4; 3, smaller than a batch; 4, 4 and 6.
    data = client_data([9, 7, 8, 3, 14])
    events = [(client, 0, 1.0 + client / 10, 1 + client) for client in range(5)]
    trainer = fit(
        Net(), data, events, executor, optimizer=Scaffold(0.1, option=1), aggregator=AFACD(5)
    )
    expected = [full_gradient(Net(), each) for each in data]
    for client, gradient in enumerate(expected):
        torch.testing.assert_close(trainer.client_state(client), gradient)
    torch.testing.assert_close(trainer.state.shared, torch.stack(expected).mean(dim=0))


@EXECUTORS
def test_option_1_leaves_buffers_logs_and_steps_as_they_are(executor):
    data = client_data([9, 7, 8])
    events = [(client, 0, 1.0 + client / 10, 2) for client in range(3)]
    runs = []
    for optimizer in (Scaffold(0.1, option=1), LocalSGD(0.1)):
        trainer = fit(
            Net(norm=True),
            data,
            events,
            executor,
            optimizer=optimizer,
            aggregator=FedAvg(3),
            batch_size=8,
        )
        runs.append((trainer.state, trainer.history[0].metrics["loss"]))
    (ours, loss), (plain, plain_loss) = runs
    # In the first round c_i = c = 0, and SCAFFOLD's steps are those of SGD.
    torch.testing.assert_close(ours.params, plain.params)
    torch.testing.assert_close(ours.buffers, plain.buffers)
    assert ours.counters.tolist() == plain.counters.tolist() == [2]
    assert loss == pytest.approx(plain_loss)


@EXECUTORS
@pytest.mark.parametrize("option", [1, 2])
def test_the_first_round_is_fedavg_and_the_second_is_not(executor, option):
    data = client_data([9, 7, 8])
    events = [(client, 0, 1.0 + client / 10, 3) for client in range(3)]
    events += [(client, 1, 2.0 + client / 10, 3) for client in range(3)]
    models = []
    for optimizer in (Scaffold(0.1, option), LocalSGD(0.1)):
        seen = Watch()
        fit(
            Net(), data, events, executor, optimizer=optimizer, aggregator=FedAvg(3), callbacks=seen
        )
        models.append(seen.params)
    torch.testing.assert_close(models[0][0], models[1][0])
    assert not torch.allclose(models[0][1], models[1][1], atol=1e-4)


class Watch(Callback):
    def __init__(self) -> None:
        self.params, self.gaps = [], []

    def on_round_end(self, trainer, module):
        self.params.append(trainer.state.params)
        states = [trainer.client_state(client) for client in range(3)]
        known = [state for state in states if state is not None]
        if trainer.state.shared is not None and known:
            total = torch.stack(known).sum(dim=0) / 3
            self.gaps.append((total - trainer.state.shared).abs().max().item())


@EXECUTORS
@pytest.mark.parametrize("option", [1, 2])
def test_c_is_the_mean_of_all_c_i_also_when_tasks_of_one_client_overlap(executor, option):
    data = client_data([9, 7, 8])
    # Client 0 is dispatched again before its first task has arrived, twice.
    events = [
        (0, 0, 3.0, 2, 0.0),
        (0, 0, 2.0, 3, 0.5),
        (1, 0, 1.5, 1, 0.0),
        (0, 1, 3.5, 1, 1.8),
        (2, 2, 4.0, 2, 2.5),
        (0, 4, 5.0, 4, 3.6),
    ]
    watch = Watch()
    trainer = fit(
        Net(),
        data,
        events,
        executor,
        optimizer=Scaffold(lambda version: 0.1 / (1 + version), option),
        aggregator=FedAvg(1),
        callbacks=watch,
    )
    assert len(trainer.history) == len(watch.gaps) == 6
    assert max(watch.gaps) < 1e-12
    assert trainer.state.shared.abs().max() > 1e-3


@EXECUTORS
def test_dropped_updates_change_c_i_and_not_c(executor):
    data = client_data([9, 7, 8])
    events = [(0, 0, 1.0, 2), (1, 0, 2.0, 2), (2, 0, 3.0, 2)]
    trainer = fit(
        Net(),
        data,
        events,
        executor,
        optimizer=Scaffold(0.1),
        aggregator=FedAsync(0.5, max_staleness=1),
    )
    assert [len(record.updates) for record in trainer.history] == [1, 1]
    states = [trainer.client_state(client) for client in range(3)]
    assert states[2].abs().max() > 1e-3
    torch.testing.assert_close(trainer.state.shared, (states[0] + states[1]) / 3)


@EXECUTORS
def test_float32_control_variates_are_gradients(executor):
    data = [TensorDataset(x.tensors[0].float(), x.tensors[1]) for x in client_data([8, 8])]
    trainer = FedTrainer(
        arrivals=ReplayArrivals([ReplayEvent(0, 0, 1.0, 1)]),
        aggregator=FedAvg(1),
        local_optimizer=Scaffold(0.1),
        executor=executor,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
    )
    module = Net().float()
    expected = full_gradient(module, data[0])
    trainer.fit(module, FederatedDataModule.from_client_datasets(data, batch_size=8))
    # The gradient is read off the weights: a weight's rounding of 6e-8, divided by lr = 0.1.
    torch.testing.assert_close(trainer.client_state(0), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "given", [{"momentum": 0.9}, {"weight_decay": 0.1}, {"max_grad_norm": 1.0}], ids=str
)
def test_what_would_break_it_is_refused_with_the_reason(given):
    with pytest.raises(TypeError, match=r"Scaffold takes only lr and option, got .*plain SGD"):
        Scaffold(0.1, **given)


@pytest.mark.parametrize("option", [0, 3, "II", True, None])
def test_other_options_are_refused(option):
    with pytest.raises(ValueError, match=r"option must be 1 .* or 2"):
        Scaffold(0.1, option)


@EXECUTORS
def test_a_rate_of_zero_is_refused_where_it_is_divided_by(executor):
    arguments = (client_data([4]), [(0, 0, 1.0, 1)], executor)
    with pytest.raises(Exception, match=r"Scaffold divides by lr, but lr returned 0"):
        fit(Net(), *arguments, optimizer=Scaffold(lambda v: 0.0), aggregator=FedAvg(1))
    fit(Net(), *arguments, optimizer=Scaffold(lambda v: 0.0, option=1), aggregator=FedAvg(1))


def test_names():
    assert repr(Scaffold(0.1)) == "Scaffold(lr=0.1, option=2)"
    with pytest.raises(ValueError, match="lr must be larger than 0, got 0"):
        Scaffold(0)
