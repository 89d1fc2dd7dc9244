"""Runs with a channel: what arrives, what is counted, what is remembered, and resuming."""

import copy
from pathlib import Path

import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.utils.data import TensorDataset

from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import AFACD, FedAsync, FedAvg, FedBuff
from fedlight.arrivals import (
    ContinuousArrivals,
    ExponentialDurations,
    PoissonArrivals,
    ReplayArrivals,
    ReplayEvent,
    UniformArrivals,
    UniformSteps,
)
from fedlight.channel import QSGD, Channel, Clip, ErrorFeedback, RandomK, TopK
from fedlight.checkpoint import CheckpointError
from fedlight.local_optimizers import LocalSGD, Scaffold

STEPS = UniformSteps(1, 3)
CLIENTS = 5


class Net(LightningModule):
    """Fifteen parameters, and buffers with BatchNorm where wanted."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.BatchNorm1d(4) if norm else nn.Identity(), nn.Linear(4, 3))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])


def data() -> FederatedDataModule:
    draw = torch.Generator().manual_seed(0)
    x = [torch.randn(size, 4, generator=draw) for size in (6, 9, 12, 7, 8)]
    sets = [TensorDataset(each, each.argmax(1) % 3) for each in x]
    return FederatedDataModule.from_client_datasets(sets, batch_size=4)


def fit(channel, ckpt_path=None, norm=False, **given) -> FedTrainer:
    options = {
        "arrivals": UniformArrivals(3, max_staleness=2, local_steps=STEPS),
        "aggregator": AFACD(),
        "local_optimizer": LocalSGD(0.3),
        "max_rounds": 6,
        "executor": "vectorized",
        "precision": "64-true",
    }
    trainer = FedTrainer(
        **{**options, **given},
        channel=channel,
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
    )
    trainer.fit(Net(norm), data(), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize(
    ("precision", "executor"), [("32-true", "vectorized"), ("64-true", "sequential")]
)
@pytest.mark.parametrize(
    "channel", [[], TopK(1.0), RandomK(1.0), Clip(1e6), ErrorFeedback(TopK(1.0))], ids=repr
)
def test_a_channel_that_lets_all_through_is_none(channel, precision, executor) -> None:
    plain = fit(None, norm=True, precision=precision, executor=executor)
    run = fit(channel, norm=True, precision=precision, executor=executor)
    assert run.fingerprint() == plain.fingerprint()
    assert run.history == plain.history


def test_clip_does_what_max_update_norm_does() -> None:
    limited, clipped = fit(None, max_update_norm=0.2), fit(Clip(0.2))
    torch.testing.assert_close(limited.state.params, clipped.state.params, rtol=1e-12, atol=0)
    norms = [u.norm for record in clipped.history for u in record.updates]
    assert max(norms) == pytest.approx(0.2)
    both = fit(Clip(0.1), max_update_norm=0.2)
    assert max(u.norm for record in both.history for u in record.updates) == pytest.approx(0.1)
    assert any(u.clipped_from for record in both.history for u in record.updates)


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
@pytest.mark.parametrize(
    ("channel", "sent"),
    [  # of 15 parameters: 3 numbers, 4 bits of place
        (None, lambda bits: 15 * bits / 8),
        (TopK(0.2), lambda bits: -(-3 * (bits + 4) // 8)),
        (RandomK(0.2), lambda bits: 3 * bits / 8),
        (QSGD(4), lambda bits: -(-(15 * 4 + bits) // 8)),
        (ErrorFeedback([TopK(0.2), QSGD(4)]), lambda bits: -(-(3 * (4 + 4) + bits) // 8)),
    ],
)
def test_the_bytes_that_are_sent_are_counted(channel, sent, precision) -> None:
    run = fit(channel, norm=True, precision=precision, local_optimizer=Scaffold(0.1))
    bits = 32 if precision == "32-true" else 64
    parameters = 15 + 8  # and those of BatchNorm, which has 8 floating buffers and a counter
    if channel is None:
        up = parameters * bits // 8
    else:
        up = channel.nbytes(parameters, bits // 8)
        assert channel.nbytes(15, bits // 8) == sent(bits)
    rest = parameters * bits // 8 + 8 * bits // 8 + 8  # c, the buffers, the counter
    down = parameters * bits // 8 + rest
    counts = run.run.counts
    expected = counts.num_pulls * down + counts.num_updates * (up + rest)
    assert run.history[-1].metrics["fed/bytes"] == expected
    assert run.history[-1].metrics["fed/models"] == counts.num_pulls + counts.num_updates


def three(*moments: tuple[int, float, float], versions=(0, 0, 0, 0)) -> ReplayArrivals:
    """Tasks of one step as (client, dispatch, arrival)."""
    pairs = zip(moments, versions, strict=False)
    events = [ReplayEvent(who, version, end, 1, start) for (who, start, end), version in pairs]
    return ReplayArrivals(events, durations=[1.0] * CLIENTS)


class Keeps(Callback):
    """The deltas of updates as the server gets them, read as they arrive."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, torch.Tensor]] = []

    def on_update(self, trainer, module, update):
        self.sent.append((update.client_id, update.delta.clone()))

    def total(self, client: int) -> torch.Tensor:
        return sum(delta for who, delta in self.sent if who == client)


class Through(Channel):
    """Lets everything through."""

    def send(self, updates, senders):
        return updates

    def message(self, message):
        return message


@pytest.mark.parametrize(
    ("inner", "executor", "looks"),
    [
        (TopK(0.1), "sequential", False),
        (TopK(0.1), "vectorized", True),
        (RandomK(0.2), "sequential", True),
        (RandomK(0.2), "vectorized", False),
        ([TopK(0.3), QSGD(3)], "sequential", False),
        ([TopK(0.3), QSGD(3)], "vectorized", True),
    ],
    ids=repr,
)
def test_what_is_sent_and_kept_is_the_sum_of_all_deltas(inner, executor, looks) -> None:
    """A learning rate of the server that is almost 0 makes all deltas those of version 0."""
    given = {"aggregator": FedAvg(server_lr=1e-300), "executor": executor, "max_rounds": 12}

    class Looks(Callback):
        def on_update(self, trainer, module, update):
            if looks:
                self.early = update.delta.clone()

    class Sent(FedAvg):
        def direction(self, updates, weights, state):
            for update in updates:
                kept = totals.get(update.client_id, 0)
                totals[update.client_id] = kept + update.delta
            return super().direction(updates, weights, state)

    sums = []
    for channel in (None, ErrorFeedback(inner)):
        totals: dict[int, torch.Tensor] = {}
        given["aggregator"] = Sent(server_lr=1e-300)
        run = fit(channel, callbacks=[Looks()], **given)
        if channel is not None:
            assert all(run.client_memory(client).norm() > 0 for client in totals)
            totals = {client: totals[client] + run.client_memory(client) for client in totals}
        sums.append(totals)
    assert sums[0].keys() == sums[1].keys() == set(range(CLIENTS))
    for client in sums[0]:
        torch.testing.assert_close(sums[0][client], sums[1][client], rtol=1e-12, atol=1e-13)


def test_the_memory_goes_by_the_order_of_arrivals() -> None:
    """Client 0's second task overtakes its first; both are computed in one stack."""
    arrivals = three((0, 0.0, 3.0), (1, 0.0, 2.5), (0, 0.5, 2.0))
    keeps = Keeps()
    given = {"arrivals": arrivals, "aggregator": FedBuff(1), "callbacks": [keeps]}
    raw = Keeps()
    fit(None, **{**given, "aggregator": FedBuff(1, server_lr=1e-300), "callbacks": [raw]})
    run = fit(ErrorFeedback(TopK(0.1)), **{**given, "aggregator": FedBuff(1, server_lr=1e-300)})
    first, second = (delta for who, delta in raw.sent if who == 0)
    channel = TopK(0.1)

    def top(delta):
        return channel.send(delta[None], None)[0]

    sent = [delta for who, delta in keeps.sent if who == 0]
    torch.testing.assert_close(sent[0], top(first))
    torch.testing.assert_close(sent[1], top(second + first - top(first)))
    torch.testing.assert_close(run.client_memory(0), first + second - sent[0] - sent[1])
    assert run.client_memory(2) is None


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("looks", [False, True])
def test_a_dropped_update_counts_as_one_for_the_decay(executor, looks) -> None:
    """The first two updates are too stale: e = d2 + b d1; so the third is C(d3 + b d2 + b b d1)."""
    moments = ((1, 0.0, 1.0), (0, 0.0, 2.0), (0, 2.0, 3.0), (0, 3.0, 4.0), (1, 4.0, 5.0))
    arrivals = three(*moments, versions=(0, 0, 0, 1, 2))
    keeps, decay = Keeps(), 0.25

    def run(channel, callbacks):
        return fit(
            channel,
            arrivals=arrivals,
            aggregator=FedAsync(lambda version: 1e-300, max_staleness=0),
            executor=executor,
            callbacks=callbacks,
        )

    run(None, [raw := Keeps()])
    d1, d2, d3 = (delta for who, delta in raw.sent if who == 0)
    trained = run(ErrorFeedback(TopK(0.1), decay), [keeps] if looks else [])
    whole = d3 + decay * (d2 + decay * d1)
    top = TopK(0.1).send(whole[None], None)[0]
    torch.testing.assert_close(trained.client_memory(0), whole - top)
    if looks:
        torch.testing.assert_close(keeps.sent[3][1], top)


def test_a_failed_update_does_not_count_for_the_decay() -> None:
    """The second of three updates of client 0 fails."""

    class Breaks(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * float("nan") if self.trainer.now == 1.0 else loss

    def run(channel):
        trainer = FedTrainer(
            arrivals=three((0, 0.0, 1.0), (0, 1.0, 2.0), (0, 2.0, 3.0)),
            aggregator=FedBuff(1, server_lr=1e-300),
            local_optimizer=LocalSGD(0.3),
            executor="sequential",
            precision="64-true",
            on_client_failure="drop",
            max_rounds=9,
            channel=channel,
            logger=False,
            enable_progress_bar=False,
            callbacks=[keeps := Keeps()],
        )
        trainer.fit(Breaks(), data())
        assert trainer.num_failures == 1
        return trainer, [delta for _, delta in keeps.sent]

    _, (first, last) = run(None)
    trainer, sent = run(ErrorFeedback(TopK(0.1), decay=0.25))
    top = TopK(0.1)
    left_out = first - top.send(first[None], None)[0]
    whole = last + 0.25 * left_out
    torch.testing.assert_close(sent[1], top.send(whole[None], None)[0])
    torch.testing.assert_close(trainer.client_memory(0), whole - sent[1])


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_of_a_dropped_update_all_is_kept(executor) -> None:
    """Client 0's first two updates are too stale; its third one carries what is left of both."""
    moments = ((1, 0.0, 1.0), (0, 0.0, 2.0), (0, 2.0, 3.0), (0, 3.0, 4.0), (1, 4.0, 5.0))
    arrivals = three(*moments, versions=(0, 0, 0, 1, 2))
    runs = []
    for channel in (None, ErrorFeedback(TopK(0.1))):
        keeps = Keeps()
        aggregator = FedAsync(lambda version: 1e-300, max_staleness=0)
        options = {"arrivals": arrivals, "aggregator": aggregator, "executor": executor}
        runs.append((fit(channel, callbacks=[keeps], **options), keeps))
    (plain, raw), (run, keeps) = runs
    assert [len(record.dropped) for record in plain.history] == [0, 2, 0]
    whole = raw.total(0)
    top = TopK(0.1).send(whole[None], None)[0]
    torch.testing.assert_close(keeps.sent[3][1], top)
    torch.testing.assert_close(run.client_memory(0), whole - top)
    # nobody has to look at updates for that
    again = fit(
        ErrorFeedback(TopK(0.1)),
        arrivals=arrivals,
        aggregator=FedAsync(lambda version: 1e-300, max_staleness=0),
        executor=executor,
    )
    assert torch.equal(again.client_memory(0), run.client_memory(0))


def test_a_failed_update_leaves_the_memory_as_it_was() -> None:
    arrivals = three((0, 0.0, 1.0), (0, 1.0, 2.0), (0, 2.0, 3.0))

    class Breaks(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * float("nan") if self.trainer.now == 2.0 else loss

    def run(given):
        trainer = FedTrainer(
            arrivals=given,
            aggregator=FedBuff(1, server_lr=1e-300),
            local_optimizer=LocalSGD(0.3),
            executor="sequential",
            max_rounds=9,
            on_client_failure="drop",
            channel=ErrorFeedback(TopK(0.1)),
            logger=False,
            enable_progress_bar=False,
            callbacks=[keeps := Keeps()],
        )
        trainer.fit(Breaks(), data())
        return trainer, keeps

    trainer, _ = run(arrivals)
    assert [record.version for record in trainer.history] == [1, 2]
    assert trainer.num_failures == 1


class SaveEach(Callback):
    def __init__(self, folder: Path) -> None:
        self.folder, self.events = folder, 0

    def on_event_end(self, trainer, module):
        self.events += 1
        trainer.save_checkpoint(self.folder / f"{self.events}.ckpt")


RUNS = {
    "overlapping": {},
    "dropped": {
        "arrivals": PoissonArrivals(4.0, ExponentialDurations(1.0), STEPS),
        "aggregator": FedAsync(0.5, max_staleness=2),
    },
    "dropped, with decay": {
        "arrivals": PoissonArrivals(4.0, ExponentialDurations(1.0), STEPS),
        "aggregator": FedAsync(0.5, max_staleness=2),
        "decay": 0.5,
    },
    "buffered": {
        "arrivals": ContinuousArrivals(ExponentialDurations(1.0), resume="on_arrival"),
        "aggregator": FedBuff(3),
        "local_optimizer": Scaffold(0.2),
        "max_update_norm": 0.3,
        "on_large_update": "drop",
    },
}


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_from_each_event_to_the_same_bits(name, executor, tmp_path) -> None:
    """One executor goes on from every second event, the other one from those in between."""

    def run(path=None, callbacks=()):
        options = copy.deepcopy(RUNS[name])
        decay = options.pop("decay", 1.0)
        channel = [Clip(1.0), ErrorFeedback([TopK(0.3), QSGD(4)], decay)]
        return fit(channel, path, callbacks=list(callbacks), executor=executor, **options)

    save = SaveEach(tmp_path)
    whole = run(callbacks=[save])
    memories = [whole.client_memory(client) for client in range(CLIENTS)]
    assert sum(memory is not None for memory in memories) > 2
    if name != "overlapping":
        assert any(r.dropped or r.failures for r in whole.history)
    for event in range(1 if executor == "sequential" else 2, save.events, 2):
        again = run(tmp_path / f"{event}.ckpt")
        assert again.fingerprint() == whole.fingerprint(), event
        assert repr(again.history) == repr(whole.history), event  # nan
        for client, memory in enumerate(memories):
            now = again.client_memory(client)
            assert (now is None) == (memory is None)
            assert memory is None or torch.equal(now, memory)


@pytest.mark.parametrize(
    "channel", [QSGD(3), ErrorFeedback(QSGD(3)), ErrorFeedback(QSGD(3), decay=0.5)], ids=repr
)
def test_who_looks_at_updates_changes_nothing(channel) -> None:
    for executor, name in (
        ("sequential", "overlapping"),
        ("vectorized", "overlapping"),
        ("sequential", "dropped"),
        ("vectorized", "dropped"),
    ):
        given = {**RUNS[name], "executor": executor}
        runs = [fit(channel, callbacks=each, **copy.deepcopy(given)) for each in ([], [Keeps()])]
        assert runs[0].fingerprint() == runs[1].fingerprint()
        assert repr(runs[0].history) == repr(runs[1].history)


def test_a_run_is_not_resumed_with_another_channel(tmp_path) -> None:
    fit(TopK(0.5), callbacks=[SaveEach(tmp_path)])
    with pytest.raises(CheckpointError, match=r"channel was 'TopK\(0.5\)', is 'TopK\(0.25\)'"):
        fit(TopK(0.25), tmp_path / "3.ckpt")
    with pytest.raises(CheckpointError, match=r"is 'ErrorFeedback\(TopK\(0.5\), decay=0.5\)'"):
        fit(ErrorFeedback(TopK(0.5), decay=0.5), tmp_path / "3.ckpt")
    with pytest.raises(CheckpointError, match=r"channel was 'TopK\(0.5\)', is None"):
        fit(None, tmp_path / "3.ckpt")


def test_a_channel_that_breaks_its_promise_is_named() -> None:
    class Half(Through):
        def send(self, updates, senders):
            return updates[:, ::2]

    class Blows(Through):
        def send(self, updates, senders):
            return updates / 0

    with pytest.raises(ValueError, match=r"Half.* must return what arrives of 3 updates"):
        fit(Half(), arrivals=UniformArrivals(3))
    with pytest.raises(RuntimeError, match=r"what .*Blows.* makes of its update is not finite"):
        fit(Blows())
    for channel in (Blows(), ErrorFeedback(Blows())):
        with pytest.warns(UserWarning, match="none of the 2 rounds has used an update"):
            run = fit(channel, on_client_failure="drop", max_rounds=2)
        assert run.num_failures > 0
        assert run.client_memory(0) is None
