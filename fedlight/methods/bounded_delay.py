"""Methods for very unequal speeds: no update that the server uses is older than a bound."""

from __future__ import annotations

from fedlight._support.checks import Rate, flag, positive_int
from fedlight.aggregators import Malenia, Rennala, Ringleader, Ringmaster
from fedlight.arrivals import DurationModel, LocalSteps
from fedlight.methods._arrivals import at_once
from fedlight.methods._method import Method, bundle, sgd


def ringmaster(
    *,
    lr: Rate | None,
    max_delay: int,
    stops: bool = False,
    concurrency: int | None = None,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = 1,
    durations: DurationModel | None = None,
) -> Method:
    """Ringmaster ASGD: x <- x + eta * delta_i at every arrival of tau_i < R.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        max_delay: R, the delay from which on an update is not used.
        stops: False for Algorithm 4, in which such an update is dropped; True for Algorithm 5, in
            which its client is stopped as soon as it is R versions old, and starts again.
        concurrency: The number of clients at work; None for all, as in the paper.
        server_lr: eta.
        local_steps: K, 1 in the paper.
        durations: The time of a task; None for an exponential one of mean 1. Those of the paper
            depend on the number of clients: `settings.linear_random` and `settings.sqrt_random`.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Maranjyan, Tyurin, Richtárik, 2025, Algorithms 4 and 5,
    https://arxiv.org/abs/2501.16168.

    Example:
        >>> ringmaster(lr=0.1, max_delay=6, stops=True)["arrivals"].restart_after
        6
    """
    aggregator = Ringmaster(positive_int("max_delay", max_delay) - 1, server_lr)
    restart = max_delay if flag("stops", stops) else None
    arrivals = at_once(durations, concurrency, local_steps, restart)
    return bundle("Ringmaster ASGD", arrivals, aggregator, sgd(lr))


def rennala(
    *,
    lr: Rate | None,
    batch_size: int,
    stops: bool = False,
    concurrency: int | None = None,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = 1,
    durations: DurationModel | None = None,
) -> Method:
    """Rennala SGD: x <- x + eta * (1/m) * sum of delta_i, after m updates of tau_i = 0.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        batch_size: m, the number of updates of a step.
        stops: Whether clients are stopped at each step and start again from the new model; else
            they finish what the server drops.
        concurrency: The number of clients at work; None for all, as in the paper.
        server_lr: eta.
        local_steps: K, 1 in the paper.
        durations: The time of a task; None for an exponential one of mean 1. Those of the paper
            depend on the number of clients: `settings.sqrt_fixed`.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Tyurin, Richtárik, 2023, https://arxiv.org/abs/2305.12387.

    Example:
        >>> rennala(lr=0.1, batch_size=6)["aggregator"]
        Rennala(buffer_size=6)
    """
    aggregator = Rennala(positive_int("batch_size", batch_size), server_lr)
    arrivals = at_once(durations, concurrency, local_steps, 1 if flag("stops", stops) else None)
    return bundle("Rennala SGD", arrivals, aggregator, sgd(lr))


def malenia(
    *,
    lr: Rate | None,
    batch_size: float | None = None,
    stops: bool = False,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = 1,
    durations: DurationModel | None = None,
) -> Method:
    """Malenia SGD: x <- x + eta * (1/M) * sum over i of the mean of client i's updates of tau = 0.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        batch_size: S: a step is made when the harmonic mean of the counts is at least S / M; None
            for M, which is as soon as each client has come.
        stops: Whether clients are stopped at each step and start again from the new model; else
            they finish what the server drops.
        server_lr: eta.
        local_steps: K, 1 in the paper.
        durations: The time of a task; None for an exponential one of mean 1. Those of the paper
            depend on the number of clients: `settings.sqrt_fixed`.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Tyurin, Richtárik, 2023, https://arxiv.org/abs/2305.12387.

    Example:
        >>> malenia(lr=0.1)["aggregator"]
        Malenia(batch_size=None)
    """
    arrivals = at_once(durations, None, local_steps, 1 if flag("stops", stops) else None)
    return bundle("Malenia SGD", arrivals, Malenia(batch_size, server_lr), sgd(lr))


def ringleader(
    *,
    lr: Rate | None,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = 1,
    durations: DurationModel | None = None,
) -> Method:
    """Ringleader ASGD: x <- x + eta * (1/M) * sum over i of the mean of client i's latest updates.

    All clients are at work, and each goes on as soon as it has arrived. When each of them has sent
    an update, each makes one step in turn; what comes besides waits for the next such table.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        server_lr: eta.
        local_steps: K, 1 in the paper.
        durations: The time of a task; None for an exponential one of mean 1. Those of the paper
            depend on the number of clients: `settings.sqrt_fixed`.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Maranjyan, Richtárik, 2026, Algorithm 1, https://arxiv.org/abs/2509.22860.

    Example:
        >>> ringleader(lr=0.1)["arrivals"].resume
        'on_arrival'
    """
    arrivals = at_once(durations, None, local_steps)
    return bundle("Ringleader ASGD", arrivals, Ringleader(server_lr), sgd(lr))
