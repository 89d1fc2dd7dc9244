"""A study that is killed, stopped, or run by two processes at once.

The long version of the kills is ``python tests/kill_a_study.py``.
"""

import multiprocessing
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedlight import Callback, Study
from fedlight.aggregators import FedBuff
from tests import kill_a_study
from tests.studies.grid_of_boring import prints, swept

pytestmark = pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")

FORK = multiprocessing.get_context("fork")


class Log(Callback):
    """Writes down when a run begins (and at which version) and ends."""

    def __init__(self, file):
        self.file = file

    def write(self, *words):
        with self.file.open("a") as file:
            print(*words, file=file)

    def on_fit_start(self, trainer, module):
        self.write("begin", trainer.version)

    def on_fit_end(self, trainer, module):
        if not trainer.interrupted:
            self.write("end", type(trainer.aggregator).__name__, trainer.seed)


def study(folder, workers, log, **kwargs):
    return swept(
        path=folder,
        workers=workers,
        callbacks=lambda: [Log(log)],
        max_updates=80,
        checkpoint_seconds=0.05,
        **kwargs,
    )


def times(folder, files="runs/*.json"):
    """When files were written; one may be gone by the time it is looked at."""
    found = {}
    for path in folder.glob(files):
        with suppress(FileNotFoundError):
            found[path.name] = path.stat().st_mtime_ns
    return found


def checkpoints(folder):
    return times(folder, "checkpoints/**/*.ckpt").items()


def test_a_killed_study_goes_on_in_the_middle_of_its_runs(tmp_path) -> None:
    """With two workers; runs that go together are killed by the script of the next test."""
    workers = 2
    whole = study(tmp_path / "whole", workers, tmp_path / "whole.log")
    draw, log, killed = random.Random(0), tmp_path / "log", 0
    finished: dict[str, int] = {}  # when the file of a run was written
    for _ in range(12):
        before = checkpoints(tmp_path / "cut")
        process = FORK.Process(target=study, args=(tmp_path / "cut", workers, log))
        process.start()
        while process.is_alive() and not checkpoints(tmp_path / "cut") - before:
            process.join(0.01)
        process.join(0.2 * draw.random())
        if process.exitcode is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        killed += 1
        for name, written in times(tmp_path / "cut").items():
            finished.setdefault(name, written)
        if killed >= 3 and finished:
            break
    cut = study(tmp_path / "cut", workers, log)
    assert killed >= 2
    assert prints(cut) == prints(whole)
    assert str(cut.table()) == str(whole.table()) == str(Study.load(tmp_path / "cut").table())
    now = times(tmp_path / "cut")
    assert len(now) == 4
    assert finished.items() <= now.items()  # no run was done twice
    lines = log.read_text().splitlines()
    assert any(line.startswith("begin") and line != "begin 0" for line in lines)


@pytest.mark.filterwarnings("ignore")  # as in a script
def test_a_few_kills_of_twenty_runs(capsys) -> None:
    """A part of the 20 kills for each way to compute the runs that are done by hand."""
    arguments = ["--kills", "2", "--updates", "12", "--workers", "together"]
    assert kill_a_study.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "2 kills" in printed
    assert "histories identical; runs done twice: none" in printed


def test_two_processes_share_a_folder(tmp_path) -> None:
    log = tmp_path / "log"
    others = [FORK.Process(target=study, args=(tmp_path / "s", 1, log)) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert [other.exitcode for other in others] == [0, 0]
    ends = [line for line in log.read_text().splitlines() if line.startswith("end")]
    assert sorted(ends) == sorted(set(ends))
    assert len(ends) == 4
    assert len(Study.load(tmp_path / "s").runs) == 4


class Stop(Callback):
    """Sends Ctrl-C in the third round of a run of FedBuff, once."""

    def on_round_end(self, trainer, module):
        sent = Path("sent")  # in the test's own folder
        if trainer.version == 3 and trainer.aggregator.buffer_size == 2 and not sent.exists():
            sent.touch()
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("workers", [1, "together"])
def test_ctrl_c_ends_a_study_and_loses_nothing(tmp_path, workers) -> None:
    whole = swept()
    given = {"path": tmp_path, "workers": workers, "callbacks": lambda: [Stop()]}
    with pytest.raises(KeyboardInterrupt):
        swept(**given)
    finished = list((tmp_path / "runs").glob("*.json"))
    assert len(finished) == (2 if workers == 1 else 0)
    assert any((tmp_path / "checkpoints").iterdir())
    assert prints(swept(**given)) == prints(whole)
    assert not any((tmp_path / "checkpoints").iterdir())


def test_a_run_continues_in_the_folder_of_tensorboard_in_which_it_began(tmp_path) -> None:
    """A finished run of another setting has the folder of the cell's name already."""

    def study(server_lr, folder="s", logs="logs"):
        rules = {"FedBuff": FedBuff(2, server_lr=server_lr)}
        swept(
            over={"rule": rules},
            seeds=[0],
            path=tmp_path / folder,
            logger_dir=tmp_path / logs,
            callbacks=lambda: [Stop()],
        )

    def points(folder):
        found = set()  # of each file by itself: within a second, their names are in no order
        for file in (tmp_path / folder).glob("events.out*"):
            reader = EventAccumulator(str(file)).Reload()
            if "val_loss" in reader.Tags()["scalars"]:
                found |= {(each.step, each.value) for each in reader.Scalars("val_loss")}
        return sorted(found)

    cell = tmp_path / "logs" / "rule=FedBuff"
    Path("sent").touch()  # no Ctrl-C yet
    study(1.0)
    study(0.5, "whole", "whole-logs")
    first = points("logs/rule=FedBuff/seed=0")
    Path("sent").unlink()
    with pytest.raises(KeyboardInterrupt):
        study(0.5)
    study(0.5)
    whole = points("whole-logs/rule=FedBuff/seed=0")
    assert points(cell / "seed=0") == whole
    assert sorted(path.name for path in cell.iterdir()) == ["seed=0", "seed=0-superseded-1"]
    # TensorBoard finds runs by the names of files; the superseded one is whole under another name.
    assert {file.parent.name for file in cell.rglob("*tfevents*")} == {"seed=0"}
    (aside,) = (cell / "seed=0-superseded-1").glob("events.out.superseded*")
    aside.rename(aside.with_name(aside.name.replace("superseded", "tfevents")))
    assert points(cell / "seed=0-superseded-1") == first


def test_a_superseded_run_that_continues_leaves_the_other_ones_folder_alone(tmp_path) -> None:
    def study(server_lr, **more):
        rules = {"FedBuff": FedBuff(2, server_lr=server_lr)}
        swept(over={"rule": rules}, seeds=[0], logger_dir=tmp_path / "logs", **more)

    cell = tmp_path / "logs" / "rule=FedBuff"
    kept = {"path": tmp_path / "s", "callbacks": lambda: [Stop()]}
    with pytest.raises(KeyboardInterrupt):
        study(0.5, **kept)
    study(1.0)  # without the folder of the study, which the first run goes on in
    (other,) = (cell / "seed=0").glob("*tfevents*")
    content = other.read_bytes()
    study(0.5, **kept)
    names = ["seed=0", "seed=0-superseded-1", "seed=0-superseded-2"]
    assert sorted(path.name for path in cell.iterdir()) == names
    (aside,) = (cell / names[2]).glob("*superseded*")
    assert aside.read_bytes() == content
