import math

import numpy as np
import pytest

from fedlight.arrivals import (
    ConstantSteps,
    ContinuousArrivals,
    DurationModel,
    ExponentialDurations,
    FixedDurations,
    HalfNormalDurations,
    LocalEpochs,
    LogNormalDurations,
    PoissonArrivals,
    StepDurations,
    SynchronousArrivals,
    UniformSpeeds,
    UniformSteps,
)
from fedlight.randomness import Concern, stream

N = 20_000


def draws(model, federation, client=0, num_steps=1, count=N):
    rng = stream(0, Concern.DURATIONS)
    return np.array([model.draw(rng, client, num_steps, federation, 0.0) for _ in range(count)])


def test_fixed(federation):
    model = FixedDurations([1.0, 1, 0.3])
    assert [model.draw(None, i, 5, federation(3), 0.0) for i in range(3)] == [1.0, 1.0, 0.3]
    assert model.expected(federation(3)).tolist() == [1.0, 1.0, 0.3]
    with pytest.raises(ValueError, match="has 3 numbers, but there are 2 clients"):
        model.check(federation(2))


@pytest.mark.parametrize(
    ("spread", "num_clients", "expected"),
    [
        (0.8, 5, [0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.8, 2, [0.2, 1.0]),
        (0.0, 3, [1.0, 1.0, 1.0]),
        (0.8, 1, [1.0]),
        (0.5, 3, [0.5, 0.75, 1.0]),
        (0.2, 4, [0.8, 0.866666667, 0.933333333, 1.0]),  # whole ticks
    ],
)
def test_uniform_speeds(federation, spread, num_clients, expected):
    model = UniformSpeeds(spread)
    here = federation(num_clients)
    assert [model.draw(None, i, 5, here, 0.0) for i in range(num_clients)] == expected
    assert model.expected(here).tolist() == expected


def test_slowest_is_the_unit(federation):
    assert UniformSpeeds(0.8, slowest=10).expected(federation(3)).tolist() == [2.0, 6.0, 10.0]


def test_exponential(federation):
    values = draws(ExponentialDurations(2.0), federation(1))
    # Mean and standard deviation are 2; four standard errors of the mean are 0.057.
    assert abs(values.mean() - 2) < 0.057
    assert abs(values.std() - 2) < 0.15
    assert abs((values > 2).mean() - math.exp(-1)) < 0.014
    assert values.min() > 0


def test_half_normal(federation):
    model = HalfNormalDurations(3.0)
    values = draws(model, federation(1))
    mean = 3 * math.sqrt(2 / math.pi)  # 2.394; the standard deviation is 3*sqrt(1-2/pi) = 1.808
    assert model.expected(federation(2)).tolist() == [mean, mean]
    assert abs(values.mean() - mean) < 4 * 1.808 / math.sqrt(N)
    assert abs(values.std() - 1.808) < 0.06
    assert abs((values < 3).mean() - 0.6827) < 0.014
    assert values.min() > 0


def test_log_normal(federation):
    model = LogNormalDurations(median=2.0, sigma=0.5)
    values = draws(model, federation(1))
    assert abs(np.median(values) - 2) < 0.04
    assert abs(np.log(values).std() - 0.5) < 0.01
    assert model.expected(federation(1))[0] == pytest.approx(2 * math.exp(0.125))
    assert abs(values.mean() - 2.266) < 0.04
    assert set(draws(LogNormalDurations(2.0, 0.0), federation(1), count=5)) == {2.0}


def test_one_number_for_each_client(federation):
    for model, mean in [
        (ExponentialDurations([1.0, 4.0]), [1.0, 4.0]),
        (HalfNormalDurations([1.0, 4.0]), [0.79788456, 3.19153824]),
        (LogNormalDurations([1.0, 4.0], 0.0), [1.0, 4.0]),
    ]:
        model.check(federation(2))
        np.testing.assert_allclose(model.expected(federation(2)), mean)
        one, two = draws(model, federation(2), 0), draws(model, federation(2), 1)
        np.testing.assert_allclose(two, 4 * one)
        with pytest.raises(ValueError, match="has 2 numbers, but there are 3 clients"):
            model.check(federation(3))


def test_numpy_arrays_are_lists_too(federation):
    assert ExponentialDurations(np.array([1.0, 4.0])).expected(federation(2)).tolist() == [1, 4]


def test_steps(federation):
    model = StepDurations(0.1, overhead=0.5)
    assert model.draw(None, 0, 5, federation(1), 0.0) == 1.0
    assert StepDurations([0.1, 1.0]).draw(None, 1, 3, federation(2), 0.0) == 3.0
    assert model.expected(federation(2)) is None
    assert model.expected(federation(2), np.array([5.0, 10.0])).tolist() == [1.0, 1.5]


def test_expected_durations_know_the_steps(federation):
    """Six examples in batches of two: three steps for an epoch."""
    for steps, expected in [
        (LocalEpochs(1), 0.8),
        (ConstantSteps(5), 1.0),
        (UniformSteps(1, 4), 0.75),
    ]:
        for arrivals in [
            ContinuousArrivals(StepDurations(0.1, 0.5), local_steps=steps),
            SynchronousArrivals(durations=StepDurations(0.1, 0.5), local_steps=steps),
        ]:
            arrivals.setup(federation(2))
            assert arrivals.expected_durations().tolist() == [expected, expected]


def test_what_is_drawn_is_never_zero(federation):
    class Zero:
        def standard_exponential(self):
            return 0.0

        def standard_normal(self):
            return 0.0

    for model in [ExponentialDurations(1.0), HalfNormalDurations(1.0)]:
        assert model.draw(Zero(), 0, 1, federation(1), 0.0) == 1e-9


class Broken(DurationModel):
    uses_rng = False

    def __init__(self, duration):
        self.duration = duration

    def draw(self, rng, client_id, num_steps, federation, starts_at):
        return self.duration


@pytest.mark.parametrize("duration", [0.0, -1.0, 1e-10])
def test_durations_that_do_not_move_time_on_are_refused(duration):
    arrivals = ContinuousArrivals(Broken(duration))
    with pytest.raises(ValueError, match="virtual time must advance"):
        arrivals.simulate(num_clients=2, buffer_size=1, max_updates=1)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: FixedDurations([]), ValueError, "durations must hold one number"),
        (lambda: FixedDurations([1.0, 0.0]), ValueError, r"durations\[1\] must be larger than 0"),
        (lambda: FixedDurations([-1.0]), ValueError, r"durations\[0\] must be larger than 0"),
        (lambda: FixedDurations(["a"]), TypeError, r"durations\[0\] must be a number"),
        (lambda: UniformSpeeds(1.0), ValueError, "spread must be below 1"),
        (lambda: UniformSpeeds(-0.1), ValueError, "spread must lie between 0 and 1, got -0.1"),
        (lambda: UniformSpeeds(80), ValueError, "spread must lie between 0 and 1, got 80"),
        (lambda: UniformSpeeds(0.8, 0), ValueError, "slowest must be larger than 0"),
        (lambda: ExponentialDurations(0), ValueError, "mean must be larger than 0"),
        (lambda: ExponentialDurations("1"), TypeError, "mean must be a number"),
        (lambda: ExponentialDurations([1, math.inf]), ValueError, r"mean\[1\] must be finite"),
        (lambda: HalfNormalDurations(-1), ValueError, "scale must be larger than 0"),
        (lambda: HalfNormalDurations([]), ValueError, "scale must hold one number"),
        (lambda: LogNormalDurations(0, 1), ValueError, "median must be larger than 0"),
        (lambda: LogNormalDurations(1, -1), ValueError, "sigma must be 0 or larger"),
        (lambda: StepDurations(0), ValueError, "per_step must be larger than 0"),
        (lambda: StepDurations(1, -1), ValueError, "overhead must be 0 or larger"),
        (lambda: FixedDurations({1: 50.0, 2: 70.0}), TypeError, "got the mapping {1: 50.0, 2: 70"),
        (lambda: FixedDurations("12"), TypeError, "list of one number for each client, got '12'"),
        (lambda: FixedDurations(5.0), TypeError, r"write durations=\[x\] \* num_clients"),
        (
            lambda: FixedDurations([1.0, 1e-12]),
            ValueError,
            r"durations\[1\] must be at least 1e-09",
        ),
        (lambda: FixedDurations([1e7]), ValueError, "must be at most 9,007,199 units .*, got 1000"),
        (lambda: UniformSpeeds(0, 1e300), ValueError, "slowest must be at most 9,007,199 units"),
        (lambda: ExponentialDurations({0: 1.0}), TypeError, "mean must be a list, got the mapping"),
        (lambda: ExponentialDurations(1e300), ValueError, "mean must be at most 9,007,199 units"),
        (
            lambda: HalfNormalDurations([1, 1e9]),
            ValueError,
            r"scale\[1\] must be at most 9,007,199",
        ),
        (lambda: LogNormalDurations(1e-12, 1), ValueError, "median must be at least 1e-09"),
        (lambda: LogNormalDurations(1, 300), ValueError, "sigma=300 is too large: the mean"),
        (lambda: LogNormalDurations([1, 1e6], 3), ValueError, "sigma=3 is too large: the mean"),
        (lambda: LogNormalDurations({0: 1.0}, 1), TypeError, "median must be a list, got the mapp"),
        (lambda: StepDurations({0: 1.0}), TypeError, "per_step must be a list, got the mapping"),
    ],
)
def test_bad_arguments(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_the_largest_spread_does_not_overflow(federation):
    """exp(sigma * z) stays finite for the largest z that a generator gives, about 13.7."""

    class Tail:
        def standard_normal(self):
            return 13.7

    smallest = 1e-9
    sigma = math.sqrt(2 * (math.log(2**53 / 1e9) - math.log(smallest))) - 1e-9
    model = LogNormalDurations(smallest, sigma)
    assert math.isfinite(model.draw(Tail(), 0, 1, federation(1), 0.0))
    assert math.isfinite(model.expected(federation(1))[0])


class Slowing(DurationModel):
    """One unit more for each unit of virtual time."""

    uses_rng = False

    def draw(self, rng, client_id, num_steps, federation, starts_at):
        return 1 + starts_at


@pytest.mark.parametrize(
    ("arrivals", "pulls", "times"),
    [
        (ContinuousArrivals(Slowing()), [0, 1, 3, 7], [1, 3, 7, 15]),
        (ContinuousArrivals(Slowing(), idle=1.0), [0, 2, 6], [1, 5, 13]),
        (ContinuousArrivals(Slowing(), resume="on_arrival", idle=1.0), [0, 2, 6], [1, 5, 13]),
        (SynchronousArrivals(durations=Slowing()), [0, 1, 3, 7], [1, 3, 7, 15]),
    ],
)
def test_a_model_sees_the_time_of_the_pull(arrivals, pulls, times):
    table = arrivals.simulate(num_clients=1, buffer_size=1, max_time=20)
    assert [event.dispatched_at for event in table.events] == pulls
    assert [event.time for event in table.events] == times


class Drifting(DurationModel):
    def draw(self, rng, client_id, num_steps, federation, starts_at):
        return num_steps * (1.5 + math.sin(starts_at + client_id)) * rng.uniform(0.9, 1.1)


@pytest.mark.parametrize("stop_after", [1, 7, 30])
def test_speeds_that_drift_need_no_state(drive, stop_after):
    def make():
        return ContinuousArrivals(Drifting(), concurrency=3, idle=0.2, local_steps=2)

    whole = drive(make, 5, num_events=40, buffer_size=2)
    assert drive(make, 5, num_events=40, buffer_size=2, stop_after=stop_after) == whole


def test_a_drawn_client_sees_the_time_of_its_pull():
    for arrivals in [
        ContinuousArrivals(Slowing(), concurrency=1, idle=0.5),
        PoissonArrivals(2.0, Slowing()),
    ]:
        events = arrivals.simulate(num_clients=3, buffer_size=1, max_time=200).events
        assert len(events) >= 3
        for event in events:
            assert event.time == pytest.approx(1 + 2 * event.dispatched_at, abs=2e-9)


def test_repr_of_many_clients_is_short():
    words = repr(FixedDurations([1.0] * 10_000))
    assert words.startswith("FixedDurations([1.0, 1.0, 1.0, ... 10000 in all, ")
    assert len(words) == 59  # eight digits tell the list from others
    assert repr(ExponentialDurations([1.0, 2.0])) == "ExponentialDurations([1.0, 2.0])"
    assert repr(UniformSpeeds(0.8)) == "UniformSpeeds(0.8, slowest=1)"
    assert repr(LogNormalDurations(1, 0.5)) == "LogNormalDurations(1.0, sigma=0.5)"
    assert repr(HalfNormalDurations(1)) == "HalfNormalDurations(1.0)"
    assert repr(StepDurations(1)) == "StepDurations(1.0, overhead=0)"
