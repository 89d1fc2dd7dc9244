"""Methods whose server steps at every arrival, with that update alone."""

from __future__ import annotations

from collections.abc import Sequence

from fedlight._support.checks import Rate, non_negative, positive_int, rate
from fedlight.aggregators import DCASGD, AsyncFedAvg, FedAsync, FedBuff, GeneralizedAsyncSGD
from fedlight.aggregators.staleness import DelayAdaptive, Polynomial, Staleness
from fedlight.arrivals import BiasedArrivals, DurationModel, LocalEpochs, LocalSteps
from fedlight.local_optimizers import FedProx
from fedlight.methods._arrivals import after_aggregation, at_once, drawn_or_by_the_clock
from fedlight.methods._method import Method, bundle, sgd


def fedasync(
    *,
    lr: Rate | None,
    alpha: Rate = 0.6,
    staleness: Staleness | None = Polynomial(0.5),
    max_staleness: int = 4,
    rho: float = 0.0,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
    concurrency: int | None = None,
) -> Method:
    """FedAsync: x <- (1 - a) * x + a * y_i with a = alpha * s(tau_i), at every arrival.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        alpha: The weight of the client's model, a number or a function of the version.
        staleness: s; (tau + 1)^-0.5 is the paper's "Poly", None its constant one.
        max_staleness: Without `durations`, the staleness is drawn evenly from 0 to this, as in the
            paper's experiments, with 4 or 16.
        rho: The weight of the proximal term of option II; 0 for option I.
        local_steps: K, or a policy for it: one pass over the client's data, as in the paper.
        durations: The time of a task, for arrivals by the clock: each client goes on at once.
        concurrency: With `durations`, the number of clients at work; None for all.

    Returns:
        arrivals, aggregator and local optimizer.

    Raises:
        ValueError: `concurrency` is given without `durations`, or `rho` without `lr`.

    Source: Xie, Koyejo, Gupta, 2019, Algorithm 1 and Section 6, https://arxiv.org/abs/1903.03934.

    Example:
        >>> fedasync(lr=0.1)["arrivals"]
        UniformArrivals(per_round=1, max_staleness=4, local_steps=LocalEpochs(1))
    """
    rho = non_negative("rho", rho)
    if rho and lr is None:
        raise ValueError(f"rho={rho!r} needs lr, the learning rate of the clients")
    arrivals = drawn_or_by_the_clock(1, max_staleness, local_steps, durations, concurrency)
    local = FedProx(lr, rho) if rho and lr is not None else sgd(lr)
    return bundle("FedAsync", arrivals, FedAsync(alpha, staleness), local)


def async_fedavg(
    *,
    lr: Rate | None,
    weights: str = "time_based",
    client_weights: str = "uniform",
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """Asynchronous FedAvg: x <- x + eta * d_i * delta_i at every arrival, d_i ~ T_i * p_i.

    Args:
        lr: The local learning rate, which the paper tunes; None for the module's own optimizer.
        weights: "time_based" for ``d_i = (sum over all j of 1/T_j) * T_i * p_i``, or "identical"
            for 1.
        client_weights: p_i: "uniform" for 1/M, or "examples".
        server_lr: eta, 1 in the paper.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for the paper's F80 (`settings.fedfix`).

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Fraboni et al., 2023, Section 4.3 and equation (12), https://arxiv.org/abs/2206.10189.

    Example:
        >>> async_fedavg(lr=0.1)["arrivals"].durations
        UniformSpeeds(0.8, slowest=1)
    """
    arrivals = after_aggregation(durations, local_steps)
    aggregator = AsyncFedAvg(weights, client_weights, server_lr)
    return bundle("asynchronous FedAvg", arrivals, aggregator, sgd(lr))


def delay_adaptive_sgd(
    *,
    lr: Rate | None,
    concurrency: int,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = 1,
    durations: DurationModel | None = None,
) -> Method:
    """Delay-adaptive asynchronous SGD: x <- x + eta * min(1, C / tau) * delta_i at every arrival.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        concurrency: C, the number of clients at work, and the largest delay that counts in full.
        server_lr: eta.
        local_steps: K, 1 in the papers.
        durations: The time of a task; None for an exponential one of mean 1.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Koloskova, Stich, Jaggi, 2022, https://arxiv.org/abs/2206.08307; Mishchenko, Bach, Even,
    Woodworth, 2022, https://arxiv.org/abs/2206.07638. Beyond C the rate C / tau is a reading that
    needs no constant of the loss.

    Example:
        >>> delay_adaptive_sgd(lr=0.1, concurrency=10)["aggregator"].staleness
        DelayAdaptive(c=10.0)
    """
    discount = DelayAdaptive(positive_int("concurrency", concurrency))
    arrivals = at_once(durations, concurrency, local_steps)
    aggregator = FedBuff(1, discount, server_lr)
    return bundle("delay-adaptive SGD", arrivals, aggregator, sgd(lr))


def dc_asgd(
    *,
    lr: Rate,
    lam: float = 0.04,
    decay: float | None = None,
    concurrency: int | None = None,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = 1,
    durations: DurationModel | None = None,
) -> Method:
    """DC-ASGD: x <- x - lr * (g + lam * g^2 * (x - x_p)), per coordinate, at every arrival.

    The server knows the clients' rate, so that lam is the paper's.

    Args:
        lr: The local learning rate.
        lam: lambda: 0.04 with a constant lambda, 2 with `decay`.
        decay: 0.95 for DC-ASGD-a, in which lambda varies by coordinate; None for a constant one.
        concurrency: The number of clients at work; None for all, as in the paper.
        server_lr: eta, a factor for the step; 1 in the paper.
        local_steps: K, 1 in the paper.
        durations: The time of a task; None for an exponential one of mean 1.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Zheng et al., 2017, https://arxiv.org/abs/1609.08326. The values
    of lam and decay are from the literature.

    Example:
        >>> dc_asgd(lr=0.1, lam=2.0, decay=0.95)["aggregator"]
        DCASGD(lam=2.0, local_lr=0.1, decay=0.95, eps=1e-07)
    """
    aggregator = DCASGD(lam, server_lr, local_lr=rate("lr", lr), decay=decay)
    arrivals = at_once(durations, concurrency, local_steps)
    return bundle("DC-ASGD", arrivals, aggregator, sgd(lr))


def generalized_async_sgd(
    *,
    lr: Rate | None,
    probabilities: Sequence[float],
    concurrency: int,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = 1,
) -> Method:
    """Generalized AsyncSGD: x <- x + eta * delta_i / (M * p_i), client i drawn with p_i.

    In the paper each client has a queue, and the server sends a new task to a client drawn from p,
    also to a busy one. There are no queues here (a reading): clients are drawn from p, and the
    delay of an update is uniform from 0 to 2 * (C - 1), with the paper's mean of C - 1. The delay
    is therefore the same for all clients, and `durations` cannot be given.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        probabilities: p_i, one for each client; their sum is 1.
        concurrency: C, the number of tasks in circulation.
        server_lr: eta.
        local_steps: K, 1 in the paper.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Leconte, Jonckheere, Samsonov, Moulines, 2024, https://arxiv.org/abs/2405.00017.

    Example:
        >>> generalized_async_sgd(lr=0.1, probabilities=[0.5, 0.25, 0.25], concurrency=3)[
        ...     "arrivals"
        ... ]
        BiasedArrivals(per_round=1, probabilities=[0.5, 0.25, 0.25], max_staleness=4,
        local_steps=ConstantSteps(1))
    """
    most = 2 * (positive_int("concurrency", concurrency) - 1)
    arrivals = BiasedArrivals(1, probabilities, most, local_steps)
    aggregator = GeneralizedAsyncSGD(probabilities, server_lr)
    return bundle("Generalized AsyncSGD", arrivals, aggregator, sgd(lr))
