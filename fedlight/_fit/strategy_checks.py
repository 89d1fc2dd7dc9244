"""Strategies that belong together: their numbers must agree."""

from __future__ import annotations

from lightning.pytorch.utilities import rank_zero_warn

from fedlight.aggregators import DCASGD, Aggregator, FedDynServer, FedNova, QuAFL
from fedlight.arrivals import ArrivalProcess, PolledArrivals
from fedlight.arrivals.wrapper import Wrapper
from fedlight.local_optimizers import FedDyn, FedProx, LocalOptimizer, LocalSGD, OwnModel


def check_partners(
    aggregator: Aggregator, arrivals: ArrivalProcess, optimizer: LocalOptimizer
) -> None:
    """Refuse strategies that contradict each other; warn of one half of a method.

    Raises:
        ValueError: A number that two of them share differs, or the aggregator waits for rounds that
            the process does not have.
    """
    _check_rounds(aggregator, arrivals)
    if isinstance(aggregator, FedDynServer):
        _check_feddyn(aggregator, optimizer)
    elif isinstance(aggregator, FedNova):
        _check_fednova(aggregator, optimizer)
    elif isinstance(aggregator, DCASGD):
        _same_number("local_lr", aggregator, aggregator.local_lr, "lr", optimizer, optimizer.lr)
    elif isinstance(aggregator, QuAFL) and not isinstance(optimizer, OwnModel):
        _warn_of_half(aggregator, "goes on from the clients' own models", "OwnModel(…, per_poll=s)")
    if isinstance(optimizer, OwnModel):
        process = arrivals
        while isinstance(process, Wrapper):
            process = process.arrivals
        if isinstance(process, PolledArrivals) and optimizer.per_poll is not None:
            asked = process.per_poll
            _same_number("per_poll", optimizer, optimizer.per_poll, "per_poll", process, asked)


def _check_rounds(aggregator: Aggregator, arrivals: ArrivalProcess) -> None:
    """Refuse an aggregator that waits for ends of rounds under a process that has none.

    Raises:
        ValueError: It does.
    """
    if aggregator.needs_rounds and not arrivals.by_rounds:
        raise ValueError(
            f"{aggregator!r} steps at the end of rounds, but {type(arrivals).__name__} has none: "
            "give the aggregator a buffer_size (a process of your own that yields EndRound says "
            "so with by_rounds = True)"
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


def _warn_of_half(aggregator: Aggregator, words: str, partner: str) -> None:
    rank_zero_warn(
        f"fedlight: {type(aggregator).__name__} {words}; the method is complete with "
        f"local_optimizer={partner}"
    )
