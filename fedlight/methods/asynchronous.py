"""Methods without rounds: each update arrives when its client has finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlight import settings
from fedlight._support.checks import (
    Rate,
    flag,
    non_negative,
    non_negative_int,
    number,
    positive_int,
)
from fedlight._support.checks import rate as as_rate
from fedlight.aggregators import (
    AFACD,
    AFACS,
    AREA,
    CA2FL,
    DCASGD,
    FADAS,
    MIFA,
    AsyncFedAvg,
    FedASMU,
    FedAsync,
    FedBuff,
    FedBuffMA,
    FedCompass,
    FedFix,
    GeneralizedAsyncSGD,
    Malenia,
    PrivateSum,
    Rennala,
    Ringleader,
    Ringmaster,
)
from fedlight.aggregators.staleness import DelayAdaptive, Polynomial
from fedlight.arrivals import (
    ArrivalProcess,
    BiasedArrivals,
    CompassArrivals,
    ContinuousArrivals,
    DurationModel,
    ExponentialDurations,
    LocalEpochs,
    LocalSteps,
    RefreshedTasks,
    UniformArrivals,
)
from fedlight.local_optimizers import FedProx, FreshModel, LocalSGD
from fedlight.methods._method import Method, bundle, sgd

if TYPE_CHECKING:
    from fedlight.aggregators.staleness import Staleness


def fedbuff(
    *,
    concurrency: int | None,
    lr: Rate | None,
    buffer_size: int = 10,
    server_lr: Rate = 1.0,
    staleness: Staleness | None = Polynomial(0.5),
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """FedBuff: x <- x + eta * (1/m) * sum of s(tau_i) * delta_i, after every m updates.

    When a client arrives, another one starts at once (``resume="on_arrival"``), so the number of
    clients at work is constant.

    Args:
        concurrency: The number of clients at work; None for all.
        lr: The local learning rate; None for the module's own optimizer.
        buffer_size: m, called K in the paper, which recommends 10.
        server_lr: eta, which the paper tunes.
        staleness: s; 1 / sqrt(1 + tau) in the paper.
        local_steps: K, or a policy for it: one local epoch, as in the paper.
        durations: The time of a task; None for the paper's half-normal one (`settings.fedbuff`).

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Nguyen et al., 2022, Algorithm 1, https://arxiv.org/abs/2106.06639.

    Example:
        >>> method = fedbuff(concurrency=100, buffer_size=10, lr=0.1)
        >>> method["arrivals"].concurrency, method["arrivals"].resume
        (100, 'on_arrival')
    """
    times = settings.fedbuff() if durations is None else durations
    arrivals = _at_once(times, concurrency, local_steps)
    return bundle("FedBuff", arrivals, FedBuff(buffer_size, staleness, server_lr), sgd(lr))


def dp_fedbuff(
    *,
    noise_multiplier: float,
    clipping_norm: float,
    concurrency: int | None,
    lr: Rate | None,
    buffer_size: int = 10,
    server_lr: Rate = 1.0,
    staleness: Staleness | None = Polynomial(0.5),
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """FedBuff with noise at the buffer: the server clips each update and adds noise to their sum.

    `fedlight.privacy_report` has the epsilon, before the run, and the noise multiplier for a wanted
    one (``report.noise_multiplier_for(8.0)``). With the default `local_steps` the numbers of the
    clients' examples show in the schedule, which is public; a number of steps keeps them out of it.

    Args:
        noise_multiplier: z, the deviation of the noise over the sensitivity of the sum.
        clipping_norm: C, the largest norm of an update.
        concurrency: The number of clients at work; None for all.
        lr: The local learning rate; None for the module's own optimizer.
        buffer_size: m; the noise on the mean update is smaller by 1 / m.
        server_lr: eta.
        staleness: s; it depends on the schedule alone.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for FedBuff's half-normal one (`settings.fedbuff`).

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Nguyen et al., 2022, https://arxiv.org/abs/2106.06639, whose abstract says that FedBuff
    is compatible with secure aggregation and differential privacy, and compares it under
    differentially private training. The mechanism is that of McMahan et al., 2018, Algorithm 1 with
    flat clipping, https://arxiv.org/abs/1710.06963; that it stands at the buffer, and that its
    deviation follows the largest weight of a step, are readings (`PrivateSum`).

    Example:
        >>> dp_fedbuff(
        ...     noise_multiplier=1.0, clipping_norm=0.5, concurrency=20, lr=0.1, staleness=None
        ... )["aggregator"]
        PrivateSum(FedBuff(buffer_size=10, staleness=Constant(), normalize='buffer'),
            noise_multiplier=1.0, clipping_norm=0.5)
    """
    buffered = fedbuff(
        concurrency=concurrency,
        lr=lr,
        buffer_size=buffer_size,
        server_lr=server_lr,
        staleness=staleness,
        local_steps=local_steps,
        durations=durations,
    )
    aggregator = PrivateSum(buffered["aggregator"], noise_multiplier, clipping_norm)
    return bundle("DP-FedBuff", buffered["arrivals"], aggregator, sgd(lr))


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
    arrivals = _at_once(times, concurrency, local_steps)
    return bundle("CA2FL", arrivals, CA2FL(buffer_size, server_lr), sgd(lr))


def fadas(
    *,
    lr: Rate | None = 0.1,
    concurrency: int | None = 25,
    buffer_size: int = 5,
    server_lr: Rate = 1e-3,
    tau_c: int = 1,
    delay: str = "reciprocal",
    local_steps: LocalSteps | int = LocalEpochs(2),
    durations: DurationModel | None = None,
) -> Method:
    """FADAS: x <- x + eta_t * u / (sqrt(w_max) + eps), AMSGrad on the mean delta of m updates.

    The defaults are those of the authors' code with delay-adaptive rates, for 50 clients.

    Args:
        lr: The local learning rate; None for the module's own optimizer.
        concurrency: The number of clients at work; None for all.
        buffer_size: m.
        server_lr: eta. The authors' code has 1e-3 with delay-adaptive rates, 1e-4 without.
        tau_c: The largest staleness that does not reduce the rate.
        delay: "reciprocal", "divided" or "none", see `fedlight.aggregators.FADAS`.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for the paper's mild delays (`settings.fadas`).

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Wang et al., 2024, https://arxiv.org/abs/2407.18365, and the
    authors' code.

    Example:
        >>> fadas(delay="none", server_lr=1e-4)["arrivals"].concurrency
        25
    """
    times = settings.fadas() if durations is None else durations
    aggregator = FADAS(buffer_size, server_lr, tau_c=tau_c, delay=delay)
    return bundle("FADAS", _at_once(times, concurrency, local_steps), aggregator, sgd(lr))


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
    return bundle("AREA", _at_once(times, concurrency, local_steps), AREA(buffer_size), sgd(lr))


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
    arrivals = _at_once(durations, concurrency, local_steps)
    return bundle("ACE", arrivals, MIFA(1, server_lr), sgd(lr))


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
    arrivals = _at_once(durations, concurrency, local_steps)
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
    aggregator = DCASGD(lam, server_lr, local_lr=as_rate("lr", lr), decay=decay)
    arrivals = _at_once(durations, concurrency, local_steps)
    return bundle("DC-ASGD", arrivals, aggregator, sgd(lr))


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
    arrivals = _at_once(durations, concurrency, local_steps, restart)
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
    arrivals = _at_once(durations, concurrency, local_steps, 1 if flag("stops", stops) else None)
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
    arrivals = _at_once(durations, None, local_steps, 1 if flag("stops", stops) else None)
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
    arrivals = _at_once(durations, None, local_steps)
    return bundle("Ringleader ASGD", arrivals, Ringleader(server_lr), sgd(lr))


def fedbuff_ma(
    *,
    concurrency: int | None,
    lr: Rate | None,
    buffer_size: int = 10,
    momentum: float = 0.9,
    server_lr: Rate = 1.0,
    local_steps: LocalSteps | int = LocalEpochs(1),
    durations: DurationModel | None = None,
) -> Method:
    """FedBuff-MA-Light: m <- u * (mean delta) + v * m, x <- x + eta * m, after every m updates.

    u and v follow from the versions that the clients pulled, so that m is as near as possible to
    the momentum of synchronous training.

    Args:
        concurrency: The number of clients at work; None for all.
        lr: The local learning rate; None for the module's own optimizer.
        buffer_size: m.
        momentum: b.
        server_lr: eta.
        local_steps: K, or a policy for it.
        durations: The time of a task; None for that of `fedbuff`, half-normal.

    Returns:
        arrivals, aggregator and local optimizer.

    Source: Yu, Song, Wang, Chitnis, 2024, https://arxiv.org/abs/2402.09247.

    Example:
        >>> fedbuff_ma(concurrency=100, lr=0.1)["aggregator"]
        FedBuffMA(buffer_size=10, momentum=0.9)
    """
    times = settings.fedbuff() if durations is None else durations
    arrivals = _at_once(times, concurrency, local_steps)
    aggregator = FedBuffMA(positive_int("buffer_size", buffer_size), momentum, server_lr)
    return bundle("FedBuff-MA-Light", arrivals, aggregator, sgd(lr))


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
    arrivals = _drawn_or_by_the_clock(1, max_staleness, local_steps, durations, concurrency)
    local = FedProx(lr, rho) if rho and lr is not None else sgd(lr)
    return bundle("FedAsync", arrivals, FedAsync(alpha, staleness), local)


def afa_cd(
    *,
    lr: Rate | None = 0.1,
    buffer_size: int = 5,
    server_lr: Rate = 1.0,
    max_staleness: int = 4,
    local_steps: LocalSteps | int = 5,
    durations: DurationModel | None = None,
    concurrency: int | None = None,
) -> Method:
    """AFA-CD: x <- x + eta * (1/m) * sum over the m updates of delta_i / K_i.

    A step has the length of one local step: beside rules that do not divide by K_i, such as
    `fedbuff`, start from a `server_lr` of about K.

    Args:
        lr: The local learning rate, 0.1 in the paper; None for the module's own optimizer.
        buffer_size: m: 5 of 10 clients, or 20 of 100, in the paper.
        server_lr: eta, 1 in the paper's experiments with images.
        max_staleness: Without `durations`, the age of a client's model is drawn evenly from 0 to
            this: the paper's last five models.
        local_steps: K, or a policy for it: 5 or 10 in the paper, or ``UniformSteps(1, 10)``.
        durations: The time of a task, for arrivals by the clock: each client goes on at once.
        concurrency: With `durations`, the number of clients at work; None for all.

    Returns:
        arrivals, aggregator and local optimizer.

    Raises:
        ValueError: `concurrency` is given without `durations`.

    Source: Yang et al., 2022, Algorithm 2 and Appendix E.1, https://arxiv.org/abs/2108.09875.

    Example:
        >>> afa_cd()["arrivals"]
        UniformArrivals(per_round=5, max_staleness=4, local_steps=ConstantSteps(5))
    """
    arrivals = _drawn_or_by_the_clock(
        buffer_size, max_staleness, local_steps, durations, concurrency
    )
    size = None if durations is None else buffer_size  # None: a round is a step
    return bundle("AFA-CD", arrivals, AFACD(size, server_lr), sgd(lr))


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
    arrivals = _drawn_or_by_the_clock(
        buffer_size, max_staleness, local_steps, durations, concurrency
    )
    size = None if durations is None else buffer_size  # None: a round is a step
    return bundle("AFA-CS", arrivals, AFACS(size, server_lr), sgd(lr))


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
    arrivals = _after_aggregation(durations, local_steps)
    aggregator = AsyncFedAvg(weights, client_weights, server_lr)
    return bundle("asynchronous FedAvg", arrivals, aggregator, sgd(lr))


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
    arrivals = _after_aggregation(durations, local_steps)
    aggregator = FedFix(interval, client_weights, server_lr)
    return bundle("FedFix", arrivals, aggregator, sgd(lr))


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
    arrivals: ArrivalProcess = _at_once(times, concurrency, local_steps)
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


def _at_once(
    durations: DurationModel | None,
    concurrency: int | None,
    local_steps: LocalSteps | int,
    restart_after: int | None = None,
) -> ContinuousArrivals:
    """Clients that go on when they arrive."""
    times = ExponentialDurations(1.0) if durations is None else durations
    return ContinuousArrivals(
        times, concurrency, 0.0, "on_arrival", local_steps, restart_after=restart_after
    )


def _after_aggregation(
    durations: DurationModel | None, local_steps: LocalSteps | int
) -> ContinuousArrivals:
    """Clients that wait until their update was used, by default with the speeds of F80."""
    times = settings.fedfix(80) if durations is None else durations
    return ContinuousArrivals(times, resume="on_aggregation", local_steps=local_steps)


def _drawn_or_by_the_clock(
    buffer_size: int,
    max_staleness: int,
    local_steps: LocalSteps | int,
    durations: DurationModel | None,
    concurrency: int | None,
) -> ArrivalProcess:
    """Rounds with a drawn staleness, as in the papers' experiments; by the clock with durations."""
    buffer_size = positive_int("buffer_size", buffer_size)
    max_staleness = non_negative_int("max_staleness", max_staleness)
    if durations is not None:
        return _at_once(durations, concurrency, local_steps)
    if concurrency is not None:
        raise ValueError(
            f"concurrency={concurrency!r} needs durations, such as ExponentialDurations(1.0), "
            "got durations=None; without them the staleness is drawn, and nobody is at work by a "
            "clock"
        )
    return UniformArrivals(buffer_size, max_staleness, local_steps)
