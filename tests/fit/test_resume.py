"""A run that was stopped is the run that was not, to the bit, whoever looks at its results."""

import logging
from collections import deque

import pytest
import torch
from lightning import Trainer
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import TensorDataset

from fedlight import Callback, FederatedDataModule
from fedlight._support.messages import speaking
from fedlight.aggregators import Aggregator, FedAsync, FedBuff, next_version
from fedlight.arrivals import (
    ArrivalProcess,
    ContinuousArrivals,
    Dispatch,
    ExponentialDurations,
    UniformSteps,
    Wake,
)
from fedlight.callbacks import FedCheckpoint
from fedlight.checkpoint import CheckpointError
from fedlight.executors import VectorizedExecutor
from fedlight.local_optimizers import LocalSGD, Scaffold
from fedlight.studies._messages import StudyVoice
from fedlight.types import UsedUpdate
from tests.boring import Boring, classes, trainer

ROUNDS = 6


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x):
        return self.lstm(x.view(len(x), 4, 4))[0][:, -1]


NETS = {
    "logistic regression": lambda: nn.Linear(16, 3),
    "MLP with BatchNorm": lambda: nn.Sequential(
        nn.Linear(16, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3)
    ),
    "MLP with LayerNorm": lambda: nn.Sequential(
        nn.Linear(16, 7), nn.LayerNorm(7), nn.ReLU(), nn.Linear(7, 3)
    ),
    "CNN with BatchNorm": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 3),
    ),
    "LSTM": lambda: nn.Sequential(Last(), nn.Linear(5, 3)),
}


class Looks(Callback):
    """Reads each result when it arrives, long before the server needs it."""

    def on_update(self, trainer, module, update):
        assert update.delta.norm() > 0


def data():
    torch.manual_seed(1)
    return FederatedDataModule.from_client_datasets(
        [TensorDataset(torch.randn(6, 16), torch.randint(3, (6,))) for _ in range(9)], batch_size=3
    )


def fit(net, folder, ckpt_path=None, callbacks=(), **given):
    torch.manual_seed(2)
    given = {
        "arrivals": ContinuousArrivals(
            ExponentialDurations(1.0), resume="on_arrival", local_steps=UniformSteps(1, 3)
        ),
        "aggregator": FedBuff(buffer_size=2),
        "local_optimizer": LocalSGD(lr=0.1),
        **given,
    }
    run = trainer(callbacks=[*callbacks, FedCheckpoint(folder)], **given)
    run.fit(Boring(net()), data(), ckpt_path=ckpt_path)
    return run


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # an LSTM under vmap
@pytest.mark.parametrize(
    ("name", "executor"),
    [  # "auto" stacks all but the last two
        *((name, "auto") for name in NETS),
        ("CNN with BatchNorm", "vectorized"),
        ("LSTM", "vectorized"),
    ],
)
def test_stopped_at_every_round(name, executor, tmp_path):
    rounds = 4
    whole = fit(NETS[name], tmp_path / "whole", max_rounds=rounds, executor=executor)
    for callbacks in ([], [Looks()]):
        folder = tmp_path / str(len(callbacks))
        for number in range(1, rounds + 1):
            # Each time another kind of limit.
            limit = [{"max_rounds": number}, {"max_updates": 2 * number}][number % 2]
            run = fit(NETS[name], folder, "last", callbacks=callbacks, executor=executor, **limit)
            assert run.version == number
        assert run.fingerprint() == whole.fingerprint()
        assert [record.metrics for record in run.history] == [
            record.metrics for record in whole.history
        ]


@pytest.mark.parametrize("max_batch", [3, 256])
def test_client_states_and_looks_at_them(max_batch, tmp_path):
    """SCAFFOLD's c_i depends on results too, and the end of a fit asks for all of them."""
    given = {"local_optimizer": Scaffold(lr=0.1), "aggregator": FedBuff(buffer_size=4)}

    def executor():
        return VectorizedExecutor(max_batch)

    net = NETS["MLP with BatchNorm"]
    whole = fit(net, tmp_path / "whole", max_rounds=ROUNDS, executor=executor(), **given)
    for number in range(1, ROUNDS + 1):
        run = fit(net, tmp_path, "last", max_rounds=number, executor=executor(), **given)
        assert run.client_state(0) is None or run.client_state(0).norm() > 0
    assert run.fingerprint() == whole.fingerprint()
    states = [[each.client_state(client) for client in range(9)] for each in (run, whole)]
    for one, other in zip(*states, strict=True):
        assert torch.equal(one, other) if other is not None else one is None
    assert sum(state is not None for state in states[0]) > 5


def test_a_later_limit_changes_no_bit(tmp_path):
    """In 0.1 the last rounds of a run had smaller stacks than the same rounds of a longer run."""
    net = NETS["CNN with BatchNorm"]
    short, long = (
        fit(net, tmp_path / str(rounds), max_rounds=rounds, executor="vectorized")
        for rounds in (3, 9)
    )
    assert [record.metrics for record in long.history[:3]] == [
        record.metrics for record in short.history
    ]


class Every(ArrivalProcess):
    """Each client every so often; its queue is state that it says nothing of."""

    def __init__(self, gap):
        self.gap = gap

    def setup(self, federation):
        self.order = deque(range(federation.num_clients))

    def on_wake(self, now):
        self.order.rotate(1)
        return [Dispatch(self.order[0], self.gap, 1), Wake(self.gap)]


def test_settings_of_ones_own_strategies_must_be_those_of_the_checkpoint(tmp_path):
    def run(folder, rounds, gap=1.0, rate=lambda version: 1.0):
        given = {"arrivals": Every(gap), "aggregator": FedBuff(2, server_lr=rate)}
        return fit(NETS["logistic regression"], folder, "last", max_rounds=rounds, **given)

    with pytest.warns(UserWarning, match="Every changes order during the run"):
        run(tmp_path, 2)
    for other in ({"gap": 2.0}, {"rate": lambda version: 0.5}):
        with pytest.raises(CheckpointError, match="of another federation"):
            run(tmp_path, 3, **other)
    with pytest.warns(UserWarning, match="Every changes order during the run"):
        assert run(tmp_path, 3, rate=lambda version: 1.0).version == 3


class HoldsSilently(Aggregator):
    """Keeps its updates where nobody else can see them."""

    def __init__(self):
        self.mine = []

    def setup(self, federation, state):
        self.mine = []

    def receive(self, update):
        self.mine.append(update)
        return len(self.mine) == 3

    def step(self, state):
        used = [UsedUpdate(update, 1 / 3) for update in self.mine]
        delta = sum(update.delta for update in self.mine) / 3
        self.mine = []
        return next_version(state, state.params + delta, used)


def test_an_aggregator_need_not_say_what_it_holds(tmp_path):
    """Its updates are computed in bulk and come back from a checkpoint all the same."""
    net = NETS["MLP with BatchNorm"]
    given = {"aggregator": HoldsSilently(), "executor": "vectorized"}
    whole = fit(net, tmp_path / "whole", max_updates=17, **given)
    for updates in (4, 8, 17):
        run = fit(net, tmp_path, "last", max_updates=updates, **given)
    assert run.fingerprint() == whole.fingerprint()
    assert whole.run.pool.num_computed > whole.run.pool.num_batches > 0


def test_a_dropped_update_may_be_looked_at(tmp_path):
    class LooksAtDrops(Callback):
        norms = ()

        def on_drop(self, trainer, module, update):
            self.norms = (*self.norms, float(update.delta.norm()))

    looks, given = LooksAtDrops(), {"aggregator": FedAsync(0.5, max_staleness=1)}
    net = NETS["MLP with BatchNorm"]
    plain = fit(net, tmp_path / "plain", max_rounds=ROUNDS, **given)
    run = fit(net, tmp_path, max_rounds=ROUNDS, callbacks=[looks], **given)
    assert looks.norms
    assert min(looks.norms) > 0
    assert run.fingerprint() == plain.fingerprint()


def test_the_module_is_the_servers_model_right_after_a_resume(tmp_path):
    """Also if no version follows: what is validated and saved then is the checkpoint's model."""
    net = NETS["MLP with BatchNorm"]

    class Sees(Callback):
        def on_fit_start(self, trainer, module):
            self.seen = parameters_to_vector(module.parameters()).detach().clone()

    whole = fit(net, tmp_path, max_rounds=3)
    sees = Sees()
    again = fit(net, tmp_path, "last", callbacks=[sees], max_rounds=3)
    for found in (sees.seen, parameters_to_vector(again.module.parameters()).detach()):
        assert torch.equal(found, whole.state.params)
    kept = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    expected = whole.module.state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in expected.items())


def test_how_failures_are_handled_must_be_that_of_the_checkpoint(tmp_path):
    def run(folder, rounds, **given):
        return fit(NETS["logistic regression"], folder, "last", max_rounds=rounds, **given)

    run(tmp_path / "norm", 2, max_update_norm=1.0)
    for other, words in (
        ({}, "max_update_norm was 1.0, is None"),
        ({"max_update_norm": 2.0}, "max_update_norm was 1.0, is 2.0"),
        (
            {"max_update_norm": 1.0, "on_large_update": "drop"},
            "on_large_update was 'clip', is 'drop'",
        ),
    ):
        with pytest.raises(CheckpointError, match=words):
            run(tmp_path / "norm", 3, **other)
    assert run(tmp_path / "norm", 3, max_update_norm=1.0).version == 3
    run(tmp_path / "drop", 2, on_client_failure="drop")
    for other in ("raise", "retry"):
        with pytest.raises(CheckpointError, match=f"on_client_failure was 'drop', is '{other}'"):
            run(tmp_path / "drop", 3, on_client_failure=other)


def test_a_run_in_which_nothing_failed_may_handle_failures_otherwise(tmp_path):
    """As after an error that ended it: the rounds before it are those of any other handling."""
    for other in ("drop", "retry"):
        folder = tmp_path / other
        fit(NETS["logistic regression"], folder, "last", max_rounds=2)
        run = fit(
            NETS["logistic regression"], folder, "last", max_rounds=4, on_client_failure=other
        )
        whole = fit(
            NETS["logistic regression"],
            tmp_path / f"whole {other}",
            max_rounds=4,
            on_client_failure=other,
        )
        assert run.fingerprint() == whole.fingerprint()


def test_it_says_which_checkpoint_a_call_begins_with(tmp_path, caplog):
    def said(call, *args, **kwargs):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            call(*args, **kwargs)
        return [line for line in caplog.messages if tmp_path.name in line]

    def keeping(rounds):
        return trainer(callbacks=FedCheckpoint(tmp_path), max_rounds=rounds)

    first, last = keeping(2), tmp_path / "last.ckpt"
    none = f"fedlight: no checkpoint in {tmp_path}: a new run"
    assert said(first.fit, Boring(), classes(), ckpt_path="last") == [none]
    resumed = f"fedlight: resumed after round 2 from {last}"
    assert said(keeping(3).fit, Boring(), classes(), ckpt_path="last") == [resumed]
    for call in (first.validate, first.test):
        assert said(call, ckpt_path="last") == [f"fedlight: weights of {last}"]
    with speaking(StudyVoice()):
        assert said(keeping(4).fit, Boring(), classes(), ckpt_path="last") == []


def test_a_checkpoint_of_lightning_is_named_as_one(tmp_path):
    theirs = Trainer(max_epochs=1, logger=False, accelerator="cpu", default_root_dir=tmp_path)
    theirs.strategy.connect(Boring())
    theirs.save_checkpoint(tmp_path / "theirs.ckpt")
    ours = trainer(callbacks=FedCheckpoint(tmp_path / "ours"), max_rounds=1)
    ours.fit(Boring(), classes())
    with pytest.raises(CheckpointError, match=r"of lightning.Trainer; write Net.load_from_check"):
        ours.validate(ckpt_path=tmp_path / "theirs.ckpt")
    whole = (tmp_path / "ours" / "last.ckpt").read_bytes()
    (tmp_path / "damaged.ckpt").write_bytes(whole[:-70] + b"0" * 70)
    with pytest.raises(CheckpointError, match="is damaged, cut short, or not a checkpoint"):
        ours.validate(ckpt_path=tmp_path / "damaged.ckpt")
