"""Two nodes of one core each, on this machine: the bits of one process, though a node is killed."""

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedlight import Callback
from fedlight.aggregators import FedBuff
from fedlight.executors import RayExecutor
from fedlight.executors._remote.cluster import Cluster, free_in, room_in
from fedlight.studies import RayWorkers
from tests.studies.grid_of_boring import prints, swept

PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.filterwarnings("ignore:fedlight. some clients count for more"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class TwoNodes:
    """A cluster of which one node can be killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Nodes

        # A dead node is noticed soon; a busy one may take a minute to answer.
        health = {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": 200,
            "health_check_failure_threshold": 3,
            "health_check_timeout_ms": 60_000,
        }
        head = {"num_cpus": 1, "include_dashboard": False, "_system_config": health}
        self._nodes = Nodes(initialize_head=True, head_node_args=head)
        self._other = self._nodes.add_node(num_cpus=1)
        self.address = self._nodes.address

    def replace_a_node(self) -> None:
        """Kill the node that is not the head, without a warning, and add another one."""
        self._nodes.remove_node(self._other, allow_graceful=False)
        self._other = self._nodes.add_node(num_cpus=1)

    def stop(self) -> None:
        self._nodes.shutdown()


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[TwoNodes]:
    """A cluster of its own, which no other test on this machine finds and joins."""
    # The paths of sockets have at most about a hundred characters: too few for `tmp_path`.
    folder = tempfile.mkdtemp(prefix="ray-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.delenv("RAY_ADDRESS", raising=False)
        nodes = TwoNodes()
        yield nodes
        nodes.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def patience(monkeypatch) -> None:
    """On a busy machine actors may take minutes to start, which is no error of theirs."""
    monkeypatch.setattr("fedlight.executors.ray._PATIENCE", 3600.0)
    monkeypatch.setattr("fedlight.executors._remote.cluster._SETTLE", 3600.0)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the script of the page defines."""
    names: dict[str, Any] = {}
    text = PAGE.read_text(encoding="utf-8")
    exec(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0], names)
    return names


def test_a_study_has_the_runs_of_one_process(two_nodes) -> None:
    given = {"over": {}, "aggregator": FedBuff(2), "max_updates": 10}
    there = swept(**given, workers=RayWorkers(two_nodes.address))
    assert prints(there) == prints(swept(**given))
    assert not ray.is_initialized()  # it has left the cluster


class KillsANode(Callback):
    def __init__(self, nodes: TwoNodes) -> None:
        self.nodes = nodes

    def on_round_end(self, trainer, module) -> None:
        if trainer.version == 2:
            self.nodes.replace_a_node()


def test_the_script_of_the_page_has_the_same_bits_though_a_node_dies(two_nodes, page) -> None:
    executor = RayExecutor(2, executor="sequential", address=two_nodes.address)
    there = page["train"](executor, max_updates=30, callbacks=KillsANode(two_nodes))
    assert executor.num_replaced >= 1
    assert there == page["train"]("sequential", max_updates=30)


def test_actors_without_room_are_refused_node_by_node(two_nodes, page) -> None:
    executor = RayExecutor(1, executor="sequential", num_cpus=2, address=two_nodes.address)
    words = (
        r"asks for 1 actor of 2 CPU cores, but the nodes have room for 0: "
        r"\S+ for 0 \(1 CPU core\), \S+ for 0 \(1 CPU core\)"
    )
    with pytest.raises(ValueError, match=words):
        page["train"](executor, max_updates=10)
    with pytest.raises(ValueError, match=words.replace("actor", "run")):
        swept(workers=RayWorkers(two_nodes.address, num_cpus=2))


def test_what_others_use_is_missing_on_its_node(two_nodes) -> None:
    with closing(Cluster(ray, two_nodes.address)) as cluster:
        assert room_in(cluster.nodes(), 1) == 2
        held = ray.util.placement_group([{"CPU": 0.75}])
        while free_in(cluster.nodes(), 1) != 1:  # nodes tell what they have a little later
            time.sleep(0.05)
        assert sorted(node.free_cores for node in cluster.nodes()) == [0.25, 1.0]
        assert room_in(cluster.nodes(), 1) == 2
        ray.util.remove_placement_group(held)
