"""Methods whose server steps after every m updates, and then forgets them."""

from __future__ import annotations

from fedlight import settings
from fedlight._support.checks import Rate, positive_int
from fedlight.aggregators import AFACD, FADAS, FedBuff, FedBuffMA, PrivateSum
from fedlight.aggregators.staleness import Polynomial, Staleness
from fedlight.arrivals import DurationModel, LocalEpochs, LocalSteps
from fedlight.methods._arrivals import at_once, drawn_or_by_the_clock
from fedlight.methods._method import Method, bundle, sgd


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
    arrivals = at_once(times, concurrency, local_steps)
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
    arrivals = at_once(times, concurrency, local_steps)
    aggregator = FedBuffMA(positive_int("buffer_size", buffer_size), momentum, server_lr)
    return bundle("FedBuff-MA-Light", arrivals, aggregator, sgd(lr))


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
    return bundle("FADAS", at_once(times, concurrency, local_steps), aggregator, sgd(lr))


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
    arrivals = drawn_or_by_the_clock(
        buffer_size, max_staleness, local_steps, durations, concurrency
    )
    size = None if durations is None else buffer_size  # None: a round is a step
    return bundle("AFA-CD", arrivals, AFACD(size, server_lr), sgd(lr))
