"""Executors: how the local runs are computed. They never change what is computed."""

from fedlight.executors.base import ClientError, Executor, Job, Workplace
from fedlight.executors.ray import RayExecutor
from fedlight.executors.sequential import SequentialExecutor
from fedlight.executors.vectorized import VectorizedExecutor

__all__ = [
    "ClientError",
    "Executor",
    "Job",
    "RayExecutor",
    "SequentialExecutor",
    "VectorizedExecutor",
    "Workplace",
]
