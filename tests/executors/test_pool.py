import pytest
import torch

from fedlight.executors import Executor
from fedlight.executors.pool import WorkPool
from fedlight.types import LocalResult, ServerState, Task

NOTHING = torch.empty(0)


class Adds(Executor):
    """The delta is the serial; the client's state is the one read plus one."""

    def __init__(self, max_batch=100):
        self.max_batch = max_batch
        self.batches = []

    def setup(self, workplace):
        pass

    def run(self, jobs):
        self.batches.append([job.task.serial for job in jobs])
        return [
            LocalResult(
                delta=torch.tensor([float(job.task.serial)]),
                buffers=NOTHING,
                counters=NOTHING,
                client_state=(torch.zeros(1) if job.client_state is None else job.client_state) + 1,
            )
            for job in jobs
        ]


STATE = ServerState(0, torch.zeros(1), NOTHING, NOTHING)


def submit(pool, serial, arrives, after=None):
    return pool.submit(Task(serial, 0, 0.0, arrives, 1, serial, 0), STATE, after)


def test_nothing_is_computed_until_a_result_is_wanted():
    executor = Adds()
    pool = WorkPool(executor)
    runs = [submit(pool, serial, 1.0) for serial in range(3)]
    assert executor.batches == []
    assert not any(run.done for run in runs)
    assert runs[1]().delta.item() == 1
    assert all(run.done for run in runs)
    assert executor.batches == [[1, 0, 2]]
    assert runs[2]().delta.item() == 2
    assert (pool.num_batches, pool.num_computed) == (1, 3)


def test_a_batch_is_what_is_wanted_and_the_next_to_arrive():
    executor = Adds(max_batch=3)
    pool = WorkPool(executor)
    for serial, arrives in enumerate([5.0, 2.0, 9.0, 2.0, 1.0]):
        target = submit(pool, serial, arrives)
        if serial == 2:
            wanted = target
    wanted()
    assert executor.batches == [[2, 4, 1]]


def test_one_at_a_time():
    executor = Adds(max_batch=1)
    pool = WorkPool(executor)
    runs = [submit(pool, serial, 1.0) for serial in range(3)]
    runs[2]()
    assert executor.batches == [[2]]
    assert not runs[0].done


def test_what_comes_after_the_horizon_is_left_out():
    executor = Adds()
    pool = WorkPool(executor, horizon=2.0)
    submit(pool, 0, 2.0)
    late = submit(pool, 1, 2.5)
    submit(pool, 2, 1.0)()
    assert executor.batches == [[2, 0]]
    late()  # asked for all the same
    assert executor.batches == [[2, 0], [1]]


def test_what_is_discarded_is_left_out_unless_it_is_asked_for():
    executor = Adds()
    pool = WorkPool(executor)
    gone, other = submit(pool, 0, 1.0), submit(pool, 1, 2.0)
    pool.discard(gone)
    other()
    assert executor.batches == [[1]]
    assert gone().delta.item() == 0
    pool.discard(gone)


def test_the_run_before_comes_first():
    executor = Adds()
    pool = WorkPool(executor)
    first = submit(pool, 0, 1.0)
    second = submit(pool, 1, 2.0, after=first)
    third = submit(pool, 2, 3.0, after=second)
    other = submit(pool, 3, 9.0)
    assert third.client_state().tolist() == [3.0]
    assert executor.batches == [[0, 3], [1], [2]]
    assert second.client_state().tolist() == [2.0]
    assert other.done


def test_a_discarded_run_is_computed_where_a_state_hangs_on_it():
    executor = Adds()
    pool = WorkPool(executor)
    first = submit(pool, 0, 1.0)
    pool.discard(first)
    second = submit(pool, 1, 2.0, after=first)
    submit(pool, 2, 1.5)()
    assert executor.batches == [[2]]
    assert second.client_state().tolist() == [2.0]
    assert executor.batches == [[2], [0], [1]]


def test_a_released_run_keeps_the_clients_state_only():
    pool = WorkPool(Adds())
    run = submit(pool, 0, 1.0)
    run()
    assert run.pulled is None
    run.release()
    assert run.client_state().tolist() == [1.0]
    with pytest.raises(AssertionError, match="released"):
        run()


def test_an_error_leaves_the_runs_open():
    class Fails(Adds):
        def run(self, jobs):
            raise RuntimeError("no")

    run = submit(WorkPool(Fails()), 0, 1.0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            run()
    assert not run.done


def test_what_the_limits_leave_out_is_computed_only_when_it_is_wanted():
    executor, left = Adds(), 2.0
    pool = WorkPool(executor, still_to_come=lambda: (3.0, left))
    runs = [submit(pool, serial, arrives) for serial, arrives in enumerate([2, 3, 4, 5, 6, 7])]
    runs[1]()
    assert executor.batches == [[1, 0, 2, 3]]  # two have arrived, two more may be used
    left = 0.0
    runs[5]()
    assert executor.batches[1:] == [[5]]
    left = 1.0
    runs[4]()
    assert executor.batches[2:] == [[4]]


def test_those_that_arrive_together_come_by_client():
    executor = Adds()
    pool = WorkPool(executor)
    for serial, client in enumerate([3, 1, 2]):
        last = pool.submit(Task(client, 0, 0.0, 1.0, 1, serial, 0), STATE)
    last()
    assert executor.batches == [[2, 1, 0]]


@pytest.mark.parametrize("max_batch", [1, 4])
def test_the_queue_keeps_nothing_of_what_is_over(max_batch):
    pool = WorkPool(Adds(max_batch))
    for serial in range(200):
        run = submit(pool, serial, 1.0 + serial)
        if serial % 3 == 0:
            pool.discard(run)
        else:
            run()
    assert len(pool._queue) <= 2
    assert len(pool._open) == 0
