"""The differential privacy of a run, from the schedule alone.

Noise is added by the clients (`channel.GaussianNoise`, local) or by the server to its sum
(`aggregators.PrivateSum`, central). Both are Gaussian mechanisms, whose composition is known
exactly: Dong, Roth and Su, "Gaussian Differential Privacy", https://arxiv.org/abs/1905.02383,
Corollary 3.3. No amplification by sampling is claimed, since clients that arrive when they are done
are no independent sample.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedlight._support.checks import integer, positive, positive_int
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess, ReplayArrivals, ScheduleTable
from fedlight.arrivals.simulation import federation_of
from fedlight.channel import Channel, as_channel
from fedlight.loop import Limits
from fedlight.participation import FinishedRun, check_finished, dry_run, planned

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight._runs.setting import Setting
    from fedlight.types import RoundRecord

_MOST = 500.0
"""Above it, Opacus' search for epsilon ends; no number of this size is a guarantee."""

_ROUGH = 50.0
"""Above it, the tighter accountant of the baseline takes long and tells nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class PrivacyReport:
    """The (epsilon, delta)-differential privacy of each client's data in a run.

    The unit is a client with all its data. Neighbours are runs in which one client sends updates of
    zeros instead of its own (zero-out). The schedule is public: who is dispatched and arrives when,
    with how many local steps. Arrays have shape ``[M]``.

    Attributes:
        epsilon: The largest epsilon of a client; infinite above 500.
        delta: The delta.
        noise_multiplier: z.
        mechanism: "central", noise on the server's sums, for whoever sees the versions of the
            model; or "local", noise on each update, for whoever sees the messages.
        participations: The mechanisms that use the client's data: the server steps that use an
            update of the client with a weight above 0, or, if local, its updates that arrive.
        min_separation: The smallest number of versions between two of one client; 0 if they are at
            the same one, None if no client has two.
        mu: The parameter of Gaussian differential privacy, ``sqrt(sum of r^2) / z``, where r is
            1 in a local mechanism, and in a step the weights of the client over the largest sum
            of the weights of one.
        num_steps: T, the number of server steps that use an update; if local, that use or drop one,
            and one more for those that arrive after the last step.
        sample_rate: q, the mean share of the clients that take part in such a step.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    mechanism: str
    participations: NDArray[np.int64]
    min_separation: int | None
    mu: NDArray[np.float64]
    num_steps: int
    sample_rate: float

    @property
    def max_participations(self) -> int:
        """K, the largest number of participations of a client."""
        return int(self.participations.max())

    @property
    def baseline_epsilon(self) -> float:
        """The epsilon of central DP-FedAvg with the same noise; not a guarantee of this run.

        Its T steps with noise multiplier z use independent random samples: each client is in each
        with probability q, on its own (Poisson sampling), and nobody learns who is. Neighbours are
        runs with and without a client.
        """
        if self.num_steps == 0:
            return 0.0
        return sampled_epsilon(self.noise_multiplier, self.sample_rate, self.num_steps, self.delta)

    def noise_multiplier_for(self, epsilon: float) -> float:
        """The smallest noise multiplier with which this schedule has at most that epsilon.

        ``z' = z * mu / mu'``, mu the largest of a client here, mu' the largest one with
        ``delta >= Phi(-epsilon / mu' + mu' / 2) - exp(epsilon) * Phi(-epsilon / mu' - mu' / 2)``

        The participations depend on the schedule alone, so a change of z changes nothing else.
        Another seed has another schedule: take the largest z of the seeds, or report each epsilon.

        Args:
            epsilon: The epsilon of the client that has the largest, above 0 and at most 500.

        Raises:
            ImportError: Opacus is not installed.
            TypeError: `epsilon` is not a number.
            ValueError: It is outside its range.

        Source: as `gaussian_epsilon`.
        """
        epsilon = positive("epsilon", epsilon)
        if epsilon > _MOST:
            raise ValueError(
                f"epsilon must be at most {_MOST:g}, got {epsilon!r}; more is no guarantee"
            )
        *_, gdp = _accountants()
        # mu' is between 2^-40 and 2^10: at epsilon 500 it is below 33, and delta grows with it.
        low, high = -40.0, 10.0
        for _ in range(60):
            middle = (low + high) / 2
            enough = gdp.delta_eps_mu(eps=epsilon, mu=math.exp2(middle)) <= self.delta
            low, high = (middle, high) if enough else (low, middle)
        # A little more, so that no rounding takes the epsilon of the run above the one wanted.
        return self.noise_multiplier * float(self.mu.max()) / math.exp2(low) * (1 + 1e-9)

    def __str__(self) -> str:
        apart = ""
        if self.min_separation is not None:
            apart = f", at least {self.min_separation} versions apart"
        return (
            f"epsilon {self.epsilon:.4g} at delta {self.delta:g} for each client "
            f"({self.mechanism}, noise multiplier {self.noise_multiplier:g}, zero-out, public "
            f"schedule): a client takes part at most {self.max_participations} times{apart}. "
            f"Central DP-FedAvg with {self.num_steps} Poisson samples at rate "
            f"{self.sample_rate:.4g} would have {self.baseline_epsilon:.4g}, which does not hold "
            "for this schedule"
        )


class FinishedPrivateRun(FinishedRun, Protocol):
    """The part of a run that a report reads; a `FedTrainer` after `fit` is one."""

    @property
    def channel(self) -> Channel | None: ...  # noqa: D102
    @property
    def num_updates(self) -> int: ...  # noqa: D102


def privacy_report(
    run: FinishedPrivateRun | ArrivalProcess | ScheduleTable,
    aggregator: Aggregator | None = None,
    channel: Channel | Iterable[Channel] | None = None,
    *,
    delta: float,
    num_clients: int | None = None,
    max_rounds: int | None = None,
    max_time: float | None = None,
    max_updates: int | None = None,
    num_examples: int | Iterable[int] = 1,
    batch_size: int = 1,
    seed: int = 0,
) -> PrivacyReport:
    """Return the epsilon of a run, before it or after it.

    The participations are counted, not bounded: the event loop runs with empty updates. A client
    with k participations composes k Gaussian mechanisms, of which it has the whole sensitivity or,
    beside a client with a larger weight, less.

    Args:
        run: A trainer after `fit`; or an arrival process or a recorded schedule.
        aggregator: The aggregator, for a process or a schedule: a `PrivateSum`, or any with a
            channel that adds noise.
        channel: The channel, for a process or a schedule.
        delta: The delta, between 0 and 1; well below 1 / M.
        num_clients: M, for a process; a schedule may contain it.
        max_rounds: Stop after this many rounds.
        max_time: Stop before the first event later than this virtual time.
        max_updates: Stop after this many arrivals.
        num_examples: n_i, one number for all clients or one for each.
        batch_size: Examples per local step.
        seed: The run's seed.

    Raises:
        ImportError: Opacus is not installed.
        TypeError: An argument is of the wrong kind.
        ValueError: Nothing adds noise, an assumption of the accounting fails, an argument is
            missing, or nothing would stop the run.

    Source: Dong, Roth and Su, Gaussian Differential Privacy, https://arxiv.org/abs/1905.02383,
    Corollaries 2.13 and 3.3, computed by Opacus. Zero-out neighbours: Kairouz et al., Practical and
    Private (Deep) Learning without Sampling or Shuffling, https://arxiv.org/abs/2103.00039.
    """
    delta = positive("delta", delta)
    if delta >= 1:
        raise ValueError(f"delta must be below 1, and well below 1 / num_clients, got {delta!r}")
    if isinstance(run, ScheduleTable):
        num_clients = num_clients or run.num_clients
        run = ReplayArrivals(run)
    until = ""
    history: Sequence[RoundRecord]
    if isinstance(run, ArrivalProcess):
        example = "PrivateSum(FedBuff(10), noise_multiplier=1.0, clipping_norm=1.0)"
        aggregator, num_clients = planned(aggregator, num_clients, "noise", example)
        seed = integer("seed", seed)
        channel = None if channel is None else as_channel("channel", channel)
        _check_one(aggregator, channel)
        _check_schedule(run)
        federation = federation_of(num_clients, num_examples, batch_size, seed, run)
        aggregator = deepcopy(aggregator)
        limits = Limits(max_rounds, max_time, max_updates)
        until = f", got {limits}"
        rounds = dry_run(run, aggregator, federation, limits)
        history, last, arrived = rounds.history, [*rounds.held, *rounds.dropped], None
    else:
        check_finished(run)
        if aggregator is not None or channel is not None:
            raise ValueError("a trainer has its own aggregator and channel: leave them out")
        history, aggregator, channel = run.history, run.aggregator, run.channel
        last, arrived = [update.client_id for update in aggregator.held], run.num_updates
        _check_one(aggregator, channel)
        num_clients = run.federation.num_clients
    local = None if channel is None else channel.noise_multiplier
    used = _central(history)
    if local:
        used = _local(history, last)
        halves = sum(each.first_half for record in history for each in record.dropped)
        if arrived not in (None, sum(map(len, used.values())) + halves):
            raise ValueError(
                "updates that arrived after the last round are in no record of this trainer, but "
                "the noise on them counts; give the arrivals, the aggregator, the channel and the "
                "limits of the run instead of the trainer"
            )
    if not used:
        raise ValueError(
            "there is nothing to account for, because no update was used; let the run last "
            f"longer{until}"
        )
    z = local or aggregator.noise_multiplier
    assert z is not None
    return _report(used, z, "local" if local else "central", num_clients, delta)


def sampled_epsilon(
    noise_multiplier: float, sample_rate: float, num_steps: int, delta: float
) -> float:
    """Return the epsilon of DP-SGD or DP-FedAvg whose steps use independent random samples.

    Args:
        noise_multiplier: z.
        sample_rate: q, the probability of each client (or example) to be in a step.
        num_steps: T.
        delta: The delta.

    Returns:
        The epsilon of Opacus' PRV accountant; of its looser RDP accountant above 50.

    Raises:
        ImportError: Opacus is not installed.
        ValueError: A number is outside its range.

    Source: Gopi, Lee and Wutschitz, Numerical Composition of Differential Privacy,
    https://arxiv.org/abs/2106.02848.
    """
    positive("noise_multiplier", noise_multiplier)
    positive_int("num_steps", num_steps)
    if sample_rate >= 1:  # all of them
        return gaussian_epsilon(math.sqrt(num_steps) / noise_multiplier, delta)
    positive("sample_rate", sample_rate)
    prv, rdp, _ = _accountants()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on the orders of the looser one
        for accountant in (rdp(), prv()):
            accountant.history = [(noise_multiplier, sample_rate, num_steps)]
            epsilon = float(accountant.get_epsilon(delta))
            if epsilon > _ROUGH:
                break
    return epsilon


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon of a mechanism with mu-Gaussian differential privacy.

    ``delta = Phi(-epsilon / mu + mu / 2) - exp(epsilon) * Phi(-epsilon / mu - mu / 2)``

    Args:
        mu: 1 / z for one Gaussian mechanism with noise multiplier z, ``sqrt(k) / z`` for k.
        delta: The delta.

    Returns:
        The epsilon, infinite above 500.

    Raises:
        ImportError: Opacus is not installed.

    Source: Balle and Wang, Improving the Gaussian Mechanism for Differential Privacy,
    https://arxiv.org/abs/1805.06530, Theorem 8.
    """
    *_, gdp = _accountants()
    if mu == 0 or gdp.delta_eps_mu(eps=0.0, mu=mu) <= delta:
        return 0.0
    if gdp.delta_eps_mu(eps=_MOST, mu=mu) > delta:
        return math.inf
    return float(gdp.eps_from_mu(mu=mu, delta=delta))


def report_of(history: Sequence[RoundRecord], delta: float) -> PrivacyReport | None:
    """Return the report of a run of `PrivateSum` from its records; None without noise.

    Args:
        history: The records of its rounds.
        delta: The delta.

    Raises:
        ImportError: Opacus is not installed.
    """
    metrics = history[-1].metrics if history else {}
    z, clients = metrics.get("fed/noise_multiplier"), metrics.get("fed/clients")
    if z is None or clients is None:
        return None
    return _report(_central(history), z, "central", int(clients), delta)


def check_private(setting: Setting) -> None:
    """Refuse a run with noise whose noise does not cover all that clients send.

    Raises:
        ValueError: There is one.
    """
    noisy = setting.channel is not None and setting.channel.noise_multiplier is not None
    if not noisy and setting.aggregator.noise_multiplier is None:
        return
    _check_one(setting.aggregator, setting.channel)
    _check_schedule(setting.arrivals)
    if setting.local_optimizer.shared_state:
        raise ValueError(
            f"{setting.local_optimizer!r} sends a second vector of each client, to which no noise "
            "is added; take for example LocalSGD(0.1), FedProx(…) or FedDyn(…)"
        )
    if setting.on_client_failure != "raise":
        raise ValueError(
            f"on_client_failure={setting.on_client_failure!r} makes the schedule depend on the "
            'updates, which the noise does not cover; write "raise" if noise is added'
        )
    if setting.max_update_norm is not None and setting.on_large_update == "drop":
        raise ValueError(
            'on_large_update="drop" makes the schedule depend on the updates, which the noise does '
            "not cover; updates are clipped before noise is added, so leave max_update_norm out"
        )


def _check_one(aggregator: Aggregator, channel: Channel | None) -> None:
    """Check that one of the two adds noise.

    Raises:
        ValueError: None does, or both do.
    """
    local = None if channel is None else channel.noise_multiplier
    if local is None and aggregator.noise_multiplier is None:
        raise ValueError(
            f"epsilon is infinite, since neither {aggregator!r} nor channel={channel!r} clips and "
            "adds noise; write PrivateSum(aggregator, …) or channel=GaussianNoise(…)"
        )
    if local is not None and aggregator.noise_multiplier is not None:
        raise ValueError(
            "both the channel and the aggregator add noise, and the accounting is of one of them: "
            "write GaussianNoise(…) if the server is not trusted, or PrivateSum(…) if it is"
        )


def _check_schedule(arrivals: ArrivalProcess) -> None:
    """Check that the schedule is made without the data, and that a client reads data of its own.

    Raises:
        ValueError: Clients are chosen by what they have logged, or share the data.
    """
    if arrivals.needs_feedback or arrivals.early_results:
        raise ValueError(
            f"{arrivals!r} is, or replays, a process that chooses clients by what they have sent, "
            "so that the schedule itself tells of their data, which no noise covers; take a "
            "process without feedback"
        )
    if arrivals.shares_data:
        raise ValueError(
            f"{arrivals!r} lets all clients read the same data, so that the noise on the updates "
            "of one client does not hide what it has; give each client its own data"
        )


_Used = dict[int, list[tuple[int, float]]]
"""By client: (version, share of the sensitivity) of each mechanism that uses its data."""


def _central(history: Sequence[RoundRecord]) -> _Used:
    """The mechanisms of a server that adds noise to its sums."""
    used: _Used = defaultdict(list)
    for record in history:
        weights: defaultdict[int, float] = defaultdict(float)
        for update in record.updates:
            weights[update.client_id] += update.weight
        largest = max(weights.values(), default=0.0)
        for client, weight in weights.items():
            if weight > 0:
                used[client].append((record.version, weight / largest))
    return used


def _local(history: Sequence[RoundRecord], last: Iterable[int]) -> _Used:
    """The messages of clients that add noise: all that arrive, whether used or not.

    Args:
        history: The records of the rounds.
        last: The clients whose updates are in no record, since they arrived after the last one.
    """
    used: _Used = defaultdict(list)
    for record in history:
        for update in (*record.updates, *record.dropped):
            if not update.first_half:  # after which the client sends nothing
                used[update.client_id].append((record.version, 1.0))
    for client in last:
        used[client].append((len(history) + 1, 1.0))
    return used


def _report(used: _Used, z: float, mechanism: str, clients: int, delta: float) -> PrivacyReport:
    counts = np.zeros(clients, dtype=np.int64)
    squares = np.zeros(clients)
    gaps: list[int] = []
    steps = {version for each in used.values() for version, _ in each}
    for client, each in used.items():
        counts[client] = len(each)
        squares[client] = sum(share * share for _, share in each)
        versions = sorted(version for version, _ in each)
        gaps += [later - one for one, later in pairwise(versions)]
    mu = np.sqrt(squares) / z
    return PrivacyReport(
        epsilon=gaussian_epsilon(float(mu.max()), delta),
        delta=delta,
        noise_multiplier=z,
        mechanism=mechanism,
        participations=counts,
        min_separation=min(gaps, default=None),
        mu=mu,
        num_steps=len(steps),
        sample_rate=float(counts.sum() / (clients * max(1, len(steps)))),
    )


def _accountants() -> tuple[Any, Any, Any]:
    """Opacus' accountants for samples, the tight one first, and its Gaussian formulas.

    Raises:
        ImportError: It is not installed.
    """
    try:
        from opacus.accountants import PRVAccountant, RDPAccountant
        from opacus.accountants.analysis import gdp
    except ImportError as error:
        raise ImportError(
            "epsilon is computed by the accountants of Opacus: pip install opacus"
        ) from error
    return PRVAccountant, RDPAccountant, gdp
