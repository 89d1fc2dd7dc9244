"""Arrival processes: who works when, from which version of the model, for how many steps.

Nothing in this package needs torch, and nothing in it sees the model.
"""

from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, EndRound, Wake
from fedlight.arrivals.durations import DurationModel, FixedDurations
from fedlight.arrivals.local_steps import (
    ConstantSteps,
    LocalEpochs,
    LocalSteps,
    PerClientSteps,
    UniformSteps,
)
from fedlight.arrivals.replay import ReplayArrivals
from fedlight.arrivals.rounds import BiasedArrivals, UniformArrivals
from fedlight.arrivals.table import ReplayEvent, ScheduleTable
from fedlight.arrivals.synchronous import SynchronousArrivals

__all__ = [
    "Action",
    "ArrivalProcess",
    "BiasedArrivals",
    "ConstantSteps",
    "Dispatch",
    "DurationModel",
    "EndRound",
    "FixedDurations",
    "LocalEpochs",
    "LocalSteps",
    "PerClientSteps",
    "ReplayArrivals",
    "ReplayEvent",
    "ScheduleTable",
    "SynchronousArrivals",
    "UniformArrivals",
    "UniformSteps",
    "Wake",
]
