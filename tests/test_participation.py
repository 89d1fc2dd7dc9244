"""Numbers worked out by hand for two or three clients, and the warning after a run."""

import math
import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from benchmarks.fairness import BIASED, DISCOUNTS, FAIR, rates
from fedlight import FederatedDataModule, FedTrainer, participation_report
from fedlight.aggregators import (
    AFACD,
    AFACS,
    AsyncFedAvg,
    DelayedNesterov,
    FedASMU,
    FedAsync,
    FedAT,
    FedAvg,
    FedBuff,
    FedFix,
    MindFlayer,
    Rennala,
    Ringmaster,
)
from fedlight.aggregators.staleness import Polynomial
from fedlight.arrivals import (
    Availability,
    BiasedArrivals,
    ContinuousArrivals,
    DropOut,
    ExponentialDurations,
    Failures,
    FixedDurations,
    Recording,
    RefreshedTasks,
    ReplayArrivals,
    ReplayEvent,
    ScheduleTable,
    SynchronousArrivals,
    Tiers,
    TrialRounds,
    UniformArrivals,
)
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression

THREE_SPEEDS = ContinuousArrivals(FixedDurations([1.0, 2.0, 3.0]), local_steps=1)


def test_identical_weights_count_fast_clients_more() -> None:
    # In 6 units of time the clients arrive 6, 3 and 2 times.
    report = participation_report(
        THREE_SPEEDS, AsyncFedAvg(weights="identical"), num_clients=3, max_time=60.0
    )
    assert report.arrivals.tolist() == [60, 30, 20]
    np.testing.assert_allclose(report.share, [6 / 11, 3 / 11, 2 / 11])
    np.testing.assert_allclose(report.importance, 1 / 3)
    assert report.window is None
    assert report.distance == pytest.approx(6 / 11 - 1 / 3)
    assert report.is_far
    assert "time_based" in report.remedy


def test_time_based_weights_are_fair_over_windows_of_the_paper() -> None:
    # W = sum of v / T_i with v = lcm(1, 2, 3) = 6: FedFix paper, Section 4.3.
    report = participation_report(
        THREE_SPEEDS, AsyncFedAvg(weights="time_based"), num_clients=3, max_time=60.0
    )
    np.testing.assert_allclose(report.share, 1 / 3)
    assert report.window == 6 + 3 + 2
    # d_i = (sum of 1/T_j) * T_i * p_i, and q_i = d_i * (visits / rounds).
    factor = 1 + 1 / 2 + 1 / 3
    np.testing.assert_allclose(report.weight, factor / 3 * np.array([6, 6, 6]) / 11)
    assert not report.is_far


def test_fedfix_is_fair_over_the_least_common_multiple_of_windows() -> None:
    # ceil(T_i / 1) = 1, 2, 3: the cycle has lcm = 6 windows.
    report = participation_report(THREE_SPEEDS, FedFix(interval=1.0), num_clients=3, max_rounds=60)
    np.testing.assert_allclose(report.weight, 1 / 3)
    assert report.window == 6


def test_importance_follows_the_examples_where_the_aggregator_does() -> None:
    report = participation_report(
        ContinuousArrivals(FixedDurations([1.0, 1.0]), local_steps=1),
        FedFix(interval=1.0, client_weights="examples"),
        num_clients=2,
        num_examples=[30, 10],
        max_rounds=10,
    )
    np.testing.assert_allclose(report.importance, [0.75, 0.25])
    np.testing.assert_allclose(report.share, [0.75, 0.25])
    assert report.window == 1


def test_afa_cs_keeps_the_weight_of_a_client_that_came_once() -> None:
    events = [ReplayEvent(0, 0, 1.0, 1)] + [ReplayEvent(1, v, v + 1.0, 1) for v in range(1, 4)]
    table = ScheduleTable(events, num_clients=2)
    memory = participation_report(table, AFACS(buffer_size=1))
    # Client 0 from round 1 on, client 1 from round 2 on, of 4 rounds, each with 1/2.
    np.testing.assert_allclose(memory.weight, [0.5, 0.375])
    plain = participation_report(table, AFACD(buffer_size=1))
    np.testing.assert_allclose(plain.weight, [0.25, 0.75])


def test_staleness_and_dropped_updates() -> None:
    events = [
        ReplayEvent(0, 0, 1.0, 1),
        ReplayEvent(1, 0, 2.0, 1),  # one version old
        ReplayEvent(0, 0, 3.0, 1),  # two versions old: dropped
    ]
    report = participation_report(
        ScheduleTable(events, num_clients=3), FedAsync(alpha=0.5, max_staleness=1)
    )
    assert report.arrivals.tolist() == [1, 1, 0]
    assert report.staleness[:2].tolist() == [0.0, 1.0]
    assert np.isnan(report.staleness[2])
    assert "never heard" not in report.remedy  # after two updates of three clients that is chance


def test_a_client_that_is_silent_for_longer_than_chance_is_named() -> None:
    events = [ReplayEvent(v % 2, v, v + 1.0, 1) for v in range(60)]
    report = participation_report(ScheduleTable(events, num_clients=3), AFACD(buffer_size=1))
    assert report.is_far
    assert "1 clients were never heard (client 2" in report.remedy


@pytest.mark.parametrize(
    ("aggregator", "arrivals"),
    [
        # The fast tier has the weight of the slow one, which has not ended a round yet.
        (
            FedAT(),
            Tiers(
                {
                    name: SynchronousArrivals(durations=FixedDurations([duration]), local_steps=1)
                    for name, duration in (("fast", 1.0), ("slow", 9.0))
                },
                clients={"fast": [0], "slow": [1]},
            ),
        ),
        (
            FedBuff(1, staleness=lambda tau: 0.0),
            ContinuousArrivals(FixedDurations([1.0, 9.0]), local_steps=1),
        ),
    ],
)
def test_updates_without_weight_are_nothing_to_report(aggregator, arrivals) -> None:
    with pytest.raises(ValueError, match="no update was used with a weight above 0"):
        participation_report(deepcopy(arrivals), aggregator, num_clients=2, max_time=3.0)
    trainer = FedTrainer(
        arrivals=arrivals,
        aggregator=aggregator,
        local_optimizer=LocalSGD(lr=0.1),
        max_time=3.0,
        logger=False,
        enable_progress_bar=False,
    )
    rows = [TensorDataset(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long))] * 2
    trainer.fit(LogisticRegression(1, 2), FederatedDataModule.from_client_datasets(rows))
    assert trainer.version == 3


def test_chance_alone_is_not_far() -> None:
    report = participation_report(
        UniformArrivals(per_round=2, local_steps=1), AFACD(), num_clients=20, max_rounds=5
    )
    assert report.distance > 0.1
    assert not report.is_far


def test_the_surplus_by_hand() -> None:
    # Client 0 comes three times, then client 1 once, each with the weight 1/2 of AFA-CD (K = 1,
    # M = 2). In units of that weight the surpluses of client 0 are 1/2 each and at the end -1/2,
    # and that of client 1 is 1 - 4/2 = -1. The squares over p are 4 * 1/2 and 2; four updates drawn
    # at random have 4 * 2. The statistic is 2 * (1^2 + 1^2) = 4 and its mean 8; products of two
    # surpluses vary less than those of random draws.
    events = [ReplayEvent(0, 0, 1.0, 1), ReplayEvent(0, 1, 2.0, 1), ReplayEvent(0, 2, 3.0, 1)]
    table = ScheduleTable([*events, ReplayEvent(1, 0, 4.0, 1)], num_clients=2)
    report = participation_report(table, AFACD(buffer_size=1))
    assert report.surplus == pytest.approx((4 - 8) / np.sqrt(2 * 8**2 / 2))


@pytest.mark.parametrize("durations", [FixedDurations([1.0] * 10_000), ExponentialDurations(1.0)])
def test_stale_weights_and_many_unheard_clients_are_chance(durations) -> None:
    report = participation_report(
        ContinuousArrivals(durations, 1000, resume="on_arrival", local_steps=1),
        FedBuff(10, staleness=Polynomial(0.5)),
        num_clients=10_000,
        max_updates=4000,
    )
    assert report.distance > 0.6
    assert (report.arrivals == 0).sum() > 6000
    assert not report.is_far
    assert "never heard" not in report.remedy


@pytest.mark.parametrize("name", FAIR)
def test_fair_federations_do_not_warn(name) -> None:
    assert rates(FAIR[name], clients=20, per_client=20, seeds=12) == [0.0] * len(DISCOUNTS)


@pytest.mark.parametrize("name", BIASED)
def test_federations_biased_by_a_factor_of_two_warn(name) -> None:
    assert min(rates(BIASED[name], clients=20, per_client=60, seeds=5)) == 100.0


@pytest.mark.filterwarnings("ignore:fedlight. some clients count")
def test_the_report_of_a_trained_run_is_that_of_its_schedule() -> None:
    trainer = _trained(THREE_SPEEDS, FedBuff(buffer_size=2), max_rounds=22)
    trained = participation_report(trainer)
    alone = participation_report(THREE_SPEEDS, FedBuff(buffer_size=2), num_clients=3, max_rounds=22)
    np.testing.assert_allclose(trained.weight, alone.weight)
    assert trained.arrivals.tolist() == alone.arrivals.tolist()
    assert "clients in 22 rounds" in str(trained)
    assert trained.table(most=2).row_count == 2


STEP = FixedDurations([1.0, 2.0, 3.0, 1.0])  # so that many things happen at one time
LOSING = {
    "failures": (
        lambda: Failures(ContinuousArrivals(ExponentialDurations(1.0)), mtbf=2.0, mttr=1.0),
        lambda: FedBuff(2),
    ),
    "drop-outs under a deadline": (
        lambda: DropOut(ContinuousArrivals(STEP, resume="on_arrival"), 0.4),
        lambda: FedFix(interval=1.5),
    ),
    "rounds with failures": (
        lambda: Failures(SynchronousArrivals(2, STEP, over_select=2), mtbf=4.0, mttr=1.0),
        FedAvg,
    ),
    "cut rounds at night": (
        lambda: Availability(
            SynchronousArrivals(None, STEP, 4, timeout=2.0, late="cut"),
            {client: [(5 * k, 5 * k + 2 + client) for k in range(30)] for client in range(3)},
            unfinished="lose",
        ),
        FedAvg,
    ),
    "trials": (
        lambda: Failures(TrialRounds(ExponentialDurations(1.0), 1.0, 2), mtbf=4.0, mttr=1.0),
        lambda: MindFlayer(2, 0.5),
    ),
    "Ringmaster, which drops": (
        lambda: DropOut(ContinuousArrivals(STEP, resume="on_arrival"), 0.2),
        lambda: Ringmaster(1),
    ),
    "Ringmaster, which stops": (
        lambda: DropOut(ContinuousArrivals(STEP, restart_after=2), 0.3),
        lambda: Ringmaster(1),
    ),
    "Rennala": (
        lambda: Failures(ContinuousArrivals(STEP, restart_after=1), mtbf=4.0, mttr=1.0),
        lambda: Rennala(3),
    ),
    "refreshed": (
        lambda: DropOut(
            RefreshedTasks(ContinuousArrivals(ExponentialDurations(1.0), local_steps=4)), 0.2
        ),
        FedASMU,
    ),
    "tiers": (
        lambda: DropOut(
            Tiers(
                {
                    "fast": SynchronousArrivals(1, ExponentialDurations(0.5), over_select=1),
                    "slow": SynchronousArrivals(2, ExponentialDurations(2.0)),
                },
                clients={"fast": [0, 3], "slow": [2, 1]},
            ),
            0.2,
        ),
        FedAT,
    ),
    "nothing lost": (lambda: ContinuousArrivals(STEP), lambda: FedBuff(2)),
}


@pytest.mark.parametrize("limits", [{"max_rounds": 17}, {"max_time": 40.0}, {"max_updates": 31}])
@pytest.mark.parametrize("name", LOSING)
def test_the_report_of_a_record_is_that_of_the_process(name, limits, tmp_path) -> None:
    make, rule = LOSING[name]
    given = {"num_clients": 4, "num_examples": 8, "seed": 5}
    recording = Recording(make())
    process = participation_report(recording, rule(), **given, **limits)
    recording.table().save(tmp_path / "schedule.parquet")
    table = ScheduleTable.load(tmp_path / "schedule.parquet")
    again = Recording(ReplayArrivals(table))
    for run in (table, again):
        report = participation_report(run, rule(), **given, **limits)
        assert report.goodput == process.goodput
        np.testing.assert_array_equal(report.goodput_of, process.goodput_of)
        np.testing.assert_array_equal(report.weight, process.weight)
    assert again.table() == table
    assert (report.goodput < 1) is (name != "nothing lost")


def test_goodput_is_unknown_where_losses_are() -> None:
    """A table made by hand, a log and an older file; a complete one says so."""
    events = [ReplayEvent(0, 0, 1.0, 1, 0.0), ReplayEvent(1, 0, 2.0, 1, 0.0)]
    unknown = ScheduleTable(events, num_clients=2)
    for run in (unknown, ReplayArrivals(events), DropOut(ReplayArrivals(events), 0.0)):
        report = participation_report(run, FedBuff(1), num_clients=2)
        assert math.isnan(report.goodput)
        assert np.isnan(report.goodput_of).all()
        assert str(report).endswith("; goodput unknown")
        assert report.table().columns[-1].header == "importance p"
    lost = [ReplayEvent(1, 1, 5.0, 1, 2.0)]  # after the last version, so that it does not count
    for more, goodput in (([], 1.0), (lost, 1.0), ([ReplayEvent(1, 0, 1.5, 1, 1.0)], 3 / 3.5)):
        known = ScheduleTable(events, num_clients=2, lost=more, waste_known=True)
        assert participation_report(known, FedBuff(1)).goodput == pytest.approx(goodput)


@pytest.mark.filterwarnings("ignore:fedlight. some clients count")
def test_a_trained_run_over_a_record_that_does_not_know_its_losses() -> None:
    events = [ReplayEvent(client, client, client + 1.0, 1, 0.0 + client) for client in range(3)]
    for known in (False, True):
        table = ScheduleTable(events, num_clients=3, waste_known=known)
        report = participation_report(_trained(ReplayArrivals(table), FedBuff(1), 3))
        assert math.isnan(report.goodput) is not known


def test_an_unfair_run_warns_once_with_the_remedy() -> None:
    arrivals = BiasedArrivals(1, [0.9, 0.05, 0.05], local_steps=1)
    with pytest.warns(UserWarning, match=r"count for more than their importance.*AFACS") as record:
        _trained(arrivals, AFACD(), max_rounds=100)
    assert len(record) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _trained(arrivals, AFACS(), max_rounds=100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"aggregator": None, "num_clients": 3}, "give aggregator= and num_clients="),
        (
            {"aggregator": FedFix(1.0), "num_clients": None},
            "num_clients must be given",
        ),
        ({"aggregator": FedFix(1.0), "num_clients": 3, "rtol": 0}, "rtol must be larger than 0"),
        ({"aggregator": FedFix(1.0), "num_clients": 2, "max_rounds": 5}, "has 3 numbers"),
        ({"aggregator": FedFix(1.0), "num_clients": 3}, "nothing would stop"),
        ({"aggregator": FedFix(1.0), "num_clients": 3, "max_time": 0.5}, "no update was used"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        participation_report(THREE_SPEEDS, **arguments)


def test_a_trainer_without_a_run_is_refused() -> None:
    trainer = FedTrainer(
        arrivals=UniformArrivals(1), aggregator=FedAvg(), max_rounds=1, logger=False
    )
    with pytest.raises((RuntimeError, ValueError), match=r"fit|no update"):
        participation_report(trainer)


def test_replayed_schedules_may_carry_durations() -> None:
    table = THREE_SPEEDS.simulate(num_clients=3, max_time=60.0, buffer_size=1)
    report = participation_report(
        ReplayArrivals(table), AsyncFedAvg(weights="time_based"), num_clients=3
    )
    np.testing.assert_allclose(report.share, 1 / 3)


def _trained(arrivals, aggregator, max_rounds: int) -> FedTrainer:
    clients = [TensorDataset(torch.randn(4, 2), torch.zeros(4, dtype=torch.int64))] * 3
    trainer = FedTrainer(
        arrivals=arrivals,
        aggregator=aggregator,
        local_optimizer=LocalSGD(lr=0.1),
        max_rounds=max_rounds,
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        LogisticRegression(2, 2), FederatedDataModule.from_client_datasets(clients, batch_size=2)
    )
    return trainer


@pytest.mark.parametrize("silent", [False, True])
def test_rules_for_islands_warn_only_if_a_client_never_arrives(silent) -> None:
    """Client 0 arrives nine times as often; with `silent`, clients 1 and 2 never do."""
    speeds = FixedDurations([1.0, *([1000.0] * 2 if silent else [9.0] * 2)])
    arrivals = ContinuousArrivals(speeds, local_steps=1)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        run = _trained(arrivals, DelayedNesterov(3), max_rounds=200)
    told = [str(each.message) for each in record if "count for more" in str(each.message)]
    assert len(told) == silent
    assert all("2 clients were never heard" in words for words in told)
    assert participation_report(run).is_far
