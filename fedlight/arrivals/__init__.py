"""Arrival processes: which client works when, from which version, for how many local steps.

No part of this package needs torch or sees the model.
"""

from fedlight.arrivals.actions import Action, Cancel, Cut, Dispatch, EndRound, Wake
from fedlight.arrivals.availability import Availability
from fedlight.arrivals.base import ArrivalProcess
from fedlight.arrivals.client_selection import ClientSelection
from fedlight.arrivals.communication import CommunicationPattern
from fedlight.arrivals.compass import CompassArrivals
from fedlight.arrivals.composed_durations import (
    ChangingDurations,
    LogNormalRates,
    MixedDurations,
    SumDurations,
    TransferDurations,
)
from fedlight.arrivals.continuous import ContinuousArrivals
from fedlight.arrivals.distributions import (
    DistributionDurations,
    ExponentialStepDurations,
    ParetoDurations,
    ShiftedExponentialDurations,
    UniformDurations,
)
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
from fedlight.arrivals.failures import Failures
from fedlight.arrivals.local_steps import (
    ConstantSteps,
    LocalEpochs,
    LocalSteps,
    PerClientSteps,
    StepsBySpeed,
    UniformSteps,
)
from fedlight.arrivals.oort import Oort
from fedlight.arrivals.partial_work import PartialWork
from fedlight.arrivals.pisces import Pisces
from fedlight.arrivals.poisson import PoissonArrivals
from fedlight.arrivals.polled import PolledArrivals
from fedlight.arrivals.power_of_choice import PowerOfChoice
from fedlight.arrivals.recording import Recording
from fedlight.arrivals.refreshed import RefreshedTasks
from fedlight.arrivals.regions import Regions
from fedlight.arrivals.replay import ReplayArrivals
from fedlight.arrivals.rounds import BiasedArrivals, ConstantStaleness, UniformArrivals
from fedlight.arrivals.shared_data import LeastVisitedShards, SharedStream
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
from fedlight.arrivals.traces import TraceDurations, TraceWindows, read_traces, sample_traces
from fedlight.arrivals.trials import TrialRounds
from fedlight.arrivals.windows import DiurnalWindows, IntervalWindows, Window, Windows

__all__ = [
    "Action",
    "ArrivalProcess",
    "Availability",
    "BiasedArrivals",
    "Cancel",
    "ChangingDurations",
    "ClientSelection",
    "CommunicationPattern",
    "CompassArrivals",
    "ConstantStaleness",
    "ConstantSteps",
    "ContinuousArrivals",
    "Cut",
    "Dispatch",
    "DistributionDurations",
    "DiurnalWindows",
    "DropOut",
    "DurationModel",
    "EndRound",
    "ExponentialDurations",
    "ExponentialStepDurations",
    "Failures",
    "FixedDurations",
    "HalfNormalDurations",
    "ImbalancedTicks",
    "IntervalWindows",
    "LeastVisitedShards",
    "LocalEpochs",
    "LocalSteps",
    "LogNormalDurations",
    "LogNormalRates",
    "MixedDurations",
    "Oort",
    "ParetoDurations",
    "PartialWork",
    "PerClientSteps",
    "PeriodicTicks",
    "Pisces",
    "PoissonArrivals",
    "PolledArrivals",
    "PowerOfChoice",
    "RandomTicks",
    "Recording",
    "RefreshedTasks",
    "Regions",
    "ReplayArrivals",
    "ReplayEvent",
    "ScheduleTable",
    "SharedStream",
    "ShiftedExponentialDurations",
    "StepDurations",
    "StepsBySpeed",
    "SumDurations",
    "SynchronousArrivals",
    "TableTicks",
    "TickPattern",
    "Tiers",
    "TraceDurations",
    "TraceWindows",
    "TransferDurations",
    "TrialRounds",
    "UniformArrivals",
    "UniformDurations",
    "UniformSpeeds",
    "UniformSteps",
    "Wake",
    "Window",
    "Windows",
    "read_traces",
    "sample_traces",
    "simulate",
]
