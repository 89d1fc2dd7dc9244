"""Epsilon by hand, participations by brute force, and what is refused."""

import math
import sys
from collections import defaultdict
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlight import FedTrainer, privacy, privacy_report
from fedlight.aggregators import (
    MIFA,
    Aggregator,
    FedASMU,
    FedAsync,
    FedAvg,
    FedBuff,
    PrivateSum,
    next_version,
)
from fedlight.arrivals import (
    ContinuousArrivals,
    ExponentialDurations,
    FixedDurations,
    Oort,
    RefreshedTasks,
    ReplayArrivals,
    ReplayEvent,
    ScheduleTable,
    SharedStream,
    SynchronousArrivals,
    UniformArrivals,
    UniformSpeeds,
)
from fedlight.channel import Clip, GaussianNoise
from fedlight.local_optimizers import FreshModel, LocalSGD
from fedlight.studies import sweep
from fedlight.types import UsedUpdate
from tests.boring import Boring, Point, classes, points
from tests.boring import fitted as run_of

DELTA = 1e-5
CLOCK = ContinuousArrivals(UniformSpeeds(0.8), local_steps=2)
PRIVATE = PrivateSum(FedBuff(2), 2.0, 0.5)
NOISE = GaussianNoise(20.0, 0.5)
PHI = NormalDist().cdf


def needs_opacus():
    pytest.importorskip("opacus", reason="opacus is the extra 'privacy'")


def delta_of(epsilon, mu):
    """Balle and Wang 2018, Theorem 8, for the sensitivity mu and a deviation of 1."""
    return PHI(mu / 2 - epsilon / mu) - math.exp(epsilon) * PHI(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(
    ("z", "k", "epsilon"),
    # By another accountant, of privacy loss distributions (dp-accounting 0.6.0).
    [(1.0, 1, 4.377178), (2.0, 10, 7.511276), (0.5, 1, 9.997256), (1.0, 200, 159.441486)],
)
def test_the_gaussian_mechanism_by_the_analytic_formula(z, k, epsilon):
    needs_opacus()
    found = privacy.gaussian_epsilon(math.sqrt(k) / z, DELTA)
    assert found == pytest.approx(epsilon, abs=1e-6)
    if found < 100:  # the difference of the two terms has no digits left above
        assert delta_of(found, math.sqrt(k) / z) == pytest.approx(DELTA, rel=1e-6)


def test_the_ends_of_the_range():
    needs_opacus()
    assert privacy.gaussian_epsilon(0.0, DELTA) == 0.0
    assert privacy.gaussian_epsilon(1e-7, DELTA) == 0.0  # delta alone is enough
    assert privacy.gaussian_epsilon(100.0, DELTA) == math.inf


def test_samples_are_never_worse_than_all_and_few_are_better():
    needs_opacus()
    everyone = privacy.sampled_epsilon(2.0, 1.0, 10, DELTA)
    assert everyone == pytest.approx(privacy.gaussian_epsilon(math.sqrt(10) / 2, DELTA))
    rates = [privacy.sampled_epsilon(2.0, rate, 10, DELTA) for rate in (0.01, 0.3, 0.9)]
    assert rates == sorted(rates)
    assert 0 < rates[0] < 0.3
    assert rates[2] < everyone
    # Abadi et al. 2016, Section 4, whose looser accountant gives 1.26; the number is that of
    # another accountant (dp-accounting 0.6.0).
    assert privacy.sampled_epsilon(4.0, 0.01, 10_000, DELTA) == pytest.approx(0.947, abs=0.02)


@settings(max_examples=25, deadline=None)
@given(
    epsilon=st.floats(0.01, 100.0),
    delta=st.floats(1e-9, 0.2),
    squares=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=3),
)
def test_the_noise_for_an_epsilon(epsilon, delta, squares):
    """With z' for z, mu = sqrt(sum of r^2) / z' gives the epsilon that was asked for."""
    needs_opacus()
    z, sizes = 2.0, np.sqrt(squares)
    counts = np.ones(len(sizes), dtype=np.int64)
    report = privacy.PrivacyReport(1.0, delta, z, "central", counts, None, sizes / z, 1, 0.5)
    found = report.noise_multiplier_for(epsilon)
    mu = float(sizes.max()) / found
    assert privacy.gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-6)
    if epsilon < 20:  # the difference of the two terms has no digits left above
        assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize(
    ("rule", "channel"),
    [
        (PrivateSum(FedBuff(2), 2.0, 0.5), None),
        (FedBuff(2), GaussianNoise(2.0, 0.5)),
    ],
)
def test_the_noise_found_by_a_report_gives_the_epsilon(rule, channel):
    needs_opacus()

    def report(rule, channel):
        limits = {"num_clients": 4, "max_rounds": 8}
        return privacy_report(CLOCK, rule, channel, delta=DELTA, **limits)

    z = report(rule, channel).noise_multiplier_for(8.0)
    again = (PrivateSum(FedBuff(2), z, 0.5), None)
    if channel is not None:
        again = (FedBuff(2), GaussianNoise(z, 0.5))
    assert report(*again).epsilon == pytest.approx(8.0, rel=1e-6)


def test_the_noise_for_an_epsilon_that_is_none():
    needs_opacus()
    report = privacy_report(CLOCK, PRIVATE, delta=DELTA, num_clients=4, max_rounds=2)
    with pytest.raises(ValueError, match="epsilon must be larger than 0, got 0"):
        report.noise_multiplier_for(0)
    with pytest.raises(ValueError, match="epsilon must be at most 500"):
        report.noise_multiplier_for(501)
    with pytest.raises(TypeError, match="epsilon must be a number, got '8'"):
        report.noise_multiplier_for("8")


def test_a_report_by_hand():
    """Client 0 arrives at 1, 2, 4, client 1 at 2.5, 4.5: versions of 2 updates at 2, 2.5 + 4.

    The first has both updates of client 0, as one mechanism of its own; the second one of each.
    """
    needs_opacus()
    events = [
        ReplayEvent(0, 0, 1.0),
        ReplayEvent(0, 0, 2.0),
        ReplayEvent(1, 0, 2.5),
        ReplayEvent(0, 1, 4.0),
        ReplayEvent(1, 2, 4.5),
    ]
    table = ScheduleTable(events, num_clients=3)
    rule = PrivateSum(FedBuff(2, staleness=None), 2.0, 0.5)
    report = privacy_report(table, rule, delta=DELTA)
    assert report.participations.tolist() == [2, 1, 0]
    assert report.max_participations == 2
    assert report.min_separation == 1
    assert report.mu.tolist() == pytest.approx([math.sqrt(2) / 2, 1 / 2, 0.0])
    assert report.epsilon == privacy.gaussian_epsilon(math.sqrt(2) / 2, DELTA)
    assert report.mechanism == "central"
    assert report.num_steps == 2
    assert report.sample_rate == 0.5
    assert report.baseline_epsilon == privacy.sampled_epsilon(2.0, 0.5, 2, DELTA)
    local = privacy_report(table, FedBuff(2), GaussianNoise(8.0, 0.5), delta=DELTA)
    assert local.participations.tolist() == [3, 2, 0]  # the one that is left in the buffer, too
    assert local.min_separation == 0  # two of client 0 at the first version
    assert local.epsilon == privacy.gaussian_epsilon(math.sqrt(3) / 8, DELTA)
    assert "local, noise multiplier 8, zero-out" in str(local)
    assert f"epsilon {report.epsilon:.4g} at delta 1e-05" in str(report)


def test_a_stale_update_spends_less_beside_a_fresh_one():
    """Weights 1 and (1 + 3)^-1/2 = 1/2 of the same step: mu is 1/z and 1/(2z)."""
    needs_opacus()
    early = [ReplayEvent(0, 0, 1.0 + 0.1 * number) for number in range(6)]
    events = [*early, ReplayEvent(1, 3, 2.0), ReplayEvent(2, 0, 2.1)]
    table = ScheduleTable(events, num_clients=3)
    report = privacy_report(table, PrivateSum(FedBuff(2), 2.0, 0.5), delta=DELTA)
    assert report.mu.tolist() == pytest.approx([math.sqrt(3) / 2, 1 / 2, 1 / 4])
    assert report.participations.tolist() == [3, 1, 1]


@pytest.mark.parametrize("epsilon", [0.1, 2.0, 20.0, 400.0])
def test_the_noise_for_an_epsilon_is_the_smallest(epsilon):
    needs_opacus()
    rule = PrivateSum(FedBuff(2), 1.0, 0.5)
    schedule = {"delta": DELTA, "num_clients": 6, "max_rounds": 12}
    z = privacy_report(CLOCK, rule, **schedule).noise_multiplier_for(epsilon)
    report = privacy_report(CLOCK, PrivateSum(FedBuff(2), z, 0.5), **schedule)
    assert report.epsilon <= epsilon
    assert report.epsilon == pytest.approx(epsilon, rel=1e-6)
    if epsilon < 10:  # above, the difference of the two terms loses digits
        assert delta_of(epsilon, float(report.mu.max())) == pytest.approx(DELTA, rel=1e-6)
    other = PrivateSum(FedBuff(2), 7.0, 3.0)  # what it has does not matter
    same = privacy_report(CLOCK, other, **schedule).noise_multiplier_for(epsilon)
    assert same == pytest.approx(z, rel=1e-9)


def test_the_noise_for_an_epsilon_by_hand():
    """Client 0 is in three steps of one update each: sqrt(3) / z = mu."""
    needs_opacus()
    events = [ReplayEvent(0, version, version + 1.0) for version in range(3)]
    table = ScheduleTable([*events, ReplayEvent(1, 0, 4.0)], num_clients=2)
    rule = PrivateSum(FedBuff(1), 1.0, 0.5)
    epsilon = privacy.gaussian_epsilon(math.sqrt(3) / 4, DELTA)
    for report in (
        privacy_report(table, rule, delta=DELTA),
        privacy_report(table, FedBuff(1), GaussianNoise(1.0, 0.5), delta=DELTA),
    ):
        assert report.noise_multiplier_for(epsilon) == pytest.approx(4.0, rel=1e-6)


records = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 60)), min_size=2, max_size=40, unique=True
)


@settings(max_examples=60, deadline=None)
@given(records=records, size=st.integers(1, 4), dropped=st.sampled_from([None, 1]))
def test_participations_are_those_of_brute_force(records, size, dropped):
    """The buffer played by hand, without the library's loop: counts, separation and mu."""
    needs_opacus()
    order = sorted(records, key=lambda each: each[1])
    order = [each for i, each in enumerate(order) if i == 0 or each[1] != order[i - 1][1]]
    events = [ReplayEvent(client, 0, float(time)) for client, time in order]
    table = ScheduleTable(events, num_clients=4)
    rule = FedBuff(size, staleness=lambda tau: 1 / (1 + tau))
    if dropped is not None:
        rule.max_staleness = dropped
    version, held, shares = 0, [], defaultdict(list)
    for client, _ in order:  # all pull version 0, so the staleness is the version
        if dropped is not None and version > dropped:
            continue
        held.append(client)
        if len(held) == size:
            version += 1
            most = max(held.count(each) for each in held)
            for each in set(held):
                shares[each].append((version, held.count(each) / most))
            held = []
    private = PrivateSum(rule, 3.0, 1.0)
    arrivals = [client for client, _ in order]
    local = privacy_report(table, rule, NOISE, delta=DELTA)
    assert local.participations.tolist() == [arrivals.count(client) for client in range(4)]
    if not shares:
        with pytest.raises(ValueError, match="nothing to account for"):
            privacy_report(table, private, delta=DELTA)
        return
    report = privacy_report(table, private, delta=DELTA)
    assert report.participations.tolist() == [len(shares[client]) for client in range(4)]
    expected = [math.sqrt(sum(r * r for _, r in shares[client])) / 3 for client in range(4)]
    assert report.mu.tolist() == pytest.approx(expected)
    gaps = [b - a for one in shares.values() for (a, _), (b, _) in pairwise(one)]
    assert report.min_separation == min(gaps, default=None)


def fitted(**given):
    torch.manual_seed(0)
    options = {
        "arrivals": CLOCK,
        "aggregator": PRIVATE,
        "local_optimizer": LocalSGD(0.1),
        "max_time": 20.0,
        "logger": False,
        "enable_progress_bar": False,
        "accelerator": "cpu",
    }
    trainer = FedTrainer(**{**options, **given})
    trainer.fit(Boring(), classes())
    return trainer


@pytest.mark.parametrize(
    "given",
    [{}, {"aggregator": FedBuff(3), "channel": [NOISE]}, {"aggregator": MIFA(1), "channel": NOISE}],
    ids=["central", "local", "remembering"],
)
@pytest.mark.filterwarnings("ignore:fedlight. ")
def test_before_the_run_it_is_what_it_is_after_it(given):
    needs_opacus()
    trainer = fitted(**given)
    after = privacy_report(trainer, delta=DELTA)
    parts = {"aggregator": PRIVATE, **given}
    before = privacy_report(CLOCK, **parts, delta=DELTA, num_clients=4, max_time=20.0)
    assert before.participations.tolist() == after.participations.tolist()
    assert before.mu.tolist() == after.mu.tolist()
    assert before.epsilon == after.epsilon
    assert before.min_separation == after.min_separation
    assert str(before) == str(after)
    if not given:
        assert privacy.report_of(trainer.history, DELTA).epsilon == after.epsilon


@pytest.mark.filterwarnings("ignore:fedlight. ")
def test_messages_that_are_in_no_record_are_not_forgotten():
    """FedAsync drops all updates after the first version: they were sent all the same."""
    needs_opacus()
    events = [ReplayEvent(client, 0, 1.0 + client) for client in (0, 1, 2)]
    rule = FedAsync(0.5, max_staleness=0)
    table = ScheduleTable(events, num_clients=4)
    report = privacy_report(table, rule, NOISE, delta=DELTA)
    assert report.participations.tolist() == [1, 1, 1, 0]
    trainer = fitted(arrivals=ReplayArrivals(table), aggregator=rule, channel=NOISE)
    with pytest.raises(ValueError, match="in no record of this trainer, but the noise"):
        privacy_report(trainer, delta=DELTA)


class Silent(Aggregator):
    """A rule of one's own that does not say what it holds: the mean of every three deltas."""

    def setup(self, federation, state):
        self.waiting = []

    def receive(self, update):
        self.waiting.append(update)
        return len(self.waiting) == 3

    def step(self, state):
        used, self.waiting = [UsedUpdate(each, 1 / 3) for each in self.waiting], []
        return next_version(state, state.params + sum(u.delta for u, _ in used) / 3, used)


def test_messages_count_that_a_rule_holds_without_saying_so():
    """Three updates make the version, and two more are sent after it."""
    needs_opacus()
    events = [ReplayEvent(client, 0, 1.0 + k) for k, client in enumerate([0, 1, 2, 1, 3])]
    table = ScheduleTable(events, num_clients=4)
    report = privacy_report(table, Silent(), NOISE, delta=DELTA)
    assert report.participations.tolist() == [1, 2, 1, 1]
    assert report.mu.tolist() == privacy_report(table, FedBuff(3), NOISE, delta=DELTA).mu.tolist()


def reported(run=CLOCK, aggregator=PRIVATE, channel=None, **given):
    options = {"delta": DELTA, "num_clients": 4, "max_rounds": 3}
    return privacy_report(run, aggregator, channel, **{**options, **given})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reported(aggregator=FedBuff(2)), "epsilon is infinite, since neither FedBuff"),
        (lambda: reported(aggregator=FedBuff(2), channel=Clip(1.0)), "epsilon is infinite"),
        (lambda: reported(channel=NOISE), "both the channel and the aggregator add noise"),
        (lambda: reported(SharedStream(CLOCK, 4)), "lets all clients read the same data"),
        (lambda: reported(aggregator=None), "a schedule has no noise by itself: give aggregator="),
        (lambda: reported(num_clients=None), "num_clients must be given for an arrival process"),
        (lambda: reported(delta=1.0), "delta must be below 1, and well below 1 / num_clients"),
        (lambda: reported(delta=0), "delta must be larger than 0, got 0"),
        (lambda: reported(FEEDBACK), "chooses clients by what they have sent"),
        (lambda: reported(ReplayArrivals(OF_FEEDBACK)), "is, or replays, a process that chooses"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


FEEDBACK = Oort(SynchronousArrivals(2, ExponentialDurations(1.0)))
OF_FEEDBACK = ScheduleTable([ReplayEvent(0, 0, 1.0)], num_clients=4, feedback=True)


def test_a_first_half_is_no_message():
    """Four tasks in halves: the client sends four updates, after the second halves."""
    needs_opacus()
    clock = ContinuousArrivals(FixedDurations([1.0]), resume="on_arrival", local_steps=4)
    rule, noise = FedASMU(), GaussianNoise(8.0, 0.5)
    limits = {"num_clients": 1, "delta": DELTA}
    report = privacy_report(RefreshedTasks(clock), rule, noise, max_rounds=4, **limits)
    assert report.participations.tolist() == [4]
    # The fifth update arrives at 5, and the first half of the sixth one at 5.5.
    late = privacy_report(RefreshedTasks(clock), FedBuff(2), noise, max_time=5.7, **limits)
    assert late.participations.tolist() == [5]
    run = run_of(
        Point(),
        points([1.0]),
        arrivals=RefreshedTasks(clock),
        aggregator=rule,
        channel=noise,
        local_optimizer=FreshModel(LocalSGD(0.5)),
        max_rounds=4,
    )
    assert privacy_report(run, delta=DELTA).participations.tolist() == [4]


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(ImportError, match="pip install opacus"):
        privacy.gaussian_epsilon(1.0, DELTA)


def test_rounds_are_no_independent_samples():
    """Two of four clients in each round: no epsilon below that of the counts is claimed."""
    needs_opacus()
    rule = PrivateSum(FedAvg(None, "uniform"), 2.0, 0.5)
    report = reported(UniformArrivals(2), rule, max_rounds=20)
    assert report.participations.sum() == 40
    k = report.max_participations
    assert report.epsilon == pytest.approx(privacy.gaussian_epsilon(math.sqrt(k) / 2, DELTA))
    assert report.baseline_epsilon < report.epsilon


@pytest.mark.filterwarnings("ignore:fedlight. ")
def test_a_study_has_a_column_of_epsilon():
    needs_opacus()
    rules = {"plain": FedBuff(2), "private": PRIVATE}
    study = sweep(
        over={"aggregator": rules},
        seeds=(0,),
        module=Boring,
        datamodule=classes(),
        arrivals=CLOCK,
        local_optimizer=LocalSGD(0.1),
        max_rounds=4,
        metric="val_loss",
        enable_progress_bar=False,
        accelerator="cpu",
        workers=1,
    )
    table = study.table(delta=DELTA)
    report = reported(max_rounds=4)
    expected = report.epsilon
    (private,) = table.entries[("private",), "epsilon (delta 1e-05)"].values.values()
    (plain,) = table.entries[("plain",), "epsilon (delta 1e-05)"].values.values()
    assert private == expected
    assert math.isnan(plain)
    (private,) = table.entries[("private",), "of central DP-FedAvg"].values.values()
    (plain,) = table.entries[("plain",), "of central DP-FedAvg"].values.values()
    assert private == report.baseline_epsilon != expected
    assert math.isnan(plain)
    assert f"{expected:.4f}" in str(table)
    with pytest.raises(ValueError, match="delta needs columns of its own"):
        study.table(columns="aggregator", delta=DELTA)
    with pytest.raises(ValueError, match="no run of the study adds noise at its server"):
        study.only(aggregator="plain").table(delta=DELTA)
