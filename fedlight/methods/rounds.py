"""Methods whose papers have rounds: the server waits for the clients of a round, or polls them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedlight import settings
from fedlight._support.checks import (
    Rate,
    below_one,
    decay_rates,
    fraction,
    non_negative,
    optional,
    positive,
    rate,
    shown,
)
from fedlight.aggregators import (
    FAVAS,
    MIFA,
    AsyncCommSGD,
    FedAT,
    FedAvg,
    FedDynServer,
    FedNova,
    FedVARP,
    Lattice,
    MindFlayer,
    QuAFL,
)
from fedlight.arrivals import (
    Availability,
    CommunicationPattern,
    ConstantStaleness,
    DurationModel,
    ExponentialDurations,
    FixedDurations,
    HalfNormalDurations,
    LocalEpochs,
    LocalSteps,
    LogNormalDurations,
    PartialWork,
    PolledArrivals,
    SynchronousArrivals,
    TickPattern,
    Tiers,
    TrialRounds,
    UniformDurations,
    Windows,
)
from fedlight.arrivals._per_client import as_list
from fedlight.arrivals.durations import as_durations
from fedlight.local_optimizers import SAM, FedDyn, FedProx, OwnModel, Scaffold
from fedlight.methods._method import Method, bundle, sgd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.arrivals import ArrivalProcess


def fedavg(
    *,
    lr: Rate | None,
    per_round: int | None,
    local_steps: LocalSteps | int = LocalEpochs(5),
    durations: DurationModel | None = None,
    over_select: int | None = None,
    timeout: float | None = None,
    quorum: int | None = None,
    grace: float | None = None,
    late: str = "cancel",
) -> Method:
    """FedAvg: x <- x + sum over S of (n_i / sum over S of n_j) * delta_i, in synchronous rounds.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        per_round: m, the clients of a round; None for all. The paper has a share C of 0.1.
        local_steps: K, or a policy for it: E = 5 local epochs, as in the paper's comparisons.
        durations: The time of a task; None for one unit of virtual time.
        over_select: The number of clients that a round does not wait for (Bonawitz et al. 2019).
        timeout: The longest time of a round.
        quorum: q: a round ends `grace` after its q-th arrival; None for no such end.
        grace: The time from the q-th arrival (the first, without `quorum`) to the end of the round.
        late: "cancel", "cut" or "continue": how a round that ends early treats late clients.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: McMahan et al., 2017, Algorithm 1, https://arxiv.org/abs/1602.05629. Weights are
    normalised over the participants.

    Example:
        >>> fedavg(lr=0.1, per_round=10)["aggregator"]
        FedAvg(buffer_size=None, client_weights='examples')
    """
    arrivals = SynchronousArrivals(
        per_round, durations, local_steps, over_select, timeout, late, quorum, grace
    )
    return bundle("FedAvg", arrivals, FedAvg(), sgd(lr))


def delayed_sgd(
    *,
    lr: Rate | None,
    tau: int,
    per_round: int = 1,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = 1,
) -> Method:
    """SGD with a fixed delay: x_(t+1) = x_t + eta * (mean of m deltas from the version x_(t-tau)).

    With the defaults, x_(t+1) = x_t - eta * lr * g(x_(t-tau)), where the gradients are those of one
    client after another. In the first tau steps the version is x_0.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        tau: The delay, in versions.
        per_round: m, the number of clients whose updates make a step; there must be
            (tau + 1) * m clients or more.
        server_lr: eta.
        local_steps: K, 1 in the paper.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Arjevani, Shamir, Srebro, 2020, https://arxiv.org/abs/1806.10188. The paper has a single
    loss; here each client has its own.

    Example:
        >>> delayed_sgd(lr=0.1, tau=4)["arrivals"].tau
        4
    """
    arrivals = ConstantStaleness(tau, per_round, local_steps)
    aggregator = FedAvg(client_weights="uniform", server_lr=server_lr)
    return bundle("delayed SGD", arrivals, aggregator, sgd(lr))


def fedadam(
    *,
    server_lr: float,
    lr: Rate | None,
    per_round: int | None,
    betas: tuple[float, float] = (0.9, 0.99),
    tau: float = 1e-3,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """FedAdam: Adam on the server, whose gradient is minus the mean delta of a round.

    Args:
        server_lr: eta, which the paper tunes; 0.01 to 0.1 are usual.
        lr: The local learning rate; None for the module's own optimizer.
        per_round: m, the clients of a round; None for all.
        betas: beta_1 and beta_2.
        tau: The number that is added to the root, called eps in torch.
        local_steps: K, or a policy for it: one local epoch, as in the paper.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Reddi et al., Adaptive Federated Optimization, 2021, Algorithm 2,
    https://arxiv.org/abs/2003.00295. torch's Adam corrects the bias of its moments; the paper's
    does not.

    Example:
        >>> sorted(fedadam(server_lr=0.01, lr=0.1, per_round=10))
        ['aggregator', 'arrivals', 'local_optimizer']
    """
    adam = partial(
        torch.optim.Adam,
        lr=positive("server_lr", server_lr),
        betas=decay_rates("betas", betas),
        eps=positive("tau", tau),
    )
    arrivals = SynchronousArrivals(per_round, durations, local_steps)
    return bundle("FedAdam", arrivals, FedAvg(server_optimizer=adam), sgd(lr))


def fedprox(
    *,
    lr: Rate,
    mu: float,
    per_round: int | None = 10,
    stragglers: float = 0.0,
    local_steps: LocalSteps | int = LocalEpochs(20),
    durations: DurationModel | None = None,
) -> Method:
    """FedProx: FedAvg whose clients minimise f_i(y) + (mu / 2) * |y - x_p|^2.

    Args:
        lr: The local learning rate.
        mu: The weight of the proximal term, which the paper chooses among 0.001, 0.01, 0.1 and 1.
        per_round: m, the clients of a round; None for all.
        stragglers: The share of tasks that stop early and send what they have: 0, 0.5 or 0.9.
        local_steps: K, or a policy for it: E = 20 local epochs, as in the paper.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Li et al., 2020, Algorithm 2, https://arxiv.org/abs/1812.06127. The paper draws clients
    by n_i and averages evenly; here they are drawn evenly and averaged by n_i.

    Example:
        >>> fedprox(lr=0.01, mu=1.0, stragglers=0.5)["local_optimizer"].mu
        1.0
    """
    arrivals: ArrivalProcess = SynchronousArrivals(per_round, durations, local_steps)
    if fraction("stragglers", stragglers):
        arrivals = PartialWork(arrivals, stragglers)
    return bundle("FedProx", arrivals, FedAvg(), FedProx(lr, mu))


def scaffold(
    *,
    lr: Rate,
    per_round: int | None,
    server_lr: Rate = 1.0,
    option: int = 2,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """SCAFFOLD: x <- x + eta * mean of delta_i, local steps along g - c_i + c.

    Args:
        lr: The local learning rate.
        per_round: m, the clients of a round; None for all. The paper has 20 % of them.
        server_lr: eta, which is 1 in the experiments.
        option: How a client renews c_i: 1 by the gradient at x_p over all its examples, 2 from the
            steps made.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Karimireddy et al., 2020, Algorithm 1, https://arxiv.org/abs/1910.06378.

    Example:
        >>> scaffold(lr=0.1, per_round=20)["aggregator"]
        FedAvg(buffer_size=None, client_weights='uniform')
    """
    arrivals = SynchronousArrivals(per_round, durations, local_steps)
    aggregator = FedAvg(client_weights="uniform", server_lr=server_lr)
    return bundle("SCAFFOLD", arrivals, aggregator, Scaffold(lr, option))


def fednova(
    *,
    lr: Rate | None,
    per_round: int | None = None,
    momentum: float = 0.0,
    mu: float = 0.0,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = LocalEpochs(2),
    durations: DurationModel | None = None,
) -> Method:
    """FedNova: x <- x + eta * tau_eff * sum of w_i * delta_i / a_i, tau_eff = sum of w_i * a_i.

    a_i is that of the local rule, so client and server get the same momentum or proximal term.

    Args:
        lr: The local learning rate; None for the module's own optimizer, which must be plain SGD.
        per_round: m, the clients of a round; None for all, as in the paper.
        momentum: rho of the clients' SGD.
        mu: The weight of a proximal term; not together with `momentum`.
        server_lr: eta.
        local_steps: K, or a policy for it; the paper has 2 local epochs, or 2 to 5 drawn anew.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Wang et al., 2020, https://arxiv.org/abs/2007.07481.

    Example:
        >>> method = fednova(lr=0.05, momentum=0.9)
        >>> method["aggregator"].momentum == method["local_optimizer"].momentum
        True
    """
    mu, momentum = non_negative("mu", mu), below_one("momentum", momentum)
    lr = optional(rate, "lr", lr)
    if lr is None and (mu or momentum):
        name = f"mu={mu:g}" if mu else f"momentum={momentum:g}"
        raise ValueError(f"{name} needs lr, the learning rate of the clients, got None")
    aggregator = FedNova(server_lr=server_lr, momentum=momentum, mu=mu, local_lr=lr)
    arrivals = SynchronousArrivals(per_round, durations, local_steps)
    local = FedProx(lr, mu) if mu and lr is not None else sgd(lr, momentum)
    return bundle("FedNova", arrivals, aggregator, local)


def feddyn(
    *,
    lr: Rate,
    per_round: int | None,
    alpha: float = 0.01,
    local_steps: LocalSteps | int = LocalEpochs(5),
    durations: DurationModel | None = None,
) -> Method:
    """FedDyn: h <- h - (alpha / M) * sum of delta_i; then x <- x + mean of delta_i - h / alpha.

    The clients' steps are along ``g - h_i + alpha * (y - x_p)``, with the same alpha.

    Args:
        lr: The local learning rate; 0.1 in the authors' code.
        per_round: m, the clients of a round; None for all.
        alpha: The weight of the dynamic regulariser; 0.01 for CIFAR-10 in the authors' code.
        local_steps: K, or a policy for it: 5 local epochs, as in the authors' code.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Acar et al., 2021, Algorithm 1, https://arxiv.org/abs/2111.04263.

    Example:
        >>> method = feddyn(lr=0.1, per_round=10)
        >>> method["aggregator"].alpha == method["local_optimizer"].alpha
        True
    """
    arrivals = SynchronousArrivals(per_round, durations, local_steps)
    return bundle("FedDyn", arrivals, FedDynServer(alpha), FedDyn(lr, alpha))


def fedsam(
    *,
    lr: Rate,
    per_round: int | None,
    rho: float = 0.05,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """FedSAM: FedAvg with local steps along the gradient at y + rho * g / norm of g.

    Args:
        lr: The local learning rate.
        per_round: m, the clients of a round; None for all.
        rho: The radius of the step uphill; the default is that of SAM's paper.
        local_steps: K, or a policy for it. A step takes two gradients.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, 2022,
    https://arxiv.org/abs/2206.02618; Foret et al., 2021, Algorithm 1,
    https://arxiv.org/abs/2010.01412. Neither text was checked for this function.

    Example:
        >>> fedsam(lr=0.1, per_round=10)["local_optimizer"].rho
        0.05
    """
    arrivals = SynchronousArrivals(per_round, durations, local_steps)
    return bundle("FedSAM", arrivals, FedAvg(client_weights="uniform"), SAM(lr, rho))


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


def mindflayer(
    *,
    lr: Rate | None,
    allotted: float | Sequence[float],
    trials: int | Sequence[int],
    probabilities: float | Sequence[float] | None = None,
    equal: str = "trials",
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = 1,
    durations: DurationModel | None = None,
) -> Method:
    """MindFlayer SGD: x <- x + eta * (1/B) * sum of the deltas of trials that end in time.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        allotted: t_i, after which a trial is given up, for all clients or for each.
        trials: B_i, the trials of a client in a round.
        probabilities: p_i, that a trial ends in time; None to compute it for exponential,
            half-normal, log-normal and uniform durations.
        equal: "trials"; or "clients" for Vecna SGD, for clients whose data differ.
        server_lr: eta.
        local_steps: K, 1 in the paper.
        durations: The time of a trial; None for an exponential one of mean 1.

    Returns:
        arrivals, aggregator and local optimizer.

    Raises:
        ValueError: `probabilities` is None, and other durations are given.

    Source: Maranjyan, Shaikh Omar, Richtárik, 2025, https://arxiv.org/abs/2410.04285.

    Example:
        >>> round(mindflayer(lr=0.1, allotted=0.7, trials=4)["aggregator"].probabilities, 6)
        0.503415
    """
    times = ExponentialDurations(1.0) if durations is None else durations
    arrivals = TrialRounds(times, allotted, trials, local_steps)
    p = _in_time(times, arrivals.allotted) if probabilities is None else probabilities
    aggregator = MindFlayer(trials, p, equal, server_lr=server_lr)
    return bundle("MindFlayer SGD", arrivals, aggregator, sgd(lr))


def _in_time(durations: DurationModel, allotted: float | Sequence[float]) -> float | list[float]:
    """P(duration <= t_i), a number for all clients or for each."""
    limits = np.asarray(allotted, dtype=np.float64)
    if isinstance(durations, ExponentialDurations):
        found = -np.expm1(-limits / np.asarray(durations.mean))
    elif isinstance(durations, HalfNormalDurations):
        found = 1 - 2 * _above(limits / np.asarray(durations.scale))
    elif isinstance(durations, LogNormalDurations):
        ratio = limits / np.asarray(durations.median)
        if durations.sigma:
            found = _above(-np.log(ratio) / durations.sigma)
        else:
            found = (ratio >= 1).astype(np.float64)
    elif isinstance(durations, UniformDurations):
        low, high = np.asarray(durations.low), np.asarray(durations.high)
        width = np.maximum(high - low, 1e-300)
        found = np.where(limits < low, 0.0, np.clip((limits - low) / width, 0.0, 1.0))
        found = np.where(limits >= high, 1.0, found)
    else:
        raise ValueError(
            f"probabilities must be given for {durations!r}: P(duration <= allotted) of each "
            "client, such as probabilities=0.5 if that is the median; it is computed for "
            "ExponentialDurations, HalfNormalDurations, LogNormalDurations and UniformDurations"
        )
    in_time: float | list[float] = found.tolist()
    return in_time


def _above(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(a standard normal number is above z)."""
    above = np.vectorize(lambda each: math.erfc(each / math.sqrt(2)) / 2, otypes=[np.float64])
    return np.asarray(above(z))


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


def fedat(
    *,
    lr: Rate,
    tiers: Mapping[str, Sequence[int]],
    durations: Mapping[str, DurationModel],
    per_round: int | None = None,
    mu: float = 0.4,
    local_steps: LocalSteps | int = LocalEpochs(3),
) -> Method:
    """FedAT: x <- sum over the G tiers of (T_{G+1-k} / T) * X_k when a tier ends its round.

    A tier has synchronous rounds of its own, and the tiers do not wait for one another.

    Args:
        lr: The local learning rate.
        tiers: The clients of each tier by name, the fastest tier first.
        durations: The time of a task in each tier, by the same names.
        per_round: The clients of a round in a tier; None for all of the tier.
        mu: The weight of the proximal term, lambda in the paper.
        local_steps: K, or a policy for it: 3 local epochs, as in the paper.

    Returns:
        arrivals, aggregator and local optimizer.

    Raises:
        ValueError: `tiers` and `durations` do not have the same names.

    Source: Chai et al., 2021, Section 4, https://arxiv.org/abs/2010.05958, without
    re-tiering and compression. The values of mu and of the epochs are from the literature.

    Example:
        >>> from fedlight.arrivals import ExponentialDurations
        >>> method = fedat(
        ...     lr=0.1,
        ...     tiers={"fast": [0, 1, 2], "slow": [3, 4]},
        ...     durations={"fast": ExponentialDurations(0.3), "slow": ExponentialDurations(1.0)},
        ... )
        >>> method["arrivals"].groups
        ('fast', 'slow')
    """
    for name, value in (("tiers", tiers), ("durations", durations)):
        if not isinstance(value, Mapping):
            raise TypeError(f"{name} must be a mapping from the names of tiers, got {shown(value)}")
    if not tiers:
        raise ValueError(f"tiers must hold at least one tier, got {shown(tiers)}")
    if list(tiers) != list(durations):
        raise ValueError(
            f"durations must have one entry for each tier, {list(tiers)} in this order, got "
            f"{list(durations)}, from durations={shown(durations)} and tiers={shown(tiers)}"
        )
    processes = {
        name: SynchronousArrivals(
            per_round, as_durations(each, f"durations[{name!r}]"), local_steps
        )
        for name, each in durations.items()
    }
    return bundle("FedAT", Tiers(processes, tiers), FedAT(), FedProx(lr, mu))


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
