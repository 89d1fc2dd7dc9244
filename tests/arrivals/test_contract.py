"""What holds for every arrival process."""

import pytest

from fedlight.arrivals import (
    Availability,
    BiasedArrivals,
    CommunicationPattern,
    CompassArrivals,
    ConstantStaleness,
    ContinuousArrivals,
    DiurnalWindows,
    DropOut,
    ExponentialDurations,
    Failures,
    FixedDurations,
    HalfNormalDurations,
    LeastVisitedShards,
    LogNormalDurations,
    PartialWork,
    PoissonArrivals,
    PolledArrivals,
    Recording,
    RefreshedTasks,
    Regions,
    ReplayArrivals,
    ReplayEvent,
    SharedStream,
    StepDurations,
    StepsBySpeed,
    SynchronousArrivals,
    Tiers,
    TrialRounds,
    UniformArrivals,
    UniformSpeeds,
    UniformSteps,
)
from fedlight.arrivals.schedule import Schedule
from fedlight.events import Kind
from fedlight.loop import Handled
from tests.playing import events, note

NUM_CLIENTS = 6
STEPS = UniformSteps(1, 9)
BY_SPEED = StepsBySpeed(40, [1.0, 2.0, 0.1, 3.0, 0.5, 1.0])
SPEEDS = [0.03, 0.05, 0.05, 0.1, 0.2, 0.3]
EVENTS = [
    ReplayEvent(client, max(0, k - 2), k + 1.0, 1 + k % 3, None if k % 2 else max(0.0, k - 2.0))
    for k in range(40)
    for client in [k % 3 if k % 2 else 3 + k % 3]
]


def continuous(**more):
    return ContinuousArrivals(
        **{"durations": ExponentialDurations(1.0), "local_steps": STEPS} | more
    )


ROUNDS = {
    "uniform": lambda: UniformArrivals(3, 4, STEPS),
    "biased": lambda: BiasedArrivals(2, [0.3, 0.3, 0.1, 0.1, 0.1, 0.1], 2, STEPS),
    "constant": lambda: ConstantStaleness(1, 3, STEPS),
    "trials": lambda: TrialRounds(ExponentialDurations(1.0), 0.8, [2, 1, 0, 3, 1, 1], STEPS),
    "trials with failures": lambda: Failures(
        TrialRounds(ExponentialDurations(1.0), [1, 1, 2, 2, 0.3, 1], 2, STEPS), 5.0, 1.0
    ),
    "rounds with failures": lambda: Failures(
        SynchronousArrivals(4, HalfNormalDurations(1.0), STEPS, late="continue", quorum=2), 5.0, 1.0
    ),
    "over-selection with failures": lambda: Failures(
        SynchronousArrivals(2, HalfNormalDurations(1.0), STEPS, 2), 3.0, [0.5, 1, 1, 2, 0.1, 3]
    ),
    "synchronous": lambda: SynchronousArrivals(3, HalfNormalDurations(1.0), STEPS),
    "over-selection": lambda: SynchronousArrivals(2, HalfNormalDurations(1.0), STEPS, 2),
    "timeout": lambda: SynchronousArrivals(4, HalfNormalDurations(1.0), STEPS, timeout=0.7),
    "cut": lambda: SynchronousArrivals(4, HalfNormalDurations(1.0), STEPS, timeout=0.7, late="cut"),
    "grace": lambda: SynchronousArrivals(
        4, HalfNormalDurations(1.0), STEPS, quorum=2, grace=0.2, timeout=0.9
    ),
    "quorum": lambda: SynchronousArrivals(None, UniformSpeeds(0.8), BY_SPEED, quorum=3),
    "grace, late ones continue": lambda: SynchronousArrivals(
        4, StepDurations([0.1, 0.1, 0.2, 0.2, 0.3, 0.7]), STEPS, late="continue", grace=0.2
    ),
    "timeout, late ones continue": lambda: DropOut(
        SynchronousArrivals(4, HalfNormalDurations(1.0), STEPS, timeout=0.3, late="continue"), 0.3
    ),
    "grace by day": lambda: Availability(
        SynchronousArrivals(4, HalfNormalDurations(1.0), STEPS, late="continue", quorum=2),
        DiurnalWindows(5.0),
    ),
    "tiers with grace": lambda: Tiers(
        {
            "fast": SynchronousArrivals(
                None, ExponentialDurations(0.4), STEPS, late="continue", grace=0.1
            ),
            "slow": SynchronousArrivals(None, ExponentialDurations(1.0), STEPS, quorum=1),
        },
        clients={"fast": [5, 1, 3], "slow": [0, 2]},
    ),
    "listed": lambda: SynchronousArrivals(
        [[0, 2], [1, 5, 3]] * 20, HalfNormalDurations(1.0), STEPS
    ),
    "listed, stale": lambda: UniformArrivals([[0, 2], [1, 5, 3], [4]] * 40, 2, STEPS),
    "polled": lambda: PolledArrivals(2, 0.7, ExponentialDurations(0.4), 4),
    "polled, listed": lambda: PolledArrivals(
        [[0, 3], [], [1, 2, 5], [4, 0]] * 20, 0.7, [0.1, 0.7, 0.3, 1.5, 0.2, 0.2], 3
    ),
    "polled by day": lambda: Availability(
        PolledArrivals(3, 0.7, ExponentialDurations(0.4), 4), DiurnalWindows(5.0, 0.8)
    ),
    "tiers": lambda: Tiers(
        {
            "fast": SynchronousArrivals(2, ExponentialDurations(0.4), STEPS),
            "slow": SynchronousArrivals(1, ExponentialDurations(1.0), STEPS, 1),
        },
        clients={"fast": [5, 1, 3], "slow": [0, 2]},
    ),
    "compass": lambda: CompassArrivals(StepDurations(SPEEDS), 2, 8),
    "compass, drawn": lambda: CompassArrivals(ExponentialDurations(1.0), 2, 8, momentum=0.5),
    "compass with drop-outs": lambda: DropOut(CompassArrivals(HalfNormalDurations(1.0), 2, 8), 0.3),
    "compass by day": lambda: Availability(
        PartialWork(CompassArrivals(HalfNormalDurations(1.0), 2, 8), 0.5), DiurnalWindows(5.0, 0.6)
    ),
    "compass, leaving": lambda: Availability(
        CompassArrivals(ExponentialDurations(1.0), 2, 8),
        {client: [(0, 9 + client if client < 3 else 99)] for client in range(NUM_CLIENTS)},
    ),
    "tiers, listed": lambda: Tiers(
        {
            "fast": SynchronousArrivals([[0, 4]] * 60, ExponentialDurations(0.4), STEPS),
            "slow": SynchronousArrivals([[1], [2]] * 30, ExponentialDurations(0.8), STEPS),
        }
    ),
    "regions": lambda: Regions(
        {"a": continuous(restart_after=4), "b": continuous(concurrency=2, idle=0.3)},
        {"a": [1, 0], "b": [5, 4, 3]},
        arrivals_per_send=3,
        up=0.2,
        down={"a": 0.0, "b": 0.7},
        within=0.05,
    ),
    "regions by day": lambda: DropOut(
        Availability(
            Regions({"a": continuous(), "b": continuous()}, {"a": [2, 0], "b": [5, 4]}, 2, up=0.4),
            DiurnalWindows(5.0, 0.3),
        ),
        0.1,
    ),
    "over-selection by day": lambda: Availability(
        DropOut(SynchronousArrivals(2, HalfNormalDurations(1.0), STEPS, 2), 0.3),
        DiurnalWindows(5.0),
    ),
    "rounds with drop-outs": lambda: DropOut(UniformArrivals(3, 4, STEPS), 0.3),
    "stream in partial work": lambda: PartialWork(SharedStream(UniformArrivals(3, 4, STEPS)), 0.5),
    "rounds with partial work": lambda: PartialWork(UniformArrivals(3, 4, STEPS), 0.5),
    "rounds by day": lambda: Availability(UniformArrivals(3, 4, STEPS), DiurnalWindows(5.0)),
}
CLOCKS = {
    "continuous": continuous,
    "by speed": lambda: continuous(
        durations=StepDurations(SPEEDS, overhead=0.1),
        local_steps=StepsBySpeed(9, StepDurations(SPEEDS, overhead=0.1), least=2),
        concurrency=4,
    ),
    "fixed": lambda: continuous(durations=UniformSpeeds(0.8), local_steps=2),
    "on arrival": lambda: continuous(resume="on_arrival", durations=LogNormalDurations(1, 0.5)),
    "idle": lambda: continuous(idle=0.3, durations=StepDurations(0.1)),
    "drawn": lambda: continuous(concurrency=2),
    "drawn, idle": lambda: continuous(concurrency=3, idle=0.3, resume="on_arrival"),
    "poisson": lambda: PoissonArrivals(4.0, ExponentialDurations(1.0), STEPS),
    "periodic": lambda: CommunicationPattern.periodic([1, 2, 3, 4, 5, 6]),
    "random": lambda: CommunicationPattern.random(0.3, max_gap=6),
    "table": lambda: CommunicationPattern.from_table([[0, 2], [1], [], [0, 5]] * 20),
    "drop-outs": lambda: DropOut(continuous(), 0.3),
    "refreshed": lambda: RefreshedTasks(continuous(), 0.4),
    "refreshed, drawn": lambda: RefreshedTasks(continuous(concurrency=3, idle=0.3)),
    "refreshed, restarts": lambda: RefreshedTasks(continuous(restart_after=1)),
    "refreshed with drop-outs": lambda: DropOut(
        RefreshedTasks(DropOut(continuous(concurrency=4, resume="on_arrival"), 0.1)), 0.3
    ),
    "refreshed by day": lambda: Availability(
        RefreshedTasks(continuous()), DiurnalWindows(5.0, 0.3)
    ),
    "refreshed poisson": lambda: Availability(
        RefreshedTasks(PoissonArrivals(4.0, ExponentialDurations(1.0), STEPS)), [(0, 9), (10, 60)]
    ),
    "tiers by the clock": lambda: DropOut(
        Tiers(
            {"a": continuous(restart_after=1), "b": continuous(concurrency=2)},
            clients={"a": [1, 0], "b": [5, 4, 3]},
        ),
        0.1,
    ),
    "failures": lambda: Failures(continuous(resume="on_arrival"), 3.0, 1.0),
    "failures, drawn": lambda: Failures(continuous(concurrency=2), 2.0, 2.0),
    "failures, restarts": lambda: Failures(continuous(restart_after=1), 2.0, 0.5),
    "restarts": lambda: continuous(restart_after=1),
    "restarts, drawn": lambda: DropOut(continuous(restart_after=2, concurrency=4, idle=0.1), 0.1),
    "restarts by day": lambda: Availability(
        continuous(restart_after=1, resume="on_arrival"), DiurnalWindows(5.0, 0.3)
    ),
    "stream": lambda: SharedStream(continuous(resume="on_arrival")),
    "shards": lambda: LeastVisitedShards(DropOut(continuous(concurrency=4), 0.3), by="examples"),
    "partial work": lambda: PartialWork(continuous(resume="on_arrival"), 0.5),
    "by day": lambda: Availability(continuous(), DiurnalWindows(5.0, 0.3), unfinished="lose"),
    "drawn by day": lambda: Availability(continuous(concurrency=2), DiurnalWindows(5.0, 0.3)),
    "poisson by day": lambda: Availability(
        PoissonArrivals(4.0, FixedDurations([0.7] * NUM_CLIENTS), STEPS), DiurnalWindows(5.0, 0.3)
    ),
    "all at once": lambda: DropOut(
        PartialWork(Availability(continuous(concurrency=4), [(0, 9), (11, 12), (13, 60)]), 0.5), 0.2
    ),
}
ALL = ROUNDS | CLOCKS | {"replay": lambda: ReplayArrivals(EVENTS)}


def server_of(name):
    return {} if name in ROUNDS else {"interval": 1.0}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("stop_after", [1, 2, 17, 50])
def test_a_run_goes_on_from_its_state(drive, name, stop_after):
    """Killed after any event, its state through JSON, and taken up by a fresh process."""
    whole = drive(ALL[name], NUM_CLIENTS, num_events=80, seed=3, **server_of(name))
    again = drive(
        ALL[name], NUM_CLIENTS, num_events=80, seed=3, stop_after=stop_after, **server_of(name)
    )
    assert len(whole[0]) > 50
    assert again == whole


@pytest.mark.parametrize("name", sorted(CLOCKS))
def test_the_same_under_a_buffer(drive, name):
    whole = drive(CLOCKS[name], NUM_CLIENTS, buffer_size=2, num_events=40)
    assert drive(CLOCKS[name], NUM_CLIENTS, buffer_size=2, num_events=40, stop_after=9) == whole


@pytest.mark.parametrize("name", ALL)
def test_a_process_can_be_used_again(drive, name):
    arrivals = ALL[name]()
    runs = [
        drive(lambda: arrivals, NUM_CLIENTS, num_events=60, **server_of(name)) for _ in range(2)
    ]
    assert runs[0] == runs[1]
    same = ("replay", "periodic", "table", "fixed", "polled, listed", "quorum", "compass")
    if name not in same:
        assert drive(ALL[name], NUM_CLIENTS, num_events=60, seed=1, **server_of(name)) != runs[0]


@pytest.mark.parametrize("name", ALL)
def test_invariants(drive, name):
    lines, tasks = drive(ALL[name], NUM_CLIENTS, num_events=150, **server_of(name))
    times = [line.now for line in lines]
    assert times == sorted(times)
    assert [task.serial for task in tasks] == list(range(len(tasks)))
    visits = {}
    for task in tasks:
        assert task.visit == visits.setdefault(task.client_id, 0)
        visits[task.client_id] += 1
        assert 0 <= task.client_id < NUM_CLIENTS
        assert task.num_steps >= (0 if name.startswith("polled") else 1)
        assert task.dispatched_at < task.arrives_at
    arrived = [line for line in lines if line.kind is Kind.ARRIVAL]
    assert len({line.task.serial for line in arrived}) == len(arrived)
    for line in arrived:
        assert not line.task.lost
        assert line.now == line.task.arrives_at
        assert line.version >= line.task.pulled_version
    if name in CLOCKS:
        free = {}
        for task in tasks:
            assert free.get(task.client_id, 0.0) <= task.dispatched_at
            free[task.client_id] = task.arrives_at


@pytest.mark.parametrize("name", ALL)
def test_the_file_plays_the_same_schedule(tmp_path, name):
    path = tmp_path / "schedule.parquet"
    limits = {"max_rounds": 20, "seed": 2, **server_of(name)}
    table = Recording(ALL[name](), path).simulate(NUM_CLIENTS, **limits)
    assert len(table) > 10
    played = ReplayArrivals(path)
    assert played.by_rounds is (name in ROUNDS)
    assert played.simulate(NUM_CLIENTS, **limits) == table
    assert ALL[name]().simulate(NUM_CLIENTS, **limits) == table


@pytest.mark.parametrize("name", sorted(CLOCKS))
def test_newest_versions_are_those_of_the_recorded_run(name):
    """Where deadlines make the versions, the times of the pulls say them too."""
    table = CLOCKS[name]().simulate(NUM_CLIENTS, interval=0.7, max_rounds=30)
    again = ReplayArrivals(table, pull="newest").simulate(NUM_CLIENTS, interval=0.7, max_rounds=30)
    assert again == table


@pytest.mark.parametrize("name", ALL)
def test_errors_name_the_process(name):
    assert "object at 0x" not in repr(ALL[name]())


@pytest.mark.parametrize("name", ALL)
def test_only_what_is_named_is_kept(federation, name):
    """No version is pulled that the server was told to forget."""
    version, kept = 0, {0}

    server = server_of(name)
    schedule = Schedule(ALL[name](), federation(NUM_CLIENTS), **server)
    held, pulls = [], []
    for number, event in enumerate(events(schedule, pulls)):
        assert {task.pulled_version for task in pulls} <= kept
        pulls.clear()
        released = []
        if event.task is not None:
            held.append(event.task.client_id)
        else:
            version, released, held = version + 1, held, []
            kept = {v for v in kept if schedule.needs_version(v)} | {version}
        note(pulls, schedule.send_on(event, Handled(version, released)), schedule.now)
        assert {task.pulled_version for task in pulls} <= kept
        pulls.clear()
        if number == 100:
            break
    assert version >= 10
