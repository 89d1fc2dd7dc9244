"""Clients that raise, return NaN, grow without bound or vanish: one is not the end of the run."""

import functools
import itertools
import math
import re
import warnings
from itertools import product

import pytest
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from fedlight import Callback, FederatedDataModule, participation_report
from fedlight.aggregators import (
    AFACD,
    AFACS,
    CA2FL,
    FADAS,
    MIFA,
    Aggregator,
    AsyncCommSGD,
    AsyncFedAvg,
    FedAsync,
    FedAvg,
    FedBuff,
    FedFix,
    FedNova,
)
from fedlight.arrivals import (
    Availability,
    CommunicationPattern,
    ContinuousArrivals,
    DropOut,
    FixedDurations,
    PeriodicTicks,
    Recording,
    RefreshedTasks,
    ReplayArrivals,
    ScheduleTable,
    SynchronousArrivals,
    Tiers,
    UniformArrivals,
    UniformSpeeds,
    _silence,
)
from fedlight.executors import ClientError
from fedlight.local_optimizers import FreshModel, LocalSGD, Scaffold
from fedlight.types import FailureRecord
from tests.boring import Boring, Point, Recorder, fitted, points, replay

pytestmark = pytest.mark.filterwarnings("ignore:fedlight. some clients")

EXECUTORS = ["sequential", "vectorized"]
BAD = 2
AGGREGATORS = {
    "FedAvg": lambda: FedAvg(3),
    "FedAvg-Adam": lambda: FedAvg(3, server_optimizer=functools.partial(torch.optim.Adam, lr=0.1)),
    "AFACD": lambda: AFACD(3),
    "AFACS": lambda: AFACS(3),
    "FedAsync": lambda: FedAsync(0.6),
    "AsyncFedAvg": lambda: AsyncFedAvg(),
    "FedFix": lambda: FedFix(0.5),
    "FedBuff": lambda: FedBuff(3),
    "AsyncCommSGD": lambda: AsyncCommSGD(1.0),
    "MIFA": lambda: MIFA(3),
    "CA2FL": lambda: CA2FL(3),
    "FADAS": lambda: FADAS(3, 0.05),
    "FedNova": lambda: FedNova(3),
}


def clients(kind: str, bad: int = BAD) -> FederatedDataModule:
    """Five clients, one of which has a label beyond the head, or NaN among its numbers."""
    random = torch.Generator().manual_seed(3)
    tables = []
    for client in range(5):
        x = torch.randn(6 + client, 4, generator=random)
        y = x[:, 0].round().long().remainder(3)
        if client == bad and kind == "raises":
            y[:] = 7
        if client == bad and kind == "NaN":
            x[:] = math.nan
        tables.append(TensorDataset(x, y))
    return FederatedDataModule.from_client_datasets(tables, batch_size=4)


class BatchNormed(Boring):
    """Its running statistics could carry NaN into the model where the weights do not."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)))


def continuous(**kwargs) -> ContinuousArrivals:
    return ContinuousArrivals(FixedDurations([1, 0.8, 0.5, 0.7, 0.3]), local_steps=2, **kwargs)


# Each aggregator meets both values of all three; the four aggregators of a group meet all eight.
ALL = list(product(EXECUTORS, ["raises", "NaN"], ["drop", "retry"]))
BAD_CLIENTS = [
    (aggregator, *ALL[k])
    for number, aggregator in enumerate(AGGREGATORS)
    for k in (number % 4, 7 - number % 4)
]


@pytest.mark.parametrize(("aggregator", "executor", "kind", "policy"), BAD_CLIENTS)
def test_a_bad_client_never_reaches_the_model(aggregator, executor, kind, policy):
    recorder = Recorder()
    run = fitted(
        BatchNormed(),
        clients(kind),
        arrivals=continuous(),
        aggregator=AGGREGATORS[aggregator](),
        local_optimizer=Scaffold(0.1),
        executor=executor,
        on_client_failure=policy,
        callbacks=recorder,
        max_rounds=6,
    )
    assert run.version == 6
    for tensor in (run.state.params, run.state.buffers, run.state.shared):
        assert torch.isfinite(tensor).all()
    used = {update.client_id for record in run.history for update in record.updates}
    assert used == {0, 1, 3, 4}
    failures = [failure for record in run.history for failure in record.failures]
    assert failures
    assert {failure.client_id for failure in failures} == {BAD}
    words = "7 is out of bounds" if kind == "raises" else "loss is not finite"
    assert all(words in failure.reason for failure in failures)
    assert [r.metrics["fed/failures"] for r in run.history] == [
        len(r.failures) for r in run.history
    ]
    told = [call for call in recorder.calls if call[0] == "on_client_failure"]
    assert len(told) >= len(failures)
    assert all(isinstance(error, ClientError) and error.task is task for _, task, error in told)
    assert run.num_failures == len(told)
    assert run.client_state(BAD) is None
    if policy == "drop":
        assert not any(failure.retried for failure in failures)
    else:
        tries = [task.tries for _, task, _ in told]
        assert tries[:3] == [0, 1, 2][: len(tries)]
        assert [failure.retried for failure in failures] == [
            task.tries < 2 for _, task, _ in told[: len(failures)]
        ]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("kind", "words"), [("raises", "7 is out of bounds"), ("NaN", "not finite")]
)
def test_the_default_is_to_raise(executor, kind, words):
    with pytest.raises(
        ClientError,
        match=rf"client 2 failed in its local run from version 0 \(dispatched at virtual time 0, "
        rf"2 steps\): .*{words}",
    ) as caught:
        fitted(
            BatchNormed(),
            clients(kind),
            arrivals=continuous(),
            aggregator=FedBuff(3),
            executor=executor,
        )
    if kind == "raises":
        assert isinstance(caught.value.__cause__, IndexError | RuntimeError)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_batch_mates_keep_their_results(executor):
    """The others' updates are what they are in a run in which nobody fails."""
    good, bad = (
        fitted(
            BatchNormed(),
            clients(kind),
            arrivals=replay(*[(client, 0, 1.0 + client, 3) for client in range(5)]),
            aggregator=FedAvg(buffer_size=1, server_lr=1e-9),
            executor=executor,
            precision="64-true",
            on_client_failure="drop",
        )
        for kind in ("good", "raises")
    )
    norms = [
        {u.client_id: u.norm for record in run.history for u in record.updates}
        for run in (good, bad)
    ]
    del norms[0][BAD]
    assert norms[0] == pytest.approx(norms[1], rel=1e-10)


class Lucky(Point):
    """Fails in its first two steps on 13; then it works."""

    def __init__(self, failures: int = 2) -> None:
        super().__init__()
        self.failures = iter(range(failures))  # a number would travel with the version

    def training_step(self, batch, batch_idx):
        if 13.0 in batch[0] and next(self.failures, None) is not None:
            raise ZeroDivisionError("an unlucky batch")
        return super().training_step(batch, batch_idx)


def test_a_retry_pulls_the_newest_model_and_takes_as_long():
    tasks = []

    class Dispatches(Callback):
        def on_dispatch(self, trainer, module, task):
            tasks.append(task)

    run = fitted(
        Lucky(),
        points([1.0], [13.0]),
        arrivals=replay((0, 0, 1.0, 1), (1, 0, 2.5, 3), (0, 1, 3.0, 1)),
        aggregator=FedAvg(buffer_size=1),
        local_optimizer=LocalSGD(lr=0.5),
        executor="sequential",
        on_client_failure="retry",
        callbacks=Dispatches(),
    )
    again = [task for task in tasks if task.tries]
    times = [
        (t.client_id, t.dispatched_at, t.arrives_at, t.pulled_version, t.num_steps) for t in again
    ]
    assert times == [(1, 2.5, 5.0, 1, 3), (1, 5.0, 7.5, 2, 3)]
    assert [task.tries for task in again] == [1, 2]
    assert [record.now for record in run.history] == [1.0, 3.0, 7.5]
    assert [f.now for f in run.history[-1].failures] == [5.0]
    assert [f.reason for f in run.history[1].failures] == ["ZeroDivisionError: an unlucky batch"]
    assert run.num_failures == 2


class Told(Recording):
    """Notes the local runs of which it is told that they have failed."""

    def setup(self, federation):
        super().setup(federation)
        self.failed = []

    def on_failure(self, task, now):
        super().on_failure(task, now)
        self.failed.append((task.client_id, task.dispatched_at, task.tries, now))


@pytest.mark.parametrize("policy", ["drop", "retry"])
def test_the_record_of_a_run_with_failures_does_not_know_its_goodput(policy, tmp_path):
    """Client 2 always fails: the record has its arrivals, and only a run finds that out."""
    given = {"aggregator": FedBuff(3), "on_client_failure": policy, "max_rounds": 6}
    recording = Told(continuous(), tmp_path / "schedule.parquet")
    run = fitted(BatchNormed(), clients("raises"), arrivals=recording, **given)
    assert participation_report(run).goodput_of[BAD] == 0
    noted = [
        (failure.client_id, failure.now - failure.worked, failure.now)
        for record in run.history
        for failure in record.failures
    ]
    assert [(client, now) for client, _, _, now in recording.failed][: len(noted)] == [
        (client, now) for client, _, now in noted
    ]
    assert [tries for *_, tries, _ in recording.failed][:3] == (
        [0, 1, 2] if policy == "retry" else [0, 0, 0]
    )
    table = ScheduleTable.load(tmp_path / "schedule.parquet")
    assert not table.waste_known
    assert math.isnan(participation_report(table, FedBuff(3)).goodput)
    # A run without failures over the same record has a goodput; this record cannot promise it.
    again = fitted(BatchNormed(), clients("raises"), arrivals=ReplayArrivals(table), **given)
    assert again.fingerprint() == run.fingerprint()
    good = Told(continuous())
    fitted(BatchNormed(), clients("good"), arrivals=good, **given)
    assert good.failed == []
    assert good.table().waste_known


@pytest.mark.parametrize("wrap", [RefreshedTasks, lambda inner: Tiers({"a": inner})])
def test_wrapped_processes_are_told_of_their_own_tasks(wrap):
    told = Told(continuous())
    fitted(
        BatchNormed(),
        clients("raises"),
        arrivals=wrap(told),
        aggregator=FedBuff(3),
        local_optimizer=FreshModel(LocalSGD(0.1)) if wrap is RefreshedTasks else LocalSGD(0.1),
        on_client_failure="drop",
        max_rounds=4,
    )
    assert told.failed
    assert {client for client, *_ in told.failed} == {BAD}
    assert not told.table().waste_known


@pytest.mark.parametrize("resume", ["on_arrival", "on_aggregation"])
@pytest.mark.parametrize("concurrency", [None, 2])
def test_a_retry_does_not_change_the_schedule_of_the_others(resume, concurrency):
    """A process that heard of the retries would send more and more clients."""

    class Busy(Callback):
        most, now = 0, 0

        def on_dispatch(self, trainer, module, task):
            self.now += not task.tries
            self.most = max(self.most, self.now)

        def on_update(self, trainer, module, update):
            self.now -= not update.task.tries

    busy = Busy()
    fitted(
        Boring(),
        clients("NaN"),
        arrivals=continuous(resume=resume, concurrency=concurrency),
        aggregator=FedBuff(2),
        on_client_failure="retry",
        executor="sequential",
        callbacks=busy,
        max_updates=150,
    )
    assert busy.most == (concurrency or 5)


def test_a_buffer_that_is_no_longer_full_waits_on():
    run = fitted(
        Lucky(1),
        points([1.0], [13.0], [2.0]),
        arrivals=replay((0, 0, 1.0, 1), (1, 0, 2.0, 1), (2, 0, 3.0, 1)),
        aggregator=FedBuff(2),
        executor="sequential",
        on_client_failure="drop",
    )
    (record,) = run.history
    assert record.now == 3.0
    assert [update.client_id for update in record.updates] == [0, 2]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_round_without_anybody_left_steps_all_the_same(executor):
    data = clients("NaN", bad=0)
    run = fitted(
        Boring(),
        data,
        arrivals=UniformArrivals(per_round=1, local_steps=1),
        aggregator=AFACD(),
        executor=executor,
        on_client_failure="drop",
        max_rounds=12,
    )
    empty = [record for record in run.history if record.failures]
    assert run.version == 12
    assert empty
    assert all(record.updates == [] for record in empty)


@pytest.mark.parametrize("policy", ["raise", "drop", "retry"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_clients_that_vanish_are_counted_and_no_error(executor, policy):
    recorder = Recorder()
    run = fitted(
        Point(),
        points([1.0], [2.0], [3.0]),
        arrivals=DropOut(ContinuousArrivals(UniformSpeeds(0.5), local_steps=1), 0.4),
        aggregator=FedBuff(2),
        executor=executor,
        on_client_failure=policy,
        callbacks=recorder,
        max_rounds=10,
    )
    lost = [failure for record in run.history for failure in record.failures]
    assert lost
    assert {failure.reason for failure in lost} == {"lost"}
    told = [call for call in recorder.calls if call[0] == "on_client_failure"]
    assert all(task.lost for _, task, _ in told)
    assert len(told) == run.num_failures


class Looks(Callback):
    """Looks at each delta on its arrival, and counts what it saw."""

    seen = 0

    def on_update(self, trainer, module, update):
        self.seen += bool(update.delta.norm() >= 0)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_callback_may_look_at_a_result_that_failed(executor):
    looks = Looks()
    run = fitted(
        Boring(),
        clients("NaN"),
        arrivals=continuous(),
        aggregator=FedBuff(2),
        executor=executor,
        on_client_failure="drop",
        callbacks=looks,
    )
    assert run.num_failures
    assert 0 < looks.seen < run.num_updates
    with pytest.raises(ClientError):
        fitted(
            Boring(),
            clients("NaN"),
            arrivals=continuous(),
            aggregator=FedBuff(20),
            executor=executor,
            callbacks=Looks(),
            max_updates=5,
        )


@pytest.mark.parametrize("executor", EXECUTORS)
def test_updates_over_a_norm_are_clipped_or_dropped(executor):
    given = {
        "arrivals": replay((0, 0, 1.0, 1), (1, 0, 2.0, 1)),
        "aggregator": FedAvg(buffer_size=1),
        "local_optimizer": LocalSGD(lr=0.5),
        "executor": executor,
        "max_update_norm": 3.0,
    }
    clipped = fitted(Point(), points([4.0], [20.0]), **given)
    assert clipped.state.params.item() == pytest.approx(2.0 + 3.0)
    (one,), (two,) = [record.updates for record in clipped.history]
    assert (one.norm, one.clipped_from) == (2.0, None)
    assert (two.norm, two.clipped_from) == (pytest.approx(3.0), 10.0)
    dropped = fitted(Point(), points([4.0], [20.0]), **given, on_large_update="drop")
    assert dropped.state.params.item() == 2.0
    (failure,) = dropped.run.server.state_dict()["failures"]
    failure = FailureRecord(*failure)
    assert failure.reason == "its update has norm 10, over max_update_norm=3"
    assert not failure.retried


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_infinite_mask_is_no_failure(executor):
    class Masked(Point):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.tensor([0.0, -math.inf]))

        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) + 0 * self.mask[0]

    run = fitted(Masked(), points([1.0], [2.0]), executor=executor)
    assert torch.equal(run.state.buffers, torch.tensor([0.0, -math.inf]))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_loss_that_is_not_finite_counts_though_its_gradient_is(executor):
    class Infinite(Point):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) + math.inf

    with pytest.raises(ClientError, match="the loss is not finite"):
        fitted(Infinite(), points([1.0], [2.0]), executor=executor)


class Alone(Aggregator):
    """Keeps its update where nobody can reach it."""

    def setup(self, federation, state):
        self.update = None

    def receive(self, update):
        self.update = update
        return True

    def step(self, state):
        raise NotImplementedError


def test_an_aggregator_that_cannot_leave_anything_out_is_refused():
    with pytest.raises(ValueError, match=r"Alone cannot leave out updates .*BufferedAggregator"):
        fitted(Point(), points([1.0]), aggregator=Alone(), on_client_failure="drop")
    with pytest.raises(NotImplementedError, match=r"define discard\(failed\) and held"):
        Alone().discard([])
    assert Alone().held == []


# --- when nobody is left ---


def test_a_run_ends_when_all_wait_for_a_buffer_that_never_fills():
    with (
        pytest.warns(UserWarning, match=r"no client can arrive any more: .* round 0 .*; 2 updates"),
        pytest.warns(UserWarning, match="before the server made its first update"),
    ):
        run = fitted(
            Point(),
            points([1.0], [2.0]),
            arrivals=ContinuousArrivals(UniformSpeeds(0)),
            aggregator=FedBuff(3),
            max_rounds=4,
            check_val_every_n_rounds=None,
        )
    assert run.version == 0


@pytest.mark.parametrize(
    "arrivals",
    [
        lambda: UniformArrivals(per_round=2, max_staleness=1),
        lambda: CommunicationPattern(PeriodicTicks(1)),
        lambda: ContinuousArrivals(UniformSpeeds(0.5)),
    ],
    ids=["rounds", "ticks", "clock"],
)
@pytest.mark.parametrize(
    "aggregator", [lambda: FedBuff(2), lambda: FedFix(1.0)], ids=["buffer", "deadline"]
)
def test_a_run_ends_when_nobody_is_ever_there_again(arrivals, aggregator):
    process = Availability(arrivals(), {0: [(0, 3.5)], 1: [(0, 2.5)]})
    with pytest.warns(UserWarning, match="no client can arrive any more: the run ends after"):
        run = fitted(
            Point(),
            points([1.0], [2.0], [3.0]),
            arrivals=process,
            aggregator=aggregator(),
            max_rounds=1000,
        )
    assert run.now < 8


@pytest.mark.parametrize("late", ["cancel", "cut"])
@pytest.mark.parametrize("aggregator", ["MIFA", "FedBuff", "FedFix"])
def test_a_run_ends_when_every_task_is_stopped(late, aggregator, monkeypatch):
    monkeypatch.setattr(_silence, "_TASKS", 50)
    arrivals = SynchronousArrivals(2, FixedDurations([1, 1.2, 2]), 1, timeout=0.8, late=late)
    words = r"no update can be used \(80 tasks stopped in a row; give them more .* before its limit"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run = fitted(
            Point(),
            points([1.0], [2.0], [3.0]),
            arrivals=arrivals,
            aggregator={"MIFA": MIFA(2), "FedBuff": FedBuff(2), "FedFix": FedFix(1.0)}[aggregator],
            max_updates=5,
            check_val_every_n_rounds=None,
        )
    (line,) = [str(each.message) for each in found if "before its limit" in str(each.message)]
    assert re.search(words, line)
    assert run.now == pytest.approx(32.0)  # forty rounds of two tasks
    assert run.num_updates == 0


@pytest.mark.parametrize("timeout", [0.5, 1.5])
def test_rounds_that_have_used_no_update_are_named(timeout):
    """Tasks of one unit: with a timeout of 1/2 none arrives, and FedAvg makes empty rounds."""
    arrivals = SynchronousArrivals(durations=FixedDurations([1.0, 1.0]), timeout=timeout)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run = fitted(
            Point(), points([1.0], [2.0]), arrivals=arrivals, aggregator=FedAvg(), max_rounds=3
        )
    said = [str(each.message) for each in seen if "has used an update" in str(each.message)]
    assert run.version == 3
    assert len(said) == (timeout < 1)
    assert all("none of the 3 rounds has used an update" in each for each in said)
    assert (run.module.w.item() == 0) == (timeout < 1)


@pytest.mark.parametrize("policy", ["drop", "retry"])
def test_a_run_ends_when_every_client_fails(policy):
    class Always(Point):
        def training_step(self, batch, batch_idx):
            raise KeyError("column")

    with (
        pytest.warns(UserWarning, match="the last 120 local runs have all failed"),
        pytest.warns(UserWarning, match="before the server made its first update"),
    ):
        run = fitted(
            Always(),
            points([1.0], [2.0]),
            arrivals=ContinuousArrivals(UniformSpeeds(0)),
            aggregator=FedBuff(2),
            executor="sequential",
            on_client_failure=policy,
            max_rounds=4,
        )
    assert run.num_failures == 120


def test_a_client_that_only_sees_what_it_can_is_not_disturbed_by_a_failed_one():
    """SCAFFOLD: a failed run leaves c_i as it was, for the runs after it too."""

    class Sometimes(Boring):
        calls = itertools.count(1)

        def training_step(self, batch, batch_idx):
            loss = functional.cross_entropy(self(batch[0]), batch[1])
            return loss * math.nan if next(self.calls) == 3 else loss

    run = fitted(
        Sometimes(),
        clients("good"),
        arrivals=replay(*[(0, 0, float(time), 1) for time in range(1, 6)]),
        aggregator=FedAvg(buffer_size=1),
        local_optimizer=Scaffold(0.1),
        executor="sequential",
        on_client_failure="drop",
    )
    assert run.num_failures == 1
    assert run.version == 4
    mean = run.client_state(0) / 5
    torch.testing.assert_close(run.state.shared, mean)


def test_a_buffer_forgets_what_failed():
    buffer = FedAvg(buffer_size=2)
    assert buffer.receive("one") is False
    assert buffer.receive("two") is True
    assert buffer.receive("three") is True
    assert buffer.discard(["two"]) is True
    assert buffer.held == ["one", "three"]
    assert buffer.discard(["one"]) is False
