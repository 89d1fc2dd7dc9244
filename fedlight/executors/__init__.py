"""Executors compute the local runs. They decide how, never what.

`SequentialExecutor` runs any module, client after client. `VectorizedExecutor` stacks clients and
runs one batched step for all of them. `ProcessExecutor` spreads the jobs over the cores of this
machine, and `RayExecutor` over the actors of a Ray cluster. They agree up to float tolerance, and
each gives the same bits for the same jobs.
"""

from fedlight.executors.base import ClientError, Executor, Job, Workplace
from fedlight.executors.processes import ProcessExecutor
from fedlight.executors.ray import RayExecutor
from fedlight.executors.sequential import SequentialExecutor
from fedlight.executors.vectorized import VectorizedExecutor

__all__ = [
    "ClientError",
    "Executor",
    "Job",
    "ProcessExecutor",
    "RayExecutor",
    "SequentialExecutor",
    "VectorizedExecutor",
    "Workplace",
]
