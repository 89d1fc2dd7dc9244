"""What a process with feedback is told, and when."""

import sys
from collections import Counter

import pytest
import torch

from fedlight import FedTrainer, participation_report
from fedlight.aggregators import Aggregator, FedAsync, FedAvg, FedBuff, next_version
from fedlight.arrivals import (
    ArrivalProcess,
    Availability,
    ClientSelection,
    ContinuousArrivals,
    Dispatch,
    DropOut,
    ExponentialDurations,
    FixedDurations,
    Pisces,
    PowerOfChoice,
    Recording,
    ReplayArrivals,
    ScheduleTable,
    SynchronousArrivals,
    Tiers,
)
from fedlight.channel import Clip, ErrorFeedback
from fedlight.early_server import EarlyServer
from fedlight.executors.base import ClientError
from fedlight.local_optimizers import LocalSGD
from fedlight.server import Server
from fedlight.types import Seen, UsedUpdate
from tests.boring import Boring, Counting, Point, classes, fitted, points

pytestmark = pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")


class Ear(ArrivalProcess):
    """Each client starts once, at time 0, and arrives at (its number + 1); notes all it hears."""

    needs_feedback = True
    finite = True

    def __init__(self, steps=1, lost=()):
        self.steps, self.lost, self.heard = steps, lost, []

    def setup(self, federation):
        self.heard.clear()
        self.clients = range(federation.num_clients)

    def on_wake(self, now):
        return [Dispatch(c, c + 1.0, self.steps, lost=c in self.lost) for c in self.clients]

    def on_arrival(self, task, now):
        self.heard.append(("arrival", task.client_id))
        return ()

    def on_version(self, version, clients, now):
        self.heard.append(("version", version))
        return ()

    def on_feedback(self, task, seen, now):
        self.heard.append((task.client_id, now, seen))


def told(run):
    return [each for each in run.arrivals.heard if isinstance(each[0], int)]


def listened(arrivals, data, module=None, **given):
    given = {"aggregator": FedBuff(2, staleness=None), "local_optimizer": LocalSGD(0.5)} | given
    return fitted(module or Point(), data, arrivals=arrivals, **given)


def test_by_hand():
    """w = 0; x = 2: losses 2 and 0.5, delta 1.5; x = 4: 8 and 2, delta 3; x = -2 as x = 2."""
    run = listened(Ear(steps=2), points([2.0], [4.0], [-2.0]))
    assert run.arrivals.heard == [
        (0, 1.0, Seen({"train_loss": 1.25}, 1.5, 1, 1.0, 0)),
        ("arrival", 0),
        (1, 2.0, Seen({"train_loss": 5.0}, 3.0, 1, 2.0, 0)),
        ("arrival", 1),
        ("version", 1),
        (2, 3.0, Seen({"train_loss": 1.25}, 1.5, 1, 3.0, 1)),
        ("arrival", 2),
    ]


def test_the_mean_is_over_the_examples_seen():
    """Two batches of two examples: the losses 2, 2, 0.5 and 0.5."""
    run = listened(Ear(steps=2), points([2.0, 2.0, 2.0], batch_size=2), aggregator=FedAsync(1.0))
    ((_, _, seen),) = told(run)
    assert seen.metrics == {"train_loss": 1.25}
    assert seen.metrics["train_loss"] == run.history[0].metrics["train_loss"]
    assert seen.num_examples == 3


@pytest.mark.parametrize("channel", [Clip(0.25), ErrorFeedback([Clip(0.25)])])
def test_the_norm_is_the_one_that_arrives(channel):
    run = listened(Ear(), points([2.0], [4.0]), channel=channel)
    assert [each[2].norm for each in told(run)] == [pytest.approx(0.25), pytest.approx(0.25)]
    assert [each[2].metric("train_loss") for each in told(run)] == [2.0, 8.0]


def test_lost_and_dropped_and_failed_ones_say_nothing():
    run = listened(Ear(lost=[1]), points([2.0], [4.0], [6.0]), aggregator=FedAsync(0.5))
    assert [client for client, *_ in told(run)] == [0, 2]
    run = listened(Ear(), points([2.0], [4.0], [6.0]), aggregator=FedAsync(0.5, max_staleness=0))
    assert [client for client, *_ in told(run)] == [0]
    nan = points([2.0], [float("nan")], [6.0])
    run = listened(Ear(), nan, on_client_failure="drop")
    assert [client for client, *_ in told(run)] == [0, 2]
    assert [each.reason for each in run.history[0].failures] != []


def by_pace():
    clock = ContinuousArrivals(FixedDurations([1.0, 2.0, 3.0]), concurrency=2, local_steps=1)
    return Pisces(clock, staleness_bound=2)


def test_a_failure_is_raised_when_it_arrives():
    """Without updates there is no end of a round, at which the server would find it."""
    nan = points(*[[float("nan")]] * 3)
    with pytest.raises(ClientError, match="the loss is not finite"):
        listened(by_pace(), nan, aggregator=FedAvg(), max_updates=3)


@pytest.mark.parametrize("failures", ["drop", "retry"])
@pytest.mark.filterwarnings("ignore:fedlight. the run ended before the server")
def test_a_run_in_which_all_fail_ends(failures):
    """After 100 + 10 M failures in a row; clients that wait for the aggregator go on."""
    nan, recording = points(*[[float("nan")]] * 3), Recording(by_pace())
    with pytest.warns(UserWarning, match="the last 130 local runs have all failed"):
        run = listened(recording, nan, aggregator=FedAvg(), on_client_failure=failures)
    assert (run.num_failures, run.version) == (130, 0)
    assert not recording.table().waste_known  # a table does not say which tasks have failed
    good = Recording(by_pace())
    listened(good, points([1.0], [2.0], [3.0]), aggregator=FedAvg(), max_updates=3)
    assert good.table().waste_known


@pytest.mark.parametrize(
    "failures",
    [
        {"on_client_failure": "drop"},
        {"on_client_failure": "retry"},
        {"max_update_norm": 1.5, "on_large_update": "drop"},
    ],
)
def test_a_replay_leaves_failures_out_at_the_same_times(failures):
    """Of five clients one always fails, and another one at first."""
    nan = points([2.0], [4.0], [float("nan")], [1.0], [-2.0])
    clock = ContinuousArrivals(
        ExponentialDurations(1.0), concurrency=3, resume="on_arrival", local_steps=1
    )
    recording = Recording(PowerOfChoice(clock, 5))
    given = {"max_updates": 20, "aggregator": FedBuff(3, staleness=None), **failures}
    if "on_client_failure" not in failures:
        nan = points([2.0], [4.0], [1.0], [-2.0], [0.5])
    first = listened(recording, nan, **given)
    again = listened(ReplayArrivals(recording.table()), nan, **given)
    assert first.num_failures > 1
    assert again.fingerprint() == first.fingerprint()

    def failed(run):
        return [(f.client_id, f.now, f.retried) for each in run.history for f in each.failures]

    assert failed(again) == failed(first)


def test_a_task_that_is_tried_again_reports_when_it_succeeds():
    class Moody(Point):
        calls = 0

        def training_step(self, batch, batch_idx):
            Moody.calls += 1
            return super().training_step(batch, batch_idx) * (
                float("nan") if self.calls == 1 else 1
            )

    run = listened(
        Ear(), points([2.0], [4.0]), Moody(), on_client_failure="retry", executor="sequential"
    )
    # It failed when it arrived, at 1, and has arrived again at 2, as client 1 does.
    assert [(client, now) for client, now, _ in told(run)] == [(0, 2.0), (1, 2.0)]
    assert [each for each in run.arrivals.heard if each[0] == "arrival"] == [
        ("arrival", 0),
        ("arrival", 1),
    ]


def test_each_update_is_computed_before_the_process_decides():
    executor = Counting(max_batch=1)
    computed = []

    class Looking(Ear):
        def on_feedback(self, task, seen, now):
            computed.append([serial for batch in executor.batches for serial in batch])

    listened(Looking(), points([2.0], [4.0], [6.0]), aggregator=FedBuff(3), executor=executor)
    assert computed == [[0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("independent", [True, False])
def test_those_in_flight_are_computed_together(independent):
    executor = Counting(independent=independent)
    listened(Ear(), points([2.0], [4.0], [6.0]), aggregator=FedBuff(3), executor=executor)
    assert executor.batches == [[0, 1, 2]]


def test_an_aggregator_that_does_not_say_what_it_holds():
    class Sum(Aggregator):
        def setup(self, federation, state):
            self.updates = []

        def receive(self, update):
            self.updates.append(update)
            return len(self.updates) == 2

        def end_round(self):
            return False

        def step(self, state):
            updates, self.updates = self.updates, []
            used = [UsedUpdate(update, 1.0) for update in updates]
            total = sum(update.delta for update in updates)
            return next_version(state, state.params + total, used)

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            return

    run = listened(Ear(), points([2.0], [4.0]), aggregator=Sum())
    assert [each[2].metric("train_loss") for each in told(run)] == [2.0, 8.0]


def test_a_name_that_nobody_logs():
    arrivals = PowerOfChoice(SynchronousArrivals(1, local_steps=1), 2, metric="loss")
    with pytest.raises(ValueError, match=r"metric='loss' is not logged.*logged 'train_loss'"):
        fitted(Point(), points([2.0], [4.0]), arrivals=arrivals)


def test_without_a_model_there_is_no_schedule():
    arrivals = Ear()
    with pytest.raises(ValueError, match=r"record a run.*ReplayArrivals"):
        arrivals.simulate(3, buffer_size=1, max_time=5)
    with pytest.raises(ValueError, match="a participation report is not possible"):
        participation_report(Recording(arrivals), FedAsync(0.5), num_clients=3, max_time=5)


@pytest.mark.parametrize("wrap", [Recording, lambda a: DropOut(a, 0.0)])
def test_wrappers_pass_it_on(wrap):
    wrapped = wrap(Ear())
    assert wrapped.needs_feedback
    listened(wrapped, points([2.0], [4.0]))
    heard = wrapped.arrivals.heard
    assert [each[0] for each in heard if isinstance(each[0], int)] == [0, 1]


def test_tiers_tell_only_those_that_listen():
    ear = Ear()
    tiers = Tiers(
        {"deaf": SynchronousArrivals(local_steps=1), "hears": ear},
        clients={"deaf": [0], "hears": [2, 1]},
    )
    fitted(
        Point(), points([2.0], [4.0], [6.0]), arrivals=tiers, aggregator=FedBuff(1), max_time=2.5
    )
    heard = [each for each in ear.heard if isinstance(each[0], int)]
    # Its client 0 is the federation's client 2. Client 0 has moved the model meanwhile.
    assert [(client, now) for client, now, _ in heard] == [(0, 1.0), (1, 2.0)]
    assert heard[0][2].metric("train_loss") == 18.0


def test_a_record_says_that_results_were_early(tmp_path):
    recording = Recording(Ear(), tmp_path / "schedule.parquet")
    listened(recording, points([2.0], [4.0]))
    table = ScheduleTable.load(tmp_path / "schedule.parquet")
    assert table.feedback
    assert "feedback=True" in repr(table)
    again = ReplayArrivals(table)
    assert again.early_results
    assert not again.needs_feedback
    assert again.simulate(2, buffer_size=2, max_time=9.0).events == table.events
    assert repr(again) != repr(ReplayArrivals(ScheduleTable(table.events)))
    assert Availability(again, [(0, 9)]).early_results


class Conv(Boring):
    """Convolutions keep results from being independent of their stack."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(
            torch.nn.Sequential(
                torch.nn.Unflatten(1, (1, 4)),
                torch.nn.Conv1d(1, 2, 3),
                torch.nn.Flatten(),
                torch.nn.Linear(4, 3),
            )
        )


def test_only_stacks_that_matter_are_computed_early_in_a_replay():
    inner = ContinuousArrivals(FixedDurations([1.0, 1.5, 2.5, 0.7]), 2, local_steps=2)
    recording = Recording(PowerOfChoice(inner, 3))
    kinds = {}
    for executor in ("sequential", "vectorized"):
        given = {"aggregator": FedBuff(2), "executor": executor, "max_rounds": 6}
        first = fitted(Conv(), classes(), arrivals=recording, **given)
        again = fitted(Conv(), classes(), arrivals=ReplayArrivals(recording.table()), **given)
        assert first.fingerprint() == again.fingerprint()
        kinds[executor] = type(first.run.server), type(again.run.server)
    assert kinds == {"sequential": (EarlyServer, Server), "vectorized": (EarlyServer, EarlyServer)}


def calls(**given):
    """How often each function of fedlight is called in a run."""
    found = Counter()

    def note(frame, event, arg):
        if event == "call" and "/fedlight/" in frame.f_code.co_filename:
            found[frame.f_code.co_qualname] += 1

    data, module = points([2.0], [4.0], [6.0], val=None), Point()
    run = FedTrainer(
        aggregator=FedBuff(2),
        local_optimizer=LocalSGD(0.5),
        executor="sequential",
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        max_updates=20,
        **given,
    )
    sys.setprofile(note)
    try:
        run.fit(module, data)
    finally:
        sys.setprofile(None)
    return found


def test_a_run_without_feedback_pays_nothing():
    """Twenty arrivals: what is called for each of them, and nothing of what feedback needs."""
    clock = ContinuousArrivals(FixedDurations([1.0, 1.5, 2.5]), 2, local_steps=1)
    found = calls(arrivals=clock)
    assert found["Server.handle"] >= 20
    assert found["Server.receive"] == found["Clients.arrive"] == 20
    of_feedback = ("EarlyServer", "ClientSelection", "ChosenClients", "on_feedback", "Seen")
    assert [name for name in found if any(each in name for each in of_feedback)] == []
    # One call of the executor for each step, not one for each arrival.
    assert found["SequentialExecutor.run"] < 20
    with_feedback = calls(arrivals=PowerOfChoice(clock, 2))
    assert with_feedback["PowerOfChoice.on_feedback"] == with_feedback["EarlyServer._tell"] == 20


def test_the_selection_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        ClientSelection(SynchronousArrivals(1))
