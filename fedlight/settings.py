"""The delays of papers' experiments by name, so that tables can be compared.

Each function returns a duration model for `ContinuousArrivals`, `SynchronousArrivals`,
`PoissonArrivals` or `PolledArrivals`, or an arrival process if the paper has no clock. If a paper
leaves a number open, the docstring gives the number from its authors' code.

    >>> from fedlight import settings
    >>> from fedlight.arrivals import ContinuousArrivals
    >>> arrivals = ContinuousArrivals(settings.fadas("large"), concurrency=25, resume="on_arrival")
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from fedlight._support.checks import (
    client_count,
    flag,
    fraction,
    non_negative_int,
    number,
    one_of,
    positive,
    positive_int,
)
from fedlight.arrivals import (
    ArrivalProcess,
    ConstantSteps,
    DurationModel,
    ExponentialStepDurations,
    FixedDurations,
    HalfNormalDurations,
    LogNormalRates,
    MixedDurations,
    SumDurations,
    UniformArrivals,
    UniformDurations,
    UniformSpeeds,
    UniformSteps,
)
from fedlight.arrivals.durations import LONGEST

__all__ = [
    "anarchic",
    "area",
    "fadas",
    "fedbuff",
    "fedfix",
    "linear_random",
    "quafl",
    "sqrt_fixed",
    "sqrt_random",
]


def quafl(slow_share: float = 0.3) -> DurationModel:
    """QuAFL's fast and slow clients: each local step takes an exponential time.

    The mean of a step is 2 for fast clients and 8 for slow ones; the first
    ``ceil(slow_share * M)`` of the M clients are slow.

    Args:
        slow_share: Share of the slow clients, from 0 to 1. The authors' code has 0.3, and 0.25 to
            0.5 in its notebooks, for 20 clients, 5 per poll and at most 5 local steps.

    Source: Zakerinia, Talaei, Nadiradze and Alistarh, [QuAFL: Federated Averaging Can Be Both
    Asynchronous and Communication-Efficient](https://arxiv.org/abs/2206.10032), and its [authors'
    code](https://github.com/ShayanTalaei/QuAFL).

    Example:
        >>> quafl(0.25)
        MixedDurations([(0.25, ExponentialStepDurations(8.0)),
        (0.75, ExponentialStepDurations(2.0))])
    """
    share = fraction("slow_share", slow_share)
    slow, fast = ExponentialStepDurations(8.0), ExponentialStepDurations(2.0)
    if share in (0, 1):
        return slow if share else fast
    return MixedDurations([(share, slow), (1 - share, fast)])


FADAS_SHARES = (0.64, 0.28, 0.08)
"""The share of fast, medium and slow clients: where the largest of Dirichlet(3, 2, 1) lies."""


def fadas(delay: str = "mild") -> DurationModel:
    """FADAS's mild or large delays: fast, medium and slow clients with uniform times.

    A task takes U(1, 2) for a fast client, U(3, 5) for a medium one, and for a slow one U(5, 8)
    ("mild") or U(50, 80) ("large"). A client stays in its class, which is drawn with probabilities
    0.64, 0.28 and 0.08: the authors' code takes the largest of three numbers drawn from
    Dirichlet(3, 2, 1), and these are its probabilities to two digits.

    The paper has 50 clients and a buffer of 5. At any time 25 clients work, and the next one is
    drawn from the idle ones (``concurrency=25, resume="on_arrival"``).

    Args:
        delay: "mild" or "large".

    Source: Wang, Wang, Lu and Chen, [FADAS: Towards Federated Adaptive Asynchronous
    Optimization](https://arxiv.org/abs/2407.18365), and its [authors'
    code](https://github.com/yujiaw98/FADAS).
    """
    slow = (5.0, 8.0) if one_of("delay", delay, ("mild", "large")) == "mild" else (50.0, 80.0)
    times = ((1.0, 2.0), (3.0, 5.0), slow)
    classes = [
        (share, UniformDurations(*bounds))
        for share, bounds in zip(FADAS_SHARES, times, strict=True)
    ]
    return MixedDurations(classes, drawn=True)


def area(sigma: float = 0.1) -> DurationModel:
    """AREA's log-normal rates: client i uploads after exponential times of mean 1 / r_i.

    ``r_i = exp(sigma * z_i)``, z_i standard normal, drawn once for each client. The paper has 10
    clients and a buffer of 3.

    Args:
        sigma: Standard deviation of the logarithm of the rates.

    Source: Iakovidou and Kim, [Asynchronous Federated Learning: A Scalable Approach for
    Decentralized Machine Learning](https://arxiv.org/abs/2405.10123).
    """
    return LogNormalRates(sigma)


def sqrt_fixed(num_clients: int) -> DurationModel:
    """The fixed times of the time-complexity papers: ``T_i = sqrt(i + 1)`` for i = 0..M-1.

    Args:
        num_clients: M.

    Source: Tyurin and Richtarik, [Optimal Time Complexities of Parallel Stochastic Optimization
    Methods Under a Fixed Computation Model](https://arxiv.org/abs/2305.12387) (Rennala SGD).

    Example:
        >>> sqrt_fixed(4)
        FixedDurations([1.0, 1.4142135623730951, 1.7320508075688772, 2.0])
    """
    clients = range(1, client_count("num_clients", num_clients) + 1)
    return FixedDurations([sqrt(i) for i in clients])


def sqrt_random(num_clients: int, noise: float = 1.0, seed: int | None = None) -> DurationModel:
    """Ringmaster's random times: ``T = 1 + sqrt(i) + |N(0, noise^2 (i + 1))|`` for i = 0..M-1.

    Args:
        num_clients: M; 6174 in the script for MNIST, 8 in the one for a language model.
        noise: Standard deviation for i = 0: 1 in the script for MNIST. The other one has 0.05, and
            sqrt(i + 1) in place of sqrt(i).
        seed: Of the order in which the clients get the numbers 1 + sqrt(i), which the script
            shuffles, but not the noise; None for ascending ones.

    Source: Maranjyan, Tyurin and Richtarik, [Ringmaster ASGD: The First Asynchronous SGD with
    Optimal Time Complexity](https://arxiv.org/abs/2501.16168), and its authors' scripts.
    """
    count, noise = client_count("num_clients", num_clients), positive("noise", noise)
    fixed = [1 + sqrt(i) for i in range(count)]
    if seed is not None:
        seed = non_negative_int("seed", seed)
        fixed = np.random.default_rng(seed).permutation(fixed).tolist()
    if noise * sqrt(count) > LONGEST:
        raise ValueError(
            f"noise must be so small that durations of {count} clients are at most {LONGEST:,.0f} "
            f"units, got {noise!r}"
        )
    scales = [noise * sqrt(i + 1) for i in range(count)]
    return SumDurations([FixedDurations(fixed), HalfNormalDurations(scales)])


def linear_random(num_clients: int) -> DurationModel:
    """Ringmaster's quadratic experiment: ``T = i + |N(0, i)|`` for i = 1..M, of variance i.

    Args:
        num_clients: M; 6174 in the paper.

    Source: Maranjyan, Tyurin and Richtarik, [Ringmaster
    ASGD](https://arxiv.org/abs/2501.16168), Section on experiments. Recalled, and not checked in
    the text.
    """
    clients = range(1, client_count("num_clients", num_clients) + 1)
    scales = [sqrt(i) for i in clients]
    return SumDurations([FixedDurations([float(i) for i in clients]), HalfNormalDurations(scales)])


def fedbuff(scale: float = 1.0) -> DurationModel:
    """FedBuff's half-normal training times: ``T = scale * |z|``, z standard normal.

    The paper lets clients start at a constant rate (`PoissonArrivals` is the random one), and has a
    buffer of 10.

    Args:
        scale: In virtual time.

    Source: Nguyen et al., [Federated Learning with Buffered Asynchronous
    Aggregation](https://arxiv.org/abs/2106.06639), Section 5.
    """
    return HalfNormalDurations(scale)


def fedfix(percent: float) -> DurationModel:
    """FedFix's hardware scenarios F0 to F80: fixed times, evenly spaced.

    The fastest client takes ``percent`` % less than the slowest, which takes 1; the paper has 20
    clients and the scenarios F0, F20, F40, F60 and F80.

    Args:
        percent: From 0 to below 100.

    Source: Fraboni et al., [A General Theory for Federated Optimization with Asynchronous and
    Heterogeneous Clients Updates](https://arxiv.org/abs/2206.10189), Section 5.1.

    Example:
        >>> fedfix(80)
        UniformSpeeds(0.8, slowest=1)
    """
    if not 0 <= number("percent", percent) < 100:
        raise ValueError(f"percent must be from 0 to below 100, got {percent!r}: 80 for F80")
    return UniformSpeeds(percent / 100)


def anarchic(per_round: int = 5, steps: int = 5, dynamic: bool = False) -> ArrivalProcess:
    """The rounds of Anarchic Federated Learning: m clients, models of age 0 to 4.

    In each round m of the M clients arrive, each with an update from one of the last five models,
    all equally likely, after c local steps, or a number of them that is uniform from 1 to 2c. The
    paper has m = 5 of 10 clients and 20 of 100, and 150 rounds.

    Args:
        per_round: m.
        steps: c; 5 or 10 in the paper.
        dynamic: Whether the number of local steps is drawn.

    Source: Yang, Zhang, Khanduri and Liu, [Anarchic Federated
    Learning](https://arxiv.org/abs/2108.09875), Section 6.

    Example:
        >>> anarchic(steps=10)
        UniformArrivals(per_round=5, max_staleness=4, local_steps=ConstantSteps(10))
    """
    steps = positive_int("steps", steps)
    drawn = flag("dynamic", dynamic)
    policy = UniformSteps(1, 2 * steps) if drawn else ConstantSteps(steps)
    return UniformArrivals(per_round, max_staleness=4, local_steps=policy)
