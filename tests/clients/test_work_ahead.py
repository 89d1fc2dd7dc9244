"""Work ahead: the bits of one process in whichever order workers finish, and what is begun when."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlight import Callback
from fedlight.aggregators import AFACD, FedAsync, FedAvg, FedBuff, FedDynServer
from fedlight.arrivals import ContinuousArrivals, SynchronousArrivals, UniformArrivals, UniformSteps
from fedlight.arrivals.distributions import UniformDurations
from fedlight.channel import QSGD, ErrorFeedback, TopK
from fedlight.clients.pending import Status
from fedlight.clients.pool import Pool
from fedlight.executors import Executor
from fedlight.executors._remote.crew import Crew
from fedlight.local_optimizers import FedDyn, Scaffold
from fedlight.types import LocalResult, ServerState, Task
from tests.boring import Boring, classes, fitted, trainer
from tests.crews import Crowd, Here

SIZES = (6, 10, 3, 8, 5, 7, 9, 4)
STEPS = UniformSteps(1, 4)


def by_the_clock(**more) -> ContinuousArrivals:
    return ContinuousArrivals(UniformDurations(0.5, 1.5), local_steps=STEPS, **more)


class Strict(Boring):
    """It fails over some batches, and draws random numbers."""

    def training_step(self, batch, batch_idx):
        if batch[0][0, 0] > 0.9:
            raise ArithmeticError("too large")
        return super().training_step((batch[0] + 0.1 * torch.rand(()), batch[1]), batch_idx)


class Picky(FedBuff):
    """It does not accept updates that are stale by more than one version."""

    def accepts(self, update, version) -> bool:
        return version - update.task.pulled_version <= 1


class Reads(Callback):
    """Reads results as soon as they arrive."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_update(self, trainer, module, update) -> None:
        if update.task.serial % 3 == 0:
            self.norms.append(update.delta.norm().item())


FEDERATIONS = {
    "rounds": lambda: {
        "arrivals": SynchronousArrivals(4, UniformDurations(1, 2), STEPS),
        "aggregator": FedAvg(),
        "local_optimizer": Scaffold(0.1),
    },
    "one by one, stale ones dropped": lambda: {
        "arrivals": by_the_clock(concurrency=6, resume="on_arrival"),
        "aggregator": FedAsync(0.5, max_staleness=3),
        "max_rounds": 14,
    },
    "chains of states, stale ones dropped": lambda: {
        "arrivals": by_the_clock(concurrency=6, resume="on_arrival"),
        "aggregator": Picky(2),
        "local_optimizer": Scaffold(0.1),
        "max_rounds": 6,
    },
    "buffers and a channel": lambda: {
        "arrivals": by_the_clock(),
        "aggregator": FedBuff(3),
        "channel": QSGD(4),
        "max_rounds": 6,
    },
    "a channel with a memory": lambda: {
        "arrivals": by_the_clock(),
        "aggregator": Picky(3),
        "channel": ErrorFeedback(TopK(0.3)),
        "max_rounds": 6,
    },
    "runs that are stopped": lambda: {
        "arrivals": by_the_clock(restart_after=1),
        "aggregator": FedBuff(3),
        "max_rounds": 6,
    },
    "rounds that are cut": lambda: {
        "arrivals": SynchronousArrivals(4, UniformDurations(1, 2), STEPS, timeout=1.5, late="cut"),
        "aggregator": FedAvg(),
        "local_optimizer": FedDyn(0.1),
    },
    "failures": lambda: {
        "arrivals": UniformArrivals(3, max_staleness=2, local_steps=STEPS),
        "aggregator": AFACD(),
        "on_client_failure": "retry",
        "net": Strict,
    },
    "by time": lambda: {
        "arrivals": by_the_clock(),
        "aggregator": FedDynServer(0.01, 4),
        "local_optimizer": FedDyn(0.1),
        "max_time": 4.5,
    },
}


def fit(name: str, executor: object, **more):
    asked = FEDERATIONS[name]() | more
    torch.manual_seed(0)
    module = asked.pop("net", Boring)()
    reads = Reads()
    callbacks = [reads, *asked.pop("callbacks", [])]
    ckpt_path = asked.pop("ckpt_path", None)
    run = trainer(executor=executor, callbacks=callbacks, **asked)
    run.fit(module, classes(SIZES), ckpt_path=ckpt_path)
    return run, reads.norms


ALONE: dict[tuple[str, int], tuple] = {}


def alone(name: str, parcel: int = 0) -> tuple:
    """What one worker that never dies makes of a federation; one process, if `parcel` is 0."""
    if (name, parcel) not in ALONE:
        executor: object = "sequential"
        if parcel:
            executor = Crowd(1, independent=False, parcel=parcel)
        run, norms = fit(name, executor)
        ALONE[name, parcel] = run.fingerprint(), run.history, norms
    return ALONE[name, parcel]


@pytest.mark.parametrize("name", FEDERATIONS)
@settings(max_examples=6, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(0, 1000),
    st.sampled_from([1, 2, 7, 40]),
    st.sampled_from([1, 3]),
    st.sampled_from([0.0, 0.3]),
)
def test_the_bits_of_one_process_in_whichever_order_workers_finish(
    name, workers, seed, max_batch, parcel, dying
) -> None:
    run, norms = fit(name, Crowd(workers, seed, parcel=parcel, max_batch=max_batch, dying=dying))
    assert (run.fingerprint(), run.history, norms) == alone(name)


@pytest.mark.parametrize("name", FEDERATIONS)
@settings(max_examples=5, deadline=None)
@given(st.integers(2, 5), st.integers(0, 1000), st.sampled_from([2, 3]))
def test_who_is_computed_with_whom_depends_on_no_worker(name, workers, seed, parcel) -> None:
    """Though the results of this executor depend on it. What is read early is computed apart."""
    run, _ = fit(name, Crowd(workers, seed, independent=False, parcel=parcel, dying=0.2))
    assert (run.fingerprint(), run.history) == alone(name, parcel)[:2]


@pytest.mark.parametrize("name", FEDERATIONS)
@pytest.mark.parametrize("independent", [True, False])
def test_a_resumed_run_goes_on_with_another_number_of_workers(name, independent, tmp_path) -> None:
    class Saves(Callback):
        def on_event_end(self, trainer, module) -> None:
            if trainer.num_updates and trainer.num_updates % 5 == 0:
                trainer.save_checkpoint(tmp_path / f"{trainer.num_updates}.ckpt")

    parcel = 0 if independent else 3
    given = {"independent": independent, "parcel": parcel or 1}
    saved, _ = fit(name, Crowd(3, 1, **given), callbacks=[Saves()])
    assert (saved.fingerprint(), saved.history) == alone(name, parcel)[:2]
    for each in sorted(tmp_path.iterdir())[:3]:
        resumed, _ = fit(name, Crowd(2, 2, **given), ckpt_path=each)
        assert (resumed.fingerprint(), resumed.history) == alone(name, parcel)[:2]


NOTHING = torch.empty(0)
STATE = ServerState(0, torch.zeros(1), NOTHING, NOTHING)


class Serials(Executor):
    """Workers whose deltas are serials; what they are given is written down."""

    independent = True

    def __init__(
        self, workers: int, max_batch: int = 100, parcel: int = 1, seconds: float = 0.0
    ) -> None:
        self.max_batch, self.parcel = max_batch, parcel
        self.begun: list[list[int]] = []
        self.seconds = seconds
        self.crew = Crew(self.hire, lambda all_, _: all_[:1], workers)

    def hire(self, place, jobs) -> Here:
        worker = Here(place, self)
        worker.seconds = self.seconds
        return worker

    def setup(self, workplace) -> None:
        """Nothing to do."""

    def run(self, jobs):
        return [LocalResult(torch.ones(1) * job.task.serial, NOTHING, NOTHING) for job in jobs]

    def given(self) -> list[list[int]]:
        """The serials of the tasks of each parcel that workers have, the first ones first."""
        parcels = [parcel for worker in self.crew.workers for parcel in worker.parcels]
        return sorted([job.task.serial for job in jobs] for jobs in parcels)


def computed(runs) -> list[int]:
    return [run.task.serial for run in runs if run.status is Status.COMPUTED]


def submit(pool, serial, arrives, after=None, steps=1):
    return pool.submit(Task(serial, 0, 0.0, arrives, steps, serial, 0), STATE, after)


def test_those_needed_come_first_and_then_those_that_arrive_next() -> None:
    executor = Serials(1)
    pool = Pool(executor)
    runs = [submit(pool, serial, at) for serial, at in enumerate([5.0, 2.0, 9.0, 3.0, 1.0])]
    pool.arrived(runs[2])
    pool.compute([runs[2]])
    assert runs[2].status is Status.COMPUTED
    assert executor.given() == [[1], [4]]  # in flight: they arrive next
    assert pool.num_ahead == 2
    assert all(pool.waits(run) for run in (*runs[:2], *runs[3:]))
    pool.arrived(runs[4])
    assert pool.num_ahead == 1
    pool.compute([runs[4]])
    assert executor.given() == [[1], [3]]


def test_of_those_needed_the_longest_begin_first() -> None:
    executor = Serials(1)
    pool = Pool(executor)
    runs = [submit(pool, serial, 1.0, steps=steps) for serial, steps in enumerate([1, 9, 3])]
    begun = []
    executor.run, run = (lambda jobs: begun.append(jobs[0].task.serial) or run(jobs)), executor.run
    for each in runs:
        pool.arrived(each)
    pool.compute(runs)
    assert begun == [1, 2, 0]


@pytest.mark.parametrize(
    ("max_batch", "max_ahead", "until", "useful", "expected"),
    [
        (100, None, 99.0, 99, [[1], [2], [3], [4]]),
        (2, None, 99.0, 99, [[1], [2]]),
        (100, 3, 99.0, 99, [[1], [2], [3]]),
        (100, None, 2.5, 99, [[1], [2]]),
        (100, None, 99.0, 1, [[1]]),
        (1, None, 99.0, 99, []),
    ],
)
def test_the_budget_and_the_limits(max_batch, max_ahead, until, useful, expected) -> None:
    executor = Serials(2, max_batch)
    executor.max_ahead = max_ahead
    pool = Pool(executor)
    runs = [submit(pool, serial, float(serial)) for serial in range(9)]
    pool.arrived(runs[0])
    pool.compute([runs[0]], until=until, useful=useful)
    assert executor.given() == expected


def test_parcels_leave_something_for_every_worker() -> None:
    executor = Serials(2, parcel=8)
    pool = Pool(executor)
    runs = [submit(pool, serial, float(serial)) for serial in range(6)]
    pool.arrived(runs[0])
    pool.compute(runs[:1])
    # Three went with the first one, two to the idle worker; the last waits until one is idle.
    assert computed(runs) == [0, 1, 2]
    assert executor.given() == [[3, 4], [5]]


def test_of_slow_runs_a_worker_gets_one_at_a_time_and_of_fast_ones_several() -> None:
    given = []
    for seconds in (0.1, 0.005, 1e-6):
        executor = Serials(2, parcel=8, seconds=seconds)
        executor.few_at_once = True
        pool = Pool(executor)
        runs = [submit(pool, serial, float(serial)) for serial in range(30)]
        pool.arrived(runs[0])
        pool.compute([runs[0]])  # the pace is known after this one
        given.append(max(map(len, executor.given())))
    assert given == [1, 4, 8]


def test_a_chain_is_computed_in_turn() -> None:
    executor = Serials(2)
    pool = Pool(executor)
    first = submit(pool, 0, 1.0)
    second = submit(pool, 1, 2.0, after=first)
    third = submit(pool, 2, 3.0, after=second)
    pool.compute([third])
    assert [run.status for run in (first, second, third)] == [Status.COMPUTED] * 3


def test_a_dropped_run_that_a_worker_has_is_forgotten() -> None:
    executor = Serials(1)
    pool = Pool(executor)
    runs = [submit(pool, serial, float(serial)) for serial in range(3)]
    pool.arrived(runs[0])
    pool.compute([runs[0]])
    assert executor.given() == [[1], [2]]
    pool.arrived(runs[1])
    pool.discard(runs[1])
    assert not pool.waits(runs[1])
    runs[1].release()
    pool.arrived(runs[2])
    pool.compute([runs[2]])
    assert runs[1].status is Status.RELEASED
    with pytest.raises(RuntimeError, match="was released once the server had used or dropped it"):
        runs[1]()


def test_fitting_ends_the_workers() -> None:
    executor = Crowd(2)
    run = fitted(Boring(), classes(SIZES), executor=executor)
    assert executor.crew is None
    assert run.version == 5


def test_what_a_worker_has_is_not_given_to_another() -> None:
    executor = Serials(2)
    pool = Pool(executor)
    runs = [submit(pool, serial, float(serial)) for serial in range(4)]
    begun = []
    executor.run, run = (lambda jobs: begun.append(jobs[0].task.serial) or run(jobs)), executor.run
    for each in runs:
        pool.arrived(each)
        pool.compute([each])
    while executor.crew.num_under_way:  # a second one may lie with a worker that nobody waited for
        executor.crew.wait()
    assert sorted(begun) == [0, 1, 2, 3]
