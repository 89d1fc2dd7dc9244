"""The arguments of `RayWorkers`; whole runs in a cluster: tests/executors/test_ray.py."""

import pytest

from fedlight.studies import RayWorkers

pytest.importorskip("ray")


def test_arguments_are_checked() -> None:
    for match, given in {
        "address": {"address": 1},
        "num_cpus": {"num_cpus": 0},
        "num_gpus": {"num_gpus": -1},
    }.items():
        with pytest.raises((TypeError, ValueError), match=match):
            RayWorkers(**given)
