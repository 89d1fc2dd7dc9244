"""Runs of a study whose local runs are computed by the same workers."""

import multiprocessing
import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import fedlight.studies.workers_choice
from fedlight import Callback, compare
from fedlight.aggregators import FedAsync, FedAvg, FedBuff
from fedlight.arrivals import UniformArrivals
from fedlight.callbacks import EarlyStopping
from fedlight.executors import ProcessExecutor, RayExecutor, VectorizedExecutor
from fedlight.executors._remote.forked import ForkedTeam
from fedlight.local_optimizers import LocalSGD, Scaffold
from fedlight.studies import RayWorkers
from fedlight.studies.grid import cells_of
from fedlight.studies.shared_workers import SharedWorkers, is_same
from fedlight.studies.workers_choice import chosen_workers
from tests.boring import Boring, classes
from tests.studies.grid_of_boring import CLOCK, RULES, prints, swept

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked"),
    pytest.mark.filterwarnings("ignore:fedlight. some clients count for more"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture(autouse=True)
def no_worker_is_left():
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture
def forks(monkeypatch):
    """How many sets of workers a study starts, with the number of fits that they know at first."""
    seen = []
    start = ForkedTeam.start

    def started(team, tries=False):
        if not tries:
            seen.append(len(team._fits))
        return start(team, tries)

    monkeypatch.setattr(ForkedTeam, "start", started)
    return seen


class Dropping(Boring):
    """With a layer that draws random numbers, and one with buffers."""

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step((nn.functional.dropout(x, 0.2), y), batch_idx)


class Failing(Boring):
    def training_step(self, batch, batch_idx):
        raise ValueError("no such step")


class Convolves(Boring):
    def __init__(self) -> None:
        net = (nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 3), nn.Flatten(), nn.Linear(6, 3))
        super().__init__(nn.Sequential(*net))


class Keeps(Boring):
    """Its step goes on from what the one before has left, which no executor takes."""

    calls = 0

    def training_step(self, batch, batch_idx):
        self.calls += 1
        return self.calls * super().training_step(batch, batch_idx)


@pytest.mark.parametrize("optimizer", [LocalSGD(lr=0.1), Scaffold(lr=0.1, option=2)])
def test_runs_that_share_workers_are_the_runs_alone(optimizer, forks) -> None:
    given = {
        "over": {
            "x": {
                "FedAsync": {"aggregator": FedAsync(alpha=0.5)},
                "dropping": {"aggregator": FedBuff(2), "module": Dropping},
                "rounds": {
                    "aggregator": FedAvg(),
                    "arrivals": UniformArrivals(per_round=3, max_staleness=1, local_steps=2),
                },
            }
        },
        "seeds": [0],
        "local_optimizer": optimizer,
    }
    alone = swept(**given, executor="processes")
    shared = swept(**given, workers=ProcessExecutor(2))
    assert [run.error for run in shared.runs] == [None] * 3
    assert prints(shared) == prints(alone)
    assert [run.history for run in shared.runs] == [run.history for run in alone.runs]
    assert forks[-1] == 3  # so that no worker is forked again for the second and the third run


def test_the_next_run_begins_when_one_is_over() -> None:
    workers = SharedWorkers(ProcessExecutor(2), most=2)
    assert prints(swept(workers=workers)) == prints(swept(executor="sequential"))


class Kills(Callback):
    """Kills a worker twice; the third time over the same local run would be an error."""

    def on_round_end(self, trainer, module):
        if trainer.version in (2, 5) and isinstance(trainer.aggregator, FedBuff):
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)


def test_workers_that_die_change_no_run() -> None:
    given = {"local_optimizer": Scaffold(lr=0.1, option=2), "seeds": [0]}
    shared = swept(**given, workers=ProcessExecutor(2), callbacks=lambda: [Kills()])
    assert [run.error for run in shared.runs] == [None, None]
    assert prints(shared) == prints(swept(**given, executor="sequential"))


class Dies(Boring):
    def training_step(self, batch, batch_idx):
        if self.trainer.current_epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


class OutOfMemory(Boring):
    def training_step(self, batch, batch_idx):
        if self.trainer.current_epoch == 2:
            raise torch.OutOfMemoryError("no room")
        return super().training_step(batch, batch_idx)


def test_a_failure_is_that_of_its_run() -> None:
    kinds = {each.__name__: each for each in (Boring, Failing, Keeps, OutOfMemory, Dies)}
    given = {"over": {"module": kinds}, "aggregator": FedBuff(2), "seeds": [0]}
    study = swept(**given, workers=ProcessExecutor(2))
    errors = {run.cell["module"]: run.error for run in study.runs}
    for name, words in {
        "Failing": "no such step",
        "Keeps": "Keeps keeps self.calls from one step to the next",
        "OutOfMemory": "no room",
        "Dies": "It is the 3rd over the same local runs",
    }.items():
        assert words in errors[name]
    assert errors["Boring"] is None
    alone = swept(aggregator=FedBuff(2), over=None, seeds=[0], executor="sequential")
    assert prints(study)[0] == prints(alone)[0]


def test_clients_that_fail_may_be_dropped() -> None:
    class Picky(Boring):
        def training_step(self, batch, batch_idx):
            if batch[0][0, 0] > 0.5:
                raise ArithmeticError("too large")
            return super().training_step(batch, batch_idx)

    given = {"module": Picky, "on_client_failure": "drop", "seeds": [0]}
    shared, alone = swept(**given, workers=ProcessExecutor(2)), swept(**given, executor="processes")
    assert prints(shared) == prints(alone)
    assert any(run.history[-1].metrics for run in shared.runs)


def test_a_run_that_ends_early_leaves_the_workers_to_the_others() -> None:
    stops = partial(EarlyStopping, "val_loss", patience=1, min_delta=10.0)
    given = {
        "over": {"callbacks": {"stops": lambda: [stops()], "goes on": lambda: []}},
        "aggregator": FedBuff(2),
        "check_val_every_n_rounds": 1,
        "seeds": [0],
    }
    shared, alone = swept(**given, workers=ProcessExecutor(2)), swept(**given, executor="processes")
    assert prints(shared) == prints(alone)
    assert len(shared.runs[0].history) < len(shared.runs[1].history)


class Reads(Callback):
    """Reads results early, while others wait, and changes the module."""

    def on_update(self, trainer, module, update):
        self.norm = update.delta.norm()
        if trainer.version == 3:
            module.factor = 0.5


class Scaled(Boring):
    factor = 1.0

    def training_step(self, batch, batch_idx):
        return self.factor * super().training_step(batch, batch_idx)


def test_callbacks_that_read_early_or_change_the_module_change_their_own_run() -> None:
    given = {"module": Scaled, "callbacks": lambda: [Reads()]}
    shared = swept(**given, workers=ProcessExecutor(2))
    assert [run.error for run in shared.runs] == [None] * 4
    assert prints(shared) == prints(swept(**given, executor="sequential"))


class Stop(Callback):
    """Sends Ctrl-C in the third round of a run of FedBuff, once."""

    def on_round_end(self, trainer, module):
        sent = Path("sent")  # in the test's own folder
        if trainer.version == 3 and isinstance(trainer.aggregator, FedBuff) and not sent.exists():
            sent.touch()
            os.kill(os.getpid(), signal.SIGINT)


def test_a_study_that_is_stopped_goes_on_with_the_same_bits(tmp_path) -> None:
    whole = swept(executor="sequential")
    given = {"path": tmp_path, "workers": ProcessExecutor(2), "callbacks": lambda: [Stop()]}
    with pytest.raises(KeyboardInterrupt):
        swept(**given)
    assert len(list((tmp_path / "runs").glob("*.json"))) < 4
    assert any((tmp_path / "checkpoints").iterdir())
    assert prints(swept(**given)) == prints(whole)
    assert not any((tmp_path / "checkpoints").iterdir())


@pytest.mark.parametrize("workers", ["auto", "together"])
def test_runs_that_ask_for_processes_share_them(workers, forks, monkeypatch) -> None:
    said = []
    monkeypatch.setattr(fedlight.studies.workers_choice, "rank_zero_info", said.append)
    study = swept(workers=workers, executor=ProcessExecutor(2), seeds=[0])
    assert forks == [2]
    assert prints(study) == prints(swept(executor="sequential", seeds=[0]))
    assert said == (
        ["fedlight: 2 runs together, by the workers of ProcessExecutor(workers=2)"]
        if workers == "auto"
        else []
    )


def test_a_comparison_has_workers_too(forks) -> None:
    given = {
        "arrivals": CLOCK,
        "module": Boring,
        "datamodule": classes(),
        "local_optimizer": LocalSGD(lr=0.1),
        "seeds": [0, 1],
        "max_updates": 12,
        "metric": "val_loss",
        "enable_progress_bar": False,
        "accelerator": "cpu",
    }
    shared = compare(RULES, **given, workers=ProcessExecutor(2))
    alone = compare(RULES, **given, executor="sequential")
    assert [(run.name, run.seed) for run in shared.runs] == [
        (run.name, run.seed) for run in alone.runs
    ]
    assert prints(shared) == prints(alone)
    assert forks[0] == 2  # those that replay a schedule begin when it is recorded
    with pytest.raises(RuntimeError, match="no such step"):
        compare(RULES, **{**given, "module": Failing}, workers=2)


def test_auto_gives_each_run_its_own_workers_if_they_differ(monkeypatch) -> None:
    said = []
    monkeypatch.setattr(fedlight.studies.workers_choice, "rank_zero_info", said.append)
    over = {"executor": {"one": ProcessExecutor(1), "two": ProcessExecutor(2)}}
    study = swept(workers="auto", over=over, aggregator=FedBuff(2), seeds=[0])
    assert len(set(prints(study))) == 1
    assert "one after another: some of them have workers, and not all the same" in said[0]


@pytest.mark.parametrize(
    ("workers", "executor", "words"),
    [
        (
            4,
            "processes",
            r"workers=4 and executor='processes' .* workers=ProcessExecutor\(4\)",
        ),
        ("processes", ProcessExecutor(3), r"workers=ProcessExecutor\(workers=3\) .*leave out exec"),
        (ProcessExecutor(2), "vectorized", r"leave out executor=, or write workers=\"auto\""),
        (ProcessExecutor(2), ProcessExecutor(3), r"write workers=ProcessExecutor\(workers=3\)"),
        (ProcessExecutor(2), VectorizedExecutor(), r"leave out executor="),
    ],
)
def test_workers_and_executors_that_do_not_go_together_are_refused(
    workers, executor, words, tmp_path
) -> None:
    with pytest.raises(ValueError, match=words):
        swept(workers=workers, executor=executor, path=tmp_path / "study")
    assert not (tmp_path / "study").exists()
    over = {"executor": {"x": executor, "y": "sequential"}}
    with pytest.raises(ValueError, match=r"executor=.* of executor=x"):
        swept(workers=workers, over=over, aggregator=FedBuff(2))


def test_what_goes_with_ray_is_told_from_what_does_not() -> None:
    pytest.importorskip("ray")
    ray = RayExecutor(2, executor="sequential")
    for executor in ("auto", "sequential", ray, RayExecutor(2, executor="sequential")):
        swept_cells(ray, executor)
    for workers, executor, words in (
        (ray, "vectorized", 'leave out executor=, or write workers="auto"'),
        (ray, RayExecutor(3), "write workers=RayExecutor(num_actors=3"),
        (RayWorkers(), "processes", "write workers=ProcessExecutor()"),
        (RayWorkers(), ray, "write workers=RayExecutor(num_actors=2"),
    ):
        with pytest.raises(ValueError, match="executor") as caught:
            swept_cells(workers, executor)
        assert words in str(caught.value)


def swept_cells(workers, executor):
    """Check how the runs of a study with an executor are computed, without computing them."""
    given = {"module": Boring, "datamodule": classes(), "executor": executor}
    return chosen_workers(workers, cells_of({"aggregator": RULES}, given))


def test_executors_are_compared_by_their_arguments() -> None:
    assert is_same("processes", ProcessExecutor())
    assert is_same(ProcessExecutor(2), ProcessExecutor(2))
    assert not is_same(ProcessExecutor(2), ProcessExecutor(2, max_batch=3))
    assert not is_same(ProcessExecutor(2), "sequential")
    assert is_same("auto", "auto")
