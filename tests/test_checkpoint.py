"""A run goes on from a checkpoint as if it had never stopped; a damaged file is refused."""

import errno
import math
import os
import pickle
import pickletools
import re
import shutil
import stat
import zipfile
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch.utils.data import TensorDataset

from data_partitioners import IidPartitioner
from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight._runs.data_fingerprint import data_fingerprint
from fedlight._runs.records import record_to_list
from fedlight._support.files import replacing
from fedlight.aggregators import AFACS, Aggregator, FedAsync, FedAvg, FedBuff, FedFix
from fedlight.arrivals import (
    ClientSelection,
    ContinuousArrivals,
    DropOut,
    ExponentialDurations,
    FixedDurations,
    SynchronousArrivals,
    UniformArrivals,
    UniformSteps,
)
from fedlight.callbacks import (
    CSVMetrics,
    EarlyStopping,
    EventLog,
    FedCheckpoint,
    TensorBoardMetrics,
)
from fedlight.checkpoint import FORMAT, CheckpointError, plain, read_checkpoint, write_checkpoint
from fedlight.executors import SequentialExecutor, VectorizedExecutor
from fedlight.local_optimizers import FedProx, LocalSGD, ModuleOptimizer, Scaffold
from fedlight.models import LogisticRegression
from tests.boring import Boring, Point, classes, fitted, points, replay, trainer
from tests.kill_and_resume import Net, clients, newest_log
from tests.kill_and_resume import points as curves

STEPS = UniformSteps(1, 3)


class Every(Callback):
    """A checkpoint after each event."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.paths = folder, []

    def on_event_end(self, trainer, module):
        self.paths.append(self.folder / f"{len(self.paths)}.ckpt")
        trainer.save_checkpoint(self.paths[-1])


class Sums(Callback):
    """Has a state of its own, with numbers and a tensor in it."""

    def __init__(self) -> None:
        self.total, self.losses = torch.zeros(2), []

    def on_round_end(self, trainer, module):
        self.total += trainer.state.params[:2].cpu()
        self.losses.append(trainer.history[-1].metrics.get("train_loss", math.nan))

    def state_dict(self):
        return {"total": self.total, "losses": self.losses}

    def load_state_dict(self, state):
        self.total, self.losses = state["total"], state["losses"]


def clock(**kwargs):
    return ContinuousArrivals(ExponentialDurations(1.0), local_steps=STEPS, **kwargs)


SETUPS = {
    "rounds": lambda: {
        "arrivals": UniformArrivals(3, max_staleness=2, local_steps=STEPS),
        "aggregator": AFACS(),
        "local_optimizer": Scaffold(0.1),
    },
    "buffer": lambda: {
        "arrivals": DropOut(clock(resume="on_arrival"), 0.2),
        "aggregator": FedBuff(3, server_optimizer=lambda p: torch.optim.Adam(p, 0.05)),
        "local_optimizer": FedProx(0.1, mu=0.1, momentum=0.9),
        "on_client_failure": "retry",
        "executor": "vectorized",
    },
    "failures": lambda: {
        "arrivals": ContinuousArrivals(FixedDurations([1, 0.3, 0.5, 0.7, 0.9, 0.4])),
        "aggregator": FedAsync(0.5, max_staleness=9),
        "local_optimizer": Scaffold(0.1),
        "on_client_failure": "drop",
        "max_update_norm": 0.4,
        "max_rounds": 12,
        "executor": "vectorized",
    },
    "deadline": lambda: {
        "arrivals": clock(concurrency=3, idle=0.2),
        "aggregator": FedFix(0.5),
        "local_optimizer": ModuleOptimizer(),
        "on_client_failure": "drop",
        "max_rounds": 14,
    },
}


def run(setup, folder, callbacks=(), ckpt_path=None, loggers=True):
    given = {"executor": "sequential", "max_rounds": 7, **SETUPS[setup]()}
    own = [Sums(), EventLog(folder / "events.parquet")]
    logger = TensorBoardLogger(folder, name="logs")
    it = trainer(**given, callbacks=[*own, *callbacks], logger=logger if loggers else False)
    it.fit(Net(), clients(broken=setup != "rounds"), ckpt_path=ckpt_path)
    return it


def traces(it: FedTrainer):
    sums, log = it.callbacks[0], it.callbacks[1]
    return (
        it.fingerprint(),
        [repr(record) for record in it.history],
        repr(it.callback_metrics),
        (it.version, it.now, it.num_updates, it.num_failures),
        (sums.total.tolist(), repr(sums.losses)),
        repr(log.table().to_pydict()),
    )


@pytest.mark.parametrize("setup", SETUPS)
def test_resume_at_every_event(setup, tmp_path):
    """Also with other callbacks and loggers added, of which the checkpoint knows nothing.

    A setup is resumed at every third event, beginning with the first, second or third one.
    """
    every = Every(tmp_path)
    (tmp_path / "whole").mkdir()
    whole = run(setup, tmp_path / "whole", [every])
    expected = traces(whole)
    assert setup == "rounds" or whole.num_failures
    assert len(every.paths) >= 14
    before = [torch.get_rng_state(), np.random.get_state()[1].tolist()]  # noqa: NPY002
    offset = list(SETUPS).index(setup) % 3
    for index, path in list(enumerate(every.paths))[offset::3]:
        added = [Every(tmp_path / "more")] if index in (2, 3, 4) else []
        again = run(setup, tmp_path / str(index), added, path, loggers=index % 4 < 2)
        assert traces(again) == expected, index
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


@pytest.mark.parametrize("at", [0, 4, 9, 13])
def test_tensorboard_has_each_point_once(at, tmp_path):
    """A run that went on beyond its checkpoint before it died has written points behind it."""
    metrics = TensorBoardMetrics(histogram_every_n_rounds=3, picture_every_n_rounds=None)
    every = Every(tmp_path)
    (tmp_path / "whole").mkdir()
    run("buffer", tmp_path / "whole", [metrics, every])
    expected = curves(newest_log(tmp_path / "whole"))
    assert len(expected["train_loss"]) == 7
    assert {"val_loss/by_virtual_time", "updates/staleness"} <= set(expected)
    (log,) = (tmp_path / "whole" / "logs").iterdir()
    (file,) = log.glob("events*")
    # As if it had been begun long ago: TensorBoard orders its files by their second of birth.
    file.rename(file.with_name(re.sub(r"tfevents\.\d+", "tfevents.1000000000", file.name)))
    metrics = TensorBoardMetrics(histogram_every_n_rounds=3, picture_every_n_rounds=None)
    run(
        "buffer",
        tmp_path / "whole",
        [EarlyStopping("train_loss", patience=99), metrics],
        every.paths[at],
    )
    assert len(list((tmp_path / "whole" / "logs").iterdir())) == 1
    assert curves(log) == expected


def test_a_run_that_had_ended_already_draws_its_last_histograms_once(tmp_path):
    def end(ckpt_path=None):
        metrics = TensorBoardMetrics(histogram_every_n_rounds=4, picture_every_n_rounds=None)
        run("rounds", tmp_path, [metrics, FedCheckpoint(tmp_path / "kept")], ckpt_path)
        return curves(newest_log(tmp_path))

    expected = end()
    assert [step for step, _ in expected["updates/norm"]] == [4, 7]
    (log,) = (tmp_path / "logs").iterdir()
    for age in range(2):
        for file in log.glob("events*"):
            if "tfevents.100000" not in file.name:
                name = re.sub(r"tfevents\.\d+", f"tfevents.100000000{age}", file.name)
                file.rename(file.with_name(name))
        assert end("last") == expected
    assert len(list(log.glob("events*"))) == 3


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
def test_a_csv_logger_goes_on_in_its_file(tmp_path):
    every = Every(tmp_path)
    whole = fitted(Boring(), classes(), logger=CSVLogger(tmp_path), callbacks=every)
    (file,) = tmp_path.glob("**/metrics.csv")
    expected = file.read_text()
    assert len(expected.splitlines()) == whole.version + 1
    again = trainer(logger=CSVLogger(tmp_path))
    again.fit(Boring(), classes(), ckpt_path=every.paths[5])
    assert [file] == list(tmp_path.glob("**/metrics.csv"))
    assert file.read_text() == expected


def test_a_run_that_stopped_early_stays_stopped(tmp_path):
    """Killed between the event in which it was stopped and the end of the run."""
    every = Every(tmp_path)
    stopping = EarlyStopping("train_loss", patience=2, min_delta=100.0)
    one = fitted(Boring(), classes(), callbacks=[stopping, every], max_rounds=50)
    assert one.version < 50
    stopping = EarlyStopping("train_loss", patience=2, min_delta=100.0)
    two = trainer(callbacks=stopping, max_rounds=50)
    two.fit(Boring(), classes(), ckpt_path=every.paths[-1])
    assert (two.version, two.history) == (one.version, one.history)
    three = trainer(
        callbacks=EarlyStopping("train_loss", patience=5, min_delta=100.0), max_rounds=50
    )
    three.fit(Boring(), classes(), ckpt_path=every.paths[-1])
    assert three.version > one.version


def test_resume_of_a_run_that_is_over_changes_nothing(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("fedlight._fit.endings.rank_zero_info", said.append)
    given = {"callbacks": FedCheckpoint(tmp_path), "arrivals": UniformArrivals(2)}
    one = fitted(Boring(), classes(), **given)
    two = trainer(**given)
    two.fit(Boring(), classes(), ckpt_path="last")
    assert two.fingerprint() == one.fingerprint()
    assert two.history == one.history
    assert any("at its limit already (5 rounds, 10 updates)" in message for message in said)
    said.clear()
    three = trainer(**given, max_rounds=6)
    three.fit(Boring(), classes(), ckpt_path="last")
    assert three.version == 6
    assert not any("at its limit" in message for message in said)


def test_a_save_within_an_event_waits_until_it_is_over(tmp_path):
    """Also one that is wanted while clients are sent on."""

    class Eager(Callback):
        saved = 0

        def on_dispatch(self, trainer, module, task):
            self.saved += 1
            trainer.save_checkpoint(tmp_path / f"{self.saved}.ckpt")

    eager = Eager()
    given = {"arrivals": UniformArrivals(2, max_staleness=1), "aggregator": AFACS()}
    whole = fitted(Boring(torch.nn.Linear(4, 3)), classes(), **given, callbacks=eager)
    start = Boring(torch.nn.Linear(4, 3))
    paths = sorted(tmp_path.glob("*.ckpt"))
    assert len(paths) == eager.saved > 5
    for path in paths:
        again = trainer(**given)
        again.fit(start, classes(), ckpt_path=path)
        assert again.fingerprint() == whole.fingerprint()
        assert again.history == whole.history


# --- files of earlier versions ---


def of_0_2(rounds, *callbacks):
    """The run whose checkpoint after eight rounds fedlight 0.2 has written to ``of_0_2.ckpt``."""
    return trainer(
        arrivals=ContinuousArrivals(
            FixedDurations([1.0, 0.7, 1.3, 0.4]), concurrency=3, resume="on_arrival", local_steps=2
        ),
        aggregator=FedBuff(buffer_size=3),
        local_optimizer=Scaffold(0.05),
        max_update_norm=0.5,
        on_client_failure="drop",
        executor="sequential",
        callbacks=[EarlyStopping("val_error", patience=50), *callbacks],
        max_rounds=rounds,
        seed=3,
    )


def test_a_checkpoint_of_0_2_is_gone_on_from():
    data = points([1.0], [2.0], [3.0, 4.0], [5.0])
    whole, resumed = of_0_2(12), of_0_2(12)
    whole.fit(Point(), data)
    resumed.fit(Point(), data, ckpt_path=Path(__file__).with_name("of_0_2.ckpt"))
    # It had not counted the examples: their total is left out, not guessed.
    assert not any("fed/examples" in record.metrics for record in resumed.history)
    for record in whole.history:
        del record.metrics["fed/examples"]
    assert resumed.history == whole.history
    assert resumed.fingerprint() == whole.fingerprint()
    assert resumed.run.counts == replace(whole.run.counts, num_examples=None)


# --- files ---


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A checkpoint of a small run."""
    folder = tmp_path_factory.mktemp("saved")
    fitted(Boring(), classes(), callbacks=FedCheckpoint(folder), local_optimizer=Scaffold(0.1))
    return folder / "last.ckpt"


@settings(max_examples=200)
@given(place=st.floats(0, 1), length=st.integers(1, 64), value=st.integers(1, 255))
def test_a_damaged_byte_is_refused(saved, place, length, value):
    data = bytearray(saved.read_bytes())
    start = min(int(place * len(data)), len(data) - 1)
    for position in range(start, min(start + length, len(data))):
        data[position] ^= value
    damaged = saved.with_name("damaged")
    damaged.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"damaged' is damaged, cut short, or not a check"):
        read_checkpoint(damaged)


@settings(max_examples=100)
@given(place=st.floats(0, 1, exclude_max=True), more=st.binary(max_size=200))
def test_a_file_that_is_cut_short_or_has_more_in_it_is_refused(saved, place, more):
    data = saved.read_bytes()
    damaged = saved.with_name("damaged")
    for content in (data[: int(place * len(data))], more, data + more):
        if content == data:
            continue
        damaged.write_bytes(content)
        with pytest.raises(CheckpointError, match="its checksum does not fit"):
            read_checkpoint(damaged)


def test_the_last_falls_back_to_the_one_before(saved, tmp_path):
    shutil.copytree(saved.parent, tmp_path / "kept")
    folder = tmp_path / "kept"
    (folder / "damaged").unlink(missing_ok=True)
    newest, last = folder / "round=5.ckpt", folder / "last.ckpt"
    os.utime(newest, ns=(1, 1))
    last.write_bytes(last.read_bytes()[:-5])
    given = {"callbacks": FedCheckpoint(folder), "local_optimizer": Scaffold(0.1)}
    again = trainer(**given, max_rounds=7)
    with pytest.warns(UserWarning, match=r"last.ckpt' is damaged.*; the one before it is used"):
        again.fit(Boring(), classes(), ckpt_path="last")
    assert again.version == 7
    for path in folder.glob("*.ckpt"):
        path.write_bytes(b"nothing")
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(CheckpointError, match="no whole checkpoint is left"),
    ):
        trainer(callbacks=FedCheckpoint(folder)).fit(Boring(), classes(), ckpt_path="last")


class Hostile:
    """What a pickle would run."""

    def __reduce__(self):
        return os.mkdir, ("run-by-the-pickle",)


@pytest.mark.parametrize("signed", [False, True])
def test_a_hostile_pickle_is_not_run(tmp_path, signed, monkeypatch):
    """Not even in a file whose checksum fits."""
    path = tmp_path / "hostile.ckpt"
    if signed:
        monkeypatch.setattr("fedlight.checkpoint.plain", lambda content, **options: content)
        write_checkpoint(path, {"fedlight": {"format": FORMAT, "server": Hostile()}})
    else:
        path.write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        trainer().fit(Boring(), classes(), ckpt_path=path)
    assert not Path("run-by-the-pickle").exists()


def test_what_is_no_plain_data_is_refused_when_it_is_written(tmp_path):
    class Odd(Callback):
        def state_dict(self):
            return {"function": len}

    with pytest.raises(TypeError, match=r"Odd.state_dict\(\)\['function'\] is a builtin"):
        fitted(Boring(), classes(), callbacks=[Odd(), FedCheckpoint(tmp_path)])
    assert list(tmp_path.glob("*.ckpt")) == []
    assert plain({"a": (1, np.float64(2), Path("x"), np.arange(2))})["a"][:3] == [1, 2.0, "x"]


def test_other_files_are_refused(tmp_path, saved):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint file '.*nowhere.ckpt'"):
        trainer().fit(Boring(), classes(), ckpt_path=tmp_path / "nowhere.ckpt")
    write_checkpoint(tmp_path / "other.ckpt", {"state_dict": {}})
    with pytest.raises(CheckpointError, match="holds no run of fedlight"):
        read_checkpoint(tmp_path / "other.ckpt")
    write_checkpoint(tmp_path / "newer.ckpt", {"fedlight": {"format": 99}})
    with pytest.raises(CheckpointError, match="has format 99, this version of fedlight reads"):
        read_checkpoint(tmp_path / "newer.ckpt")
    with pytest.raises(ValueError, match='ckpt_path="last" needs a FedCheckpoint'):
        trainer().fit(Boring(), classes(), ckpt_path="last")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": lambda: classes((6, 10, 3))}, r"number of clients was 4, is 3"),
        ({"data": lambda: classes((6, 10, 4, 8))}, r"examples of the clients \(hash\) was"),
        ({"data": lambda: classes(batch_size=5)}, "batch_size was 4, is 5"),
        ({"module": lambda: Boring(torch.nn.Linear(4, 3, bias=False))}, "parameters was"),
        ({"module": Point}, "parameters was"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"aggregator": AFACS()}, r"aggregator was .FedAvg\(.*, is .AFACS\("),
        ({"aggregator": FedAvg(server_lr=0.5)}, r"aggregator was .*, is .*, server_lr=0.5\)"),
        ({"arrivals": UniformArrivals(3)}, r"arrivals was 'UniformArrivals\(per_round=2"),
        ({"local_optimizer": LocalSGD(0.1)}, r"local_optimizer was 'Scaffold\(lr=0.1"),
    ],
)
def test_a_foreign_federation_is_refused_with_what_differs(saved, change, words):
    change = dict(change)
    data, module = change.pop("data", classes)(), change.pop("module", Boring)()
    given = {"local_optimizer": Scaffold(0.1), **change}
    with pytest.raises(CheckpointError, match=rf"is of another federation: .*{words}"):
        trainer(**given).fit(module, data, ckpt_path=saved)


@pytest.mark.parametrize("call", ["fsync", "write"])
def test_a_full_disk_leaves_the_good_file(saved, tmp_path, monkeypatch, call):
    path = tmp_path / "last.ckpt"
    shutil.copy(saved, path)

    def full(*args):
        raise OSError(28, "No space left on device")

    if call == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr("fedlight.checkpoint.torch.save", full)
    again = trainer(callbacks=FedCheckpoint(tmp_path), local_optimizer=Scaffold(0.1), max_rounds=8)
    with pytest.raises(OSError, match="No space left"):
        again.fit(Boring(), classes(), ckpt_path="last")
    monkeypatch.undo()
    assert path.read_bytes() == saved.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["last.ckpt"]
    assert read_checkpoint(path)["fedlight"]["server"]["version"] == 5


@pytest.mark.parametrize("fails", ["last", "round=4"])
def test_a_disk_that_is_full_between_two_files_leaves_none_that_nobody_ranks(
    tmp_path, monkeypatch, fails
):
    """Round 4 is the best one, and one of its two files cannot be written."""

    def begun():
        keeper = FedCheckpoint(tmp_path, monitor="fed/time", mode="max", save_top_k=2)
        run = trainer(callbacks=keeper, max_rounds=6)
        return run, keeper

    plain, whole = replacing, begun()[0]

    def full(path, *args, **kwargs):
        if Path(path).name.startswith(fails) and whole.version == 4:
            raise OSError(errno.ENOSPC, "no space left", str(path))
        return plain(path, *args, **kwargs)

    monkeypatch.setattr("fedlight.checkpoint.replacing", full)
    with pytest.raises(OSError, match="no space left"):
        whole.fit(Boring(), classes())
    monkeypatch.undo()
    names = ["last.ckpt", "round=2.ckpt", "round=3.ckpt"]
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == names
    again, keeper = begun()
    again.fit(Boring(), classes(), ckpt_path="last")
    assert [Path(path).name for path in keeper.best_k] == ["round=6.ckpt", "round=5.ckpt"]
    names = ["last.ckpt", "round=5.ckpt", "round=6.ckpt"]
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == names


def test_plain_lightning_loads_the_model(tmp_path):
    run = trainer(callbacks=FedCheckpoint(tmp_path), max_rounds=2)
    module = LogisticRegression(4, 3)
    run.fit(module, classes())
    loaded = LogisticRegression.load_from_checkpoint(tmp_path / "last.ckpt").state_dict()
    assert loaded.keys() == module.state_dict().keys()
    assert all(torch.equal(loaded[name], value) for name, value in module.state_dict().items())
    assert zipfile.is_zipfile(tmp_path / "last.ckpt")


def test_no_file_but_the_wanted_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fitted(Boring(), classes(), callbacks=FedCheckpoint("kept", save_top_k=2), max_rounds=6)
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert names == ["kept", "kept/last.ckpt", "kept/round=5.ckpt", "kept/round=6.ckpt"]


def test_a_failure_that_was_computed_before_the_checkpoint_is_raised_after_it(tmp_path):
    """With the lines of the traceback, which no file can hold."""
    every = Every(tmp_path)
    data = classes()
    data.setup()
    given = {
        "arrivals": replay((0, 0, 1.0, 1), (2, 0, 2.0, 1)),
        "aggregator": FedBuff(1),
        "executor": "vectorized",
    }

    class Head(Boring):
        def training_step(self, batch, batch_idx):
            return super().training_step((batch[0], batch[1] + 9 * (batch[0].shape[0] == 3)), 0)

    with pytest.raises(Exception, match="client 2 failed") as first:
        fitted(Head(), data, **given, callbacks=every)
    assert every.paths
    with pytest.raises(Exception, match="client 2 failed") as second:
        trainer(**given).fit(Head(), data, ckpt_path=every.paths[-1])
    assert str(first.value) == str(second.value)
    assert "Traceback" in "".join(second.value.__notes__)


@pytest.mark.parametrize(
    ("monitor", "mode"), [(None, "min"), ("fed/time", "min"), ("fed/time", "max")]
)
def test_the_best_checkpoint_is_that_of_the_monitor_or_the_newest(monitor, mode):
    keeper = FedCheckpoint("kept", monitor=monitor, mode=mode, save_top_k=2)
    fitted(Boring(), classes(), callbacks=keeper, max_rounds=4)
    best, second = (1, 2) if monitor and mode == "min" else (4, 3)
    assert Path(keeper.best_model_path).name == f"round={best}.ckpt"
    kept = {path.name for path in Path("kept").iterdir()}
    assert kept == {f"round={best}.ckpt", f"round={second}.ckpt", "last.ckpt"}
    again = FedCheckpoint("kept", monitor=monitor, mode=mode, save_top_k=2)
    assert again.best_model_path == ""
    again.load_state_dict(keeper.state_dict())
    assert again.best_model_path == keeper.best_model_path
    assert keeper.best_k_models == keeper.best_k
    expected = None if monitor is None else keeper.best_k[keeper.best_model_path]
    assert keeper.best_model_score == expected


def test_a_strategy_that_would_lose_its_state_warns(tmp_path):
    class Slower(FedAvg):
        def step(self, state):
            self.steps = [*getattr(self, "steps", []), state.version]
            return super().step(state)

    class Kept(Slower):
        def state_dict(self):
            return {**super().state_dict(), "steps": self.steps}

    class Forgetful(Slower):
        state_dict = Aggregator.state_dict

    given = {"callbacks": FedCheckpoint(tmp_path / "kept")}
    fitted(Boring(), classes(), aggregator=Kept(), **given)
    given = {"callbacks": FedCheckpoint(tmp_path / "lost")}
    with pytest.warns(
        UserWarning, match="Forgetful changes steps during the run and has no"
    ) as seen:
        fitted(Boring(), classes(), aggregator=Forgetful(), **given)
    assert len(seen) == 1


def test_a_choice_that_would_lose_its_state_warns(tmp_path):
    class Counts(ClientSelection):
        def setup(self, federation):
            super().setup(federation)
            self._tasks = {}

        def choose(self, clients, count, rng, now):
            for client in clients[:count]:
                self._tasks[client] = self._tasks.get(client, 0) + 1
            return clients[:count]

    class Kept(Counts):
        _saved_attributes = ("_tasks",)

    rounds = SynchronousArrivals(per_round=1, local_steps=1)
    fitted(Boring(), classes(), arrivals=Kept(rounds), callbacks=FedCheckpoint(tmp_path / "kept"))
    forgets = {"arrivals": Counts(rounds), "callbacks": FedCheckpoint(tmp_path / "lost")}
    with pytest.warns(
        UserWarning, match="Counts changes _tasks during the run and does not list them in _saved"
    ) as seen:
        fitted(Boring(), classes(), **forgets)
    assert len(seen) == 1


def test_frozen_parameters_come_back(tmp_path):
    def module():
        made = Boring(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)))
        made.net[0].requires_grad_(False)
        return made

    one = fitted(module(), classes(), callbacks=FedCheckpoint(tmp_path))
    two, other = trainer(callbacks=FedCheckpoint(tmp_path), max_rounds=6), module()
    other.net[0].weight.data.fill_(7)
    two.fit(other, classes(), ckpt_path="last")
    assert torch.equal(other.net[0].weight, one.module.net[0].weight)
    bare = Boring(torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)))
    bare.net[0].requires_grad_(False)
    with pytest.raises(CheckpointError):
        trainer().fit(bare, classes(), ckpt_path=max(tmp_path.glob("*.ckpt")))


# --- what a save costs ---


def saved_at(rounds, monkeypatch, **options):
    """Bytes written, items encoded and calls of fsync at the save of each of these rounds."""
    cost, costs, parts = Counter(), {}, []

    def noting_sync(number):
        cost["folders synced"] += stat.S_ISDIR(os.fstat(number).st_mode)
        cost["bytes"] += os.fstat(number).st_size * stat.S_ISREG(os.fstat(number).st_mode)

    def noting_record(record):
        cost["items"] += 1
        return record_to_list(record)

    class Noting(FedCheckpoint):
        def on_event_end(self, trainer, module):
            cost.clear()
            super().on_event_end(trainer, module)
            costs[trainer.version] = Counter(cost)
            parts.append({p: p.stat().st_mtime_ns for p in Path("kept/parts").glob("*.pt")})

    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr("fedlight.run.record_to_list", noting_record)
    callbacks = [EventLog("events.parquet"), Noting("kept", **options.pop("keep", {}))]
    given = {"aggregator": FedAsync(0.5), "arrivals": clock(), "max_rounds": max(rounds)}
    run = trainer(**given, callbacks=callbacks, check_val_every_n_rounds=None)
    run.fit(Point(), points([1.0], [2.0], [3.0], val=None), **options)
    return [costs[each] for each in rounds], parts, run


def test_a_save_costs_no_more_in_round_300_than_in_round_30(monkeypatch):
    """The items are those behind the last full part, 64 rounds each: 30 and 44."""
    (early, same, late), parts, _ = saved_at([30, 286, 300], monkeypatch)
    assert early["items"] == same["items"] == 30  # 286 = 4 · 64 + 30
    assert late["items"] == 44
    assert early["folders synced"] == late["folders synced"] == 1  # one for both files
    # The names of the same number of items; virtual times and serials have more digits by then.
    assert same["bytes"] <= 1.05 * early["bytes"]
    assert late["bytes"] <= 1.5 * early["bytes"]
    for before, after in pairwise(parts):
        assert before.items() <= after.items()  # written once, never again


def test_a_resumed_run_uses_the_parts_that_are_there_and_needs_each(monkeypatch):
    _, parts, whole = saved_at([140], monkeypatch)
    shutil.rmtree("kept")
    saved_at([80], monkeypatch)
    (cost,), again, resumed = saved_at([140], monkeypatch, ckpt_path="last")
    assert resumed.fingerprint() == whole.fingerprint()
    assert again[0].keys() < parts[-1].keys()  # those of the run that is gone on from
    assert again[0].items() <= again[-1].items()
    assert again[-1].keys() == parts[-1].keys()  # named by their bytes
    assert cost["items"] == 140 - 2 * 64

    assert len(read_checkpoint("kept/last.ckpt")["fedlight"]["history"]) == 140
    Path("elsewhere").mkdir()
    shutil.copy("kept/last.ckpt", "elsewhere")
    with pytest.raises(CheckpointError, match=r"needs 'elsewhere/parts/\w+.pt'.*copy both"):
        read_checkpoint("elsewhere/last.ckpt")
    (first, *_) = Path("kept/parts").glob("*.pt")
    first.unlink()  # each part is needed, also one that only another part names
    with pytest.raises(CheckpointError, match="which is not there: the folder 'parts' beside"):
        read_checkpoint("kept/last.ckpt")


# --- states and data ---


def test_numpys_numbers_are_plain_and_odd_keys_are_named():
    made = plain({"a": np.bool_(True), "b": np.float32(0.5), 3: np.int8(1), "c": {np.int64(2): 0}})
    assert made == {"a": True, "b": 0.5, 3: 1, "c": {2: 0}}
    assert [type(each) for each in made.values()] == [bool, float, int, dict]
    kinds = {"dtype": torch.float16, "bytes": b"x", "complex": 1j, "set": {1, 2}}
    assert plain(kinds) == kinds
    for key in ((1, 2), frozenset({1})):
        with pytest.raises(TypeError, match=r"checkpoint\['a'\] has the key .*of \[key, value"):
            plain({"a": {key: 0}})
    with pytest.raises(TypeError, match="checkpoint is a builtin"):
        plain({len: 0})


def test_a_state_that_holds_itself_is_refused(tmp_path):
    state = {"list": []}
    state["list"].append(state)
    with pytest.raises(TypeError, match="something in the checkpoint holds itself"):
        write_checkpoint(tmp_path / "a.ckpt", state)
    assert list(tmp_path.iterdir()) == []


def test_numpys_bool_in_a_callbacks_state_comes_back():
    class Flagged(Sums):
        def state_dict(self):
            return {**super().state_dict(), "flag": np.bool_(True), "kinds": {"a": b"x"}}

        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.flag, self.kinds = state["flag"], state["kinds"]

    fitted(Boring(), classes(), callbacks=[Flagged(), FedCheckpoint("kept")])
    callback = Flagged()
    trainer(callbacks=[callback, FedCheckpoint("kept")]).fit(Boring(), classes(), ckpt_path="last")
    assert callback.flag is True
    assert callback.kinds == {"a": b"x"}


class Words(list):
    """A data set that may not be read at will: reading counts."""

    reads = 0

    def __getitem__(self, row):
        type(self).reads += 1
        return super().__getitem__(row)


def tables(*clients, kind=TensorDataset):
    return FederatedDataModule.from_client_datasets(
        [kind(values) for values in clients], batch_size=2, val_dataset=None
    )


X = torch.arange(6.0).reshape(6, 1)
ITEMS = [(x,) for x in X]
ALL = {
    "another row": (tables(X[:3], X[3:]), tables(X[:3], X[3:] + 1)),
    "rows of other clients": (tables(X[:3], X[3:]), tables(X[3:], X[:3])),
    "another item of a list": (
        tables(ITEMS[:3], ITEMS[3:], kind=list),
        tables(ITEMS[:3], [*ITEMS[3:5], ITEMS[0]], kind=list),
    ),
}


@pytest.mark.parametrize("case", ALL)
def test_other_data_of_the_same_sizes_are_refused(case):
    one, other = ALL[case]
    given = {"callbacks": FedCheckpoint("kept"), "executor": "sequential"}
    fitted(Point(), one, **given, max_rounds=2)
    again = trainer(**given, max_rounds=4)
    again.fit(Point(), one, ckpt_path="last")
    assert again.version == 4
    with pytest.raises(CheckpointError, match=r"data \(hash\) was '\w{16}', is '\w{16}'$"):
        trainer(**given).fit(Point(), other, ckpt_path="last")


def halved(batch):
    return tuple(part / 2 for part in batch)


def doubled(batch):
    return tuple(part * 2 for part in batch)


def times(number):
    return lambda rows: (torch.tensor([row["x"] for row in rows]) * number,)


@pytest.mark.parametrize(
    "changes",
    [
        [{"transform": halved}, {"transform": doubled}],
        [{}, {"transform": halved}],
        [{"normalize": (0.0, 1.0)}, {"normalize": (1.0, 2.0)}],
        [{"columns": None, "collate_fn": times(1)}, {"columns": None, "collate_fn": times(2)}],
    ],
    ids=["transform", "no transform", "normalize", "collate_fn"],
)
def test_rows_that_are_changed_in_another_way_are_other_data(changes):
    table = datasets.Dataset.from_dict({"x": [[float(i)] for i in range(8)]})
    one, other = (
        FederatedDataModule(table, IidPartitioner(2), val_split=None, test_split=None, **given)
        for given in ({"columns": ("x", None), **change} for change in changes)
    )
    fitted(Point(), one, callbacks=FedCheckpoint("kept"), max_rounds=2)
    trainer(callbacks=FedCheckpoint("kept"), max_rounds=3).fit(Point(), one, ckpt_path="last")
    with pytest.raises(CheckpointError, match=r"federation: data \(hash\) was"):
        trainer(callbacks=FedCheckpoint("kept")).fit(Point(), other, ckpt_path="last")


def test_a_partition_by_another_seed_is_refused():
    table = datasets.Dataset.from_dict({"x": [[float(i)] for i in range(8)], "y": [0] * 8})
    data = [
        FederatedDataModule(table, IidPartitioner(2), partition_seed=seed, val_split=None)
        for seed in range(2)
    ]
    model = LogisticRegression(1, 2)
    fitted(model, data[0], callbacks=FedCheckpoint("kept"), max_rounds=2)
    with pytest.raises(CheckpointError, match=r"federation: data \(hash\) was"):
        trainer(callbacks=FedCheckpoint("kept")).fit(model, data[1], ckpt_path="last")


def test_data_that_are_computed_when_they_are_read_are_not_read_for_the_fingerprint():
    data = tables(ITEMS[:3], ITEMS[3:], kind=Words)
    data.setup()
    data_fingerprint(data.partition, data.train_data)
    assert Words.reads == 0


# --- the disk is full ---


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("file", ["events.parquet", "rounds.csv", "last.ckpt"])
def test_on_a_full_disk_all_is_let_go_and_the_file_is_named(file, executor, monkeypatch):
    """Whichever file it is that cannot be written."""
    ended = []

    class Ending(Callback):
        def teardown(self, trainer, module, stage):
            ended.append("callback")

    class Net(Boring):
        def teardown(self, stage):
            ended.append("module")

    kind = {"sequential": SequentialExecutor, "vectorized": VectorizedExecutor}[executor]
    teardown = kind.teardown
    monkeypatch.setattr(kind, "teardown", lambda self: (ended.append("executor"), teardown(self)))
    monkeypatch.setattr(CSVLogger, "finalize", lambda self, status: ended.append(status))
    sync, written = os.fsync, []

    def full(number):
        name = os.readlink(f"/proc/self/fd/{number}")
        written.append(name)
        begins = "rounds.csv" in name and len([each for each in written if file in each]) == 1
        if file in name and not begins:  # the header of the CSV file still found room
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(number)

    monkeypatch.setattr(os, "fsync", full)
    run = trainer(
        executor=kind(),
        logger=CSVLogger("logs"),
        callbacks=[EventLog("events.parquet"), CSVMetrics("rounds.csv"), Ending(),
                   FedCheckpoint("kept")],
    )  # fmt: skip
    with pytest.raises(OSError, match=f"No space left on device: '.*{file}'"):
        run.fit(Net(), classes())
    status = "failed" if file == "last.ckpt" else "success"  # the others fail in teardown
    assert ended == ["callback", status, "executor", "module"]
    assert not list(Path().rglob(".*.part"))
    monkeypatch.undo()


def many_in_flight(concurrency, **options):
    numbers = torch.arange(2000.0).reshape(-1, 1) / 2000
    data = FederatedDataModule(TensorDataset(numbers), IidPartitioner(2000), batch_size=1)
    arrivals = ContinuousArrivals(
        ExponentialDurations(1.0), concurrency=concurrency, resume="on_arrival", local_steps=1
    )
    given = {"arrivals": arrivals, "aggregator": FedBuff(300), "executor": "vectorized"}
    run = trainer(**given, local_optimizer=LocalSGD(0.1), **options)
    return run, data


def test_a_run_with_many_clients_in_flight_goes_on_with_the_same_bits(tmp_path):
    run, data = many_in_flight(700, max_rounds=4)
    run.fit(Point(), data)
    first, data = many_in_flight(700, max_rounds=2)
    first.fit(Point(), data)
    first.save_checkpoint(tmp_path / "half.ckpt")
    again, data = many_in_flight(700, max_rounds=4)
    again.fit(Point(), data, ckpt_path=tmp_path / "half.ckpt")
    assert again.fingerprint() == run.fingerprint()
    assert [*map(record_to_list, again.history)] == [*map(record_to_list, run.history)]


def test_a_client_in_flight_is_a_few_objects_of_a_checkpoint(tmp_path):
    counts = []
    for concurrency in (600, 1800):
        run, data = many_in_flight(concurrency, max_rounds=1)
        run.fit(Point(), data)
        run.save_checkpoint(tmp_path / "once.ckpt")
        with zipfile.ZipFile(tmp_path / "once.ckpt") as archive:
            (name,) = (each for each in archive.namelist() if each.endswith("data.pkl"))
            counts.append(sum(1 for _ in pickletools.genops(archive.read(name))))
    # Some are computed ahead, and a column of results and None has an item for each client.
    assert counts[1] - counts[0] < 4 * 1200
