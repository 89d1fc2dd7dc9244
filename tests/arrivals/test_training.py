"""A recorded run and its replay give the same model, to the last bit."""

from dataclasses import replace

import pytest
import torch
from lightning import LightningModule
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import AFACD, AsyncCommSGD, FedBuff, FedFix
from fedlight.arrivals import (
    Availability,
    CommunicationPattern,
    ContinuousArrivals,
    DiurnalWindows,
    DropOut,
    ExponentialDurations,
    FixedDurations,
    PartialWork,
    PoissonArrivals,
    Recording,
    ReplayArrivals,
    ScheduleTable,
    UniformArrivals,
    UniformSpeeds,
    UniformSteps,
)
from fedlight.callbacks import FedCheckpoint
from fedlight.local_optimizers import LocalSGD
from tests.fits_on_cards import Mixing


class Linear(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1, bias=False)
        torch.nn.init.ones_(self.layer.weight)

    def training_step(self, batch, batch_idx):
        return (self.layer(batch[0]) - batch[1]).square().mean()


@pytest.fixture(scope="module")
def data():
    numbers = torch.Generator().manual_seed(0)
    return FederatedDataModule.from_client_datasets(
        [
            TensorDataset(
                torch.randn(n, 4, generator=numbers), torch.randn(n, 1, generator=numbers)
            )
            for n in range(10, 18)
        ],
        batch_size=4,
    )


def trained(arrivals, aggregator, data, limits):
    ckpt_path = limits.pop("ckpt_path", None)
    trainer = FedTrainer(
        arrivals=arrivals,
        aggregator=aggregator,
        local_optimizer=LocalSGD(lr=0.05),
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        **limits,
    )
    trainer.fit(Linear(), data, ckpt_path=ckpt_path)
    return trainer


CASES = {
    # Clients drawn twice have overlapping tasks, some of which are in flight at the end.
    "rounds": (lambda: UniformArrivals(3, 4, 5), AFACD, {"max_rounds": 12}),
    "drop-outs": (
        lambda: DropOut(ContinuousArrivals(ExponentialDurations(1.0), 3, resume="on_arrival"), 0.3),
        lambda: FedBuff(3),
        {"max_rounds": 12},
    ),
    "poisson": (
        lambda: PoissonArrivals(5.0, UniformSpeeds(0.8), UniformSteps(1, 4)),
        lambda: FedBuff(2),
        {"max_updates": 25},
    ),
    "deadlines": (
        lambda: ContinuousArrivals(UniformSpeeds(0.8), local_steps=3),
        lambda: FedFix(0.5),
        {"max_time": 4.0},
    ),
    "ticks": (lambda: CommunicationPattern.random(0.3, 5), AsyncCommSGD, {"max_time": 10.0}),
    "partial work by day": (
        lambda: PartialWork(
            Availability(
                ContinuousArrivals(UniformSpeeds(0.8), 3, local_steps=5), DiurnalWindows(4.0, 0.5)
            )
        ),
        lambda: FedBuff(2),
        {"max_rounds": 12},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_record_and_replay(data, tmp_path, name):
    make, aggregator, limits = CASES[name]
    path = tmp_path / "schedule.parquet"
    recorded = trained(Recording(make(), path), aggregator(), data, limits)
    replayed = trained(ReplayArrivals(path), aggregator(), data, limits)
    assert replayed.fingerprint() == recorded.fingerprint()
    assert replayed.version == recorded.version > 5
    table = ScheduleTable.load(path)
    assert len(table) == recorded.num_updates
    staleness = [used.staleness for record in recorded.history for used in record.updates]
    assert sorted(staleness) == sorted(table.staleness().tolist())


def test_a_run_that_fails_writes_nothing(data, tmp_path):
    class Broken(Linear):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("no")

    path = tmp_path / "schedule.parquet"
    trainer = FedTrainer(
        arrivals=Recording(UniformArrivals(2), path),
        aggregator=AFACD(),
        local_optimizer=LocalSGD(lr=0.1),
        executor="sequential",
        accelerator="cpu",
        max_rounds=3,
        logger=False,
        enable_progress_bar=False,
    )
    with pytest.raises(Exception, match="no"):
        trainer.fit(Broken(), data)
    assert not path.exists()


# Each of these has other members in a stack of the replay if the record lacks something.
STACKS = {
    "others are in flight at the end": lambda: (
        ContinuousArrivals(UniformSpeeds(0.8), local_steps=3),
        FedBuff(2),
    ),
    "a client pulls between two arrivals of one time": lambda: (
        ContinuousArrivals(
            FixedDurations([1.0, 1.0, 1.0, 2.5, 3.5, 4.5, 5.5, 6.5]),
            resume="on_arrival",
            local_steps=3,
        ),
        FedBuff(2),
    ),
    "clients might have been stopped": lambda: (
        ContinuousArrivals(
            UniformSpeeds(0.8), resume="on_arrival", local_steps=3, restart_after=1000
        ),
        FedBuff(2),
    ),
}


def costs(run):
    """The pulls and arrivals until each version, and the bytes of these."""
    return [(each.metrics["fed/models"], each.metrics["fed/bytes"]) for each in run.history]


@pytest.mark.parametrize("name", STACKS)
def test_the_stacks_of_a_replay_have_the_same_members(data, name):
    arrivals, aggregator = STACKS[name]()
    recording = Recording(arrivals)
    given = {"max_rounds": 6, "executor": Mixing(max_batch=6)}
    recorded = trained(recording, aggregator, data, given)
    table = recording.table()
    assert table.unfinished
    for limits in (given, {"executor": Mixing(max_batch=6)}):  # the record ends by itself
        replayed = trained(ReplayArrivals(table), aggregator, data, limits)
        assert replayed.fingerprint() == recorded.fingerprint()
        assert costs(replayed)[-1] == costs(recorded)[-1]
        assert replayed.num_updates == recorded.num_updates == len(table)
    less = replace(table, unfinished=[], may_stop=False)
    other = trained(ReplayArrivals(less), aggregator, data, given)
    # Without what the record has of the end; the executor shows who is in a stack.
    assert other.fingerprint() != recorded.fingerprint()


def test_a_resumed_replay_has_the_same_stacks(data, tmp_path):
    arrivals, aggregator = STACKS["others are in flight at the end"]()
    recording, given = Recording(arrivals), {"executor": Mixing(max_batch=6)}
    recorded = trained(recording, aggregator, data, {**given, "max_rounds": 6})
    saved = FedCheckpoint(tmp_path, every_n_updates=5, save_top_k=-1)
    whole = Recording(ReplayArrivals(recording.table()))
    trained(whole, aggregator, data, {**given, "callbacks": saved})
    found = [path for path in tmp_path.glob("*.ckpt") if path.name != "last.ckpt"]
    assert len(found) == 2
    for path in found:
        again = ReplayArrivals(recording.table())
        resumed = trained(Recording(again), aggregator, data, {**given, "ckpt_path": path})
        assert resumed.fingerprint() == recorded.fingerprint()
        assert resumed.arrivals.table() == recording.table()
