"""Tasks that read from data which all clients share."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from data_partitioners import Partition
from fedlight.aggregators import FedAvg, FedBuff
from fedlight.arrivals import (
    ContinuousArrivals,
    DropOut,
    FixedDurations,
    LeastVisitedShards,
    LocalEpochs,
    PartialWork,
    PerClientSteps,
    Recording,
    ReplayArrivals,
    ReplayEvent,
    ScheduleTable,
    SharedStream,
    SynchronousArrivals,
    Tiers,
    UniformArrivals,
    UniformDurations,
    UniformSteps,
)
from fedlight.executors import ProcessExecutor
from fedlight.executors._stack.batches import batch_rows
from fedlight.local_optimizers import LocalSGD, Scaffold
from fedlight.participation import participation_report
from fedlight.types import Chunk, Task
from tests.boring import Boring, Point, classes, fitted, points, trainer

SPEEDS = FixedDurations([1.0, 1.5, 2.5, 4.0])


def clock(steps=2, durations=SPEEDS):
    return ContinuousArrivals(durations, local_steps=steps)


def recorded(arrivals, sizes, clients, *, batch_size=2, seed=0, max_time=20.0):
    """What the tasks that arrived have read, in the order of their pulls."""
    table = arrivals.simulate(
        num_clients=clients,
        num_examples=sizes,
        batch_size=batch_size,
        buffer_size=1,
        max_time=max_time,
        seed=seed,
    )
    return sorted(table.events, key=lambda event: event.chunk_start)


def test_a_stream_by_hand():
    """Batches of 2 of 7 examples: tasks of 1, 2, 1 and 3 steps take 2, 4, 2 and 6 of them."""
    arrivals = SharedStream(
        SynchronousArrivals(
            durations=FixedDurations([4.0, 3.0, 2.0, 1.0]),
            local_steps=PerClientSteps([1, 2, 1, 3]),
        ),
        num_clients=4,
        shuffle=False,
    )
    table = arrivals.simulate(num_clients=4, num_examples=[7], batch_size=2, max_rounds=2)
    chunks = {(event.dispatched_at, event.client): event.chunk for event in table.events}
    assert chunks == {
        (0.0, 0): Chunk(0, None, False),
        (0.0, 1): Chunk(2, None, False),
        (0.0, 2): Chunk(6, None, False),
        (0.0, 3): Chunk(8, None, False),
        (4.0, 0): Chunk(14, None, False),
        (4.0, 1): Chunk(16, None, False),
        (4.0, 2): Chunk(20, None, False),
        (4.0, 3): Chunk(22, None, False),
    }
    partition = Partition(rows=np.array([3, 1, 0, 2, 6, 5, 4]), offsets=np.array([0, 7]))
    task = Task(3, 0, 0.0, 1.0, 3, 3, 0, chunk=chunks[0.0, 3])
    # Examples 8 to 13 are the second to the seventh of the second epoch.
    assert batch_rows(partition, [task], 2, 0)[:, 0].tolist() == [[1, 0], [2, 6], [5, 4]]


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    clients=st.integers(1, 5),
    batch_size=st.integers(1, 30),
    shuffle=st.booleans(),
    seed=st.integers(0, 3),
)
def test_no_example_of_a_stream_is_read_twice_before_all_were_read_once(
    sizes, clients, batch_size, shuffle, seed
):
    tasks: list[Task] = []

    class Noted(Recording):
        def on_start(self, task):
            tasks.append(task)

    process = ContinuousArrivals(UniformDurations(0.5, 2.0), local_steps=UniformSteps(1, 4))
    process.may_stop = True  # so that it is told of each pull
    arrivals = Noted(SharedStream(process, clients, shuffle))
    recorded(arrivals, sizes, clients, batch_size=batch_size, seed=seed, max_time=6.0)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    size = int(offsets[-1])
    partition = Partition(rows=np.arange(size), offsets=offsets)
    tasks.sort(key=lambda task: task.serial)
    batches = [batch_rows(partition, [task], batch_size, seed)[:, 0] for task in tasks]
    assert {batch.shape[1] for batch in batches} == {min(batch_size, size)}
    stream = np.concatenate([batch.ravel() for batch in batches])
    for start in range(0, len(stream), size):
        epoch = stream[start : start + size].tolist()
        assert len(set(epoch)) == len(epoch)
        if not shuffle:
            assert epoch == list(range(len(epoch)))


def test_each_epoch_of_a_stream_has_an_order_of_its_own():
    partition = Partition(rows=np.arange(40), offsets=np.array([0, 20, 40]))

    def order(epoch, seed=0):
        task = Task(0, 0, 0.0, 1.0, 4, 0, 0, chunk=Chunk(40 * epoch))
        return batch_rows(partition, [task], 10, seed).ravel().tolist()

    assert sorted(order(0)) == sorted(order(1)) == list(range(40))
    assert order(0) == order(0)
    assert len({tuple(each) for each in (order(0), order(1), order(0, 1), range(40))}) == 4


def test_visits_by_hand():
    """Three islands, four shards: in the order of the pulls, each shard in its turn."""
    arrivals = LeastVisitedShards(clock(1, FixedDurations([1.0, 2.0, 4.0])), 3, shuffle=False)
    table = arrivals.simulate(
        num_clients=3, num_examples=[4, 2, 6, 1], batch_size=2, buffer_size=1, max_time=4
    )
    pulls = sorted(table.events, key=lambda event: (event.dispatched_at, event.client))
    assert [(e.dispatched_at, e.client, e.chunk_shard, e.chunk_start) for e in pulls] == [
        (0.0, 0, 0, 0),
        (0.0, 1, 1, 0),
        (0.0, 2, 2, 0),
        (1.0, 0, 3, 0),
        (2.0, 0, 0, 2),
        (2.0, 1, 1, 2),
        (3.0, 0, 2, 2),
    ]
    # At 4 all three have arrived and pulled: shards 3, 0 and 1.
    assert arrivals.visits == [3, 3, 2, 2]


def test_in_proportion_to_the_size():
    """Of 1, 2 and 5 examples in batches of one, so the shares read are multiples of these.

    Taken in the order: 0, 1, 2 (shares 1, 1/2, 1/5), then 2 to 2/5, 3/5 > 1/2: 1 to 1, 2 to 4/5, 1.
    """
    arrivals = LeastVisitedShards(clock(1, FixedDurations([1.0])), 1, "examples")
    events = arrivals.simulate(
        num_clients=1, num_examples=[1, 2, 5], batch_size=1, buffer_size=1, max_time=8
    ).events
    assert [event.chunk_shard for event in events] == [0, 1, 2, 2, 2, 1, 2, 2]


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    clients=st.integers(1, 5),
    by=st.sampled_from(["visits", "examples"]),
    seed=st.integers(0, 3),
)
def test_no_shard_runs_ahead(sizes, clients, by, seed):
    """Visits differ by one at most; shares that were read, by that of the largest task."""
    process = ContinuousArrivals(UniformDurations(0.5, 2.0), local_steps=UniformSteps(1, 3))
    arrivals = LeastVisitedShards(process, clients, by)
    recorded(arrivals, sizes, clients, seed=seed, max_time=6.0)
    if by == "visits":
        assert max(arrivals.visits) - min(arrivals.visits) <= 1
    else:
        taken = dict(arrivals.state_dict())["taken"]
        shares = np.array(taken) / sizes
        assert shares.max() - shares.min() <= max(3 * min(2, n) / n for n in sizes)


def test_no_example_of_a_shard_is_read_twice_before_all_of_it_were_read_once():
    sizes = [5, 9, 3]
    partition = Partition(rows=np.arange(17), offsets=np.array([0, 5, 14, 17]))
    arrivals = LeastVisitedShards(clock(UniformSteps(1, 4)), 4)
    events = recorded(arrivals, sizes, 4, max_time=12.0)
    read: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for event in events:
        task = Task(event.client, 0, 0.0, 1.0, event.num_steps, 0, 0, chunk=event.chunk)
        if len(read[event.chunk_shard]) == event.chunk_start:  # else one is still in flight
            rows = batch_rows(partition, [task], 2, 0)[:, 0]
            assert rows.shape[1] == 2
            read[event.chunk_shard] += rows.ravel().tolist()
    for shard, rows in read.items():
        own = set(partition[shard].tolist())
        assert len(rows) > 2 * len(own)
        for start in range(0, len(rows) - len(own), len(own)):
            assert set(rows[start : start + len(own)]) == own


def test_tasks_of_both_kinds_in_one_stack():
    partition = Partition(rows=np.arange(20)[::-1].copy(), offsets=np.array([0, 6, 14, 20]))
    tasks = [
        Task(0, 0, 0.0, 1.0, 3, 0, 0),
        Task(1, 0, 0.0, 1.0, 2, 1, 4, chunk=Chunk(17)),
        Task(2, 0, 0.0, 1.0, 5, 2, 1, chunk=Chunk(4, 1)),
    ]
    together = batch_rows(partition, tasks, 4, [7, 8, 9])
    assert together.shape == (5, 3, 4)
    for index, task in enumerate(tasks):
        alone = batch_rows(partition, [task], 4, 7 + index)[:, 0]
        assert (together[: task.num_steps, index] == alone).all()
    assert set(together[:, 2].ravel()) == set(partition[1])


# --- training ---


def test_a_stream_of_one_client_is_plain_training_on_the_data_in_order():
    """w <- w - 0.5 (w - x) for x = 1, 2, 3, 4, 1, 2: by hand from 0."""
    run = fitted(
        Point(),
        points([1.0, 2.0], [3.0, 4.0], batch_size=1),
        arrivals=SharedStream(clock(3, FixedDurations([1.0])), 1, shuffle=False),
        aggregator=FedBuff(1),
        local_optimizer=LocalSGD(0.5),
        max_updates=2,
        precision="64-true",
    )
    # 0.5, 1.25, 2.125; 3.0625, 2.03125, 2.015625
    assert run.state.params.tolist() == [2.015625]
    assert run.federation.num_examples.tolist() == [4]


def test_shards_in_full_rounds_are_the_clients_own_data():
    """A pass over its shard for each: to the bit what clients with data of their own compute."""
    data = classes((8, 8, 8, 8))
    rounds = SynchronousArrivals(durations=SPEEDS, local_steps=LocalEpochs(1))
    given = {"aggregator": FedAvg(), "max_rounds": 3, "check_val_every_n_rounds": None}
    torch.manual_seed(0)
    own = fitted(Boring(), data, arrivals=rounds, **given)
    torch.manual_seed(0)
    shards = fitted(Boring(), data, arrivals=LeastVisitedShards(rounds), **given)
    assert torch.equal(own.state.params, shards.state.params)
    assert own.history[-1].metrics == shards.history[-1].metrics


class Deep(Boring):
    """With dropout, whose numbers depend on the client and its visit."""

    def __init__(self):
        torch.manual_seed(3)
        super().__init__(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3)))


DATA = (6, 10, 3, 8, 5, 7)
PROCESSES = {
    "stream": lambda: SharedStream(clock(UniformSteps(1, 5)), 4),
    "stream in order": lambda: SharedStream(clock(3), 4, shuffle=False),
    "shards": lambda: LeastVisitedShards(clock(UniformSteps(1, 5)), 4),
    "shards by examples": lambda: LeastVisitedShards(clock(3), 4, "examples", shuffle=False),
    "more clients than shards": lambda: LeastVisitedShards(
        UniformArrivals(3, 2, UniformSteps(1, 5)), 9
    ),
    "lost and short ones": lambda: DropOut(
        PartialWork(SharedStream(clock(UniformSteps(1, 5)), 4), 0.5), 0.2
    ),
}


def trained(arrivals, ckpt_path=None, **given):
    size = None if arrivals.by_rounds else 2
    given = {"aggregator": FedAvg(size), "executor": "sequential", "max_rounds": 8, **given}
    run = trainer(arrivals=arrivals, precision="64-true", **given)
    run.fit(Deep(), classes(DATA), ckpt_path=ckpt_path)
    return run


def numbers(record):
    """Tasks are numbered in the order of a replay's own pulls."""
    return [update._replace(serial=0) for update in record.updates]


@pytest.mark.parametrize("name", PROCESSES)
def test_a_replay_needs_no_wrapper(name, tmp_path):
    path = tmp_path / "schedule.parquet"
    run = trained(Recording(PROCESSES[name](), path))
    again = trained(ReplayArrivals(path))
    assert again.fingerprint() == run.fingerprint()
    assert [numbers(record) for record in again.history] == [numbers(each) for each in run.history]
    assert again.federation.num_clients == run.federation.num_clients
    assert (again.federation.num_examples == run.federation.num_examples).all()
    table = ScheduleTable.load(path)
    rows = table.to_pandas().astype(object)
    rows = rows.where(rows.notna(), None).drop(columns="version").to_dict("records")
    assert [ReplayEvent(**row) for row in rows] == table.events
    # At other times of versions, each task still reads the same.
    newest = ReplayArrivals(path, pull="newest")
    assert trained(newest).fingerprint() == run.fingerprint()


@pytest.mark.parametrize("name", PROCESSES)
def test_resumed_in_the_middle(name, tmp_path):
    run = trained(PROCESSES[name](), max_rounds=4)
    run.save_checkpoint(tmp_path / "middle.ckpt")
    whole = trained(PROCESSES[name]())
    resumed = trained(PROCESSES[name](), ckpt_path=tmp_path / "middle.ckpt")
    assert resumed.fingerprint() == whole.fingerprint()
    assert resumed.history == whole.history


@pytest.mark.parametrize("name", PROCESSES)
def test_stacked(name):
    optimizer = LocalSGD(0.1) if "order" in name else Scaffold(0.1)
    run = trained(PROCESSES[name](), local_optimizer=optimizer)
    stacked = trained(PROCESSES[name](), local_optimizer=optimizer, executor="vectorized")
    torch.testing.assert_close(stacked.state.params, run.state.params, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ["stream", "shards"])
def test_in_other_processes(name):
    run = trained(PROCESSES[name]())
    other = trained(PROCESSES[name](), executor=ProcessExecutor(2))
    assert other.fingerprint() == run.fingerprint()


def test_examples_and_weights_are_counted():
    """A shard has its own n and b; a client of a stream an equal share."""
    given = {"max_updates": 6, "local_optimizer": LocalSGD(0.1), "aggregator": FedAvg(3)}
    run = trained(LeastVisitedShards(clock(1, FixedDurations([1.0] * 3)), 3), **given)
    used = [update for record in run.history for update in record.updates]
    assert [update.num_examples for update in used] == list(DATA)
    weights = [6 / 19, 10 / 19, 3 / 19, 8 / 20, 5 / 20, 7 / 20]
    assert [update.weight for update in used] == pytest.approx(weights)
    assert run.history[-1].metrics["fed/examples"] == 4 + 4 + 3 + 4 + 4 + 4
    run = trained(SharedStream(clock(1, FixedDurations([1.0] * 3)), 3), **given)
    used = [update for record in run.history for update in record.updates]
    assert {update.num_examples for update in used} == {39 // 3}
    assert run.history[-1].metrics["fed/examples"] == 6 * 4


def test_a_task_that_is_tried_again_reads_the_same():
    seen = []

    class Picky(Point):
        def training_step(self, batch, batch_idx):
            seen.append(batch[0].tolist())
            if len(seen) == 2:
                raise ValueError("once")
            return super().training_step(batch, batch_idx)

    fitted(
        Picky(),
        points([1.0, 2.0, 3.0, 4.0, 5.0], batch_size=1),
        arrivals=SharedStream(clock(1, FixedDurations([1.0])), shuffle=False),
        aggregator=FedBuff(1),
        on_client_failure="retry",
        max_updates=5,
        executor="sequential",
    )
    numbers = [value for batch in seen for (value,) in batch]
    assert numbers == [1.0, 2.0, 2.0, 3.0, 4.0]


def test_many_tasks_in_flight_are_a_table_in_a_checkpoint(tmp_path):
    def run(updates, path=None):
        made = trainer(
            arrivals=SharedStream(clock(1, UniformDurations(1.0, 2.0)), 300),
            aggregator=FedBuff(1),
            max_updates=updates,
            check_val_every_n_rounds=None,
            executor="sequential",
        )
        made.fit(Point(), points([float(x) for x in range(50)], batch_size=2), ckpt_path=path)
        return made

    run(10).save_checkpoint(tmp_path / "early.ckpt")
    assert run(40, tmp_path / "early.ckpt").fingerprint() == run(40).fingerprint()


class Own(ContinuousArrivals):
    """One of a user: client i reads shard i from its beginning, again and again."""

    shares_data = True

    def __init__(self, answer=None):
        super().__init__(SPEEDS, local_steps=2)
        self.answer = answer

    def chunk(self, client_id, num_steps):
        return Chunk(0, client_id, shuffle=False) if self.answer is None else self.answer


def test_a_process_of_ones_own_says_what_tasks_read():
    # Each reads its first two examples: w = 0.75 x for 0.5 (0.5 (0 + x) + x).
    run = fitted(
        Point(),
        points([1.0, 1.0, 9.0], [2.0, 2.0, 9.0], [3.0, 3.0, 9.0], [4.0, 4.0, 9.0], batch_size=1),
        arrivals=Own(),
        aggregator=FedBuff(4),
        local_optimizer=LocalSGD(0.5),
        max_rounds=1,
        max_time=4.0,
    )
    used = {(u.client_id, u.norm) for u in run.history[0].updates if u.dispatched_at == 0}
    assert used == {(client, 0.75 * (client + 1)) for client in range(4)}
    with pytest.raises(TypeError, match=r"returned 3 from chunk; return a fedlight\.types\.Chunk"):
        Own(3).simulate(num_clients=4, buffer_size=1, max_rounds=1)
    for chunk, words in (
        (Chunk("0"), "from chunk; start must be an integer, got '0'"),
        (Chunk(0, 1.0), "shard must be an integer, got 1.0"),
        (Chunk(0, None, "no"), "shuffle must be True or False, got 'no'"),
    ):
        with pytest.raises(TypeError, match=words):
            Own(chunk).simulate(num_clients=4, buffer_size=1, max_rounds=1)
    for chunk in (Chunk(-1), Chunk(0, 4), Chunk(0, -1)):
        with pytest.raises(ValueError, match=r"shard between 0 and 3 \(the data have 4 parts\)"):
            Own(chunk).simulate(num_clients=4, buffer_size=1, max_rounds=1)


def test_a_chunk_of_a_process_that_does_not_share():
    class Unsaid(ContinuousArrivals):
        def on_wake(self, now):
            return [each._replace(chunk=Chunk(0)) for each in super().on_wake(now)]

    with pytest.raises(ValueError, match=r"its shares_data is False; set shares_data = True"):
        Unsaid(SPEEDS).simulate(num_clients=4, buffer_size=1, max_rounds=1)


@pytest.mark.parametrize(
    ("chunk", "error", "words"),
    [
        (
            (0, None, True),
            TypeError,
            r"as the chunk of a Dispatch; return a fedlight\.types\.Chunk",
        ),
        (Chunk(0, 9), ValueError, r"shard between 0 and 3 \(the data have 4 parts\)"),
        (Chunk(0.5), TypeError, "start must be an integer, got 0.5"),
    ],
)
def test_a_chunk_in_a_dispatch_is_checked_too(chunk, error, words):
    class Said(ContinuousArrivals):
        shares_data = True

        def on_wake(self, now):
            return [each._replace(chunk=chunk) for each in super().on_wake(now)]

    with pytest.raises(error, match=words):
        Said(SPEEDS).simulate(num_clients=4, buffer_size=1, max_rounds=1)


def test_no_shard_is_known_before_the_run():
    assert LeastVisitedShards(clock()).visits == []


def test_around_a_trace():
    """A log of devices says when; the wrapper says what."""
    events = [ReplayEvent(2, None, 3.0, 2, 0.5), ReplayEvent(0, None, 2.0, 1, 1.0)]
    arrivals = SharedStream(ReplayArrivals(events, pull="newest"), 3)
    found = recorded(arrivals, [10], 3)
    assert [(event.client, event.chunk_start) for event in found] == [(2, 0), (0, 4)]


def test_the_report_of_participation_counts_clients():
    arrivals = LeastVisitedShards(clock(1), 4)
    report = participation_report(
        arrivals, FedAvg(2, "uniform"), num_clients=4, num_examples=[3] * 16, max_rounds=40
    )
    assert len(report.share) == len(report.importance) == 4
    visits = Counter(arrivals.visits)
    assert sum(arrivals.visits) >= 80
    assert max(visits) - min(visits) <= 1


# --- errors ---


@pytest.mark.parametrize("kind", [SharedStream, LeastVisitedShards])
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"arrivals": 3}, TypeError, "arrivals must be an arrival process, got 3"),
        ({"num_clients": 0}, ValueError, "num_clients must be at least 1, got 0"),
        ({"num_clients": 1.5}, TypeError, "num_clients must be"),
        ({"shuffle": "no"}, TypeError, "shuffle must be True or False, got 'no'"),
        ({"arrivals": SharedStream(clock())}, TypeError, "says itself what tasks read"),
    ],
)
def test_bad_arguments(kind, arguments, error, words):
    with pytest.raises(error, match=words):
        kind(**{"arrivals": clock(), **arguments})


def test_bad_uses():
    with pytest.raises(ValueError, match="by must be one of 'visits', 'examples', got 'loss'"):
        LeastVisitedShards(clock(), by="loss")
    with pytest.raises(TypeError, match=r"write SharedStream\(Tiers\(…\)\)"):
        Tiers({"one": SharedStream(clock())})
    with pytest.raises(ValueError, match=r"num_clients=3 here, but .* has 4 clients"):
        SharedStream(clock(), 4).simulate(num_clients=3, buffer_size=1, max_rounds=1)
    with pytest.raises(ValueError, match="chunk_shard=2 needs chunk_start"):
        ReplayEvent(0, 0, 1.0, 1, chunk_shard=2)
    with pytest.raises(ValueError, match="chunk_start must be 0 or larger, got -1"):
        ReplayEvent(0, 0, 1.0, 1, chunk_start=-1)
    with pytest.raises(ValueError, match="chunk_shuffle=False needs chunk_start"):
        ReplayEvent(0, 0, 1.0, 1, chunk_shuffle=False)
    for wrong in ("no", 0):
        with pytest.raises(TypeError, match="chunk_shuffle must be True or False, got"):
            ReplayEvent(0, 0, 1.0, 1, chunk_start=0, chunk_shuffle=wrong)
    numpys = ReplayEvent(0, 0, 1.0, 1, chunk_start=0, chunk_shuffle=np.bool_(False))
    assert numpys.chunk == Chunk(0, None, False)
    data = points([1.0], [2.0])
    reads = ReplayEvent(0, 0, 1.0, 1, 0.0, chunk_start=0, chunk_shard=2)
    with pytest.raises(ValueError, match=r"events\[0\] reads shard 2; the data have only 2 parts"):
        fitted(Point(), data, arrivals=ReplayArrivals([reads]), aggregator=FedBuff(1))
    owns = ReplayEvent(2, 0, 2.0, 1, 0.0)
    table = ScheduleTable([ReplayEvent(0, 0, 1.0, 1, 0.0, chunk_start=0), owns], num_clients=3)
    with pytest.raises(ValueError, match=r"events\[1\] has no chunk_start, .* of client 2"):
        fitted(Point(), data, arrivals=ReplayArrivals(table), aggregator=FedBuff(1))


def test_more_clients_than_memory_holds_are_refused():
    words = "num_clients must be at most 100,000,000 clients, got 100000001"
    for process in (SharedStream, LeastVisitedShards):
        with pytest.raises(ValueError, match=words):
            process(UniformArrivals(1), num_clients=10**8 + 1)
        assert process(UniformArrivals(1), num_clients=10**8).num_clients == 10**8
    with pytest.raises(ValueError, match=words):
        UniformArrivals(1).simulate(10**8 + 1, max_rounds=1)
