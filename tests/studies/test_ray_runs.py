"""Whole runs as tasks of a Ray cluster on this machine."""

from functools import partial

import pytest

from fedlight.aggregators import FedBuff
from fedlight.studies import RayWorkers
from tests.boring import Boring
from tests.studies.grid_of_boring import prints, swept

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.filterwarnings("ignore:fedlight. some clients count for more"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Failing(Boring):
    def training_step(self, batch, batch_idx):
        raise ValueError("no such step")


def test_a_cluster_gives_the_runs_of_one_process(tmp_path, monkeypatch) -> None:
    # one worker, as each imports torch before its first run
    start = partial(ray.init, num_cpus=1, include_dashboard=False)
    monkeypatch.setattr(ray, "init", start)
    given = {"over": {"module": {"good": Boring, "bad": Failing}}, "aggregator": FedBuff(2)}
    here = swept(**given)
    there = swept(**given, workers=RayWorkers(), path=tmp_path)
    assert prints(there) == prints(here)
    assert there.runs[0].history == here.runs[0].history
    assert "no such step" in there.runs[2].error
    assert len(list((tmp_path / "runs").glob("*.failed.json"))) == 2


def test_arguments_are_checked() -> None:
    for match, given in {
        "address": {"address": 1},
        "num_cpus": {"num_cpus": 0},
        "num_gpus": {"num_gpus": -1},
    }.items():
        with pytest.raises((TypeError, ValueError), match=match):
            RayWorkers(**given)
