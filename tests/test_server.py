"""The server alone: versions, what it keeps, and what it tells its watcher."""

import numpy as np
import pytest
import torch

from fedlight._runs.setting import Setting
from fedlight.aggregators import Aggregator, FedAsync, FedAvg, FedBuff, next_version
from fedlight.arrivals import ReplayArrivals, ReplayEvent
from fedlight.arrivals.schedule import Schedule
from fedlight.clients import Clients
from fedlight.clients.pool import Pool
from fedlight.executors import ClientError, Executor
from fedlight.local_optimizers import LocalSGD
from fedlight.loop import Limits, play
from fedlight.server import Server, Watcher
from fedlight.types import Federation, LocalResult, ServerState
from tests.boring import Boring, classes, fitted

NOTHING = torch.empty(0)
STATE = ServerState(0, torch.zeros(1), NOTHING, NOTHING)


class Ones(Executor):
    """Each delta is the client's number plus one; some clients fail."""

    def __init__(self, failing=()):
        self.failing = failing

    def setup(self, workplace): ...

    def run(self, jobs):
        return [
            ClientError(job.task, "it fails")
            if job.task.client_id in self.failing
            else LocalResult(torch.tensor([job.task.client_id + 1.0]), NOTHING, NOTHING)
            for job in jobs
        ]


class Listens(Watcher):
    def __init__(self):
        self.heard = []
        self.records = []

    def on_dispatch(self, task):
        self.heard.append(("pulls", task.client_id, task.pulled_version))

    def on_update(self, update):
        self.heard.append(("arrives", update.client_id))

    def on_drop(self, update):
        self.heard.append(("dropped", update.client_id))

    def on_client_failure(self, task, error):
        self.heard.append(("fails", task.client_id, error.reason))

    def on_version(self, record):
        self.heard.append(("version", record.version))
        self.records.append(record)


def served(aggregator, *records, failing=(), **options):
    """The server after a written-down schedule of (client, pulled version, time)."""
    events = [ReplayEvent(*record, num_steps=1) for record in records]
    federation = Federation(3, np.array([1, 2, 3]), batch_size=1)
    schedule = Schedule(ReplayArrivals(events, pull="recorded"), federation)
    pool, watcher = Pool(Ones(failing)), Listens()
    clients = Clients(pool, federation, keep_states=False)
    setting = Setting(schedule.arrivals, aggregator, LocalSGD(1.0), **options)
    server = Server(setting, federation, clients, schedule, STATE, watcher)
    for waiting in play(schedule, server, Limits()):
        pool.compute(waiting)
    return server, watcher


def test_it_tells_of_everything_in_order():
    _, watcher = served(FedAsync(1.0, max_staleness=0), (0, 0, 1.0), (1, 0, 2.0), (2, 1, 3.0))
    assert watcher.heard == [
        ("pulls", 0, 0),
        ("pulls", 1, 0),
        ("arrives", 0),
        ("version", 1),
        ("pulls", 2, 1),
        ("arrives", 1),  # its version is 0, the server's 1
        ("dropped", 1),
        ("arrives", 2),
        ("version", 2),
    ]
    assert [record.client_id for record in watcher.records[1].dropped] == [1]
    # The server's version at the time, minus the version that was pulled.
    assert [record.staleness for record in watcher.records[1].dropped] == [1]
    assert [record.updates[0].staleness for record in watcher.records] == [0, 0]


def test_a_version_is_the_old_one_and_the_mean_of_what_has_come():
    server, _ = served(FedBuff(2, staleness=None), (0, 0, 1.0), (1, 0, 2.0), (2, 1, 3.0))
    assert server.state.params.item() == (1 + 2) / 2
    assert (server.state.version, server.counts.num_updates, server.counts.num_pulls) == (1, 3, 3)
    assert [update.client_id for update in server.aggregator.held] == [2]


def test_versions_are_kept_while_a_task_to_come_names_them():
    server, _ = served(FedBuff(1), (0, 0, 1.0), (1, 0, 2.0))
    assert list(server.versions) == [2]


@pytest.mark.parametrize(("mode", "pulls"), [("drop", 1), ("retry", 2)])
def test_failures_are_left_out(mode, pulls):
    server, watcher = served(
        FedAvg(2, client_weights="uniform"),
        *[(0, 0, 1.0), (1, 0, 2.0), (2, 0, 3.0)],
        failing=[1],
        on_client_failure=mode,
    )
    assert server.state.params.item() == (1 + 3) / 2
    assert watcher.heard.count(("fails", 1, "it fails")) == server.counts.num_failures == 1
    assert watcher.heard.count(("pulls", 1, 0)) == pulls


def test_failures_are_raised_by_default():
    with pytest.raises(ClientError, match="client 1 failed in its local run from version 0"):
        served(FedBuff(2), (0, 0, 1.0), (1, 0, 2.0), failing=[1])


class Wrong(Aggregator):
    """Returns what it is told."""

    def __init__(self, answer):
        self.answer = answer

    def receive(self, update):
        self.update = update
        return True

    def step(self, state):
        return self.answer(state, self.update)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda state, update: None, "must return the next ServerState .*got NoneType"),
        (lambda state, update: state, "must return the next ServerState .*got version 0"),
        (
            lambda state, update: ServerState(1, state.params, NOTHING, NOTHING, used=(update,)),
            "must list the updates used as UsedUpdate",
        ),
        (
            lambda state, update: next_version(state, state.params, [update]),
            "used must hold UsedUpdate",
        ),
    ],
)
def test_what_a_step_returns_is_checked(answer, message):
    with pytest.raises(TypeError, match=message):
        served(Wrong(answer), (0, 0, 1.0))


def forgetful(name):
    class Forgets(FedAvg):
        def __init__(self):
            super().__init__(buffer_size=1)

    answer = property(lambda self: None) if name == "held" else (lambda self, *args: None)
    setattr(Forgets, name, answer)
    return Forgets()


class Raises(Boring):
    def training_step(self, batch, batch_idx):
        raise RuntimeError("it fails")


@pytest.mark.parametrize("name", ["accepts", "receive", "end_round", "held", "discard"])
def test_an_aggregator_that_forgets_to_answer_is_named(name):
    module = Raises() if name == "discard" else Boring()
    message = rf"Forgets.{name} must return (True or False|a list of updates), got None"
    with pytest.raises(TypeError, match=message):
        fitted(module, classes(), aggregator=forgetful(name), on_client_failure="drop")


def test_an_optimizer_that_forgets_to_absorb_is_named():
    class Forgets(LocalSGD):
        def absorb(self, state, num_clients):
            pass

    with pytest.raises(TypeError, match=r"Forgets.absorb must return a ServerState, got NoneType"):
        fitted(Boring(), classes(), local_optimizer=Forgets(0.1))


def test_a_version_that_is_not_finite_is_named_at_its_step():
    def divides(state, update):
        return next_version(state, state.params / 0, ())

    with pytest.raises(ValueError, match=r"Wrong.step must return finite numbers, but 15 of 15"):
        fitted(Boring(), classes(), aggregator=Wrong(divides))
