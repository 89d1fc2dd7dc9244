"""Studies of processes that choose by what clients log: the same runs with any workers."""

import multiprocessing
import os
import signal
import sys
from contextlib import nullcontext

import pytest

from fedlight import Callback, Study
from fedlight.arrivals import ScheduleTable
from fedlight.executors import ProcessExecutor, RayExecutor
from tests.boring import classes
from tests.executors.test_feedback import RULES
from tests.fits_on_cards import SIZES
from tests.pretended_ray import PretendedRay
from tests.studies.grid_of_boring import prints, swept

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked"),
    pytest.mark.filterwarnings("ignore:fedlight. some clients count for more"),
    pytest.mark.usefixtures("one_thread"),
]
FORK = multiprocessing.get_context("fork")
# With the executor that computes the same local runs in one process.
WORKERS = {
    "in two processes": (lambda: 2, "sequential"),
    "in processes": (lambda: "processes", "sequential"),
    "together": (lambda: "together", "vectorized"),
    "with shared processes": (lambda: ProcessExecutor(2), "sequential"),
    "with shared actors": (lambda: RayExecutor(2, executor="sequential"), "sequential"),
}


def study(workers, executor, **more):
    rules = {name: make() for name, make in RULES.items()}
    given = {"over": {"rule": rules}, "seeds": [0], "max_updates": 15}
    given["datamodule"] = classes(SIZES)
    return swept(**given, workers=workers, executor=executor, **more)


@pytest.fixture(scope="module")
def alone():
    """The fingerprints of runs one after another, each in this process; by executor."""
    return {name: prints(study(1, name)) for name in ("sequential", "vectorized")}


def with_actors(how):
    """The stand-in for Ray, where it is wanted."""
    return PretendedRay(seed=1).installed() if "actors" in how else nullcontext()


@pytest.mark.parametrize("how", WORKERS)
def test_a_study_has_the_runs_of_one_process(how, alone):
    workers, executor = WORKERS[how]
    with with_actors(how):
        found = study(workers(), executor)
    assert [run.error for run in found.runs] == [None] * 3
    assert prints(found) == alone[executor]


def recorded(workers, **more):
    """Two aggregators over the choices that were made while the first of them was trained."""
    rule = RULES["Pisces"]()["arrivals"]
    given = {"arrivals": rule, "schedule": "recorded", "datamodule": classes(SIZES), "seeds": [0]}
    return swept(**given, executor="sequential", workers=workers, max_updates=15, **more)


def outcome(study):
    """The models of the runs, and their histories."""
    assert [run.error for run in study.runs] == [None, None]
    return prints(study), [run.history for run in study.runs]


@pytest.mark.parametrize("workers", [2, "processes"])
def test_others_replay_what_was_decided_in_another_process(workers, tmp_path):
    here = recorded(1)
    there = recorded(workers, path=tmp_path)
    assert outcome(there) == outcome(here)
    (file,) = tmp_path.rglob("*.parquet")
    table = ScheduleTable.load(file)
    assert len(table) == 15
    assert table.feedback
    assert table.waste_known


class Kills(Callback):
    """Kills the study with all of its processes, once, in the middle of a run."""

    def __init__(self, folder):
        self.folder = folder

    def on_round_end(self, trainer, module):
        log = self.folder / "log"
        with log.open("a") as file:
            print(type(trainer.arrivals).__name__, trainer.version, file=file)
        if trainer.version == 4 and not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            self.kill()

    def kill(self):
        os.killpg(0, signal.SIGKILL)


class KillsItself(Kills):
    """Kills the process that computes the run."""

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("how", ["in turn", *WORKERS])
def test_a_killed_study_goes_on_in_the_middle_of_its_runs(how, alone, tmp_path):
    workers, executor = WORKERS.get(how, (lambda: 1, "sequential"))

    def run():
        with with_actors(how):
            callbacks = {"callbacks": lambda: [Kills(tmp_path)], "checkpoint_seconds": 1e-6}
            return study(workers(), executor, path=tmp_path / "study", **callbacks)

    def child():
        os.setsid()
        run()

    process = FORK.Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "killed").exists()
    assert list((tmp_path / "study" / "checkpoints").rglob("*.ckpt"))
    assert prints(run()) == alone[executor]
    assert prints(Study.load(tmp_path / "study")) == alone[executor]
    rounds = (tmp_path / "log").read_text().splitlines()
    first = [line for line in rounds if line.endswith(" 1")]
    assert len(first) == len(set(first)) == 3  # no run has begun twice
