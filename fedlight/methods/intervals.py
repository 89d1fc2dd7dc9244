"""Methods whose server steps at times of its own, with what the clients have by then."""

from __future__ import annotations

from collections.abc import Sequence

from fedlight import settings
from fedlight._support.checks import Rate
from fedlight.aggregators import FAVAS, AsyncCommSGD, FedFix, Lattice, QuAFL
from fedlight.arrivals import (
    CommunicationPattern,
    DurationModel,
    FixedDurations,
    LocalEpochs,
    LocalSteps,
    PolledArrivals,
    TickPattern,
)
from fedlight.arrivals._per_client import as_list
from fedlight.arrivals.durations import as_durations
from fedlight.local_optimizers import OwnModel
from fedlight.methods._arrivals import after_aggregation
from fedlight.methods._method import Method, bundle, sgd


def fedfix(
    *,
    lr: Rate | None,
    interval: float = 0.5,
    client_weights: str = "uniform",
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """FedFix: x <- x + eta * sum of ceil(T_i / dt) * p_i * delta_i over a window, every dt.

    A client whose update has arrived waits for the deadline (``resume="on_aggregation"``) and pulls
    the model made there.

    Args:
        lr: The local learning rate, which the paper tunes; None for the module's own optimizer.
        interval: dt; half of the time of the slowest client in the paper's experiments.
        client_weights: p_i: "uniform" for 1/M, or "examples".
        server_lr: eta, 1 in the paper.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for the paper's F80 (`settings.fedfix`).

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Fraboni et al., 2023, Section 4.4 and equation (14), https://arxiv.org/abs/2206.10189.

    Example:
        >>> fedfix(lr=0.1)["arrivals"].resume
        'on_aggregation'
    """
    arrivals = after_aggregation(durations, local_steps)
    aggregator = FedFix(interval, client_weights, server_lr)
    return bundle("FedFix", arrivals, aggregator, sgd(lr))


def async_comm_sgd(*, lr: Rate | None, pattern: TickPattern, server_lr: Rate = 1.0) -> Method:
    """AsyncCommSGD: x <- x + eta * (1/M) * sum of delta_i over the clients that send at a tick.

    Every client makes one local step at each tick of a common clock.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        pattern: When each client communicates: `PeriodicTicks`, `RandomTicks`, `ImbalancedTicks`.
        server_lr: eta, 1 in the paper.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Avdiukhin and Kasiviswanathan, 2021, Algorithm 1,
    https://proceedings.mlr.press/v139/avdiukhin21a.html.

    Example:
        >>> from fedlight.arrivals import RandomTicks
        >>> async_comm_sgd(lr=0.1, pattern=RandomTicks(0.1, max_gap=20))["aggregator"]
        AsyncCommSGD(interval=1.0)
    """
    aggregator = AsyncCommSGD(server_lr=server_lr)
    return bundle("AsyncCommSGD", CommunicationPattern(pattern), aggregator, sgd(lr))


def quafl(
    *,
    lr: Rate,
    per_poll: int = 5,
    interval: float = 4.375,
    max_steps: int = 5,
    quantizer: Lattice | None = Lattice(),
    lr_correction: bool = False,
    durations: DurationModel | None = None,
) -> Method:
    """QuAFL: x <- (x + sum of Q(y_i)) / (s + 1) at each poll; y_i <- (Q(x) + s * y_i) / (s + 1).

    The server polls s clients at times of its own. A client goes on from its own model, mixed with
    the server's, and both messages go through the quantizer.

    Args:
        lr: The local learning rate.
        per_poll: s, the clients of a poll; 5 of 20 in the authors' code.
        interval: Virtual time between two polls. The code has 10 for 32 bits, so 4.375 for 14.
        max_steps: K, the largest number of local steps between two polls of a client.
        quantizer: Q, of 14 bits by default; None for exact messages.
        lr_correction: Multiply the local rate by (s + 1) / s, as the authors' code does.
        durations: The time of a local step; None for that of the paper (`settings.quafl`).

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Zakerinia et al., 2024, Algorithm 1, https://arxiv.org/abs/2206.10032.

    Example:
        >>> method = quafl(lr=0.1, per_poll=5)
        >>> method["local_optimizer"].per_poll == method["arrivals"].per_poll
        True
    """
    local = sgd(lr)
    if local is None:
        raise TypeError("quafl needs lr, a number or a function of the version, got None")
    arrivals = _polled(per_poll, interval, max_steps, durations)
    own = OwnModel(local, per_poll, lr_correction, quantizer)
    return bundle("QuAFL", arrivals, QuAFL(quantizer=quantizer), own)


def favas(
    *,
    lr: Rate | None,
    per_poll: int,
    interval: float,
    max_steps: int,
    expected_steps: Sequence[float] | None = None,
    durations: DurationModel | None = None,
) -> Method:
    """FAVAS: x <- (x + sum over S of (x_p + delta_i / a_i)) / (s + 1), a_i = max(1, K_i).

    Clients are polled as in QuAFL, and start again from the server's new model.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        per_poll: s, the clients of a poll.
        interval: Virtual time between two polls.
        max_steps: K, the largest number of local steps between two polls of a client.
        expected_steps: The mean of K_i for each client as a_i, the paper's deterministic weights.
        durations: The time of a local step; None for that of QuAFL (`settings.quafl`).

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Leconte, Nguyen, Moulines, 2023, https://arxiv.org/abs/2305.16099, from the literature.

    Example:
        >>> favas(lr=0.1, per_poll=5, interval=1.0, max_steps=10)["aggregator"]
        FAVAS(buffer_size=None, expected_steps=None)
    """
    arrivals = _polled(per_poll, interval, max_steps, durations)
    return bundle("FAVAS", arrivals, FAVAS(expected_steps=expected_steps), sgd(lr))


def _polled(
    per_poll: int, interval: float, max_steps: int, durations: DurationModel | None
) -> PolledArrivals:
    """The polls of QuAFL and FAVAS."""
    if durations is None:
        times: DurationModel = settings.quafl()
    elif as_list("durations", durations) is None:
        times = as_durations(durations)
    else:
        times = FixedDurations(durations)  # type: ignore[arg-type]
    return PolledArrivals(per_poll, interval, times, max_steps)
