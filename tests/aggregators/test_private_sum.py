"""Noise at the server: the clipped sum by hand, the size of the noise, and what is refused."""

import math

import pytest
import torch

from fedlight import FedTrainer
from fedlight.aggregators import (
    AFACS,
    FADAS,
    MIFA,
    BufferedAggregator,
    FedAT,
    FedAvg,
    FedBuff,
    FedVARP,
    PrivateSum,
)
from fedlight.arrivals import (
    ContinuousArrivals,
    ExponentialDurations,
    Recording,
    ReplayArrivals,
    SharedStream,
    SynchronousArrivals,
)
from fedlight.channel import ErrorFeedback, GaussianNoise, TopK
from fedlight.local_optimizers import LocalSGD, Scaffold
from tests.boring import Boring, classes

UNIFORM = FedBuff(2, staleness=None)
CLIPPED = GaussianNoise(1.0, 0.1)


class ByNorm(BufferedAggregator):
    """Weighs by what the clients send."""

    def weights(self, updates, version):
        return [float(update.delta.norm()) for update in updates]


class ByParity(BufferedAggregator):
    """Accepts every second update, which it counts."""

    def start(self, federation, state):
        self.seen = 0

    def accepts(self, update, version):
        self.seen += 1
        return self.seen % 2 == 1

    def weights(self, updates, version):
        return [1.0] * len(updates)


def stepped(aggregator, updates, make_state, make_federation, size=2):
    state = make_state([0.0] * size)
    aggregator.setup(make_federation(), state)
    for update in updates:
        aggregator.receive(update)
    return aggregator.step(state)


def test_the_sum_is_of_clipped_updates(make_update, make_state, make_federation):
    """(6, 8) has norm 10 and is clipped to 5; (0, 1) is kept; the noise is too small to be seen."""
    updates = [make_update(0, [6.0, 8.0]), make_update(1, [0.0, 1.0])]
    private = PrivateSum(UNIFORM, noise_multiplier=1e-12, clipping_norm=5.0)
    after = stepped(private, updates, make_state, make_federation)
    torch.testing.assert_close(after.params, torch.tensor([1.5, 2.5]).double())
    assert [used.weight for used in after.used] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("clients", "pulled", "sensitivity"),
    [
        ((0, 1), (3, 3), 1 / 2),  # 1/m each
        ((0, 0), (3, 3), 1.0),  # both of one client
        ((0, 1), (0, 0), 1 / 4),  # staleness 3: (1 + 3)^-1/2 / m
        ((0, 1), (0, 3), 1 / 2),  # the larger of the two
    ],
)
def test_the_noise_follows_what_one_client_can_change(
    clients, pulled, sensitivity, make_update, make_state, make_federation
):
    """Of 40,000 zeros: mean 0 and deviation z * C * sensitivity, within five standard errors."""
    many, z, norm = 40_000, 3.0, 0.5
    private = PrivateSum(FedBuff(2), z, norm)
    state = make_state([0.0] * many, version=3)
    private.setup(make_federation(), state)
    for client, version in zip(clients, pulled, strict=True):
        private.receive(make_update(client, [0.0] * many, pulled=version))
    noise = private.step(state).params
    deviation = z * norm * sensitivity
    assert abs(noise.mean()) < 5 * deviation / math.sqrt(many)
    assert abs(noise.std() / deviation - 1) < 5 / math.sqrt(2 * many)


def test_the_noise_is_named_by_seed_and_version(make_update, make_state, make_federation):
    def at(version):
        private, state = PrivateSum(UNIFORM, 1.0, 1.0), make_state([0.0] * 4, version=version)
        private.setup(make_federation(), state)
        private.receive(make_update(0, [0.0] * 4, pulled=version))
        return private.step(state).params

    assert torch.equal(at(0), at(0))
    assert not torch.isclose(at(0), at(1)).any()


def test_an_empty_step_tells_nothing_and_needs_no_noise(make_state, make_federation):
    after = stepped(PrivateSum(FedAvg(None, "uniform"), 1.0, 1.0), [], make_state, make_federation)
    assert after.params.tolist() == [0.0, 0.0]
    assert after.version == 1


def test_the_given_rule_decides_when_and_whom(make_update, make_state, make_federation):
    private = PrivateSum(ByParity(2), 1.0, 1.0)
    private.setup(make_federation(), make_state())
    updates = [make_update(client, [1.0]) for client in range(3)]
    assert [private.accepts(update, 0) for update in updates] == [True, False, True]
    assert private.drops
    assert private.buffer_size == 2
    other = PrivateSum(ByParity(2), 1.0, 1.0)
    other.setup(make_federation(), make_state())
    other.load_state_dict(private.state_dict())
    assert other.aggregator.seen == 3
    assert not PrivateSum(UNIFORM, 1.0, 1.0).drops
    assert PrivateSum(FedAvg(None, "uniform"), 1.0, 1.0).needs_rounds
    assert PrivateSum(FedBuff(4), 1.0, 1.0).occasions == FedBuff(4).occasions


def test_weights_that_depend_on_updates_are_refused(make_update, make_state, make_federation):
    updates = [make_update(0, [1.0, 0.0]), make_update(1, [2.0, 0.0])]
    with pytest.raises(ValueError, match="its weights depend on what the clients send"):
        stepped(PrivateSum(ByNorm(2), 1.0, 1.0), updates, make_state, make_federation)


@pytest.mark.parametrize("what", ["result", "pulled", "num_examples"])
def test_weights_may_read_the_schedule_only(what, make_update, make_state, make_federation):
    class Nosy(BufferedAggregator):
        def weights(self, updates, version):
            return [getattr(update, what) for update in updates]

    with pytest.raises(ValueError, match=r"use client_id, num_steps and staleness\(version\) only"):
        stepped(PrivateSum(Nosy(1), 1.0, 1.0), [make_update(0, [1.0])], make_state, make_federation)


@pytest.mark.parametrize("changed", [{"buffers": [1.0]}, {"counters": [1]}])
def test_buffers_that_clients_have_changed_are_refused(
    changed, make_update, make_state, make_federation
):
    private = PrivateSum(FedBuff(1), 1.0, 1.0)
    same = {"buffers": [0.0], "counters": [0]}
    state = make_state([0.0], **same)
    private.setup(make_federation(), state)
    private.receive(make_update(2, [1.0], **same))
    state = private.step(state)
    private.receive(make_update(2, [1.0], **{**same, **changed}))
    with pytest.raises(ValueError, match=r"client 2 sends (floating|integer) buffers"):
        private.step(state)


@pytest.mark.parametrize(
    ("aggregator", "error", "message"),
    [
        (FedAvg(2), ValueError, 'write client_weights="uniform"'),
        (MIFA(2), ValueError, "MIFA defines direction"),
        (FedVARP(2), ValueError, "FedVARP defines direction"),
        (AFACS(2), ValueError, "AFACS defines direction"),
        (FADAS(2), ValueError, "FADAS defines direction"),
        (FedAT(2), ValueError, "FedAT defines step, receive, drain, discard, end_round_of"),
        (PrivateSum(UNIFORM, 1.0, 1.0), ValueError, "PrivateSum defines direction"),
        ("FedBuff", TypeError, "aggregator must be one that adds up the updates of a buffer"),
    ],
)
def test_other_rules_are_refused(aggregator, error, message):
    with pytest.raises(error, match=message):
        PrivateSum(aggregator, 1.0, 1.0)


def test_numbers_are_above_zero():
    with pytest.raises(ValueError, match="noise_multiplier must be larger than 0, got 0"):
        PrivateSum(UNIFORM, 0, 1.0)
    with pytest.raises(ValueError, match="clipping_norm must be larger than 0, got -1"):
        PrivateSum(UNIFORM, 1.0, -1)


def boring():
    """A module that always begins at the same parameters."""
    torch.manual_seed(0)
    return Boring()


def trainer(**given):
    options = {
        "arrivals": ContinuousArrivals(ExponentialDurations(1.0), local_steps=2),
        "aggregator": PrivateSum(FedBuff(2), 1.0, 0.1),
        "local_optimizer": LocalSGD(0.1),
        "max_rounds": 6,
        "logger": False,
        "enable_progress_bar": False,
        "accelerator": "cpu",
    }
    return FedTrainer(**{**options, **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"local_optimizer": Scaffold(0.1)}, "sends a second vector of each client"),
        ({"on_client_failure": "drop"}, "on_client_failure='drop' makes the schedule depend"),
        ({"on_client_failure": "retry"}, "on_client_failure='retry' makes the schedule depend"),
        ({"max_update_norm": 1.0, "on_large_update": "drop"}, 'on_large_update="drop" makes'),
        (
            {"arrivals": SharedStream(ContinuousArrivals(ExponentialDurations(1.0)), 4)},
            "lets all clients read the same data",
        ),
    ],
)
def test_runs_whose_noise_does_not_cover_all_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        trainer(**given)


def test_statistics_of_normalisation_are_refused_before_the_first_task():
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    with pytest.raises(ValueError, match="Boring has BatchNorm1d, whose running statistics"):
        trainer().fit(Boring(net), classes())


class Leaky(Boring):
    """Each client sends the mean of its examples as a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def training_step(self, batch, batch_idx):
        self.mean.copy_(batch[0].mean(dim=0))
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("channel", [GaussianNoise(1.0, 0.1), [ErrorFeedback(TopK(0.5)), CLIPPED]])
def test_buffers_beside_the_noise_of_clients_are_refused(channel):
    run = trainer(aggregator=FedBuff(2), channel=channel, executor="sequential")
    with pytest.raises(ValueError, match=r"sends floating buffers .* to which .* adds no noise"):
        run.fit(Leaky(), classes())


@pytest.mark.filterwarnings("ignore:fedlight. ")
def test_a_replay_and_a_resumed_run_have_the_same_bits(tmp_path):
    recording = Recording(ContinuousArrivals(ExponentialDurations(1.0), local_steps=2))
    whole = trainer(arrivals=recording)
    whole.fit(boring(), classes())
    again = trainer(arrivals=ReplayArrivals(recording.table()), executor="sequential")
    again.fit(boring(), classes())
    half = trainer(max_rounds=3)
    half.fit(boring(), classes())
    half.save_checkpoint(tmp_path / "half.ckpt")
    resumed = trainer()
    resumed.fit(boring(), classes(), ckpt_path=tmp_path / "half.ckpt")
    assert resumed.fingerprint() == whole.fingerprint()
    torch.testing.assert_close(again.state.params, whole.state.params, rtol=1e-5, atol=1e-6)
    other = trainer(seed=1)
    other.fit(boring(), classes())
    assert other.fingerprint() != whole.fingerprint()


def test_any_number_of_workers_gives_the_same_bits():
    prints = set()
    for executor in ("sequential", "processes"):
        run = trainer(executor=executor, arrivals=SynchronousArrivals(2, ExponentialDurations(1.0)))
        run.fit(boring(), classes())
        prints.add(run.fingerprint())
    assert len(prints) == 1
