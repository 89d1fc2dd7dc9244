"""Low-communication training on a few unequal machines, the islands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from fedlight._support.checks import (
    Rate,
    below_one,
    decay_rates,
    positive,
    positive_int,
    shown,
)
from fedlight.aggregators import (
    DelayedNesterov,
    FedAvg,
    FedBuff,
    HALoS,
    HeLoCo,
    LookAhead,
    Ringmaster,
    ServerParams,
)
from fedlight.aggregators.staleness import Staleness, check_staleness
from fedlight.arrivals import (
    ContinuousArrivals,
    DurationModel,
    ExponentialDurations,
    LocalSteps,
    Regions,
    SynchronousArrivals,
)
from fedlight.arrivals.tiers import members_of
from fedlight.channel import Channel, ErrorFeedback, TopK
from fedlight.local_optimizers import LocalAdamW, LocalOptimizer, LocalSGD
from fedlight.local_optimizers.rates import LocalRate
from fedlight.methods._method import Method, bundle


def diloco(
    *,
    lr: LocalRate | None,
    local_steps: LocalSteps | int = 500,
    server_lr: float = 0.7,
    momentum: float = 0.9,
    keep: str = "client",
    durations: DurationModel | None = None,
    quorum: int | None = None,
    grace: float | None = None,
    late: str = "cancel",
) -> Method:
    """DiLoCo: a Nesterov step of the server along the mean delta of all islands, in rounds.

    Args:
        lr: The rate of AdamW on the islands; None for the module's own optimizer.
        local_steps: H.
        server_lr: The rate of the server's SGD.
        momentum: Its Nesterov momentum.
        keep: "client" for moments of AdamW that an island keeps, "task" for fresh ones.
        durations: The time of a task; None for one unit of virtual time.
        quorum: q: a round ends `grace` after its q-th arrival; None for all islands, as in the
            paper.
        grace: The time from the q-th arrival (the first, without `quorum`) to the end of the round.
        late: "cancel", "cut" or "continue": how a round that ends early treats late islands.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Douillard et al., 2023, Algorithm 1, https://arxiv.org/abs/2311.08105.

    Example:
        >>> diloco(lr=4e-4)["local_optimizer"]
        LocalAdamW(lr=0.0004, betas=(0.9, 0.999), weight_decay=0.01, keep='client')
    """
    server = partial(
        torch.optim.SGD,
        lr=positive("server_lr", server_lr),
        momentum=below_one("momentum", momentum),
        nesterov=momentum > 0,
    )
    arrivals = SynchronousArrivals(
        None, durations, local_steps, quorum=quorum, grace=grace, late=late
    )
    aggregator = FedAvg(client_weights="uniform", server_optimizer=server)
    return bundle("DiLoCo", arrivals, aggregator, _inner(lr, keep))


def sparse_loco(
    *,
    lr: LocalRate | None,
    share: float = 0.03125,
    decay: float = 0.95,
    quantizer: Channel | None = None,
    local_steps: LocalSteps | int = 30,
    server_lr: float = 1.0,
    momentum: float = 0.0,
    keep: str = "client",
    durations: DurationModel | None = None,
) -> Method:
    """SparseLoCo: DiLoCo in which an island sends the largest numbers and keeps a fading rest.

    ``u = delta_i + b * e_i``; an island sends ``Q(TopK(u))`` and keeps ``e_i <- u - Q(TopK(u))``;
    the server steps along the mean of what was sent.

    The memories e_i of the islands take the place of the server's momentum.

    Two parts differ from the paper's codes. TopK chooses from the whole update, not from each chunk
    of 4,096 numbers of a tensor. And Q is any channel; the codes' quantizer of 2 bits, whose four
    levels are taken from the values of a tensor, is not among ours.

    Args:
        lr: The rate of AdamW on the islands; None for the module's own optimizer.
        share: The share of the numbers that is sent, 1 to 3 % in the paper.
        decay: b, the factor of e_i in each round, from 0 to 1; 1 keeps all that was not sent.
        quantizer: Q, such as ``QSGD(4)``; None for none.
        local_steps: H.
        server_lr: The rate of the server's SGD, alpha.
        momentum: Its Nesterov momentum, in addition to the memories; 0 in the paper.
        keep: "client" for moments of AdamW that an island keeps, "task" for fresh ones.
        durations: The time of a task; None for one unit of virtual time.

    Returns:
        arrivals, aggregator, local optimizer and channel.

    Source: Sarfi, Thérien, Lidin, Belilovsky, 2025, https://arxiv.org/abs/2508.15706.

    Example:
        >>> sparse_loco(lr=4e-4)["channel"]
        ErrorFeedback(TopK(0.03125), decay=0.95)
    """
    rounds = diloco(
        lr=lr,
        local_steps=local_steps,
        server_lr=server_lr,
        momentum=momentum,
        keep=keep,
        durations=durations,
    )
    chosen: list[Channel] = [TopK(share)]
    if quantizer is not None:
        if not isinstance(quantizer, Channel):
            raise TypeError(
                f"quantizer must be a channel or None, got {shown(quantizer)}; for example QSGD(4)"
            )
        chosen.append(quantizer)
    channel = ErrorFeedback(chosen[0] if quantizer is None else chosen, decay=decay)
    return Method("SparseLoCo", {**rounds, "channel": channel})


def async_local_sgd(
    *,
    lr: LocalRate | None,
    period: int,
    local_steps: LocalSteps | int = 500,
    server_lr: Rate = 0.7,
    momentum: float = 0.9,
    c: float = 0.0,
    keep: str = "client",
    durations: DurationModel | None = None,
) -> Method:
    """Asynchronous Local-SGD with delayed Nesterov: each delta at once, the momentum once in N.

    Args:
        lr: The rate of AdamW on the islands; None for the module's own optimizer.
        period: N; in the paper's experiments the number of islands.
        local_steps: K; steps in proportion to the islands' speeds are the paper's dynamic local
            updates.
        server_lr: eta.
        momentum: b.
        c: How the momentum is spread over N updates, from 0 to 1/N.
        keep: "client" for moments of AdamW that an island keeps, "task" for fresh ones.
        durations: The time of a task; None for an exponential one of mean 1.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Liu et al., 2024, Algorithms 3 and 4, https://arxiv.org/abs/2401.09135.

    Example:
        >>> async_local_sgd(lr=4e-4, period=4)["aggregator"]
        DelayedNesterov(period=4, momentum=0.9, server_lr=0.7, c=0.0)
    """
    aggregator = DelayedNesterov(period, momentum, server_lr, c)
    arrivals = _islands(durations, local_steps)
    return bundle("asynchronous Local-SGD", arrivals, aggregator, _inner(lr, keep))


def look_ahead(
    *,
    lr: LocalRate | None,
    local_steps: LocalSteps | int = 500,
    server_lr: Rate = 0.7,
    momentum: float = 0.9,
    send: str = "look_ahead",
    keep: str = "client",
    durations: DurationModel | None = None,
) -> Method:
    """Momentum look-ahead (MLA): islands start where the momentum is about to take the model.

    Args:
        lr: The rate of AdamW on the islands; None for the module's own optimizer.
        local_steps: K.
        server_lr: eta.
        momentum: g.
        send: "look_ahead", or "model" as in a part of the public codes.
        keep: "client" for moments of AdamW that an island keeps, "task" for fresh ones.
        durations: The time of a task; None for an exponential one of mean 1.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Ajanthan et al., 2025, https://openreview.net/forum?id=4O8nzTkHPI.

    Example:
        >>> look_ahead(lr=4e-4)["aggregator"]
        LookAhead(momentum=0.9, server_lr=0.7, send='look_ahead')
    """
    aggregator = LookAhead(momentum, server_lr, send)
    return bundle("MLA", _islands(durations, local_steps), aggregator, _inner(lr, keep))


def heloco(
    *,
    lr: LocalRate | None,
    local_steps: LocalSteps | int = 500,
    server_lr: Rate = 0.7,
    momentum: float = 0.9,
    weight: float = 1.0,
    c_ok: float = 0.1,
    beta: float = 1.0,
    turn: float = 0.5,
    send: str = "look_ahead",
    keep: str = "client",
    durations: DurationModel | None = None,
) -> Method:
    """HeLoCo: each layer of an update is turned towards the server's momentum.

    Args:
        lr: The rate of AdamW on the islands; None for the module's own optimizer.
        local_steps: K.
        server_lr: eta.
        momentum: mu.
        weight: r, the weight of an update.
        c_ok: The smallest cosine of a layer that is left as it is.
        beta: The share of the opposing part that is removed.
        turn: How far a layer is turned (a reading).
        send: "look_ahead" or "model".
        keep: "client" for moments of AdamW that an island keeps, "task" for fresh ones.
        durations: The time of a task; None for an exponential one of mean 1.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: https://arxiv.org/abs/2606.00271, 2026.

    Example:
        >>> heloco(lr=4e-4, c_ok=0.2)["aggregator"].c_ok
        0.2
    """
    aggregator = HeLoCo(momentum, server_lr, weight, c_ok, beta, turn, send)
    return bundle("HeLoCo", _islands(durations, local_steps), aggregator, _inner(lr, keep))


def halos(
    *,
    lr: LocalRate | None,
    regions: Mapping[str, Sequence[int]],
    arrivals_per_send: int = 32,
    local_steps: LocalSteps | int = 8,
    server_lr: Rate = 0.3,
    momentum: float = 0.5,
    period: int = 2,
    region_lr: Rate = 3.2,
    region_momentum: float = 0.9,
    region_period: int = 16,
    alpha: float = 0.25,
    up: float | Mapping[str, float] = 0.0,
    down: float | Mapping[str, float] = 0.0,
    within: float | Mapping[str, float] = 0.0,
    keep: str = "client",
    durations: DurationModel | Mapping[str, DurationModel] | None = None,
) -> Method:
    """HALoS: a server in each region, which sends what it has summed up to a global server.

    Args:
        lr: The rate of AdamW on the islands; None for the module's own optimizer.
        regions: The islands of each region, by name.
        arrivals_per_send: K, the arrivals after which a region's server sends.
        local_steps: H.
        server_lr: eta of the global server, its rate in the paper (0.15) times N.
        momentum: b of the global server.
        period: N of the global server.
        region_lr: eta of the servers of regions, their rate in the paper (0.2) times N.
        region_momentum: Their b.
        region_period: Their N.
        alpha: a, the share of the global model when it returns.
        up: The time of a transfer from a region to the global server, for all regions or by name.
        down: The time of the transfer back.
        within: The time of each transfer between an island and its region's server.
        keep: "client" for moments of AdamW that an island keeps, "task" for fresh ones.
        durations: The time of a task, for all regions or by name (numbers for each client count
            the islands of the region); None for an exponential one of mean 1.

    Returns:
        arrivals, aggregator and local optimizer. The defaults are those of the public code's
        example of 4 regions with 4 islands each.

    Source: Kim et al., ICML 2025, Algorithm 1, https://arxiv.org/abs/2506.04531.

    Example:
        >>> method = halos(lr=4e-4, regions={"west": [0, 1], "east": [2, 3]}, up=0.5, down=0.5)
        >>> method["arrivals"].groups, method["aggregator"].alpha
        (('west', 'east'), 0.25)
    """
    aggregator = HALoS(
        period, momentum, server_lr, region_period, region_momentum, region_lr, alpha
    )
    if not isinstance(regions, Mapping):
        raise TypeError(
            "regions must be a mapping from names of regions to lists of clients, got "
            f'{regions!r}; for example {{"west": [0, 1], "east": [2, 3]}}'
        )
    if not regions:
        raise ValueError(f"regions must hold at least one region, got {shown(regions)}")
    if not all(isinstance(name, str) for name in regions):
        raise TypeError(
            "regions must be a mapping from names of regions to lists of clients, got "
            f"{shown(regions)}"
        )
    clients = members_of("regions", regions, regions, "region")
    own = durations if isinstance(durations, Mapping) else dict.fromkeys(regions, durations)
    if set(own) != set(regions):
        raise ValueError(
            f"durations must name the regions {', '.join(map(str, regions))}, got "
            f"{', '.join(map(str, own)) or 'none'}"
        )
    processes = {name: _islands(own[name], local_steps) for name in regions}
    arrivals = Regions(processes, clients, arrivals_per_send, up, down, within)
    return bundle("HALoS", arrivals, aggregator, _inner(lr, keep))


def cgad(
    *,
    lr: LocalRate | None,
    gate: Staleness,
    local_steps: LocalSteps | int = 500,
    server_lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    keep: str = "client",
    durations: DurationModel | None = None,
) -> Method:
    """CGAD: a step of Adam on the server along sigma(tau) * delta_i, at every arrival.

    Args:
        lr: The rate of AdamW on the islands; None for the module's own optimizer.
        gate: sigma, a function of the staleness, such as ``staleness.Exponential(0.5)``. The
            paper's gate also looks at the angle to the momentum; that part is left out.
        local_steps: K.
        server_lr: The rate of the server's Adam.
        betas: Its decay rates.
        keep: "client" for moments of AdamW that an island keeps, "task" for fresh ones.
        durations: The time of a task; None for an exponential one of mean 1.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: https://arxiv.org/abs/2605.09126, 2026.

    Example:
        >>> from fedlight.aggregators.staleness import Exponential
        >>> cgad(lr=4e-4, gate=Exponential(0.5))["aggregator"].staleness
        Exponential(a=0.5)
    """
    if gate is None:
        raise TypeError(
            "gate must be a function of the staleness, got None; for example "
            "fedlight.aggregators.staleness.Exponential(0.5), or Constant() for none"
        )
    check_staleness(gate, "gate")
    adam = partial(
        torch.optim.Adam,
        lr=positive("server_lr", server_lr),
        betas=decay_rates("betas", betas),
    )
    aggregator = FedBuff(1, gate, server_optimizer=adam)
    return bundle("CGAD", _islands(durations, local_steps), aggregator, _inner(lr, keep))


def ringmaster_muon(
    *,
    lr: LocalRate | None,
    max_delay: int,
    server_lr: float = 0.02,
    momentum: float = 0.9,
    other_lr: float = 1e-3,
    local_steps: LocalSteps | int = 1,
    durations: DurationModel | None = None,
) -> Method:
    """Ringmaster with Muon: a normalised step for each matrix, from updates of tau_i < R.

    Matrices move along the orthogonalised mean of the deltas, ``m <- momentum * m + (1 - momentum)
    * delta_i``, and the other parameters by AdamW.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        max_delay: R, the delay from which on an update is not used.
        server_lr: The rate of Muon.
        momentum: Its momentum, 1 - a of the paper.
        other_lr: The rate of AdamW for parameters that are no matrices.
        local_steps: K, 1 in the paper.
        durations: The time of a task; None for an exponential one of mean 1.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: https://arxiv.org/abs/2605.18174, 2026; the paper's step is a linear minimisation
    oracle; ``torch.optim.Muon`` is that of the spectral norm, by Newton-Schulz iterations.

    Example:
        >>> ringmaster_muon(lr=0.1, max_delay=6)["aggregator"].max_staleness
        5
    """
    server = partial(
        _muon_and_adamw,
        lr=positive("server_lr", server_lr),
        momentum=below_one("momentum", momentum),
        other_lr=positive("other_lr", other_lr),
    )
    aggregator = Ringmaster(positive_int("max_delay", max_delay) - 1, server_optimizer=server)
    local = None if lr is None else LocalSGD(lr)
    return bundle("Ringmaster Muon", _islands(durations, local_steps), aggregator, local)


def _muon_and_adamw(
    params: ServerParams, lr: float, momentum: float, other_lr: float
) -> Sequence[torch.optim.Optimizer]:
    """Muon for matrices and AdamW for all else, without weight decay; one may have nothing."""
    made: list[torch.optim.Optimizer] = []
    if params.matrices:
        made.append(
            torch.optim.Muon(
                params.matrices, lr=lr, momentum=momentum, nesterov=False, weight_decay=0.0
            )
        )
    if params.others:
        made.append(torch.optim.AdamW(params.others, lr=other_lr, weight_decay=0.0))
    return made


def _islands(durations: DurationModel | None, local_steps: LocalSteps | int) -> ContinuousArrivals:
    """All islands at work; each goes on with the newest model as soon as it has arrived."""
    times = ExponentialDurations(1.0) if durations is None else durations
    return ContinuousArrivals(times, resume="on_aggregation", local_steps=local_steps)


def _inner(lr: LocalRate | None, keep: str) -> LocalOptimizer | None:
    """AdamW on the islands; None for the module's own optimizer."""
    return None if lr is None else LocalAdamW(lr, keep=keep)
