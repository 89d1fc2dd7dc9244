"""Methods whose server shapes the clients' tasks: it plans their steps, or refreshes them."""

from __future__ import annotations

from fedlight import settings
from fedlight._support.checks import Rate, non_negative, number
from fedlight._support.checks import rate as as_rate
from fedlight.aggregators import FedASMU, FedCompass
from fedlight.aggregators.staleness import Polynomial, Staleness
from fedlight.arrivals import (
    ArrivalProcess,
    CompassArrivals,
    DurationModel,
    LocalEpochs,
    LocalSteps,
    RefreshedTasks,
)
from fedlight.local_optimizers import FreshModel, LocalSGD
from fedlight.methods._arrivals import at_once
from fedlight.methods._method import Method, bundle, sgd


def fedcompass(
    *,
    lr: Rate | None,
    durations: DurationModel,
    min_steps: int = 20,
    max_steps: int = 100,
    latest: float = 1.2,
    momentum: float = 0.9,
    staleness: Staleness | None = Polynomial(0.5),
    server_lr: Rate = 1.0,
    client_weights: str = "examples",
    average: str = "deltas",
) -> Method:
    """FedCompass: x <- x + eta * sum of p_i * s(tau_i) * delta_i over a group of clients.

    The server plans the local steps of each client so that groups of clients arrive together.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        durations: The time of a task, which should depend on its steps (`StepDurations`).
        min_steps: Q_min, 20 in most of the paper's experiments.
        max_steps: Q_max, 100 there.
        latest: lambda, how late a group may be: 1.2 in the paper.
        momentum: The share of a client's last task in the estimate of its speed.
        staleness: s; 1 / sqrt(1 + tau) by default.
        server_lr: eta.
        client_weights: p_i: "examples" for n_i / (sum of all n), or "uniform" for 1/M.
        average: "deltas", as in the authors' example, or "models", the default of their code.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Li et al., 2024, Algorithms 1 and 2, https://arxiv.org/abs/2309.14675.

    Example:
        >>> from fedlight.arrivals import StepDurations
        >>> fedcompass(lr=0.1, durations=StepDurations([0.1, 0.2, 0.5]))["arrivals"].max_steps
        100
    """
    arrivals = CompassArrivals(durations, min_steps, max_steps, latest, momentum)
    aggregator = FedCompass(None, staleness, server_lr, client_weights, average)
    return bundle("FedCompass", arrivals, aggregator, sgd(lr))


def fedasmu(
    *,
    lr: Rate,
    concurrency: int | None = None,
    refresh: float | None = 0.5,
    mu: float = 1.0,
    rate: float = 1e-3,
    max_staleness: int | None = None,
    local_steps: LocalSteps | int = LocalEpochs(5),
    durations: DurationModel | None = None,
) -> Method:
    """FedASMU: x <- (1 - a) * x + a * y with a learned for each client; tasks are refreshed once.

    In the middle of its task a client pulls the newest model, and mixes it with its own.

    Args:
        lr: The local learning rate.
        concurrency: The number of clients at work; None for all.
        refresh: The share of the local steps before the refresh; None for no refresh. The paper
            learns the moment by reinforcement learning.
        mu: mu_alpha and mu_beta, the scales of the server's and the clients' weights.
        rate: The rate of all learned numbers: the server's lambda, sigma and iota, and the clients'
            gamma and upsilon; 0 to learn none.
        max_staleness: Drop updates that are staler, or None.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for FedBuff's half-normal one (`settings.fedbuff`).

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Liu et al., 2024, Algorithms 1 and 2, https://arxiv.org/abs/2312.05770. The defaults of
    `mu`, `rate` and the epochs are not the paper's.

    Example:
        >>> method = fedasmu(lr=0.1, concurrency=10)
        >>> method["arrivals"].at, method["local_optimizer"]
        (0.5, FreshModel(LocalSGD(lr=0.1), gamma_rate=0.001, upsilon_rate=0.001))
    """
    times = settings.fedbuff() if durations is None else durations
    arrivals: ArrivalProcess = at_once(times, concurrency, local_steps)
    rate = non_negative("rate", rate)
    aggregator = FedASMU(
        mu,
        lam_rate=rate,
        sigma_rate=rate,
        iota_rate=rate,
        local_lr=as_rate("lr", lr),
        max_staleness=max_staleness,
    )
    if refresh is None:
        return bundle("FedASMU", arrivals, aggregator, LocalSGD(lr))
    if not 0 < number("refresh", refresh) < 1:
        raise ValueError(f"refresh must lie between 0 and 1, got {refresh!r}; or None for none")
    arrivals = RefreshedTasks(arrivals, refresh)
    local = FreshModel(LocalSGD(lr), mu, gamma_rate=rate, upsilon_rate=rate)
    return bundle("FedASMU", arrivals, aggregator, local)
