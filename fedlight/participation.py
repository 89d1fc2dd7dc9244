"""The weight of each client in a run, compared with its importance.

The condition q_i = p_i is from Fraboni, Vidal, Kameni and Lorenzi, "A General Theory for Federated
Optimization with Asynchronous and Heterogeneous Clients Updates" (the FedFix paper),
https://arxiv.org/abs/2206.10189, Theorem 4.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from fedlight._runs.setting import Setting
from fedlight._support.checks import described, integer, positive, shown
from fedlight._support.messages import Note, voice
from fedlight.aggregators import Aggregator
from fedlight.arrivals import ArrivalProcess, ReplayArrivals, ScheduleTable
from fedlight.arrivals.schedule import Schedule
from fedlight.arrivals.simulation import check_no_feedback, federation_of, warn_if_over
from fedlight.clients import Clients
from fedlight.clients.pool import Pool
from fedlight.executors.base import Executor
from fedlight.local_optimizers import LocalSGD
from fedlight.loop import Limits, play
from fedlight.server import Server, Watcher
from fedlight.types import LocalResult, ServerState

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.table import Table

    from fedlight.executors.base import Job, Workplace
    from fedlight.theory import ClosedNetwork
    from fedlight.types import ClientUpdate, Federation, RoundRecord, UpdateRecord

_MOST_CELLS = 20_000_000


@dataclass(frozen=True, slots=True, eq=False)
class ParticipationReport:
    """The weight of each of the M clients in a run; all arrays have shape ``[M]``.

    Attributes:
        arrivals: Number of updates of the client that the server used.
        staleness: Their mean staleness; nan if there were none.
        weight: q_i, the client's mean aggregation weight per round.
        share: q_i over the sum of all q. A common factor of all q only scales the learning rate.
        importance: p_i, the share that the client should have.
        window: W, the smallest number such that each share equals its importance in the first W
            rounds, in the next W rounds, and so on; None if there is none, or if the run is too
            large to search.
        num_rounds: Number of rounds.
        remedy: A change that would bring the shares to the importances.
        surplus: The number of standard deviations by which ``sum of (share_i - p_i)^2 / p_i`` is
            above its mean under fair arrivals, so that each update counts by its weight.
        throughput: Updates used per unit of virtual time.
        expected_staleness: The mean staleness of the client in the long run, if it is known in
            closed form: for exponential durations and a server that steps after every m arrivals
            (`fedlight.theory.ClosedNetwork`); else None.
        expected_throughput: The throughput in the long run, or None.
        goodput: The share of the clients' working time, from pull to arrival, whose results the
            server used. Tasks that were lost, cancelled, failed or dropped are waste; those at work
            or in the buffer at the end do not count. The first half of a task counts as the second
            one does (`RefreshedTasks`). It is nan if it is unknown: for a schedule that does not
            say what came to nothing (`ScheduleTable.waste_known`), such as a file of an earlier
            version, a table made by hand or a log of devices.
        goodput_of: The same for each client; nan for one without such a task.
    """

    arrivals: NDArray[np.int64]
    staleness: NDArray[np.float64]
    weight: NDArray[np.float64]
    share: NDArray[np.float64]
    importance: NDArray[np.float64]
    window: int | None
    num_rounds: int
    remedy: str
    surplus: float
    throughput: float = float("nan")
    expected_staleness: NDArray[np.float64] | None = None
    expected_throughput: float | None = None
    goodput: float = 1.0
    goodput_of: NDArray[np.float64] | None = None

    @property
    def distance(self) -> float:
        """Total variation between shares and importances: sum of |share_i - p_i| / 2, in [0, 1]."""
        return float(np.abs(self.share - self.importance).sum() / 2)

    @property
    def is_far(self) -> bool:
        """Whether `distance` is above 0.1 and larger than chance explains: a `surplus` above 4."""
        return self.distance > 0.1 and self.surplus > 4

    def table(self, most: int = 20) -> Table:
        """Return a rich table of the clients whose shares differ most from their importance.

        Args:
            most: Largest number of rows.
        """
        from rich.table import Table

        expected = self.expected_staleness
        staleness = ["mean staleness"] if expected is None else ["mean staleness", "expected"]
        # Nothing was wasted, or nobody knows.
        goodput = None if self.goodput == 1 or math.isnan(self.goodput) else self.goodput_of
        more = [] if goodput is None else ["goodput"]
        table = Table("client", "arrivals", *staleness, "q", "share", "importance p", *more)
        furthest = np.argsort(-np.abs(self.share - self.importance), kind="stable")[:most]
        for client in sorted(furthest.tolist()):
            table.add_row(
                str(client),
                str(self.arrivals[client]),
                f"{self.staleness[client]:.2f}",
                *([] if expected is None else [f"{expected[client]:.2f}"]),
                f"{self.weight[client]:.4g}",
                f"{self.share[client]:.4f}",
                f"{self.importance[client]:.4f}",
                *([] if goodput is None else [f"{goodput[client]:.3f}"]),
            )
        return table

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        worst = int(np.argmax(np.abs(self.share - self.importance)))
        window = "" if self.window is None else f"; fair over windows of {self.window} rounds"
        waste = "" if self.goodput == 1 else f"; goodput {self.goodput:.3f}"
        waste = "; goodput unknown" if math.isnan(self.goodput) else waste
        return (
            f"{int(self.arrivals.sum())} updates of {len(self.share)} clients in "
            f"{self.num_rounds} rounds; the total variation between shares and importances is "
            f"{self.distance:.3f}; client {worst} differs most, with a share of "
            f"{self.share[worst]:.4f} and an importance of {self.importance[worst]:.4f}"
            f"{window}{waste}"
        )


class FinishedRun(Protocol):
    """The part of a run that a report reads; a `FedTrainer` after `fit` is one."""

    @property
    def history(self) -> Sequence[RoundRecord]: ...  # noqa: D102
    @property
    def federation(self) -> Federation: ...  # noqa: D102
    @property
    def aggregator(self) -> Aggregator: ...  # noqa: D102
    @property
    def arrivals(self) -> ArrivalProcess: ...  # noqa: D102


def participation_report(
    run: FinishedRun | ArrivalProcess | ScheduleTable,
    aggregator: Aggregator | None = None,
    *,
    num_clients: int | None = None,
    max_rounds: int | None = None,
    max_time: float | None = None,
    max_updates: int | None = None,
    num_examples: int | Iterable[int] = 1,
    batch_size: int = 1,
    seed: int = 0,
    rtol: float = 0.01,
) -> ParticipationReport:
    """Compare the weight q_i that each client gets with its importance p_i.

    ``q_i`` is the mean over the rounds of the weight that the aggregator gave to client i. A
    federation converges to the optimum of the federated problem if ``q_i = p_i`` over windows of
    W rounds. AFA-CS uses a client's last update again in every later round, so a client has a
    weight in each round after its first arrival.

    Args:
        run: A trainer after `fit`; or an arrival process or a recorded schedule, for which the same
            event loop runs with empty updates and without training.
        aggregator: The aggregator, for a process or a schedule.
        num_clients: M, for a process; a schedule may contain it.
        max_rounds: Stop after this many rounds.
        max_time: Stop before the first event later than this virtual time.
        max_updates: Stop after this many arrivals.
        num_examples: n_i, one number for all clients or one for each; of a process whose clients
            share the data, the sizes of the shards.
        batch_size: Examples per local step.
        seed: The run's seed.
        rtol: Relative difference up to which a share counts as equal to its importance.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: No update was used, an argument is missing, or nothing would stop the run.

    Source: Fraboni et al., the FedFix paper, https://arxiv.org/abs/2206.10189, Theorem 4 and
    Property 2.

    Example:
        >>> from fedlight.aggregators import FedFix
        >>> from fedlight.arrivals import ContinuousArrivals, FixedDurations
        >>> report = participation_report(
        ...     ContinuousArrivals(FixedDurations([1.0, 0.5])),
        ...     FedFix(interval=0.5),
        ...     num_clients=2,
        ...     max_rounds=100,
        ... )
        >>> report.share.tolist(), report.window
        ([0.5, 0.5], 2)
    """
    rtol = positive("rtol", rtol)
    until = ""
    if isinstance(run, ScheduleTable):
        num_clients = num_clients or run.num_clients
        run = ReplayArrivals(run)
    if isinstance(run, ArrivalProcess):
        aggregator, num_clients = planned(aggregator, num_clients, "weights", "FedAvg()")
        seed = integer("seed", seed)
        federation = federation_of(num_clients, num_examples, batch_size, seed, run)
        limits = Limits(max_rounds, max_time, max_updates)
        until = f", got {limits}"
        history: Sequence[RoundRecord]
        history = dry_run(run, deepcopy(aggregator), federation, limits).history
        arrivals = run
    else:
        check_finished(run)
        history, federation = run.history, run.federation
        aggregator, arrivals = run.aggregator, run.arrivals
    if not _anyone_counts(history):
        raise ValueError(
            "there is nothing to report, because no update was used with a weight above 0; let the "
            f"run last longer{until}"
        )
    return _report(history, aggregator, arrivals, federation, rtol)


def planned(
    aggregator: Aggregator | None, num_clients: int | None, lacks: str, example: str
) -> tuple[Aggregator, int]:
    """Return what a report on a schedule needs besides the schedule, checked.

    Raises:
        TypeError: `aggregator` is no aggregator.
        ValueError: One of the two is missing.
    """
    if aggregator is None:
        raise ValueError(
            f"a schedule has no {lacks} by itself: give aggregator= and num_clients=, got "
            f"{shown(aggregator)} and {shown(num_clients)}"
        )
    if num_clients is None:
        raise ValueError(
            "num_clients must be given for an arrival process, which has no data, got None; for "
            "example num_clients=20"
        )
    if not isinstance(aggregator, Aggregator):
        raise TypeError(
            f"aggregator must be an aggregator, got {shown(aggregator)}; for example {example}"
        )
    return aggregator, num_clients


def check_finished(run: object) -> None:
    """Check that a run is a trainer, if it is no schedule.

    Raises:
        TypeError: It is something else.
        RuntimeError: It is a trainer before `fit`.
    """
    try:
        finished = hasattr(run, "history") and hasattr(run, "federation")
    except RuntimeError as error:
        raise RuntimeError(
            f"{error}, or, for a report before the run, give its arrivals and its aggregator "
            "instead of the trainer, with num_clients= and a limit such as max_rounds="
        ) from None
    if not finished:
        raise TypeError(
            "run must be a trainer after fit, an arrival process or a schedule, got "
            f"{described(run)}"
        )


def warn_if_unfair(
    run: object, history: Sequence[RoundRecord], setting: Setting, federation: Federation
) -> None:
    """Warn after a run whose shares are far from the importances, and name a remedy."""
    # If all clients may read all data, none of the data are left out as its client is slow.
    if federation.shard_sizes is not None or not _anyone_counts(history):
        return
    report = _report(history, setting.aggregator, setting.arrivals, federation, None)
    meant = setting.aggregator.speed_counts and bool(report.arrivals.all())
    if report.is_far and not meant:
        words = (
            f"fedlight: some clients count for more than their importance: {report}; a remedy: "
            f"{report.remedy} (participation_report(trainer) shows all clients)"
        )
        voice().note(run, Note("unfair", words, warns=True))


def _anyone_counts(history: Iterable[RoundRecord]) -> bool:
    """Return whether any update has moved the model; under `FedAT` the first ones do not."""
    return any(update.weight for record in history for update in record.updates)


class _NoTraining(Executor):
    """Returns the same empty result for each job."""

    independent = True

    def __init__(self) -> None:
        nothing = torch.zeros(0)
        self._result = LocalResult(torch.zeros(1), nothing, nothing)

    def setup(self, workplace: Workplace) -> None:
        """Do nothing: there is no module."""

    def run(self, jobs: Sequence[Job]) -> list[LocalResult]:  # type: ignore[override]
        """Return one result for each job."""
        return [self._result] * len(jobs)


class _Rounds(Watcher):
    """Keeps the records of all versions, and whose updates arrived after the last one."""

    def __init__(self) -> None:
        self.history: list[RoundRecord] = []
        self.dropped: list[int] = []
        self.held: list[int] = []  # set at the end; the server knows it of all aggregators

    def on_drop(self, update: ClientUpdate) -> None:
        """Keep its client until there is a record of it."""
        if not update.task.is_first_half:  # after which nothing is sent
            self.dropped.append(update.client_id)

    def on_version(self, record: RoundRecord) -> None:
        """Keep the record."""
        self.history.append(record)
        self.dropped.clear()


def dry_run(
    arrivals: ArrivalProcess, aggregator: Aggregator, federation: Federation, limits: Limits
) -> _Rounds:
    """Return the rounds as they would be: the same loop and server, but no training."""
    check_no_feedback(arrivals, "a participation report")
    limits.check(arrivals)
    schedule = Schedule(
        arrivals,
        federation,
        interval=aggregator.interval,
        max_time=limits.max_time,
        buffer_size=aggregator.buffer_size,
    )
    federation = replace(
        federation,
        expected_durations=arrivals.expected_durations(),
        groups=arrivals.groups,
        arrivals_per_send=arrivals.arrivals_per_send,
    )
    pool = Pool(_NoTraining(), ahead=not arrivals.may_stop)
    clients = Clients(pool, federation, keep_states=False)
    state = ServerState(0, torch.zeros(1), torch.zeros(0), torch.zeros(0))
    rounds = _Rounds()
    setting = Setting(arrivals, aggregator, LocalSGD(1.0))
    server = Server(setting, federation, clients, schedule, state, rounds)
    for waiting in play(schedule, server, limits):
        pool.compute(waiting)
    rounds.held = [update.client_id for update in server.held]
    warn_if_over(schedule, server.counts, limits)
    return rounds


def _report(
    history: Sequence[RoundRecord],
    aggregator: Aggregator,
    arrivals: ArrivalProcess,
    federation: Federation,
    rtol: float | None,
) -> ParticipationReport:
    # The updates that each round used, as (client, weight, staleness).
    rounds = [[(u.client_id, u.weight, u.staleness) for u in each.updates] for each in history]
    clients = federation.num_clients
    importance = np.full(clients, 1 / clients)
    if aggregator.client_weights == "examples":
        importance = federation.num_examples / federation.num_examples.sum()
    used = [entry for entries in rounds for entry in entries]
    who = np.array([client for client, _, _ in used])
    count = np.bincount(who, minlength=clients)
    with np.errstate(invalid="ignore"):
        staleness = np.bincount(who, [age for *_, age in used], clients) / count
    weights = _weights(rounds, clients, aggregator.remembers)
    total = np.bincount(who, weights, clients)
    window = None
    if rtol is not None and len(rounds) * clients <= _MOST_CELLS:
        each = _by_round(rounds, clients, aggregator.remembers)
        window = _window(list(accumulate(each, initial=np.zeros(clients))), importance, rtol)
    size = aggregator.buffer_size or 1
    network = None if rtol is None else _network(arrivals, aggregator, clients)
    # A warning, which has no rtol, does not need them.
    if rtol is None:
        good = wasted = np.zeros(clients)
    elif arrivals.waste_known:
        good, wasted = _working_times(history, clients)
    else:
        good = wasted = np.full(clients, np.nan)
    with np.errstate(invalid="ignore"):
        goodput, goodput_of = good.sum() / (good.sum() + wasted.sum()), good / (good + wasted)
    return ParticipationReport(
        arrivals=count,
        staleness=staleness,
        weight=total / len(rounds),
        share=total / total.sum(),
        importance=importance,
        window=window,
        num_rounds=len(rounds),
        remedy=_remedy(arrivals, count, importance),
        surplus=_surplus(who, weights, total / total.sum(), importance),
        throughput=float(count.sum() / history[-1].now),
        expected_staleness=None if network is None else network.staleness(size),
        expected_throughput=None if network is None else network.throughput,
        goodput=1.0 if rtol is None else float(goodput),
        goodput_of=None if rtol is None else goodput_of,
    )


def _working_times(
    history: Sequence[RoundRecord], clients: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the virtual time of tasks whose results were used, and of others, by client."""
    good, wasted = np.zeros(clients), np.zeros(clients)
    halves: list[UpdateRecord] = []
    ends: defaultdict[int, list[tuple[int, NDArray[np.float64]]]] = defaultdict(list)
    for record in history:
        for total, updates in ((good, record.updates), (wasted, record.dropped)):
            for update in updates:
                if update.first_half:
                    halves.append(update)
                    continue
                total[update.client_id] += update.arrived_at - update.dispatched_at
                ends[update.client_id].append((update.serial, total))
        for failure in record.failures:
            wasted[failure.client_id] += failure.worked
            ends[failure.client_id].append((failure.serial, wasted))
    for half in halves:  # the client's next task is the second half
        later = [each for each in ends[half.client_id] if each[0] > half.serial]
        if later:
            _, total = min(later, key=itemgetter(0))
            total[half.client_id] += half.arrived_at - half.dispatched_at
    return good, wasted


def _network(
    arrivals: ArrivalProcess, aggregator: Aggregator, clients: int
) -> ClosedNetwork | None:
    """Return the queueing network of the process, if the server steps after every m arrivals."""
    size = aggregator.buffer_size
    if size is None or aggregator.interval is not None or aggregator.drops:
        return None
    if clients * clients > _MOST_CELLS:
        return None
    return arrivals.closed_network(size)


def _weights(
    rounds: Sequence[Sequence[tuple[int, float, int]]], clients: int, remembers: bool
) -> NDArray[np.float64]:
    """Return the weight of each update, summed over the rounds that used it."""
    weights = np.array([weight for entries in rounds for _, weight, _ in entries])
    if remembers:  # until the client's next update, or the end
        until, serial = np.full(clients, len(rounds)), len(weights)
        for number, entries in reversed(list(enumerate(rounds))):
            for client, _, _ in reversed(entries):
                serial -= 1
                weights[serial] *= until[client] - number
                until[client] = number
    return weights


def _surplus(
    who: NDArray[np.int64],
    weights: NDArray[np.float64],
    share: NDArray[np.float64],
    importance: NDArray[np.float64],
) -> float:
    """Return by how many standard deviations the shares deviate more than chance explains.

    Between two updates of client i the server gives the weight S to all clients, of which p_i S is
    the fair part of client i. The surplus of its update is W_j - p_i S, and the surpluses of a
    client add up to its deviation. Under fair arrivals they are uncorrelated with mean 0, so the
    expected square of the deviation is the sum of their squares. If clients are drawn at random,
    this is the sum of the W_j^2: as if there were ``(sum of W_j)^2 / (sum of W_j^2)`` updates of
    equal weight. It is larger if the durations of tasks vary more than exponential ones.

    Args:
        who: The client of each update.
        weights: W_j, the weight of each update.
        share: The share of each client.
        importance: p_i.
    """
    fair = np.where(importance > 0, importance, np.inf)  # a share of 0 deviates by nothing
    order = np.argsort(who, kind="stable")
    client, so_far = who[order], np.cumsum(weights)[order]
    first = np.diff(client, prepend=-1) != 0
    last = np.roll(first, -1)
    since = np.where(first, 0.0, np.roll(so_far, 1))
    surpluses = weights[order] - importance[client] * (so_far - since)
    # Since a client's last update it has got nothing. Clients without an update are left out: for
    # them it would be all of their deviation.
    unpaid = importance[client[last]] * (weights.sum() - so_far[last])
    squares = np.square(np.concatenate([surpluses, unpaid]))
    client = np.concatenate([client, client[last]])
    squares /= fair[client]
    by_client = np.bincount(client, squares, len(fair))
    mean = max(by_client.sum(), (np.square(weights) / fair[who]).sum())
    # Only products of two surpluses of one client vary, and more if some weights are far larger.
    pairs = np.square(by_client).sum() - np.square(squares).sum()
    deviation = np.sqrt(2 * max(mean**2 / len(fair), pairs))
    statistic = (np.square(share - importance) / fair).sum() * weights.sum() ** 2
    return float((statistic - mean) / deviation) if deviation else 0.0  # all weights are zero


def _by_round(
    rounds: Sequence[Sequence[tuple[int, float, int]]], clients: int, remembers: bool
) -> Iterable[NDArray[np.float64]]:
    """Yield the weights of all clients for each round."""
    weight = np.zeros(clients)
    for entries in rounds:
        weight = weight.copy() if remembers else np.zeros(clients)
        for client, value, _ in entries:
            weight[client] = value if remembers else weight[client] + value
        yield weight


def _window(
    sums: Sequence[NDArray[np.float64]], importance: NDArray[np.float64], rtol: float
) -> int | None:
    """Return the smallest W for which all whole windows of W rounds, at least two, are fair."""
    rounds = len(sums) - 1
    for window in range(1, rounds // 2 + 1):
        ends = range(window, rounds + 1, window)
        if all(_fair(sums[end] - sums[end - window], importance, rtol) for end in ends):
            return window
    return None


def _fair(weights: NDArray[np.float64], importance: NDArray[np.float64], rtol: float) -> bool:
    total = weights.sum()
    return bool(total > 0 and np.allclose(weights / total, importance, rtol=rtol, atol=1e-12))


def _remedy(
    arrivals: ArrivalProcess, count: NDArray[np.int64], importance: NDArray[np.float64]
) -> str:
    silent = np.flatnonzero(count == 0)
    # A client of share p is left out of N fair updates with probability (1 - p)^N.
    by_chance = float(((1 - importance) ** count.sum()).sum())
    if len(silent) > by_chance + 3 * math.sqrt(by_chance):
        return (
            f"{len(silent)} clients were never heard (client {silent[0]} is the first), and "
            "no weights can correct that: let them arrive, or let the run last longer"
        )
    if arrivals.arrivals_per_send is not None:
        return "local_steps=StepsBySpeed(…), with which all clients arrive equally often"
    if arrivals.by_rounds:
        return "AFACS(), which uses every client's last update in every round"
    return (
        'AsyncFedAvg(weights="time_based") or FedFix(interval=…), whose weights compensate for '
        "different speeds, or AFACS(buffer_size=…)"
    )
