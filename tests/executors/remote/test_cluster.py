"""How many workers have room in a Ray cluster, node by node."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlight.executors._remote import cluster
from fedlight.executors._remote.cluster import (
    Cluster,
    Node,
    Wanted,
    free_in,
    nodes_of,
    room,
    room_in,
    share_of_gpus,
)


@pytest.mark.parametrize(
    ("cards", "workers", "each"),
    [(0, 3, 0.0), (1, 1, 1.0), (4, 3, 1.0), (2, 3, 0.5), (2, 5, 0.3333), (1, 7, 0.1428)],
)
def test_gpus_are_shared_so_that_all_workers_fit(cards, workers, each) -> None:
    assert share_of_gpus(cards, workers) == each
    assert room(cards, each) >= workers


def node(cores: float, cards: int = 0, name: str = "host") -> Node:
    """A node on which nothing runs."""
    return Node(name, cores, cards, cores, cards)


@pytest.mark.parametrize(
    ("nodes", "num_cpus", "num_gpus", "fit"),
    [
        ([node(1), node(1)], 1, 0, 2),
        ([node(1), node(1)], 2, 0, 0),  # a worker lies on one node
        ([node(3), node(3)], 2, 0, 2),
        ([node(1)], 0.1, 0, 10),  # though 1 // 0.1 is 9
        ([node(1)], 0.3, 0, 3),
        ([node(8, 1), node(8, 1)], 1, 2, 0),  # nor do GPUs of two nodes make one worker
        ([node(8, 2)], 1, 0.6, 2),  # nor the parts of two GPUs that are left over
        ([node(8, 1), node(1, 8)], 1, 1, 2),  # the GPUs are where the cores are not
        ([node(8, 0), node(0, 8)], 1, 1, 0),
        ([node(2, 3)], 1, 0.5, 2),
        ([], 1, 0, 0),
    ],
)
def test_workers_have_room_node_by_node(nodes, num_cpus, num_gpus, fit) -> None:
    assert room_in(nodes, num_cpus, num_gpus) == free_in(nodes, num_cpus, num_gpus) == fit


tenths = st.integers(1, 30).map(lambda number: number / 10)
shares = st.sampled_from([0.0, 0.1, 0.25, 0.3333, 0.4, 0.5, 0.667, 1.0, 2.0, 3.0])
sizes = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), max_size=4)


@given(sizes, tenths, shares, st.integers(0, 20))
def test_it_is_as_many_as_can_be_placed(sizes, num_cpus, num_gpus, running) -> None:
    """One worker after another, each on the first node with room, counted in units of Ray."""
    core, card = round(num_cpus * 10_000), round(num_gpus * 10_000)
    there = [[tenth * 1000, [10_000] * cards] for tenth, cards in sizes]

    def place() -> bool:
        for each in there:
            cores, cards = each
            needed = max(1, card // 10_000) if card else 0
            enough = [i for i, left in enumerate(cards) if left >= min(card, 10_000)]
            if cores >= core and len(enough) >= needed:
                each[0] -= core
                for i in enough[:needed]:
                    cards[i] -= min(card, 10_000)
                return True
        return False

    def nodes() -> list[Node]:
        return [
            Node("host", tenth / 10, cards, left / 10_000, sum(parts) / 10_000)
            for (tenth, cards), (left, parts) in zip(sizes, there, strict=True)
        ]

    fit = room_in(nodes(), num_cpus, num_gpus)
    placed = sum(place() for _ in range(running))
    free = free_in(nodes(), num_cpus, num_gpus)
    # Parts of several GPUs may add up to more workers than each has room for by itself.
    assert fit - placed <= free <= fit
    assert free == fit - placed or 0 < num_gpus < 1
    while place():
        placed += 1
    assert placed == fit


LISTED = [
    {"NodeID": "a", "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4.0}},
    {"NodeID": "b", "Alive": False, "NodeManagerAddress": "10.0.0.2", "Resources": {}},
    {
        "NodeID": "c",
        "Alive": True,
        "NodeManagerAddress": "10.0.0.3",
        "Resources": {"CPU": 8.0, "GPU": 2.0},
    },
]


def test_nodes_are_those_alive() -> None:
    # What is used up is missing in what Ray lists as free.
    assert nodes_of(LISTED, {"a": {"memory": 1.0}, "b": {}}) == [
        Node("10.0.0.1", 4.0, 0, 0.0, 0.0),
        Node("10.0.0.3", 8.0, 2, 8.0, 2.0),
    ]


def actors(number: int, num_cpus: float, num_gpus: float = 0.0) -> Wanted:
    return Wanted("RayExecutor", "actor", number, num_cpus, num_gpus, "num_actors or num_cpus")


def test_workers_without_room_are_refused_with_the_room_of_each_node() -> None:
    nodes = nodes_of(LISTED, {})
    actors(2, 4).check(nodes)
    with pytest.raises(ValueError, match="asks for") as caught:
        actors(4, 4).check(nodes)
    assert str(caught.value) == (
        "RayExecutor asks for 4 actors of 4 CPU cores each, but the nodes have room for 3: "
        "10.0.0.1 for 1 (4 CPU cores), 10.0.0.3 for 2 (8 CPU cores). The rest would wait for "
        "ever: write a smaller num_actors or num_cpus, or add nodes first"
    )
    with pytest.raises(ValueError, match=r"1 actor of 9 CPU cores, but .* room for 0"):
        actors(1, 9).check(nodes)
    with pytest.raises(
        ValueError,
        match=r"5 actors of 1 CPU core and 0.5 GPUs each, .* for 4: "
        r"10.0.0.1 for 0 \(4 CPU cores and 0 GPUs\), 10.0.0.3 for 4 \(8 CPU cores and 2 GPUs\)",
    ):
        actors(5, 1, 0.5).check(nodes)
    many = [node(1, name=f"n{i}") for i in range(20)]
    with pytest.raises(ValueError, match=r"n7 for 1 \(1 CPU core\) and 12 more nodes\. The"):
        actors(21, 1).check(many)


def test_what_others_use_is_told() -> None:
    busy = nodes_of(LISTED, {"a": {}, "c": {"CPU": 3.0, "GPU": 1.5}})
    assert actors(3, 1).waiting(busy) == ""
    assert actors(4, 1).waiting(busy) == (
        "RayExecutor: 3 of 4 actors can start now; the rest must wait until others leave 1 CPU "
        "core each. Free now: 3 of 12 CPU cores (10.0.0.1 has 0 CPU cores, 10.0.0.3 has 3 CPU "
        "cores)"
    )
    said = actors(2, 1, 1).waiting(busy)
    assert "1 of 2 actors can start" in said
    assert (
        "leave 1 CPU core and 1 GPU each. Free now: 3 of 12 CPU cores and 1.5 of 2 GPUs (" in said
    )


class FakeRay:
    """A cluster to which the process is connected, with what is free at each look."""

    exceptions = SimpleNamespace(RaySystemError=RuntimeError)

    def __init__(self, *looks) -> None:
        self.looks = list(looks)
        self._private = SimpleNamespace(state=self)

    def is_initialized(self) -> bool:
        return True

    def nodes(self):
        return LISTED

    def available_resources_per_node(self):
        if not self.looks:
            raise RuntimeError("not started yet")
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


def test_a_cluster_warns_at_once_if_others_use_what_is_needed(monkeypatch, recwarn) -> None:
    monkeypatch.setattr(cluster, "_SETTLE", 0.0)
    with pytest.warns(UserWarning, match=r"RayExecutor: 2 of 3 actors can start now"):
        Cluster(FakeRay({"a": {}}), None).check_room(actors(3, 4))
    assert len(recwarn) == 0


def test_workers_that_have_just_ended_are_waited_for(monkeypatch, recwarn) -> None:
    monkeypatch.setattr(cluster, "_SETTLE", 3600.0)
    ray = FakeRay({"a": {}, "c": {}}, {"a": {}}, {})
    Cluster(ray, None).check_room(actors(3, 4))
    assert ray.looks == [{}]
    Cluster(FakeRay(), None).check_room(actors(3, 4))  # a client is not told
    assert len(recwarn) == 0


def test_a_running_cluster_is_joined_without_an_address() -> None:
    """Ray joins what `ray start` has started, but then refuses a number of cores."""
    calls = []

    class Started(FakeRay):
        def is_initialized(self) -> bool:
            return False

        def init(self, num_cpus=None, **given) -> None:
            calls.append(num_cpus)
            if num_cpus is not None:
                raise ValueError("num_cpus and num_gpus must not be provided")

    Cluster(Started(), None, num_cpus=2)
    assert calls == [2, None]
