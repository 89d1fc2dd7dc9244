"""Strategies are known by their arguments: all of them, in reprs, words, columns and content."""

import inspect
import math

import numpy as np
import pytest
import torch

import fedlight.aggregators
import fedlight.aggregators.staleness
import fedlight.arrivals
import fedlight.channel
import fedlight.local_optimizers
from fedlight._runs.content import content
from fedlight._runs.identity import columns, in_words
from fedlight._support.strategy import Strategy, arguments, brief, parameters
from fedlight.aggregators import BufferedAggregator, Lattice
from fedlight.aggregators.staleness import Hinge, Polynomial
from fedlight.arrivals import (
    ArrivalProcess,
    ContinuousArrivals,
    DurationModel,
    FixedDurations,
    LocalEpochs,
    PeriodicTicks,
    ReplayEvent,
    StepDurations,
    SynchronousArrivals,
    TickPattern,
    UniformArrivals,
    UniformSpeeds,
    sample_traces,
)
from fedlight.channel import QSGD, Channel, TopK
from fedlight.local_optimizers import LocalOptimizer, LocalSGD, OwnModel, Scaffold


class Draws:
    """A distribution with a repr, as SciPy's have names."""

    def __init__(self, name):
        self.name = name

    def rvs(self, random_state):
        return 1.0

    def __repr__(self):
        return f"Draws({self.name!r})"


MODULES = (
    fedlight.arrivals,
    fedlight.aggregators,
    fedlight.aggregators.staleness,
    fedlight.local_optimizers,
    fedlight.channel,
)
NAMES = {"Draws": Draws, "torch": torch} | {
    name: value for module in MODULES for name, value in vars(module).items()
}
STRATEGIES = {
    name: value
    for name, value in NAMES.items()
    if isinstance(value, type)
    and issubclass(value, Strategy)
    and not inspect.isabstract(value)
    and value is not Strategy
}

ONE, TWO = UniformArrivals(1), UniformArrivals(2)
SLOW, FAST = UniformSpeeds(0.5), UniformSpeeds(0.25)
CLOCKED, OTHER_CLOCK = NAMES["ContinuousArrivals"](SLOW), NAMES["ContinuousArrivals"](FAST)
EPOCH, EPOCHS = LocalEpochs(1), LocalEpochs(2)
SGD, ADAM = torch.optim.SGD, torch.optim.Adam
SERVER = {"server_lr": (1.0, 0.5), "server_optimizer": (None, SGD)}
BUFFER = {"buffer_size": (3, 4)}
MEMORY = {"memory_device": ("model", "cpu")}
WEIGHTS = {"client_weights": ("uniform", "examples")}
STEPS = {"local_steps": (EPOCH, EPOCHS)}
AGES = {"max_staleness": (1, 2), **STEPS}
OF_ISLANDS = {"momentum": (0.9, 0.5), "server_lr": (1.0, 0.01)}
OF_SGD = {
    "momentum": (0.5, 0.25),
    "weight_decay": (0.1, 0.2),
    "nesterov": (False, True),
    "max_grad_norm": (None, 2.0),
}
LISTED = [[0, 1], [2]]
LONG = [1.0 + k for k in range(30)]
EVENTS = [ReplayEvent(k, 0, 1.0 + k, 1, dispatched_at=0.0) for k in (0, 1)]

# Two values of each argument of each strategy: the first of each, or one that differs, make it.
VALUES = {
    "AFACD": {**BUFFER, **SERVER, "interval": (1.0, 2.0)},
    "AFACS": {**BUFFER, **SERVER, **MEMORY},
    "AREA": {**BUFFER, **MEMORY},
    "AsyncCommSGD": {"interval": (1.0, 2.0), **SERVER},
    "AsyncFedAvg": {"weights": ("identical", "time_based"), **WEIGHTS, **SERVER},
    "Availability": {
        "arrivals": (ONE, TWO),
        "windows": (NAMES["DiurnalWindows"](24), NAMES["DiurnalWindows"](12)),
        "unfinished": ("finish", "lose"),
    },
    "BiasedArrivals": {"per_round": (1, 2), "probabilities": ([0.5, 0.5], [0.25, 0.75]), **AGES},
    "ByStep": {"rate": (math.sqrt, math.exp)},
    "CA2FL": {**BUFFER, **SERVER, **MEMORY},
    "Chain": {"channels": ([TopK(0.5)], [TopK(0.5), QSGD(4)])},
    "ChangingDurations": {
        "durations": (SLOW, FAST),
        "factors": ([(0.0, 1.0)], [(0.0, 1.0), (2.0, 3.0)]),
        "period": (None, 4.0),
    },
    "Clip": {"norm": (1.0, 2.0)},
    "CommunicationPattern": {"pattern": (PeriodicTicks(3), PeriodicTicks(3, 2))},
    "CompassArrivals": {
        "durations": (SLOW, FAST),
        "min_steps": (2, 3),
        "max_steps": (9, 10),
        "latest": (1.5, 2.0),
        "momentum": (0.5, 0.25),
    },
    "Constant": {},
    "ConstantSteps": {"num_steps": (1, 2)},
    "ContinuousArrivals": {
        "durations": (SLOW, FAST),
        "concurrency": (None, 2),
        "idle": (0.0, 1.0),
        "resume": ("on_arrival", "on_aggregation"),
        **STEPS,
        "restart_after": (None, 2),
    },
    "DCASGD": {
        "lam": (0.1, 0.2),
        **SERVER,
        "local_lr": (0.1, 0.2),
        "decay": (0.5, 0.25),
        "eps": (0.1, 0.2),
    },
    "DelayAdaptive": {"c": (1.0, 2.0)},
    "DistributionDurations": {"distribution": (Draws("a"), Draws("b")), "scale": (1.0, LONG)},
    "DiurnalWindows": {"period": (24.0, 12.0), "share": (0.5, 0.25), "phases": (None, [1.0, 2.0])},
    "ConstantStaleness": {"tau": (1, 2), "per_round": (1, 2), "local_steps": (1, 2)},
    "Failures": {"arrivals": (ONE, TWO), "mtbf": (1.0, [1.0, 2.0]), "mttr": (0.5, 0.25)},
    "MindFlayer": {
        "trials": (1, [1, 2]),
        "probabilities": (1.0, [0.5, 0.25]),
        "equal": ("trials", "clients"),
        "divisor": ("expected", "received"),
        **SERVER,
    },
    "TrialRounds": {
        "durations": (SLOW, FAST),
        "allotted": (1.0, [1.0, 2.0]),
        "trials": (1, [1, 2]),
        "local_steps": (1, 2),
    },
    "DropOut": {"arrivals": (ONE, TWO), "probability": (0.5, 0.25)},
    "ErrorFeedback": {"channel": (TopK(0.5), TopK(0.25)), "decay": (1.0, 0.5)},
    "Exponential": {"a": (1.0, 2.0)},
    "ExponentialDurations": {"mean": (1.0, LONG)},
    "ExponentialStepDurations": {"mean": (1.0, 2.0)},
    "DelayedNesterov": {"period": (2, 3), **OF_ISLANDS, "c": (0.0, 0.25)},
    "FADAS": {
        **BUFFER,
        "server_lr": (1.0, 0.01),
        "betas": ((0.5, 0.5), (0.5, 0.25)),
        "eps": (0.1, 0.2),
        "tau_c": (1, 2),
        "delay": ("none", "divided"),
        "bias_correction": (False, True),
    },
    "FAVAS": {**BUFFER, "expected_steps": (None, [1.0, 2.0])},
    "FedASMU": {
        "mu": (1.0, 2.0),
        "lam": (1.0, 2.0),
        "sigma": (0.5, 0.25),
        "iota": (0.0, 1.0),
        "lam_rate": (0.0, 0.5),
        "sigma_rate": (0.0, 0.5),
        "iota_rate": (0.0, 0.5),
        "local_lr": (None, 0.5),
        "max_staleness": (None, 2),
        "fresh": (1, 2),
        "own_versions": (False, True),
    },
    "FedAT": {**BUFFER, **WEIGHTS},
    "FedAsync": {
        "alpha": (0.5, 0.25),
        "staleness": (None, Hinge(10, 4)),
        "max_staleness": (None, 2),
    },
    "FedAvg": {**BUFFER, **WEIGHTS, **SERVER},
    "FedBuff": {
        **BUFFER,
        "staleness": (Polynomial(0.5), Polynomial(0.25)),
        "server_lr": (1.0, 0.5),
        "normalize": ("buffer", "weights"),
        "server_optimizer": (None, ADAM),
    },
    "FedCompass": {
        **BUFFER,
        "staleness": (Polynomial(0.5), Polynomial(0.25)),
        "server_lr": (1.0, 0.5),
        **WEIGHTS,
        "average": ("deltas", "models"),
        "server_optimizer": (None, ADAM),
    },
    "FedDyn": {"lr": (0.5, 0.25), "alpha": (0.1, 0.2), **OF_SGD},
    "FedDynServer": {"alpha": (0.1, 0.2), **BUFFER},
    "FedFix": {"interval": (1.0, 2.0), **WEIGHTS, **SERVER},
    "FedNova": {
        **BUFFER,
        "server_lr": (1.0, 0.5),
        **WEIGHTS,
        "server_optimizer": (None, SGD),
        "momentum": (0.0, 0.5),
        "mu": (0.0, 0.5),
        "local_lr": (0.1, 0.2),
    },
    "FedProx": {"lr": (0.5, 0.25), "mu": (0.1, 0.2), **OF_SGD},
    "FedVARP": {**BUFFER, "beta": (1.0, 0.5), **SERVER, **MEMORY},
    "FixedDurations": {"durations": ([1.0, 2.0], LONG)},
    "FreshModel": {
        "optimizer": (LocalSGD(0.1), LocalSGD(0.2)),
        "mu": (1.0, 2.0),
        "gamma": (1.0, 2.0),
        "upsilon": (1.0, 0.5),
        "gamma_rate": (0.0, 0.5),
        "upsilon_rate": (0.0, 0.5),
    },
    "GaussianNoise": {"noise_multiplier": (0.5, 1.0), "clipping_norm": (0.5, 1.0)},
    "GeneralizedAsyncSGD": {"probabilities": ((0.5, 0.5), (0.25, 0.75)), **SERVER},
    "HALoS": {
        "period": (2, 3),
        "momentum": (0.5, 0.25),
        "server_lr": (1.0, 0.5),
        "region_period": (2, 3),
        "region_momentum": (0.5, 0.25),
        "region_lr": (1.0, 0.5),
        "alpha": (0.5, 0.25),
        "summed": ("since_return", "since_send"),
        "send": ("change", "deltas"),
        "at_return": ("keep", "reset"),
    },
    "HalfNormalDurations": {"scale": (1.0, 2.0)},
    "Hinge": {"a": (1.0, 2.0), "b": (3.0, 4.0)},
    "ImbalancedTicks": {
        "rare_share": (0.5, 0.25),
        "often": (0.9, 0.8),
        "rarely": (0.1, 0.2),
        "max_gap": (None, 5),
    },
    "HeLoCo": {
        **OF_ISLANDS,
        "weight": (1.0, 2.0),
        "c_ok": (0.0, 0.5),
        "beta": (1.0, 0.5),
        "turn": (0.5, 0.25),
        "send": ("look_ahead", "model"),
    },
    "IntervalWindows": {"intervals": ([(0, 1)], {0: [(0, 1)]})},
    "Linear": {"a": (1.0, 2.0)},
    "LocalAdam": {
        "lr": (0.5, 0.25),
        "betas": ((0.5, 0.5), (0.5, 0.25)),
        "eps": (1e-8, 0.2),
        "weight_decay": (0.0, 0.2),
        "max_grad_norm": (None, 2.0),
        "keep": ("task", "client"),
    },
    "LocalAdamW": {
        "lr": (0.5, 0.25),
        "betas": ((0.5, 0.5), (0.5, 0.25)),
        "eps": (1e-8, 0.2),
        "weight_decay": (0.0, 0.2),
        "max_grad_norm": (None, 2.0),
        "keep": ("task", "client"),
    },
    "LocalEpochs": {"num_epochs": (1.0, 1.5)},
    "LocalSGD": {"lr": (0.5, 0.25), **OF_SGD, "keep": ("task", "client")},
    "LeastVisitedShards": {
        "arrivals": (ONE, TWO),
        "num_clients": (None, 3),
        "by": ("visits", "examples"),
        "shuffle": (True, False),
    },
    "LookAhead": {**OF_ISLANDS, "send": ("look_ahead", "model")},
    "LogNormalDurations": {"median": (1.0, [1.0, 2.0]), "sigma": (1.0, 2.0)},
    "LogNormalRates": {"sigma": (1.0, 2.0), "rate": (1.0, 2.0)},
    "MIFA": {**BUFFER, **SERVER, **MEMORY},
    "Ringleader": {**SERVER, **MEMORY},
    "FedBuffMA": {**BUFFER, "momentum": (0.5, 0.25), **SERVER},
    "Malenia": {"batch_size": (None, 2.0), **SERVER},
    "MixedDurations": {"classes": ([(1.0, SLOW)], [(1.0, FAST)]), "drawn": (False, True)},
    "ModuleOptimizer": {"schedule": ("version", "client"), "max_grad_norm": (1.0, 2.0)},
    "OwnModel": {
        "optimizer": (LocalSGD(0.1), LocalSGD(0.2)),
        "per_poll": (2, [[0, 1], [1]]),
        "lr_correction": (False, True),
        "quantizer": (None, Lattice(4)),
    },
    "ParetoDurations": {"shortest": (1.0, 2.0), "shape": (1.0, 2.0)},
    "Oort": {
        "arrivals": (SynchronousArrivals(2), SynchronousArrivals(3)),
        "metric": ("loss", "error"),
        "squared": (False, True),
        "exploration": (0.5, 0.25),
        "exploration_decay": (0.5, 0.25),
        "least_exploration": (0.5, 0.25),
        "penalty": (1.0, 2.0),
        "cut_off": (0.5, 0.25),
        "clip": (0.5, 0.25),
        "most_tasks": (None, 2),
        "pacer_window": (1, 2),
        "pacer_step": (1.0, 2.0),
        "preferred": (None, 2.0),
        "reading": ("paper", "code"),
    },
    "PartialWork": {"arrivals": (ONE, TWO), "probability": (0.5, 0.25), "least": (0.0, 0.5)},
    "PerClientSteps": {"num_steps": ([1, 2], [1, 3])},
    "PeriodicTicks": {"period": (3, [3, 4]), "offsets": (3, 2)},
    "Pisces": {
        "arrivals": (ContinuousArrivals(SLOW, 2), ContinuousArrivals(SLOW, 3)),
        "metric": ("loss", "error"),
        "squared": (False, True),
        "beta": (0.5, 1.0),
        "exploration": (0.5, 0.25),
        "exploration_decay": (0.5, 0.25),
        "least_exploration": (0.5, 0.25),
        "window": (1, 2),
        "staleness_bound": (None, 2.0),
    },
    "PowerOfChoice": {
        "arrivals": (SynchronousArrivals(2), SynchronousArrivals(3)),
        "candidates": (2, [[0, 1], [1, 2]]),
        "metric": ("loss", "error"),
    },
    "PoissonArrivals": {"rate": (1.0, 2.0), "durations": (SLOW, FAST), **STEPS},
    "PolledArrivals": {
        "per_poll": (2, LISTED),
        "interval": (1.0, 2.0),
        "step_durations": (StepDurations(1), StepDurations(2)),
        "max_steps": (2, [2, 3]),
    },
    "Polynomial": {"a": (1.0, 2.0)},
    "PrivateSum": {
        "aggregator": (NAMES["FedBuff"](2), NAMES["FedBuff"](3)),
        "noise_multiplier": (0.5, 1.0),
        "clipping_norm": (0.5, 1.0),
    },
    "QSGD": {"bits": (4, 5), "scaled": (False, True)},
    "QuAFL": {**BUFFER, "quantizer": (None, Lattice(4))},
    "RandomK": {"share": (0.5, 0.25), "scaled": (True, False)},
    "RandomTicks": {"probability": (0.5, [0.5, 0.25]), "max_gap": (None, 5)},
    "Recording": {"arrivals": (ONE, TWO), "path": (None, "schedule.json")},
    "Regions": {
        "processes": ({"a": CLOCKED}, {"a": OTHER_CLOCK}),
        "clients": ({"a": [0, 1]}, {"a": [1, 0]}),
        "arrivals_per_send": (2, 3),
        "up": (0.0, {"a": 1.0}),
        "down": (0.0, 1.0),
        "within": (0.0, 1.0),
    },
    "RefreshedTasks": {
        "arrivals": (NAMES["ContinuousArrivals"](SLOW), NAMES["ContinuousArrivals"](FAST)),
        "at": (0.5, 0.25),
    },
    "Rennala": {**BUFFER, **SERVER},
    "ReplayArrivals": {
        "events": (EVENTS, EVENTS[:1]),
        "durations": (None, [1.0, 2.0]),
        "round_ends": ([2.0], [3.0]),
        "pull": ("recorded", "newest"),
    },
    "Ringmaster": {"max_staleness": (None, 2), **SERVER},
    "SAM": {"lr": (0.5, 0.25), "rho": (0.1, 0.2), **OF_SGD},
    "Scaffold": {"lr": (0.5, 0.25), "option": (1, 2)},
    "SharedStream": {"arrivals": (ONE, TWO), "num_clients": (None, 3), "shuffle": (True, False)},
    "ShiftedExponentialDurations": {"shift": (0.5, LONG), "mean": (1.0, 2.0)},
    "StepDurations": {"per_step": (1.0, LONG), "overhead": (0.0, 1.0)},
    "StepsBySpeed": {
        "num_steps": (9, 10),
        "speeds": ([1.0, 2.0], FAST),
        "least": (5, 6),
    },
    "SumDurations": {"parts": ([SLOW], [SLOW, FAST])},
    "SynchronousArrivals": {
        "per_round": (2, LISTED),
        "durations": (SLOW, FAST),
        **STEPS,
        "over_select": (None, 1),
        "timeout": (2.0, 3.0),
        "late": ("cancel", "cut"),
        "quorum": (1, 2),
        "grace": (None, 0.5),
    },
    "TableTicks": {"communicates": (LISTED, [[0], [1]])},
    "Tiers": {"processes": ({"a": ONE}, {"a": TWO}), "clients": (None, {"a": [1, 0]})},
    "TopK": {"share": (0.5, 0.25)},
    "TraceDurations": {
        "devices": (sample_traces(), sample_traces()[:3]),
        "nbytes": (1e6, 2e6),
        "passes": (3.0, 2.0),
        "unit": (1.0, 60.0),
    },
    "TraceWindows": {"devices": (sample_traces(), sample_traces()[:3]), "unit": (1.0, 60.0)},
    "TransferDurations": {"nbytes": (10.0, 1e6), "bandwidth": (1.0, LONG), "latency": (0.0, 1.0)},
    "UniformArrivals": {"per_round": (2, LISTED), **AGES},
    "UniformDurations": {"low": (1.0, 2.0), "high": (3.0, 4.0)},
    "UniformSpeeds": {"spread": (0.5, 0.25), "slowest": (1.0, 2.0)},
    "UniformSteps": {"low": (1, 2), "high": (3, 4)},
    "WarmupCosine": {
        "peak": (0.5, 0.25),
        "warmup": (2, 3),
        "total": (9, 10),
        "floor": (0.0, 0.125),
    },
}

# Reprs that name a digest in place of long data; those of local optimizers that name the SGD within
# them, by which checkpoints of earlier versions know them; those of the list in a chain, and of the
# process that is recorded.
NO_CALLS = {"IntervalWindows", "ReplayArrivals", "TableTicks", "TraceDurations", "TraceWindows"}
NO_CALLS |= {"ByStep", "FedDyn", "FedProx", "SAM", "Chain", "Recording"}
EVERY = pytest.mark.parametrize("name", STRATEGIES)


def made(name):
    """A strategy for each argument's second value, all others being the first ones."""
    first = {argument: values[0] for argument, values in VALUES[name].items()}
    kind = STRATEGIES[name]
    return kind(**first), {
        argument: kind(**first | {argument: values[1]}) for argument, values in VALUES[name].items()
    }


def test_all_strategies_are_known() -> None:
    assert VALUES.keys() == STRATEGIES.keys()
    public = {name for module in MODULES[:1] + MODULES[3:] for name in module.__all__}
    assert STRATEGIES.keys() >= {"FedAsync", "Hinge", "DiurnalWindows", "Chain", "SAM"}
    assert len(STRATEGIES.keys() & public) > 40


@EVERY
def test_each_argument_is_named(name) -> None:
    one, others = made(name)
    assert list(arguments(one)) == list(parameters(STRATEGIES[name])) == list(others)
    assert {f"it.{argument}" for argument in others} <= columns("it", one).keys()
    assert columns("it", one)["it"] == name


@EVERY
def test_each_argument_makes_another_strategy(name) -> None:
    one, others = made(name)
    same = made(name)[0]
    for identity in (in_words, content, lambda each: columns("it", each)):
        assert identity(one) == identity(same)
        seen = [identity(one), *map(identity, others.values())]
        assert all(seen[0] != each for each in seen[1:]), seen
        assert " at 0x" not in str(seen[0])


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - NO_CALLS))
def test_a_repr_makes_the_strategy(name) -> None:
    one, others = made(name)
    for each in (one, *others.values()):
        if any(isinstance(given, type) for given in arguments(each).values()):
            continue  # an optimizer's class, whose repr is no name
        if "in all, " in repr(each):
            continue  # a long list
        if (name in ("Tiers", "Regions") and each.clients) or (
            name == "OwnModel" and each.per_poll != 2
        ):
            continue  # kept in a form of their own
        again = eval(repr(each), NAMES)
        assert content(again) == content(each), repr(each)


# Strategies of the user.


class Rate:
    """A schedule without a repr."""

    def __init__(self, start):
        self.start = start

    def __call__(self, version):
        return self.start


class OwnOptimizer(LocalSGD):
    def __init__(self, lr, boost=1.0, **options):
        super().__init__(lr, **options)
        self._boost = boost


class OwnDurations(DurationModel):
    def __init__(self, slow, *, factor: float = 2.0):
        self._slow = slow
        self.factor = float(factor)

    def draw(self, rng, client_id, num_steps, federation, starts_at):
        return self._slow


class OwnRule(BufferedAggregator):
    def __init__(self, decay, server_lr=0.5, **options):
        super().__init__(server_lr=server_lr, **options)
        self.decay = decay

    def weights(self, updates, version):
        return [1.0] * len(updates)


class OwnTicks(TickPattern):
    def __init__(self, every):
        self.every = every

    def next(self, client, tick):
        return tick + self.every

    def setup(self, federation):
        pass


class Bare(ArrivalProcess):
    def __init__(self, *names, **options):
        self.names, self.options = names, options

    def setup(self, federation):
        pass

    def on_wake(self, now):
        return ()

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (OwnOptimizer(0.1), "OwnOptimizer(lr=0.1, boost=1.0)"),
        (OwnOptimizer(0.1, 2, momentum=0.5), "OwnOptimizer(lr=0.1, boost=2, momentum=0.5)"),
        (OwnDurations(3), "OwnDurations(3, factor=2)"),
        (SynchronousArrivals(2, OwnDurations(3)).durations, "OwnDurations(3, factor=2)"),
        (OwnRule(1), "OwnRule(decay=1, server_lr=0.5, buffer_size=None)"),
        (OwnRule(1, 1.0), "OwnRule(decay=1, server_lr=1.0, buffer_size=None)"),
        (NAMES["CommunicationPattern"](OwnTicks(4)), "CommunicationPattern(pattern=OwnTicks(4))"),
        (Bare("a", b=1), "Bare()"),
        (FixedDurations(LONG), f"FixedDurations({brief(LONG)})"),
        (UniformArrivals(np.int64(2)), repr(UniformArrivals(2))),
    ],
)
def test_a_repr_follows_from_the_constructor(strategy, text) -> None:
    assert repr(strategy) == in_words(strategy) == text


@pytest.mark.parametrize("base", [ArrivalProcess, Channel, LocalOptimizer, DurationModel])
def test_bases_are_strategies(base) -> None:
    assert issubclass(base, Strategy)


def test_a_function_within_a_strategy_within_counts() -> None:
    def of(number):
        return OwnModel(LocalSGD(lambda version: number))

    assert in_words(of(0.1)) == in_words(of(0.1)) != in_words(of(0.2))
    assert in_words(OwnModel(LocalSGD(Rate(1)))) != in_words(OwnModel(LocalSGD(Rate(2))))


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_all_numbers_of_an_array_count(kind) -> None:
    def of(number):
        return OwnRule(kind([*LONG * 100, number, *LONG * 100]))

    assert repr(of(1.0)) == repr(of(2.0))  # most numbers are left out of the repr
    assert in_words(of(1.0)) == in_words(of(1.0)) != in_words(of(2.0))


def test_a_long_list_is_told_by_a_digest() -> None:
    other = [*LONG[:15], 0.0, *LONG[16:]]
    assert brief(LONG) != brief(other)
    assert brief(LONG).startswith("[1.0, 2.0, 3.0, ... 30 in all, ")
    assert brief(LONG[:20]) == repr(LONG[:20])
    pairs = [(number, 1.0) for number in LONG]
    assert brief(pairs) == repr(pairs)


TAKEN = ("arguments", "as_call", "saved", "draw", "clients_of", "duration", "probabilities")
"""Names that a user's class may give its own attributes, whatever ours are called inside."""


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize(
    ("base", "given", "written"),
    [
        (UniformArrivals, {"per_round": 2}, "per_round=2"),
        (FixedDurations, {"durations": [1.0]}, "[1.0]"),
        (BufferedAggregator, {"buffer_size": 2}, "buffer_size=2"),
        (LocalSGD, {"lr": 0.5}, "lr=0.5"),
        (TopK, {"share": 0.5}, "0.5"),
    ],
)
def test_a_users_class_may_use_any_usual_name(base, given, written, name) -> None:
    class Own(base):
        def weights(self, updates, version):
            return []

    own = Own(**given)
    setattr(own, name, 3)
    assert written in repr(own)
    assert repr(own).startswith("Own(")
    assert in_words(own).startswith("Own(")
    assert arguments(own).keys() >= given.keys()


def test_a_strategy_that_holds_itself_can_be_written() -> None:
    class Loop(LocalSGD):
        def __init__(self, lr, inner=None):
            super().__init__(lr)
            self.inner = inner

    loop = Loop(0.5)
    loop.inner = loop
    assert repr(loop) == "Loop(lr=0.5, inner=...)"


def test_the_number_of_scaffolds_option_is_plain() -> None:
    assert repr(Scaffold(0.5, option=np.int64(2))) == repr(Scaffold(0.5, option=2))


def test_errors_of_missing_arguments_name_a_public_class() -> None:
    # All public names of these modules; the staleness functions' has no __all__.
    public = {k: v for module in MODULES for k, v in vars(module).items() if k[0] != "_"}
    named = set()
    for kind in public.values():
        if isinstance(kind, type) and issubclass(kind, Strategy) and not inspect.isabstract(kind):
            with pytest.raises(TypeError) as error:
                kind(no_such_argument=1)
            named |= {str(error.value).partition(".__init__()")[0]} - {str(error.value)}
    assert len(named) > 20
    assert named <= public.keys()
