"""Forked workers: the bits of one process, clear refusals, and nothing is left behind."""

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.data import TensorDataset

from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight.aggregators import AFACD
from fedlight.arrivals import UniformArrivals, UniformSteps
from fedlight.executors import (
    ClientError,
    Job,
    ProcessExecutor,
    RayExecutor,
    SequentialExecutor,
    Workplace,
)
from fedlight.local_optimizers import LocalOptimizer, LocalSGD, ModuleOptimizer, Scaffold
from fedlight.parameters import ModuleState
from fedlight.types import Task

SIZES = (7, 4, 12, 9, 5, 6)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked"),
    pytest.mark.usefixtures("one_thread"),
]


class Net(LightningModule):
    """A convolution, BatchNorm and dropout; it draws from all generators and cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv1d(1, 4, 3), torch.nn.Flatten(), torch.nn.BatchNorm1d(4)
        )
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.teacher = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
        self.factor = 1.0
        self.lock = threading.Lock()
        self.scale = lambda x: 2 * x

    def loss(self, batch):
        x, y = batch
        if x.max() > 1e6:
            raise ArithmeticError("too large")
        self.seen += len(y)
        x = x + 0.1 * random.random() + 0.1 * np.random.rand()  # noqa: NPY002
        out = torch.nn.functional.dropout(self.net(self.scale(x)[:, None]), 0.2)
        return self.factor * torch.nn.functional.cross_entropy(out + self.teacher * y[:, None], y)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss * (1 + self.trainer.current_epoch))
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Bare(Net):
    """It does not ask for a trainer."""

    def training_step(self, batch, batch_idx):
        return self.loss(batch)


def clients(bad: int | None = None) -> FederatedDataModule:
    generator = torch.Generator().manual_seed(0)
    data = []
    for client, size in enumerate(SIZES):
        x = torch.randn(size, 3, generator=generator)
        y = torch.randint(4, (size,), generator=generator)
        data.append(TensorDataset(x * 1e9 if client == bad else x, y))
    return FederatedDataModule.from_client_datasets(data, batch_size=3)


def fit(executor, module=None, *, optimizer=None, bad=None, **more) -> FedTrainer:
    torch.manual_seed(0)
    given = {"max_rounds": 5, "logger": False, **more}
    trainer = FedTrainer(
        arrivals=UniformArrivals(4, max_staleness=2, local_steps=UniformSteps(1, 4)),
        aggregator=AFACD(),
        local_optimizer=optimizer or LocalSGD(0.1, momentum=0.5),
        executor=executor,
        enable_progress_bar=False,
        **given,
    )
    trainer.fit(module or Net(), clients(bad))
    return trainer


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("optimizer", [LocalSGD(0.1, momentum=0.5), Scaffold(0.1), None])
def test_the_bits_of_one_process_for_any_number_of_workers(optimizer: LocalOptimizer) -> None:
    given = {"optimizer": optimizer or ModuleOptimizer()}
    alone = fit("sequential", **given)
    for executor in (ProcessExecutor(1), ProcessExecutor(3, max_batch=2), "processes"):
        shared = fit(executor, **given)
        assert shared.fingerprint() == alone.fingerprint()
        assert [r.metrics for r in shared.history] == [r.metrics for r in alone.history]
        assert [r.updates for r in shared.history] == [r.updates for r in alone.history]


def test_results_are_in_the_order_of_the_jobs_and_stay_as_they_are() -> None:
    module, data = Bare(), clients(bad=2)
    state = ModuleState(module)
    work = Workplace(module, state, LocalSGD(0.1), data.partition, data.train_data, 3, seed=0)
    pulled = state.read()
    steps = [1, 4, 2, 3, 1, 2]
    jobs = [Job(Task(i, 0, 0.0, 1.0, k, i, 0), pulled) for i, k in enumerate(steps)]
    one, many = SequentialExecutor(), ProcessExecutor(2)
    for executor in (one, many):
        executor.setup(work)
    try:
        results = many.run(jobs)
        again = many.run(jobs[::-1])[::-1]  # writes over the boards
        alone = one.run(jobs)
        assert [isinstance(each, ClientError) for each in alone] == [i == 2 for i in range(6)]
        for expected, result, other in zip(alone, results, again, strict=True):
            if isinstance(expected, ClientError):
                assert str(result) == str(expected)
                continue
            for name in ("delta", "buffers", "counters"):
                assert torch.equal(getattr(result, name), getattr(expected, name))
                assert torch.equal(getattr(other, name), getattr(expected, name))
            assert result.update_norm == expected.update_norm
    finally:
        many.teardown()


def worker_pids() -> list[int]:
    return [each.pid for each in multiprocessing.active_children()]


class Kills(Callback):
    """Kills a worker when a round ends."""

    def on_round_end(self, trainer, module):
        os.kill(worker_pids()[0], signal.SIGKILL)


@pytest.mark.parametrize("optimizer", [LocalSGD(0.1), Scaffold(0.1)])
def test_a_worker_that_dies_costs_its_tasks_only(optimizer: LocalOptimizer) -> None:
    alone = fit("sequential", optimizer=optimizer)
    executor = ProcessExecutor(2)
    shared = fit(executor, optimizer=optimizer, callbacks=Kills())
    assert executor.num_replaced >= 1  # one that is killed when no work is left is not missed
    assert shared.fingerprint() == alone.fingerprint()
    assert shared.history == alone.history


class Dies(Net):
    def loss(self, batch):
        if self.trainer.current_epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(batch)


def test_a_local_run_that_ends_one_worker_after_another_is_an_error() -> None:
    words = r"has died by SIGKILL; .*fewer workers\. It is the 3rd over the same local runs \(clie"
    with pytest.raises(RuntimeError, match=words):
        fit(ProcessExecutor(2), Dies())


def test_a_bad_client_costs_itself_alone_and_its_traceback_is_there() -> None:
    shared, alone = (
        fit(executor, bad=2, on_client_failure="drop")
        for executor in (ProcessExecutor(2), "sequential")
    )
    assert shared.fingerprint() == alone.fingerprint()
    assert shared.num_failures == alone.num_failures > 0
    with pytest.raises(ClientError, match="ArithmeticError: too large") as caught:
        fit(ProcessExecutor(2), bad=2)
    assert "in training_step" in str(caught.value.__cause__)


class OutOfMemory(Net):
    def loss(self, batch):
        if self.trainer.current_epoch == 2:
            raise torch.OutOfMemoryError("no room")
        return super().loss(batch)


def test_what_is_no_client_s_failure_ends_the_run() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)in worker \d of ProcessExecutor:.*no room"):
        fit(ProcessExecutor(2), OutOfMemory(), on_client_failure="drop")


class Anneals(Callback):
    """Changes numbers of the module and of the local optimizer between rounds."""

    def on_round_end(self, trainer, module):
        module.factor *= 0.5
        trainer.local_optimizer.momentum = 0.9
        with torch.no_grad():
            module.teacher.add_(1.0)


def test_what_a_callback_changes_between_rounds_reaches_the_workers() -> None:
    # With more jobs in a call some are computed before the callback that comes before they arrive.
    runs = [
        fit(executor, optimizer=LocalSGD(0.1, momentum=0.5), callbacks=Anneals())
        for executor in ("sequential", ProcessExecutor(2, max_batch=1), ProcessExecutor(2))
    ]
    assert len({run.fingerprint() for run in runs}) == 1
    assert runs[0].fingerprint() != fit("sequential").fingerprint()


class Counts(Net):
    calls = 0

    def loss(self, batch):
        self.calls += 1
        return super().loss(batch) * self.calls


class Reads(Net):
    def loss(self, batch):
        return super().loss(batch) * len(self.trainer.callback_metrics)


class Writes(Net):
    def loss(self, batch):
        self.logger.experiment.add_scalar("a", 1.0)
        return super().loss(batch)


class Loads(Net):
    def loss(self, batch):
        list(torch.utils.data.DataLoader(range(2), num_workers=1))
        return super().loss(batch)


class WritesMetrics(Net):
    def loss(self, batch):
        self.logger.log_metrics({"a": 1.0})
        return super().loss(batch)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Loads, "Loads starts processes, such as those of a DataLoader with num_workers, which"),
        (WritesMetrics, "training_step uses self.logger, which only one process can write to"),
        (Counts, "Counts keeps self.calls from one step to the next"),
        (Reads, "Reads reads self.trainer.callback_metrics, which a worker"),
        (Writes, "training_step uses self.logger, which only one process can write to"),
    ],
)
def test_a_step_that_needs_one_process_is_refused(module, message, tmp_path) -> None:
    logger = TensorBoardLogger(tmp_path) if module in (Writes, WritesMetrics) else False
    with pytest.raises(ValueError, match=message):
        fit(ProcessExecutor(2), module(), logger=logger)


def test_a_step_that_never_ends_is_not_waited_for_for_ever(monkeypatch) -> None:
    monkeypatch.setattr("fedlight.executors.processes._PATIENCE", 0.2)

    class Waits(Net):
        def loss(self, batch):
            time.sleep(60)

    with pytest.raises(RuntimeError, match=r"2 of 2 workers have not finished .* after 0.2 s"):
        fit(ProcessExecutor(2), Waits())


def test_a_run_that_is_not_on_the_cpu_is_refused() -> None:
    module, data = Net(), clients()
    state = mock.Mock(device=torch.device("cuda", 0))
    work = Workplace(module, state, LocalSGD(0.1), data.partition, data.train_data, 3, seed=0)
    with pytest.raises(ValueError, match="computes on the CPU, and the run is on cuda:0"):
        ProcessExecutor(2).setup(work)


def test_a_process_that_may_not_start_others_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(multiprocessing, "current_process", lambda: mock.Mock(daemon=True))
    with pytest.raises(ValueError, match="it is a daemon of multiprocessing itself"):
        fit(ProcessExecutor(2))


def test_a_fit_in_another_thread_has_the_same_bits() -> None:
    prints = []
    other = threading.Thread(target=lambda: prints.append(fit(ProcessExecutor(2)).fingerprint()))
    other.start()
    other.join()
    assert prints == [fit("sequential").fingerprint()]


SCRIPT = """
import multiprocessing, os, signal, sys, time
import torch
sys.path[:0] = sys.argv[2:]
from fedlight import Callback
from test_processes import Net, ProcessExecutor, fit

torch.set_num_threads(2)  # a pool of threads that the forked workers do not have
a = torch.randn(500, 500, requires_grad=True)
(a @ a).sum().backward()

class Stops(Callback):
    def on_round_end(self, trainer, module):
        if trainer.version == 2:
            print(*[each.pid for each in multiprocessing.active_children()], flush=True)
            if sys.argv[1] == "interrupt":
                os.killpg(0, signal.SIGINT)  # as Ctrl-C does
            else:
                os.kill(os.getpid(), signal.SIGKILL)

class Leaves(ProcessExecutor):
    def teardown(self):
        pass  # so that the interpreter's exit finds workers

fit(Leaves(2), callbacks=Stops(), max_rounds=50)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("how", "code"), [("interrupt", -signal.SIGINT), ("kill", -signal.SIGKILL)]
)
def test_no_worker_outlives_a_script_however_it_ends(how: str, code: int, scripts) -> None:
    """The script has no guard around its main part and has used threads before."""
    here = Path(__file__)
    ended, out, err = scripts.run(SCRIPT, how, str(here.parent), str(here.parents[2]))
    assert ended == code, err
    if how == "interrupt":
        assert "stopped by SIGINT" in err
        assert err.count("Traceback") == 1  # the script's own
    pids = [int(pid) for pid in out.split()]
    assert len(pids) == 2
    for _ in range(100):  # a worker notices the end of its parent within a moment
        if not any(map(is_running, pids)):
            break
        time.sleep(0.05)
    assert not any(map(is_running, pids))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"workers": 0}, ValueError, "workers must be at least 1"),
        ({"workers": 1.5}, TypeError, "workers must be an integer"),
        ({"max_batch": 0}, ValueError, "max_batch must be at least 1"),
    ],
)
def test_bad_arguments(arguments, kind, message) -> None:
    with pytest.raises(kind, match=message):
        ProcessExecutor(**arguments)


def test_the_default_is_one_worker_for_each_core_that_may_be_used(monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5})
    assert repr(ProcessExecutor()) == "ProcessExecutor(workers=3)"
    assert ProcessExecutor().max_batch == 24


def test_an_actor_of_ray_does_not_fork() -> None:
    pytest.importorskip("ray")
    for executor in ("processes", ProcessExecutor(2)):
        with pytest.raises(ValueError, match="the executor of one actor, a single process, got "):
            RayExecutor(executor=executor)


def test_other_systems_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="safe on Linux only; write executor='sequential'"):
        ProcessExecutor()


class Freezes(Callback):
    def on_round_end(self, trainer, module):
        module.net[0].weight.requires_grad_(trainer.version != 2)


def test_a_layer_that_a_callback_freezes_is_an_error_as_in_one_process() -> None:
    for executor in ("sequential", ProcessExecutor(2)):
        with pytest.raises((ClientError, ValueError), match=r"requires_grad of .* net.0.weight"):
            fit(executor, callbacks=Freezes())


def test_an_executor_computes_for_one_fit_at_a_time() -> None:
    executor = ProcessExecutor(2)

    class Nests(Callback):
        def on_round_end(self, trainer, module):
            fit(executor)

    with pytest.raises(ValueError, match=r"ProcessExecutor\(workers=2\) computes for another fit"):
        fit(executor, callbacks=Nests())


def test_a_large_budget_costs_nothing_by_itself() -> None:
    assert fit(ProcessExecutor(2, max_batch=10**6)).fingerprint() == fit("sequential").fingerprint()
