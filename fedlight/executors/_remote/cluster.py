"""A Ray cluster: joined, or started here; and how many workers have room in it."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

from fedlight._support.checks import non_negative


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
            ray.init(
                address=address,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                num_cpus=None if address else num_cpus,
            )

    def resources(self) -> dict[str, float]:
        """The resources of the cluster, such as ``{"CPU": 8.0, "GPU": 1.0}``."""
        return dict(self._ray.cluster_resources())

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
    share = 1 / -(-workers // cards)
    # Ray counts in units of 1/10000.
    return math.floor(share * 10_000) / 10_000


def room(cards: int, gpus: float) -> float:
    """How many workers with so many GPUs each fit on the cards."""
    if gpus == 0:
        return math.inf
    return cards // gpus if gpus >= 1 else cards * math.floor(1 / gpus + 1e-9)
