"""Arrival processes: which client works when, from which version, for how many local steps.

No part of this package needs torch or sees the model.
"""

from fedlight.arrivals.actions import Action, Cancel, Cut, Dispatch, EndRound, Wake
from fedlight.arrivals.availability import Availability
from fedlight.arrivals.base import ArrivalProcess
from fedlight.arrivals.communication import CommunicationPattern
from fedlight.arrivals.continuous import ContinuousArrivals
from fedlight.arrivals.dropout import DropOut
from fedlight.arrivals.durations import (
    DurationModel,
    ExponentialDurations,
    FixedDurations,
    HalfNormalDurations,
    LogNormalDurations,
    StepDurations,
    UniformSpeeds,
)
from fedlight.arrivals.local_steps import (
    ConstantSteps,
    LocalEpochs,
    LocalSteps,
    PerClientSteps,
    UniformSteps,
)
from fedlight.arrivals.partial_work import PartialWork
from fedlight.arrivals.poisson import PoissonArrivals
from fedlight.arrivals.polled import PolledArrivals
from fedlight.arrivals.recording import Recording
from fedlight.arrivals.replay import ReplayArrivals
from fedlight.arrivals.rounds import BiasedArrivals, UniformArrivals
from fedlight.arrivals.simulation import simulate
from fedlight.arrivals.synchronous import SynchronousArrivals
from fedlight.arrivals.table import ReplayEvent, ScheduleTable
from fedlight.arrivals.tick_patterns import (
    ImbalancedTicks,
    PeriodicTicks,
    RandomTicks,
    TableTicks,
    TickPattern,
)
from fedlight.arrivals.tiers import Tiers
from fedlight.arrivals.windows import DiurnalWindows, IntervalWindows, Window, Windows

__all__ = [
    "Action",
    "ArrivalProcess",
    "Availability",
    "BiasedArrivals",
    "Cancel",
    "CommunicationPattern",
    "ConstantSteps",
    "ContinuousArrivals",
    "Cut",
    "Dispatch",
    "DiurnalWindows",
    "DropOut",
    "DurationModel",
    "EndRound",
    "ExponentialDurations",
    "FixedDurations",
    "HalfNormalDurations",
    "ImbalancedTicks",
    "IntervalWindows",
    "LocalEpochs",
    "LocalSteps",
    "LogNormalDurations",
    "PartialWork",
    "PerClientSteps",
    "PeriodicTicks",
    "PoissonArrivals",
    "PolledArrivals",
    "RandomTicks",
    "Recording",
    "ReplayArrivals",
    "ReplayEvent",
    "ScheduleTable",
    "StepDurations",
    "SynchronousArrivals",
    "TableTicks",
    "TickPattern",
    "Tiers",
    "UniformArrivals",
    "UniformSpeeds",
    "UniformSteps",
    "Wake",
    "Window",
    "Windows",
    "simulate",
]
