"""A Ray cluster: joined, or started here; and how many workers have room in it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from fedlight._support.checks import non_negative

_UNIT = 10_000  # Ray counts cores and GPUs in units of 1/10000
_NAMED = 8  # nodes that a message names
_SETTLE = 5.0  # seconds until the cluster knows that actors which were stopped are gone


def import_ray(who: str) -> Any:
    """The package ray.

    Args:
        who: The name of the class that needs it.

    Raises:
        ImportError: It is not installed.
    """
    try:
        import_module("ray.exceptions")
        return import_module("ray")
    except ImportError as error:
        raise ImportError(f"{who} needs the package ray: pip install ray") from error


class Cluster:
    """A Ray cluster; the one that this process is connected to, if there is one.

    Args:
        ray: The package.
        address: A cluster to join; None to start one here.
        num_cpus: CPU cores of a cluster that is started here; None for those of the machine.
    """

    def __init__(self, ray: Any, address: str | None, num_cpus: int | None = None) -> None:
        self._ray = ray
        self._connected_here = not ray.is_initialized()
        if self._connected_here:
            given = {
                "address": address,
                "include_dashboard": False,
                "log_to_driver": False,
                "configure_logging": False,
            }
            try:
                ray.init(**given, num_cpus=None if address else num_cpus)
            except ValueError:
                # Without an address Ray joins what `ray start` or RAY_ADDRESS names, if there is
                # such a cluster; it then refuses a number of cores.
                ray.init(**given)

    def resources(self) -> dict[str, float]:
        """The resources of the cluster, such as ``{"CPU": 8.0, "GPU": 1.0}``."""
        return dict(self._ray.cluster_resources())

    def nodes(self) -> list[Node]:
        """The nodes that are alive, with what is free on each at the moment."""
        ray = self._ray
        try:
            free = ray._private.state.available_resources_per_node()
        except ray.exceptions.RaySystemError:
            free = {}  # a client ("ray://…") is told the sum alone
        return nodes_of(ray.nodes(), free)

    def check_room(self, wanted: Wanted) -> None:
        """Refuse workers that would never start; warn of those that wait for others to end.

        Raises:
            ValueError: The nodes have room for fewer of them, even if nothing else ran there.
        """
        nodes = self.nodes()
        wanted.check(nodes)
        until = time.monotonic() + _SETTLE
        while waiting := wanted.waiting(nodes):
            if time.monotonic() > until:
                rank_zero_warn(waiting)
                return
            time.sleep(0.1)
            nodes = self.nodes()

    def close(self) -> None:
        """Leave the cluster if it was joined or started here."""
        if self._connected_here:
            self._ray.shutdown()


def checked_gpus(value: object) -> float:
    """`num_gpus` of a worker, if Ray takes it.

    Raises:
        TypeError: It is no number.
        ValueError: It is negative, or neither whole nor below 1.
    """
    number = non_negative("num_gpus", value)
    if number > 1 and number % 1:
        raise ValueError(
            f"num_gpus must be a whole number, or a part of a GPU below 1, got {value!r}"
        )
    return number


def share_of_gpus(cards: int, workers: int) -> float:
    """GPUs of a worker such that all fit: one, or an equal share of one.

    A GPU cannot be put together from parts of two. So three workers on two GPUs get a half each,
    not two thirds, of which only two would start.
    """
    if cards == 0:
        return 0.0
    return math.floor(_UNIT / -(-workers // cards)) / _UNIT


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster.

    Attributes:
        name: Its address.
        cores: Its CPU cores.
        cards: Its GPUs.
        free_cores: CPU cores that nobody has asked for at the moment.
        free_cards: GPUs, or parts of them, that nobody has asked for at the moment.
    """

    name: str
    cores: float
    cards: int
    free_cores: float
    free_cards: float

    def room(self, num_cpus: float, num_gpus: float) -> int:
        """How many workers fit if nothing else runs here."""
        fit = _units(self.cores) // max(1, _units(num_cpus))
        return int(min(fit, room(self.cards, num_gpus)))

    def free(self, num_cpus: float, num_gpus: float) -> int:
        """How many workers at most can start at the moment.

        Of free GPUs only the sum is known: two free halves may be of one GPU or of two.
        """
        fit = _units(self.free_cores) // max(1, _units(num_cpus))
        if num_gpus > 0:
            fit = min(fit, _units(self.free_cards) // max(1, _units(num_gpus)))
        return min(fit, self.room(num_cpus, num_gpus))


def nodes_of(
    listed: Sequence[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]]
) -> list[Node]:
    """The nodes that are alive.

    Args:
        listed: What ``ray.nodes()`` returns.
        free: By the id of a node, the resources that are free there; a node that is not in it
            counts as free.
    """
    nodes = []
    for each in listed:
        if each["Alive"]:
            here = each["Resources"]
            now = free.get(each["NodeID"], here)
            cores, cards = here.get("CPU", 0.0), int(here.get("GPU", 0))
            name = each["NodeManagerAddress"]
            nodes.append(Node(name, cores, cards, now.get("CPU", 0.0), now.get("GPU", 0.0)))
    return nodes


def room_in(nodes: Sequence[Node], num_cpus: float, num_gpus: float = 0.0) -> int:
    """How many workers fit in a cluster in which nothing else runs.

    A worker lies on one node: two nodes with one core each have no room for a worker of two.
    """
    return sum(node.room(num_cpus, num_gpus) for node in nodes)


def free_in(nodes: Sequence[Node], num_cpus: float, num_gpus: float = 0.0) -> int:
    """How many workers at most can start at the moment."""
    return sum(node.free(num_cpus, num_gpus) for node in nodes)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Workers for which a cluster is to have room.

    Attributes:
        who: The name of the class that asks.
        kind: What its workers are, in the singular.
        workers: How many are to run side by side.
        num_cpus: CPU cores of each.
        num_gpus: GPUs of each.
        less: The arguments of which smaller values ask for less.
    """

    who: str
    kind: str
    workers: int
    num_cpus: float
    num_gpus: float
    less: str

    def check(self, nodes: Sequence[Node]) -> None:
        """Check that the workers fit if nothing else runs.

        Raises:
            ValueError: They do not, so that some would wait for ever.
        """
        fit = room_in(nodes, self.num_cpus, self.num_gpus)
        if fit < self.workers:
            by_node = _listed(
                f"{node.name} for {node.room(self.num_cpus, self.num_gpus)} "
                f"({self._sizes(node.cores, node.cards)})"
                for node in nodes
            )
            raise ValueError(
                f"{self.who} asks for {_number(self.workers, self.kind)} of "
                f"{self._each()}, but the nodes have room for {fit}: {by_node}. The rest would "
                f"wait for ever: write a smaller {self.less}, or add nodes first"
            )

    def waiting(self, nodes: Sequence[Node]) -> str:
        """What others use at the moment so that not all workers can start; "" if all can."""
        fit = free_in(nodes, self.num_cpus, self.num_gpus)
        if fit >= self.workers:
            return ""
        free, cores = sum(node.free_cores for node in nodes), sum(node.cores for node in nodes)
        words = f"{free:g} of {_number(cores, 'CPU core')}"
        if self.num_gpus > 0:
            free, cards = sum(node.free_cards for node in nodes), sum(node.cards for node in nodes)
            words += f" and {free:g} of {_number(cards, 'GPU')}"
        by_node = _listed(
            f"{node.name} has {self._sizes(node.free_cores, node.free_cards)}" for node in nodes
        )
        return (
            f"{self.who}: {fit} of {_number(self.workers, self.kind)} can start now; the rest must "
            f"wait until others leave {self._each()}. Free now: {words} ({by_node})"
        )

    def _each(self) -> str:
        each = " each" if self.workers > 1 else ""
        return self._sizes(self.num_cpus, self.num_gpus) + each

    def _sizes(self, cores: float, cards: float) -> str:
        """Cores in words, and GPUs if the workers ask for them."""
        words = _number(cores, "CPU core")
        return f"{words} and {_number(cards, 'GPU')}" if self.num_gpus > 0 else words


def room(cards: int, gpus: float) -> float:
    """How many workers with so many GPUs each fit on the cards."""
    if gpus == 0:
        return math.inf
    return cards // gpus if gpus >= 1 else cards * (_UNIT // max(1, _units(gpus)))


def _units(amount: float) -> int:
    return round(amount * _UNIT)


def _number(number: float, word: str) -> str:
    return f"{number:g} {word}{'' if number == 1 else 's'}"


def _listed(parts: Iterable[str]) -> str:
    """The first few of some words, and how many are left out."""
    words = list(parts)
    left_out = len(words) - _NAMED
    return ", ".join(words[:_NAMED]) + (f" and {left_out} more nodes" if left_out > 0 else "")
