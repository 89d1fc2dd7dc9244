"""Runs that are stopped before they arrive, clients that are polled, and tiers, in a whole fit."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedlight import Callback, FederatedDataModule, FedTrainer, participation_report, plot
from fedlight.aggregators import (
    FAVAS,
    FedAsync,
    FedAT,
    FedAvg,
    FedBuff,
    QuAFL,
    Rennala,
    Ringmaster,
)
from fedlight.arrivals import (
    ArrivalProcess,
    Cancel,
    ContinuousArrivals,
    Cut,
    Dispatch,
    DropOut,
    EndRound,
    ExponentialDurations,
    FixedDurations,
    PolledArrivals,
    Recording,
    ReplayArrivals,
    ScheduleTable,
    SynchronousArrivals,
    Tiers,
    UniformSteps,
    Wake,
)
from fedlight.callbacks import EventLog
from fedlight.channel._lattice import Lattice
from fedlight.executors import Executor, SequentialExecutor, VectorizedExecutor
from fedlight.local_optimizers import LocalSGD, OwnModel, Scaffold
from tests.project.test_contracts import CLIENTS, Tiny

pytestmark = pytest.mark.filterwarnings("ignore:fedlight. ")
STEPS = UniformSteps(1, 4)
CLOCK = ExponentialDurations(1.0)


def fit(arrivals, aggregator=None, optimizer=None, ckpt_path=None, clients=CLIENTS, **given):
    trainer = FedTrainer(
        **{
            "arrivals": arrivals,
            "aggregator": FedAsync(0.5) if aggregator is None else aggregator,
            "local_optimizer": LocalSGD(0.05) if optimizer is None else optimizer,
            "precision": "64-true",
            "logger": False,
            "enable_progress_bar": False,
        }
        | given
    )
    data = FederatedDataModule.from_client_datasets(clients, batch_size=2)
    trainer.fit(Tiny(), data, ckpt_path=ckpt_path)
    return trainer


class Script(ArrivalProcess):
    """Two clients of four steps in four units; at 2.5 something happens to the second one."""

    may_stop = True
    finite = True

    def __init__(self, what: Any) -> None:
        self.what = what

    def setup(self, federation):
        self.heard = []
        self.started = False

    def on_wake(self, now):
        if self.started:
            return [self.what]
        self.started = True
        return [Dispatch(0, 4.0, 4), Dispatch(1, 4.0, 4), Wake(2.5)]

    def on_arrival(self, task, now):
        self.heard.append(("arrival", task.client_id, task.num_steps, now))
        return ()

    def on_start(self, task):
        self.heard.append(("start", task.client_id))

    def on_stop(self, task, version, now):
        self.heard.append(("stop", task.client_id, version, now))


STARTS = [("start", 0), ("start", 1)]


def test_a_cancelled_run_never_arrives():
    process = Script(Cancel(1))
    trainer = fit(process)
    assert process.heard == [*STARTS, ("stop", 1, 0, 2.5), ("arrival", 0, 4, 4.0)]
    (record,) = trainer.history
    assert [update.client_id for update in record.updates] == [0]
    (stopped,) = record.failures
    assert (stopped.client_id, stopped.now, stopped.reason) == (1, 2.5, "cancelled")
    # It is no failure of the client's.
    assert (trainer.num_failures, record.metrics["fed/failures"]) == (0, 0.0)
    # Three models have travelled: two pulls, one arrival.
    assert record.metrics["fed/models"] == 3.0


def test_a_cut_run_arrives_now_with_the_steps_it_had_time_for():
    process = Script(Cut(1))
    trainer = fit(process, FedBuff(2, staleness=None))
    # 2.5 of 4 units: two of the four steps.
    assert process.heard == [*STARTS, ("arrival", 1, 2, 2.5), ("arrival", 0, 4, 4.0)]
    (record,) = trainer.history
    assert [(u.client_id, u.num_steps, u.arrived_at) for u in record.updates] == [
        (1, 2, 2.5),
        (0, 4, 4.0),
    ]
    # The two steps are those that a task of two steps would have made.
    short = Script(Wake(9.0))
    short.on_wake = lambda now: [Dispatch(0, 4.0, 4), Dispatch(1, 2.5, 2)] if not now else ()
    assert trainer.fingerprint() == fit(short, FedBuff(2, staleness=None)).fingerprint()


def test_a_run_that_is_cut_before_its_first_step_is_cancelled():
    process = Script(Cut(1))
    process.on_wake = lambda now: [Cut(1)] if now else [Dispatch(1, 4.0, 1), Wake(2.5)]
    table = process.simulate(num_clients=2, buffer_size=1)
    (event,) = table.events
    assert (event.client, event.time, event.stopped_at_version) == (1, 2.5, 0)


@pytest.mark.parametrize("action", [Cancel(0), Cut(0)])
def test_a_client_that_is_not_at_work_has_nothing_to_stop(action):
    process = Script(action)
    process.on_wake = lambda now: [action] if now else [Dispatch(1, 4.0, 4), Wake(2.5)]
    assert [(e.client, e.time) for e in process.simulate(2, buffer_size=1).events] == [(1, 4.0)]


def test_a_process_says_that_it_stops_clients():
    process = Script(Cancel(1))
    process.may_stop = False
    with pytest.raises(ValueError, match=r"returned Cancel.*may_stop = True in its class"):
        process.simulate(2, buffer_size=1)


def test_rounds_may_end_now_but_not_for_ever():
    class Rounds(Script):
        by_rounds = True

        def on_round_end(self, now):
            return [EndRound(0.0)]

    with pytest.raises(ValueError, match="virtual time must advance by at least 1e-9"):
        Rounds(EndRound(0.0)).simulate(2)


class Counting(SequentialExecutor):
    """Counts the runs that are computed, also behind its teardown, which clears all else."""

    serials: ClassVar[list[int]] = []

    def run(self, jobs):
        self.serials += [job.task.serial for job in jobs]
        return super().run(jobs)


class CountingStacks(VectorizedExecutor):
    """Counts the runs that are computed."""

    serials: ClassVar[list[int]] = []

    def run(self, jobs):
        self.serials += [job.task.serial for job in jobs]
        return super().run(jobs)


class Tasks(Callback):
    def __init__(self):
        self.arrived, self.cancelled, self.started = [], [], []

    def on_dispatch(self, trainer, module, task):
        self.started.append(task.serial)

    def on_update(self, trainer, module, update):
        self.arrived.append(update.task.serial)

    def on_cancel(self, trainer, module, task):
        self.cancelled.append(task.serial)


def restarts(**more) -> ContinuousArrivals:
    given = {"resume": "on_arrival", "local_steps": STEPS, "restart_after": 1}
    return ContinuousArrivals(CLOCK, **given | more)


PROCESSES: dict[str, Callable[[], ArrivalProcess]] = {
    "restarts": restarts,
    "restarts of two": lambda: DropOut(restarts(restart_after=2, concurrency=3, idle=0.1), 0.2),
    "over-selection": lambda: SynchronousArrivals(2, CLOCK, STEPS, over_select=2),
    "timeout": lambda: SynchronousArrivals(None, CLOCK, STEPS, timeout=0.8),
    "cut": lambda: SynchronousArrivals(None, CLOCK, STEPS, timeout=0.8, late="cut"),
    "grace": lambda: SynchronousArrivals(None, CLOCK, STEPS, quorum=2, grace=0.2),
    "late ones continue": lambda: SynchronousArrivals(
        None, CLOCK, STEPS, grace=0.3, late="continue"
    ),
    "polled": lambda: PolledArrivals(2, 0.7, ExponentialDurations(0.4), 4),
    "tiers": lambda: Tiers(
        {
            "fast": SynchronousArrivals(2, ExponentialDurations(0.4), STEPS, 1),
            "slow": SynchronousArrivals(1, CLOCK, STEPS),
        },
        clients={"fast": [3, 0, 1], "slow": [2]},
    ),
}
PARTS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "restarts": lambda: (FedBuff(2), Scaffold(0.05)),
    "restarts of two": lambda: (FedBuff(1), LocalSGD(0.05)),
    "over-selection": lambda: (FedAvg(), Scaffold(0.05)),
    "timeout": lambda: (FedAvg(), LocalSGD(0.05)),
    "cut": lambda: (FedAvg(), Scaffold(0.05)),
    "grace": lambda: (FedAvg(), Scaffold(0.05)),
    "late ones continue": lambda: (FedAvg(), Scaffold(0.05)),
    "polled": lambda: (QuAFL(), OwnModel(LocalSGD(0.05), 2)),
    "tiers": lambda: (FedAT(), LocalSGD(0.05)),
}
STOPPING = ("restarts", "restarts of two", "over-selection", "timeout", "cut", "grace", "tiers")


@pytest.mark.parametrize("executor", [Counting, CountingStacks])
@pytest.mark.parametrize("name", STOPPING)
def test_nothing_is_computed_in_vain(name: str, executor: type[Executor]):
    """Neither a cancelled run nor one that the end of the fit leaves in flight."""
    aggregator, optimizer = PARTS[name]()
    tasks, counting = Tasks(), executor()
    counting.serials.clear()
    given = {"executor": counting, "callbacks": tasks, "max_rounds": 12}
    trainer = fit(PROCESSES[name](), aggregator, optimizer, **given)
    assert len(tasks.cancelled) > 3
    assert not set(tasks.cancelled) & set(tasks.arrived)
    used = {update.serial for record in trainer.history for update in record.updates}
    assert set(counting.serials) == used
    assert len(counting.serials) == len(used)


@pytest.mark.parametrize(
    ("name", "executor"),
    [(name, ("sequential", "vectorized")[number % 2]) for number, name in enumerate(PROCESSES)],
)
def test_a_resume_at_every_event(name, executor, tmp_path):
    class Saves(Callback):
        events = 0

        def on_event_end(self, trainer, module):
            self.events += 1
            trainer.save_checkpoint(tmp_path / f"{self.events}.ckpt")

    def run(callbacks=(), path=None):
        parts = PROCESSES[name](), *PARTS[name]()
        return fit(*parts, path, max_rounds=7, executor=executor, callbacks=list(callbacks))

    saves = Saves()
    whole = run([saves])
    assert saves.events > 7
    for number in range(1, saves.events, 2):
        again = run(path=tmp_path / f"{number}.ckpt")
        assert again.fingerprint() == whole.fingerprint(), number
        assert again.history == whole.history, number


@pytest.mark.parametrize("name", PROCESSES)
def test_a_record_plays_the_same_run(name, tmp_path):
    path = tmp_path / "schedule.parquet"
    recorded = fit(Recording(PROCESSES[name](), path), *PARTS[name](), max_rounds=8)
    replay = ReplayArrivals(path)
    assert replay.may_stop is (name in STOPPING)
    played = fit(replay, *PARTS[name](), max_rounds=8)
    assert played.fingerprint() == recorded.fingerprint()

    def failed(trainer):
        return [
            [(f.client_id, f.pulled_version, f.now, f.reason) for f in sorted(r.failures)]
            for r in trainer.history
        ]

    assert failed(played) == failed(recorded)
    figures = [[r.metrics for r in each.history] for each in (recorded, played)]
    assert figures[0] == figures[1]
    # Of the process, of both runs, of the file.
    reports = [participation_report(each) for each in (recorded, played)]
    reports.append(participation_report(ScheduleTable.load(path), PARTS[name]()[0], max_rounds=8))
    for report in reports[1:]:
        assert report.goodput == reports[0].goodput
        np.testing.assert_array_equal(report.goodput_of, reports[0].goodput_of)


def test_the_event_log_and_the_timeline_show_what_was_stopped(tmp_path):
    log = EventLog(tmp_path / "events.parquet")
    fit(Script(Cancel(1)), callbacks=log)
    rows = log.table().to_pylist()
    (row,) = [row for row in rows if row["event"] == "cancel"]
    assert (row["time"], row["client"], row["num_steps"], row["version"]) == (2.5, 1, 4, 0)
    axes = plot.timeline(log.table())
    ends = {
        round(path.get_paths()[0].vertices[:, 1].mean()): path.get_paths()[0].vertices[:, 0].max()
        for path in axes.collections
        if path.get_paths() and len(path.get_paths()[0].vertices) >= 4
    }
    assert ends == {0: 4.0, 1: 2.5}
    fit(Script(Cut(1)), FedBuff(2), callbacks=log)
    arrivals = [row for row in log.table().to_pylist() if row["event"] == "arrival"]
    assert [(row["client"], row["time"], row["num_steps"]) for row in arrivals] == [
        (1, 2.5, 2),
        (0, 4.0, 4),
    ]


def test_a_late_restart_stops_nobody():
    plain, late = (
        fit(restarts(restart_after=each), FedBuff(2), max_rounds=12) for each in (None, 1000)
    )
    assert late.fingerprint() == plain.fingerprint()
    assert late.history == plain.history


def test_clients_at_work_never_have_a_model_older_than_asked():
    class Ages(Callback):
        most = 0

        def on_update(self, trainer, module, update):
            self.most = max(self.most, update.staleness(trainer.version))

    for limit in (1, 3):
        ages = Ages()
        fit(restarts(restart_after=limit), callbacks=ages, max_rounds=40)
        assert ages.most == limit - 1


def test_restarting_at_each_update_is_a_batch_of_one_and_as_if_late_ones_were_ignored():
    given = {"max_rounds": 15}
    one = fit(restarts(), Ringmaster(0), **given)
    batch = fit(restarts(), Rennala(1), **given)
    assert one.fingerprint() == batch.fingerprint()
    # Stopped clients begin earlier than those that finish what is ignored: another schedule.
    ignoring = fit(restarts(restart_after=None), Ringmaster(0), **given)
    assert ignoring.now > one.now
    never = [fit(restarts(restart_after=each), Ringmaster(None), **given) for each in (None, 999)]
    assert never[0].fingerprint() == never[1].fingerprint()


def test_one_tier_is_fedavg():
    def inner():
        return SynchronousArrivals(2, CLOCK, STEPS)

    plain = fit(inner(), FedAvg(), max_rounds=6)
    tier = fit(Tiers({"all": inner()}), FedAT(), max_rounds=6)
    torch.testing.assert_close(tier.state.params, plain.state.params, rtol=1e-13, atol=1e-13)
    for one, other in zip(tier.history, plain.history, strict=True):
        assert [u.weight for u in one.updates] == [u.weight for u in other.updates]
    bare = fit(inner(), FedAT(), max_rounds=6)  # without groups all clients are one tier
    assert bare.fingerprint() == tier.fingerprint()


@pytest.mark.parametrize("aggregator", ["QuAFL", "FAVAS"])
def test_everyone_polled_and_done_is_averaging(aggregator):
    """All clients make all of their steps: the server and the clients are averaged, by hand."""
    steps, lr, clients = 2, 0.05, 4
    process = PolledArrivals(clients, 1.0, FixedDurations([0.1] * clients), steps)
    if aggregator == "QuAFL":
        trainer = fit(
            process, QuAFL(), OwnModel(LocalSGD(lr), clients), max_rounds=5, clients=WHOLE
        )
    else:
        trainer = fit(process, FAVAS(), max_rounds=5, clients=WHOLE)
    server = torch.tensor([1.0, -1.0], dtype=torch.float64)
    centres = [data.tensors[0].double().mean(dim=0) for data in WHOLE]
    own, start = [server] * clients, [server] * clients
    for _ in range(5):
        ends = []
        for y, centre in zip(own, centres, strict=True):
            for _ in range(steps):  # the gradient of |x - c|^2
                y = y - lr * 2 * (y - centre)
            ends.append(y)
        before = server
        if aggregator == "QuAFL":
            server = (before + sum(ends)) / (clients + 1)
            own = [(before + clients * y) / (clients + 1) for y in ends]
        else:
            sent = [w + (y - w) / steps for w, y in zip(start, ends, strict=True)]
            server = (before + sum(sent)) / (clients + 1)
            own = start = [server] * clients
    torch.testing.assert_close(trainer.state.params, server, rtol=1e-12, atol=1e-12)


# Two examples each, so that a batch holds all of them.
WHOLE = [torch.utils.data.TensorDataset(data.tensors[0][:2]) for data in CLIENTS]


def test_favas_of_one_step_is_quafl_s_average_of_what_is_sent():
    """At K = 1 nothing is divided: x + sum of (y_i - x) / (s + 1)."""
    process = PolledArrivals(2, 1.0, FixedDurations([0.6] * 4), 1)
    trainer = fit(process, FAVAS(), max_rounds=4, clients=WHOLE)
    other = fit(process, QuAFL(), max_rounds=1, clients=WHOLE)
    first = fit(process, FAVAS(), max_rounds=1, clients=WHOLE)
    assert first.fingerprint() == other.fingerprint()
    assert all(update.num_steps == 1 for record in trainer.history for update in record.updates)


def test_the_lattice_costs_little_if_it_is_fine():
    def run(quantizer):
        process = PolledArrivals(2, 0.7, ExponentialDurations(0.4), 4)
        optimizer = OwnModel(LocalSGD(0.05), 2, quantizer=quantizer)
        return fit(process, QuAFL(quantizer=quantizer), optimizer, max_rounds=8).state.params

    exact = run(None)
    assert (run(Lattice(1e-6, 30)) - exact).abs().max() < 1e-5
    assert 1e-3 < (run(Lattice(0.1, 8)) - exact).abs().max() < 0.5
    assert (run(Lattice(1e-3, 2)) - exact).abs().max() > 0.5  # numbers wrap
