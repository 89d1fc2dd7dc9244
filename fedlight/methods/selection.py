"""Methods that choose their clients by what these have logged."""

from __future__ import annotations

import math

from fedlight import settings
from fedlight._support.checks import Rate, non_negative_int, positive_int
from fedlight.aggregators import FedAvg
from fedlight.arrivals import (
    ContinuousArrivals,
    DurationModel,
    LocalEpochs,
    LocalSteps,
    Oort,
    Pisces,
    PowerOfChoice,
    SynchronousArrivals,
)
from fedlight.methods._method import Method, bundle, sgd


def power_of_choice(
    *,
    lr: Rate | None,
    per_round: int,
    candidates: int,
    metric: str = "train_loss",
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """Power-of-choice: FedAvg of the m clients of largest loss among d that are drawn.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        per_round: m, the clients of a round.
        candidates: d, which the paper tunes: m is FedAvg, more is faster and less fair.
        metric: The name under which ``training_step`` logs the loss.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Cho, Wang and Joshi, 2020, Section 3, https://arxiv.org/abs/2010.01243, as rpow-d. The
    step is the mean of the m updates.

    Example:
        >>> power_of_choice(lr=0.1, per_round=3, candidates=9)["arrivals"].candidates
        9
    """
    rounds = SynchronousArrivals(per_round, durations, local_steps)
    arrivals = PowerOfChoice(rounds, candidates, metric)
    return bundle("Power-of-choice", arrivals, FedAvg(client_weights="uniform"), sgd(lr))


def oort(
    *,
    lr: Rate | None,
    per_round: int,
    metric: str = "train_loss",
    squared: bool = False,
    over_select: int | None = None,
    pacer_step: float | None = None,
    reading: str = "code",
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """Oort: FedAvg of clients with large losses that are fast enough, and of some new ones.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        per_round: m, the clients of a round.
        metric: The name under which ``training_step`` logs the loss.
        squared: Whether the metric is the mean of the squared losses.
        over_select: How many more clients start; their slowest are not waited for. None for 30 % of
            m, rounded up, as in the paper; 0 for none.
        pacer_step: By how much the preferred duration of a round grows; see `Oort`.
        reading: "code" or "paper".
        local_steps: K, or a policy for it.
        durations: The time of a task; None for FedBuff's half-normal one (`settings.fedbuff`).

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Lai et al., 2021, Algorithm 1, https://arxiv.org/abs/2010.06081.

    Example:
        >>> oort(lr=0.1, per_round=10)["arrivals"].arrivals.over_select
        3
    """
    positive_int("per_round", per_round)
    if over_select is None:
        over_select = math.ceil(0.3 * per_round)
    more = non_negative_int("over_select", over_select) or None
    times = settings.fedbuff() if durations is None else durations
    rounds = SynchronousArrivals(per_round, times, local_steps, more)
    arrivals = Oort(rounds, metric, squared, pacer_step=pacer_step, reading=reading)
    return bundle("Oort", arrivals, FedAvg(), sgd(lr))


def pisces(
    *,
    lr: Rate | None,
    concurrency: int,
    staleness_bound: float | None = None,
    buffer_size: int | None = None,
    metric: str = "train_loss",
    squared: bool = False,
    beta: float = 0.5,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """Pisces: places go to clients of large loss and small staleness; steps at an adaptive pace.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        concurrency: The number of clients at work.
        staleness_bound: b, see `Pisces`; give this or `buffer_size`.
        buffer_size: The number of updates after which the server steps instead.
        metric: The name under which ``training_step`` logs the loss.
        squared: Whether the metric is the mean of the squared losses.
        beta: The exponent of the discount.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for FedBuff's half-normal one (`settings.fedbuff`).

    Returns:
        arrivals, aggregator and local optimizer.

    Raises:
        ValueError: Neither `staleness_bound` nor `buffer_size` is given, or both.

    Source: Jiang et al., 2022, Sections 4 and 5, https://arxiv.org/abs/2206.09264. The step is the
    mean of the updates by their examples, without a discount.

    Example:
        >>> pisces(lr=0.1, concurrency=8, staleness_bound=4)["arrivals"].by_rounds
        True
    """
    if (staleness_bound is None) == (buffer_size is None):
        raise ValueError(
            f"give staleness_bound, with which the server steps at Pisces' pace, or buffer_size, "
            f"got staleness_bound={staleness_bound!r} and buffer_size={buffer_size!r}"
        )
    times = settings.fedbuff() if durations is None else durations
    clock = ContinuousArrivals(times, concurrency, 0.0, "on_arrival", local_steps)
    arrivals = Pisces(clock, metric, squared, beta, staleness_bound=staleness_bound)
    return bundle("Pisces", arrivals, FedAvg(buffer_size), sgd(lr))
