"""Strategies that belong together: their numbers must agree."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from lightning import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedlight._module.rng import isolated_rng
from fedlight._module.snapshot import Snapshot
from fedlight.aggregators import (
    DCASGD,
    Aggregator,
    FedAT,
    FedCompass,
    FedDynServer,
    FedNova,
    MindFlayer,
    QuAFL,
)
from fedlight.arrivals import ArrivalProcess, PolledArrivals, RefreshedTasks, TrialRounds
from fedlight.arrivals.wrapper import Wrapper
from fedlight.executors.base import ClientError, Job, trial_task
from fedlight.local_optimizers import (
    FedDyn,
    FedProx,
    FreshModel,
    LocalOptimizer,
    LocalSGD,
    ModuleOptimizer,
    OwnModel,
)
from fedlight.local_optimizers.module_optimizer import left_to_local_optimizer
from fedlight.run import Run

_MOST_NAMED = 5
# The process that makes the rounds of a method; the other aggregators take those of any process.
_ROUNDS_OF = {
    FedAT: "Tiers({name: process, …})",
    FedCompass: "CompassArrivals(StepDurations(…), min_steps=…, max_steps=…)",
    MindFlayer: "TrialRounds(durations, allotted=…, trials=…)",
}


def check_partners(
    aggregator: Aggregator, arrivals: ArrivalProcess, optimizer: LocalOptimizer
) -> None:
    """Refuse strategies that contradict each other; warn of one half of a method.

    Raises:
        TypeError: A wrapper of the user's own was not made by the constructor of its base class.
        ValueError: A number that two of them share differs, or the aggregator waits for rounds that
            the process does not have.
    """
    process = arrivals
    refreshes = False
    while isinstance(process, Wrapper):
        process.check_made()
        refreshes |= isinstance(process, RefreshedTasks)
        process = process.arrivals
    _check_regions(aggregator, arrivals)
    _check_rounds(aggregator, arrivals)
    if isinstance(aggregator, FedDynServer):
        _check_feddyn(aggregator, optimizer)
    elif isinstance(aggregator, FedNova):
        _check_fednova(aggregator, optimizer)
    elif isinstance(aggregator, DCASGD):
        _same_number("local_lr", aggregator, aggregator.local_lr, "lr", optimizer, optimizer.lr)
    elif isinstance(aggregator, MindFlayer) and isinstance(process, TrialRounds):
        _check_trials(aggregator, process)
    elif isinstance(aggregator, QuAFL) and not isinstance(optimizer, OwnModel):
        _warn_of_half(aggregator, "goes on from the clients' own models", "OwnModel(…, per_poll=s)")
    if refreshes and not isinstance(optimizer, FreshModel):
        rank_zero_warn(
            "fedlight: RefreshedTasks lets clients mix a fresh model into their own; the method is "
            "complete with local_optimizer=FreshModel(LocalSGD(lr=…))"
        )
    # The groups of a record, or of a process of one's own, may be the halves of refreshed tasks.
    if isinstance(optimizer, FreshModel) and not arrivals.groups:
        rank_zero_warn(
            "fedlight: FreshModel mixes the newest model in when a task is refreshed, which "
            f"{type(arrivals).__name__} never does; the method is complete with "
            f"arrivals=RefreshedTasks({type(process).__name__}(…))"
        )
    if isinstance(optimizer, OwnModel) and isinstance(process, PolledArrivals):
        polled, asked = optimizer.per_poll, process.per_poll
        if polled is not None:
            _same_number("per_poll", optimizer, polled, "per_poll", process, asked)


def _check_rounds(aggregator: Aggregator, arrivals: ArrivalProcess) -> None:
    """Refuse an aggregator that waits for ends of rounds under a process that has none.

    Raises:
        ValueError: It does.
    """
    if aggregator.needs_rounds and not arrivals.by_rounds:
        partner = _ROUNDS_OF.get(type(aggregator))
        remedy = f"write arrivals={partner}" if partner else "give the aggregator a buffer_size"
        raise ValueError(
            f"{aggregator!r} steps at the end of rounds, but {type(arrivals).__name__} has none: "
            f"{remedy} (a process of your own that yields EndRound says so with by_rounds = True)"
        )


def _check_regions(aggregator: Aggregator, arrivals: ArrivalProcess) -> None:
    """Refuse servers of regions on one side only.

    Raises:
        ValueError: Either the process has them, or the aggregator.
    """
    one, other = type(aggregator).__name__, type(arrivals).__name__
    if aggregator.regional and arrivals.arrivals_per_send is None:
        raise ValueError(
            f"{one} has a server for each region, but {other} has no regions; use "
            "arrivals=Regions({name: process, …}, clients, arrivals_per_send=K)"
        )
    if arrivals.arrivals_per_send is not None and not aggregator.regional:
        raise ValueError(
            f"{other} has regions with a server each, but {one} has one server; use HALoS(…), or "
            "Tiers({name: process, …}) for groups that share a server"
        )


def _check_trials(aggregator: MindFlayer, process: TrialRounds) -> None:
    """The server divides by the number of deltas that it expects of the trials.

    Raises:
        ValueError: It expects another number of trials than clients make.
    """
    one, other = np.asarray(aggregator.trials), np.asarray(process.trials)
    # Lists of unequal lengths are refused when they meet the federation.
    if one.ndim and other.ndim and one.shape != other.shape:
        return
    if (one != other).any():
        raise ValueError(
            f"MindFlayer has trials={aggregator.trials!r}, but TrialRounds has "
            f"trials={process.trials!r}: the two must be equal, since they stand for the same "
            "number of the method"
        )


def _check_feddyn(aggregator: FedDynServer, optimizer: LocalOptimizer) -> None:
    alpha = aggregator.alpha
    if isinstance(optimizer, FedDyn):
        _same_number("alpha", aggregator, alpha, "alpha", optimizer, optimizer.alpha)
    else:
        _warn_of_half(aggregator, "is the server's half of FedDyn", f"FedDyn(…, alpha={alpha!r})")


def _check_fednova(aggregator: FedNova, optimizer: LocalOptimizer) -> None:
    """Each client's a_i is to be that of the rule that the clients use."""
    if not isinstance(optimizer, FedProx | LocalSGD):
        return
    used = {"mu": 0.0, "momentum": 0.0}
    if isinstance(optimizer, FedProx):
        used["mu"] = optimizer.mu
    else:
        used["momentum"] = optimizer.momentum
    for name, told in (("mu", aggregator.mu), ("momentum", aggregator.momentum)):
        if told:
            _same_number(name, aggregator, told, name, optimizer, used[name])
        elif used[name]:
            rank_zero_warn(
                f"fedlight: FedNova counts the steps of {optimizer!r} as those of plain SGD, since "
                f"it was not told of {name}: FedNova(…, {name}={used[name]!r}) divides by the "
                "paper's a_i"
            )
    if aggregator.mu:
        _same_number("local_lr", aggregator, aggregator.local_lr, "lr", optimizer, optimizer.lr)


def _same_number(
    name: str, one: object, value: object, other_name: str, other: object, expected: object
) -> None:
    """Refuse two numbers that differ; functions and lists are not compared.

    Raises:
        ValueError: They do.
    """
    numbers = isinstance(value, int | float) and isinstance(expected, int | float)
    if numbers and value != expected:
        raise ValueError(
            f"{type(one).__name__} has {name}={value!r}, but {type(other).__name__} has "
            f"{other_name}={expected!r}: the two must be equal, since they stand for the same "
            "number of the method"
        )


def _warn_of_half(half: Aggregator, words: str, partner: str) -> None:
    rank_zero_warn(
        f"fedlight: {type(half).__name__} {words}; the method is complete with "
        f"local_optimizer={partner}"
    )


def warn_of_own_optimizer(module: LightningModule, optimizer: LocalOptimizer) -> None:
    """Warn if a local optimizer trains other parameters than the module's own optimizer would."""
    own = is_overridden("configure_optimizers", module, LightningModule)
    if isinstance(optimizer, ModuleOptimizer) or not own:
        return
    before = Snapshot(module)
    try:
        with isolated_rng():
            number, left = left_to_local_optimizer(module)
    except Exception:  # it is not used, so it may be one that does not work here
        return
    finally:
        before.restore()
    name, method = type(module).__name__, type(optimizer).__name__
    if number > 1:
        rank_zero_warn(
            f"fedlight: {method} trains all parameters of {name} by one rule, in place of the "
            f"{number} optimizers that configure_optimizers returns"
        )
    elif number and left:
        rank_zero_warn(
            f"fedlight: {method} also trains {_some(left)}, which the optimizer of "
            f"{name}.configure_optimizers leaves out; freeze them (param.requires_grad_(False) in "
            "__init__ or setup), or leave local_optimizer out to train with the module's own"
        )


def refuse_open_statistics(run: Run) -> None:
    """Refuse statistics of normalisation that clients would send beside updates with noise.

    Raises:
        ValueError: The module has some.
    """
    channel = run.setting.channel
    noise = run.setting.aggregator.noise_multiplier
    if noise is None and (channel is None or channel.noise_multiplier is None):
        return
    kinds = (_BatchNorm, _InstanceNorm)
    norms = [m for m in run.module.modules() if isinstance(m, kinds) and m.track_running_stats]
    if norms:
        raise ValueError(
            f"{type(run.module).__name__} has {type(norms[0]).__name__}, whose running statistics "
            "clients send without noise; take GroupNorm, or track_running_stats=False"
        )


def warn_of_single_examples(run: Run) -> None:
    """Warn if clients whose batches hold one example fail in a module with batch normalisation."""
    if not any(isinstance(layer, _BatchNorm) for layer in run.module.modules()):
        return
    if run.federation.shard_sizes is not None:  # no batch is of the examples of one client
        return
    sizes, batch_size = run.federation.num_examples, run.federation.batch_size
    clients = np.flatnonzero(np.minimum(sizes, batch_size) == 1)
    if not len(clients):
        return
    (outcome,) = run.executor.run([Job(trial_task(int(clients[0])), run.state)])
    if isinstance(outcome, ClientError):
        rank_zero_warn(
            f"fedlight: {type(run.module).__name__} has batch normalisation, and the batches of "
            f"{len(clients)} of {len(sizes)} clients hold one example: client "
            f"{_some(map(str, clients))}. Their local runs fail ({outcome.__cause__}): give each "
            "client two or more examples (the partitioner's smallest size), take GroupNorm, or "
            'write on_client_failure="drop"'
        )


def _some(names: Iterable[str]) -> str:
    """The first of some names, and how many there are more."""
    listed = list(names)
    more = len(listed) - _MOST_NAMED
    return ", ".join(listed[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
