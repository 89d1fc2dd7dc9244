import pytest
import torch

from fedlight.clients.pending import Status
from fedlight.clients.pool import Pool
from fedlight.executors import Executor
from fedlight.types import LocalResult, ServerState, Task

NOTHING = torch.empty(0)


class Adds(Executor):
    """The delta is the serial; the client's state is the one read plus one."""

    def __init__(self, max_batch=100, independent=False):
        self.max_batch, self.independent = max_batch, independent
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


def computed(runs):
    return [run.task.serial for run in runs if run.status is Status.COMPUTED]


def test_nothing_is_computed_until_it_is_needed():
    executor = Adds()
    pool = Pool(executor)
    runs = [submit(pool, serial, 1.0) for serial in range(3)]
    assert executor.batches == []
    assert computed(runs) == []
    pool.compute([runs[1]])
    assert runs[1]().delta.item() == 1
    assert computed(runs) == [0, 1, 2]
    assert executor.batches == [[1, 0, 2]]
    assert runs[2]().delta.item() == 2
    assert (pool.num_batches, pool.num_computed) == (1, 3)


def test_a_batch_is_what_is_needed_and_the_next_to_arrive():
    executor = Adds(max_batch=3)
    pool = Pool(executor)
    runs = [submit(pool, serial, at) for serial, at in enumerate([5.0, 2.0, 9.0, 2.0, 1.0])]
    pool.compute([runs[2]])
    assert executor.batches == [[2, 4, 1]]


def test_one_at_a_time():
    executor = Adds(max_batch=1)
    pool = Pool(executor)
    runs = [submit(pool, serial, 1.0) for serial in range(3)]
    pool.compute([runs[2]])
    assert executor.batches == [[2]]
    assert computed(runs) == [2]


def test_all_that_is_needed_goes_to_an_executor_that_works_one_at_a_time():
    executor = Adds(max_batch=1, independent=True)
    pool = Pool(executor)
    runs = [submit(pool, serial, 1.0) for serial in range(4)]
    pool.compute([runs[3], runs[0], runs[0], runs[2]])
    assert executor.batches == [[3, 0, 2]]  # in the order asked for; the other is not needed
    assert computed(runs) == [0, 2, 3]
    assert (pool.num_batches, pool.num_computed) == (1, 3)


def test_a_run_that_reads_a_state_ends_what_is_computed_in_one_call():
    executor = Adds(max_batch=1, independent=True)
    pool = Pool(executor)
    first = submit(pool, 0, 1.0)
    reads = submit(pool, 1, 2.0, after=first)
    other, last = submit(pool, 2, 1.0), submit(pool, 3, 1.0)
    pool.compute([other, reads, last])
    assert executor.batches == [[2], [0], [1, 3]]
    assert reads().client_state.item() == 2


def test_at_most_one_stack_is_computed_ahead():
    """Of 9 in flight, 4 are computed ahead; more only as these arrive."""
    executor = Adds(max_batch=4)
    pool = Pool(executor)
    runs = [submit(pool, serial, 10.0 + serial) for serial in range(8)]
    short = submit(pool, 8, 1.0)
    pool.arrived(short)
    pool.compute([short])
    assert executor.batches == [[8, 0, 1, 2]]  # three of them are ahead
    short = submit(pool, 9, 2.0)
    pool.arrived(short)
    pool.compute([short])
    assert executor.batches[1:] == [[9, 3]]  # and now four
    short = submit(pool, 10, 3.0)
    pool.arrived(short)
    pool.compute([short])
    assert executor.batches[2:] == [[10]]
    for run in runs[:3]:
        pool.arrived(run)
    short = submit(pool, 11, 13.0)
    pool.arrived(short)
    pool.compute([short])
    assert executor.batches[3:] == [[11, 4, 5, 6]]


def test_limits_of_the_run_change_nothing_if_results_depend_on_the_stack():
    executor = Adds()
    pool = Pool(executor)
    runs = [submit(pool, serial, 1.0 + serial) for serial in range(4)]
    pool.compute([runs[0]], until=2.0, useful=0)
    assert executor.batches == [[0, 1, 2, 3]]


def test_independent_results_are_not_computed_in_vain():
    executor = Adds(independent=True)
    pool = Pool(executor)
    runs = [submit(pool, serial, at) for serial, at in enumerate([1.0, 2.0, 2.5, 3.0, 4.0])]
    pool.arrived(runs[0])
    pool.compute([runs[0]], until=2.5, useful=9)
    assert executor.batches == [[0, 1, 2]]
    pool.compute([runs[4]], useful=0)  # needed all the same
    assert executor.batches[1:] == [[4]]
    more = [submit(pool, serial, float(serial)) for serial in (5, 6, 7)]
    pool.compute([runs[3]], useful=2)
    assert executor.batches[2:] == [[3, 5, 6]]
    assert more[2].status is Status.OPEN


def test_whoever_looks_early_gets_a_result_of_its_own():
    executor = Adds()
    pool = Pool(executor)
    runs = [submit(pool, serial, 1.0) for serial in range(3)]
    assert [runs[1]().delta.item() for _ in range(2)] == [1, 1]
    assert executor.batches == [[1]]  # once, and apart
    assert computed(runs) == []
    assert (pool.num_batches, pool.num_computed) == (0, 0)
    pool.compute(runs)
    assert executor.batches[1:] == [[0, 1, 2]]


def test_an_early_look_is_no_second_computation_if_results_are_independent():
    executor = Adds(independent=True)
    pool = Pool(executor)
    runs = [submit(pool, serial, 1.0) for serial in range(2)]
    assert runs[1]().delta.item() == 1
    assert computed(runs) == [1]
    pool.compute(runs)
    assert executor.batches == [[1], [0]]


def test_a_state_may_be_looked_at_early_too():
    executor = Adds()
    pool = Pool(executor)
    first = submit(pool, 0, 1.0)
    second = submit(pool, 1, 2.0, after=first)
    assert second.client_state().tolist() == [2.0]
    assert computed([first, second]) == []
    pool.compute([second])
    assert second.client_state().tolist() == [2.0]
    assert executor.batches == [[0], [1], [0], [1]]


def test_a_discarded_run_is_left_out_unless_it_is_needed():
    executor = Adds()
    pool = Pool(executor)
    gone, other = submit(pool, 0, 1.0), submit(pool, 1, 2.0)
    pool.discard(gone)
    pool.compute([other])
    assert executor.batches == [[1]]
    pool.compute([gone])
    assert gone().delta.item() == 0
    pool.discard(gone)


def test_the_run_before_comes_first():
    executor = Adds()
    pool = Pool(executor)
    first = submit(pool, 0, 1.0)
    second = submit(pool, 1, 2.0, after=first)
    third = submit(pool, 2, 3.0, after=second)
    other = submit(pool, 3, 9.0)
    pool.compute([third])
    assert third.client_state().tolist() == [3.0]
    assert executor.batches == [[0, 3], [1], [2]]
    assert second.client_state().tolist() == [2.0]
    assert other.status is Status.COMPUTED


def test_a_discarded_run_is_computed_if_a_state_depends_on_it():
    executor = Adds()
    pool = Pool(executor)
    first = submit(pool, 0, 1.0)
    pool.discard(first)
    second = submit(pool, 1, 2.0, after=first)
    pool.compute([submit(pool, 2, 1.5)])
    assert executor.batches == [[2]]
    pool.compute([second])
    assert second.client_state().tolist() == [2.0]
    assert executor.batches == [[2], [0], [1]]


def test_a_released_run_keeps_the_clients_state_only():
    pool = Pool(Adds())
    run = submit(pool, 0, 1.0)
    pool.compute([run])
    run.release()
    assert run.status is Status.RELEASED
    assert run.pulled is None
    assert run.client_state().tolist() == [1.0]
    with pytest.raises(RuntimeError, match="read it in on_update or on_drop"):
        run()


def test_an_error_of_the_executor_leaves_the_runs_open():
    class Fails(Adds):
        def run(self, jobs):
            raise RuntimeError("no")

    pool = Pool(Fails())
    run = submit(pool, 0, 1.0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            pool.compute([run])
        with pytest.raises(RuntimeError, match="no"):
            run()
    assert run.status is Status.OPEN


def test_those_that_arrive_together_come_by_client():
    executor = Adds()
    pool = Pool(executor)
    for serial, client in enumerate([3, 1, 2]):
        last = pool.submit(Task(client, 0, 0.0, 1.0, 1, serial, 0), STATE, None)
    pool.compute([last])
    assert executor.batches == [[2, 1, 0]]


@pytest.mark.parametrize("max_batch", [1, 4])
def test_the_queue_keeps_nothing_of_what_is_over(max_batch):
    pool = Pool(Adds(max_batch))
    for serial in range(200):
        run = submit(pool, serial, 1.0 + serial)
        if serial % 3 == 0:
            pool.discard(run)
        else:
            pool.compute([run])
        pool.arrived(run)
    assert len(pool._queue) <= 2
    assert len(pool._open) == 0
