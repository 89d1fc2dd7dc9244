"""Tasks in two halves."""

import pytest

from fedlight.aggregators import FedASMU
from fedlight.arrivals import (
    Availability,
    ClientSelection,
    ContinuousArrivals,
    DropOut,
    ExponentialDurations,
    FixedDurations,
    PerClientSteps,
    RefreshedTasks,
    SynchronousArrivals,
    Tiers,
    UniformSteps,
)
from fedlight.arrivals.base import Dispatch
from fedlight.channel import Clip, ErrorFeedback, TopK
from fedlight.executors.base import ClientError
from fedlight.local_optimizers import FreshModel, LocalSGD
from fedlight.types import Task
from tests.boring import Point, fitted, points


def clock(durations=(2.0, 4.0), steps=(2, 4), **more):
    more = {"resume": "on_arrival"} | more
    return ContinuousArrivals(
        FixedDurations(list(durations)), local_steps=PerClientSteps(list(steps)), **more
    )


def test_halves_by_hand():
    """At 2 and at 4 the clients meet; client 0 comes first, and client 1 pulls what it has made."""
    table = RefreshedTasks(clock()).simulate(num_clients=2, buffer_size=1, max_time=7.0)
    assert [(e.client, e.time, e.num_steps, e.tag, e.pulled_version) for e in table.events] == [
        (0, 1.0, 1, "half 1 1000000000", 0),
        (0, 2.0, 1, "from 0", 0),
        (1, 2.0, 2, "half 2 2000000000", 0),
        (0, 3.0, 1, "half 1 1000000000", 1),
        (0, 4.0, 1, "from 1", 1),
        (1, 4.0, 2, "from 0", 1),
        (0, 5.0, 1, "half 1 1000000000", 2),
        (0, 6.0, 1, "from 2", 3),
        (1, 6.0, 2, "half 2 2000000000", 3),
        (0, 7.0, 1, "half 1 1000000000", 4),
    ]


@pytest.mark.parametrize(
    ("at", "steps", "first"), [(0.5, 7, 3), (0.1, 7, 1), (0.99, 7, 6), (0.5, 2, 1)]
)
def test_where_a_task_is_cut_in_two(at, steps, first):
    process = RefreshedTasks(clock([7.0], [steps]), at)
    table = process.simulate(num_clients=1, buffer_size=1, max_rounds=1)
    one, two = table.events
    assert (one.num_steps, two.num_steps) == (first, steps - first)
    assert one.time == pytest.approx(7.0 * first / steps, abs=1e-9)
    assert (two.dispatched_at, two.time) == (one.time, 7.0)


def test_a_task_of_one_step_is_whole():
    table = RefreshedTasks(clock([1.0], [1])).simulate(num_clients=1, buffer_size=1, max_rounds=3)
    assert [(event.time, event.tag) for event in table.events] == [(1, None), (2, None), (3, None)]


@pytest.mark.parametrize("more", [{}, {"concurrency": 2}, {"resume": "on_aggregation"}])
def test_the_process_within_does_as_without_halves(more):
    """Whole tasks begin and end at the same times; versions are those of whole tasks."""

    def times(wrap):
        process = wrap(clock([1.0, 1.5, 2.2], [4, 5, 6], **more))
        table = process.simulate(num_clients=3, buffer_size=2, max_time=30.0)
        return [(e.client, e.time) for e in table.events if not str(e.tag).startswith("half")]

    assert times(RefreshedTasks) == times(lambda process: process)


def test_the_process_within_is_not_told_of_halves():
    told = []

    class Spy(ContinuousArrivals):
        def on_version(self, version, clients, now):
            told.append((now, list(clients)))
            return super().on_version(version, clients, now)

    spy = Spy(FixedDurations([2.0, 4.0]), resume="on_arrival", local_steps=4)
    RefreshedTasks(spy).simulate(num_clients=2, buffer_size=1, max_time=4.0)
    assert told == [(1.0, []), (2.0, [0]), (2.0, []), (3.0, []), (4.0, [0]), (4.0, [1])]


class Ear(ClientSelection):
    """Chooses the first clients, and notes what it is told."""

    def setup(self, federation):
        super().setup(federation)
        self.told = []

    def on_feedback(self, task, seen, now):
        self.told.append((task.pulled_version, task.tag, task.num_steps, seen[3:]))

    def on_arrival(self, task, now):
        self.told.append((task.pulled_version, task.tag, task.num_steps, task.dispatched_at))
        return super().on_arrival(task, now)

    def choose(self, clients, count, rng, now):
        return clients[:count]


@pytest.mark.filterwarnings("ignore:fedlight. some clients")
def test_the_process_within_hears_of_whole_tasks():
    """Tasks of 1 and 1.5 with 5 steps: the second one pulls 0, then 0, and arrives at version 1.

    Client 0, which is chosen again, pulls version 1 at 1 and version 2 at 1.5.
    """
    inner = ContinuousArrivals(
        FixedDurations([1.0, 1.5, 9.0]), concurrency=2, resume="on_arrival", local_steps=5
    )
    run = halved(RefreshedTasks(Ear(inner), 0.6), [1.0], [2.0], [3.0], max_time=2.0)
    assert run.arrivals.arrivals.told == [
        *[(0, None, 5, (1.0, 0)), (0, None, 5, 0.0)],
        *[(0, None, 5, (1.5, 1)), (0, None, 5, 0.0)],
        *[(1, None, 5, (1.0, 1)), (1, None, 5, 1.0)],
    ]


def halved(arrivals, *clients, module=None, **given):
    given = {"local_optimizer": FreshModel(LocalSGD(0.5))} | given
    given = {"aggregator": FedASMU(lam=0.0, iota=1.0), "precision": "64-true"} | given
    return fitted(module or Point(), points(*clients), arrivals=arrivals, **given)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"channel": ErrorFeedback(TopK(1.0))},
        {"channel": [ErrorFeedback(TopK(1.0)), Clip(0.8)]},
        {"channel": Clip(0.8)},
    ],
)
def test_nothing_is_sent_after_a_first_half(given):
    """x = 1: w = 0 becomes 1/2 and 3/4, and the server goes half of it; then 11/16 and 27/32.

    So neither the memory of a channel nor a limit gets what a first half has made.
    """
    arrivals = RefreshedTasks(clock([1.0], [2]))
    run = halved(arrivals, [1.0], max_rounds=2, **given)
    assert run.module.w.item() == pytest.approx(3 / 8 + (27 / 32 - 3 / 8) / 2, abs=1e-12)


class Fragile(Point):
    """One of its steps fails."""

    def __init__(self, fails):
        super().__init__()
        self.fails, self.steps = fails, 0

    def training_step(self, batch, batch_idx):
        Fragile.made += 1
        if Fragile.made == self.fails:
            raise RuntimeError("no memory left")
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("fails", [1, 3])
@pytest.mark.parametrize(("how", "failures"), [("raise", 0), ("drop", 1), ("retry", 3)])
def test_without_its_first_half_a_task_has_failed(how, failures, fails):
    """Two steps a task: the first one fails, of the first task or of the second one."""
    Fragile.made = 0

    def run():
        arrivals = RefreshedTasks(clock([1.0], [2], resume="on_aggregation"))
        given = {"on_client_failure": how, "executor": "sequential"}
        return halved(arrivals, [1.0], module=Fragile(fails), max_rounds=2, **given)

    words = "the first half of its task has failed: RuntimeError: no memory left"
    if how == "raise":
        with pytest.raises(ClientError, match=words):
            run()
        return
    done = run()
    assert [each.reason for r in done.history for each in r.failures] == [words] * failures
    assert done.module.w.item() == pytest.approx(3 / 8 + (27 / 32 - 3 / 8) / 2, abs=1e-12)


def test_what_is_known_of_a_task():
    task = Task(0, 5, 0.0, 1.0, 2, 0, 0)
    first, second = task._replace(tag="half 3 100"), task._replace(tag="from 2")
    assert (task.is_first_half, task.is_second_half, task.began_with) == (False, False, 5)
    assert (first.is_first_half, first.is_second_half, first.began_with) == (True, False, 5)
    assert (second.is_first_half, second.is_second_half, second.began_with) == (False, True, 2)
    assert task._replace(tag="fast").began_with == 5


def test_a_half_that_is_lost_is_a_lost_task():
    process = DropOut(RefreshedTasks(clock([1.0], [4])), 0.5)
    table = process.simulate(num_clients=1, buffer_size=1, max_rounds=20, seed=1)
    halves = [str(event.tag).split()[0] for event in table.events]
    assert halves.count("from") == 20
    assert halves.count("half") > 20  # after some the other half is lost


def test_a_lost_task_is_not_cut_in_two():
    lost = Dispatch(0, 1.0, 4, lost=True)
    assert list(RefreshedTasks(clock()).change([lost], 0.0)) == [lost]


def test_a_second_half_waits_for_its_client():
    process = Availability(RefreshedTasks(clock([4.0], [4])), [(0, 1), (5, 9)])
    table = process.simulate(num_clients=1, buffer_size=1, max_rounds=1)
    assert [(e.dispatched_at, e.time) for e in table.events] == [(0.0, 2.0), (5.0, 7.0)]
    never = Availability(RefreshedTasks(clock([4.0], [4])), [(0, 1)])
    assert len(never.simulate(num_clients=1, buffer_size=1, max_time=50.0)) == 1


def test_a_first_half_that_cannot_start_is_whole_again():
    process = RefreshedTasks(clock([4.0], [4]))
    process.simulate(num_clients=1, buffer_size=1, max_rounds=1)
    (half,) = process.change([Dispatch(0, 4.0, 4)], 0.0)
    assert list(process.on_unavailable(half, 3.0, 0.0)) == [half._replace(delay=3.0)]


def test_tasks_that_are_stopped_start_again():
    inner = ContinuousArrivals(
        ExponentialDurations(1.0),
        resume="on_arrival",
        local_steps=UniformSteps(2, 6),
        restart_after=2,
    )
    table = RefreshedTasks(inner).simulate(num_clients=5, buffer_size=1, max_rounds=60)
    stopped = [event for event in table.events if event.stopped_at_version is not None]
    assert len(stopped) > 10
    # The age is that of the version that was pulled first.
    assert all(
        event.stopped_at_version - int(str(event.tag).removeprefix("from ")) >= 2
        for event in stopped
        if str(event.tag).startswith("from")
    )


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: RefreshedTasks(3), TypeError, "arrivals must be an arrival process, got 3"),
        (lambda: RefreshedTasks(clock(), 0), ValueError, "at must be larger than 0, got 0"),
        (lambda: RefreshedTasks(clock(), 1), ValueError, "at must be below 1, got 1"),
        (
            lambda: RefreshedTasks(SynchronousArrivals()),
            ValueError,
            "arrivals must have neither rounds nor groups, got SynchronousArrivals",
        ),
        (lambda: RefreshedTasks(RefreshedTasks(clock())), ValueError, "neither rounds nor groups"),
        (lambda: Tiers({"a": RefreshedTasks(clock())}), TypeError, "process without groups"),
    ],
)
def test_mistakes(make, error, words):
    with pytest.raises(error, match=words):
        make()
