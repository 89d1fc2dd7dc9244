"""Methods whose server remembers what each client has sent last."""

from __future__ import annotations

from fedlight import settings
from fedlight._support.checks import Rate, shown
from fedlight.aggregators import AFACS, AREA, CA2FL, MIFA, FedVARP
from fedlight.arrivals import (
    ArrivalProcess,
    Availability,
    DurationModel,
    LocalEpochs,
    LocalSteps,
    SynchronousArrivals,
    Windows,
)
from fedlight.methods._arrivals import at_once, drawn_or_by_the_clock
from fedlight.methods._method import Method, bundle, sgd


def mifa(
    *,
    lr: Rate | None,
    per_round: int | None = None,
    windows: Windows | None = None,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """MIFA: h_i <- delta_i of the clients that are there; x <- x + eta * (1/M) * sum of all h_i.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        per_round: m, the clients of a round; None for all that are available, as in the paper.
        windows: When each client is available; None for always.
        server_lr: eta, 1 in the paper.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Gu, Huang, Zhang, Huang, 2021, https://arxiv.org/abs/2106.04159.

    Example:
        >>> from fedlight.arrivals import DiurnalWindows
        >>> mifa(lr=0.1, windows=DiurnalWindows(period=10, share=0.3))["aggregator"]
        MIFA(buffer_size=None, memory_device='model')
    """
    arrivals: ArrivalProcess = SynchronousArrivals(per_round, durations, local_steps)
    if windows is not None:
        if not isinstance(windows, Windows):
            raise TypeError(
                f"windows must be a windows object or None, got {shown(windows)}; for example "
                "DiurnalWindows(24.0, 0.5)"
            )
        arrivals = Availability(arrivals, windows)
    return bundle("MIFA", arrivals, MIFA(None, server_lr), sgd(lr))


def ace(
    *,
    lr: Rate | None,
    concurrency: int | None = None,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """ACE: h_i <- delta_i and x <- x + eta * (1/M) * sum of all h_j, at every arrival.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        concurrency: The number of clients at work; None for all.
        server_lr: eta.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for an exponential one of mean 1.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Chang et al., 2025, https://arxiv.org/abs/2511.19066. The paper's listing was not
    checked.

    Example:
        >>> ace(lr=0.1)["aggregator"].buffer_size
        1
    """
    arrivals = at_once(durations, concurrency, local_steps)
    return bundle("ACE", arrivals, MIFA(1, server_lr), sgd(lr))


def afa_cs(
    *,
    lr: Rate | None = 0.1,
    buffer_size: int = 5,
    server_lr: Rate = 1.0,
    max_staleness: int = 4,
    local_steps: LocalSteps | int = 5,
    durations: DurationModel | None = None,
    concurrency: int | None = None,
) -> Method:
    """AFA-CS: memory_i <- delta_i / K_i; after m updates x <- x + eta * (1/M) * sum of all memory.

    A step has the length of one local step, see `afa_cd`.

    Args:
        lr: The local learning rate, 0.1 in the paper; None for the module's own optimizer.
        buffer_size: m: 5 of 10 clients, or 20 of 100, in the paper.
        server_lr: eta.
        max_staleness: Without `durations`, the age of a client's model is drawn evenly from 0 to
            this: the paper's last five models.
        local_steps: K, or a policy for it: 5 or 10 in the paper, or ``UniformSteps(1, 10)``.
        durations: The time of a task, for arrivals by the clock: each client goes on at once.
        concurrency: With `durations`, the number of clients at work; None for all.

    Returns:
        arrivals, aggregator and local optimizer.

    Raises:
        ValueError: `concurrency` is given without `durations`.

    Source: Yang et al., 2022, Algorithm 3 and Appendix E.1, https://arxiv.org/abs/2108.09875.

    Example:
        >>> from fedlight.arrivals import ExponentialDurations
        >>> afa_cs(durations=ExponentialDurations(1.0), concurrency=8)["arrivals"].resume
        'on_arrival'
    """
    arrivals = drawn_or_by_the_clock(
        buffer_size, max_staleness, local_steps, durations, concurrency
    )
    size = None if durations is None else buffer_size  # None: a round is a step
    return bundle("AFA-CS", arrivals, AFACS(size, server_lr), sgd(lr))


def fedvarp(
    *,
    lr: Rate | None,
    per_round: int | None,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """FedVARP: x <- x + eta * (h + (1/m) * sum of (delta_i - h_i)); then h_i <- delta_i.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        per_round: m, the clients of a round.
        server_lr: eta, 1 in the paper.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Jhunjhunwala et al., 2022, https://arxiv.org/abs/2207.14130.

    Example:
        >>> fedvarp(lr=0.1, per_round=5)["aggregator"].beta
        1.0
    """
    arrivals = SynchronousArrivals(per_round, durations, local_steps)
    return bundle("FedVARP", arrivals, FedVARP(server_lr=server_lr), sgd(lr))


def fedstale(
    *,
    lr: Rate | None,
    beta: float,
    per_round: int | None,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """FedStale: x <- x + eta * (beta * h + (1/m) * sum of (delta_i - beta * h_i)); h_i <- delta_i.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        beta: The weight of stale updates, from 0 (FedAvg) to 1 (FedVARP).
        per_round: m, the clients of a round.
        server_lr: eta.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Rodio, Neglia, 2024, https://arxiv.org/abs/2405.04171, for uniform importance and
    participation.

    Example:
        >>> fedstale(lr=0.1, beta=0.5, per_round=5)["aggregator"].beta
        0.5
    """
    arrivals = SynchronousArrivals(per_round, durations, local_steps)
    return bundle("FedStale", arrivals, FedVARP(None, beta, server_lr), sgd(lr))


def ca2fl(
    *,
    concurrency: int | None,
    lr: Rate | None,
    buffer_size: int = 10,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """CA2FL: x <- x + eta * (h + (1/m) * sum of (delta_i - h_i)), after m updates; h_i <- delta_i.

    Args:
        concurrency: The number of clients at work; None for all.
        lr: The local learning rate; None for the module's own optimizer.
        buffer_size: m.
        server_lr: eta.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for FedBuff's half-normal one (`settings.fedbuff`).

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Wang et al., 2024, https://openreview.net/forum?id=4aywmeb97I. The
    defaults are those of `fedbuff`, which it corrects.

    Example:
        >>> ca2fl(concurrency=20, buffer_size=5, lr=0.1)["aggregator"]
        CA2FL(buffer_size=5, memory_device='model')
    """
    times = settings.fedbuff() if durations is None else durations
    arrivals = at_once(times, concurrency, local_steps)
    return bundle("CA2FL", arrivals, CA2FL(buffer_size, server_lr), sgd(lr))


def area(
    *,
    lr: Rate | None = 0.01,
    buffer_size: int = 3,
    concurrency: int | None = None,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """AREA: x <- x + (1/M) * sum of (y_i - s_i) over m updates; then s_i <- y_i.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        buffer_size: m; 3 of 10 clients in the paper.
        concurrency: The number of clients at work; None for all, as in the paper.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for the paper's log-normal rates (`settings.area`).

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Iakovidou and Kim, 2024, https://arxiv.org/abs/2405.10123.

    Example:
        >>> area(buffer_size=4)["aggregator"]
        AREA(buffer_size=4, memory_device='model')
    """
    times = settings.area() if durations is None else durations
    return bundle("AREA", at_once(times, concurrency, local_steps), AREA(buffer_size), sgd(lr))
