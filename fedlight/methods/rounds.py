"""Methods whose papers have rounds: the server waits for the clients of a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedlight._support.checks import Rate, decay_rates, positive, shown
from fedlight.aggregators import FedAT, FedAvg, MindFlayer
from fedlight.arrivals import (
    ConstantStaleness,
    DurationModel,
    ExponentialDurations,
    HalfNormalDurations,
    LocalEpochs,
    LocalSteps,
    LogNormalDurations,
    SynchronousArrivals,
    Tiers,
    TrialRounds,
    UniformDurations,
)
from fedlight.arrivals.durations import as_durations
from fedlight.local_optimizers import FedProx
from fedlight.methods._method import Method, bundle, sgd

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
