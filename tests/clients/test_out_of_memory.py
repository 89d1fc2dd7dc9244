"""Memory that runs out halves a stack, for the rest of the run; a client alone ends it."""

import warnings

import pytest
import torch
from lightning.pytorch.utilities.memory import is_oom_error

from fedlight.arrivals import UniformArrivals
from fedlight.callbacks import FedCheckpoint
from fedlight.executors import Job, SequentialExecutor, VectorizedExecutor
from fedlight.executors._stack.stack_size import stack_size
from fedlight.executors.base import ran_out_of_memory
from fedlight.local_optimizers import LocalSGD
from fedlight.types import Task
from tests.boring import Boring, classes, fitted, trainer, workplace


class Hungry(LocalSGD):
    """Needs more memory than there is for more than so many clients."""

    def __init__(self, most, error=torch.OutOfMemoryError, words="CUDA out of memory.") -> None:
        super().__init__(0.1)
        self.most, self.error, self.words = most, error, words
        self.sizes = []

    def begin(self, run, module):
        self.sizes.append(len(run.num_steps))
        if len(run.num_steps) > self.most:
            raise self.error(self.words)


def jobs(work, number):
    state = work.state.read()
    return [
        Job(Task(client % 4, 0, 0.0, 1.0, num_steps=2, serial=client, visit=client), state)
        for client in range(number)
    ]


def ready(optimizer, executor=None):
    work = workplace(Boring(), classes(sizes=(8, 8, 8, 8)), optimizer)
    executor = VectorizedExecutor() if executor is None else executor
    executor.setup(work)
    optimizer.sizes.clear()
    return executor, work


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2 GiB"),
        (RuntimeError, "[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        (MemoryError, ""),
    ],
)
def test_a_stack_is_halved_once_and_the_smaller_size_kept(error, words):
    optimizer = Hungry(3, error, words)
    executor, work = ready(optimizer)
    with pytest.warns(UserWarning, match=r"ran out for a stack .* holds at most 3\."):
        outcomes = executor.run(jobs(work, 12))
    # 12 and 6 do not fit, 3 do: nothing larger is tried again
    assert optimizer.sizes == [12, 6, 3, 3, 6, 3, 3]
    assert executor.max_batch == 3
    optimizer.sizes.clear()
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        again = executor.run(jobs(work, 7))
    assert optimizer.sizes == [3, 3, 1]
    alone = SequentialExecutor()
    alone.setup(work)
    expected = alone.run(jobs(work, 12))
    for one, other in zip(outcomes + again, expected + expected[:7], strict=True):
        torch.testing.assert_close(one.delta, other.delta)


def test_padding_stays_within_the_smaller_size():
    executor, work = ready(Hungry(33))
    with pytest.warns(UserWarning, match="at most 32"):  # 33 would be padded to 34
        executor.run(jobs(work, 66))
    assert stack_size(executor.max_batch) == executor.max_batch == 32


@pytest.mark.parametrize("executor", ["vectorized", "sequential"])
def test_a_single_client_without_room_ends_the_run_with_advice(executor):
    made = VectorizedExecutor() if executor == "vectorized" else SequentialExecutor()
    optimizer = Hungry(100)
    executor, work = ready(optimizer, made)
    optimizer.most = 0
    with pytest.raises(torch.OutOfMemoryError) as caught:
        executor.run(jobs(work, 2))
    (note,) = caught.value.__notes__
    assert "a single client does not fit in the memory of cpu" in note
    assert "smaller batch_size for the FederatedDataModule (now 4)" in note


def test_it_is_no_failure_of_the_client_that_may_be_dropped():
    run = trainer(local_optimizer=Hungry(2), executor="sequential", on_client_failure="drop")
    run.local_optimizer.most = 0
    with pytest.raises(torch.OutOfMemoryError):
        run.fit(Boring(), classes())


def test_a_stack_of_two_that_does_not_fit_is_noticed_when_the_module_is_tried():
    with pytest.warns(UserWarning, match=r"at most 1\."):
        run = fitted(Boring(), classes(), local_optimizer=Hungry(1), executor="vectorized")
    assert run.run.executor.max_batch == 1
    assert run.version == 5


@pytest.mark.filterwarnings("ignore:VectorizedExecutor. the memory")
def test_a_resumed_run_keeps_to_the_smaller_size(tmp_path):
    def arguments(most):
        arrivals = UniformArrivals(per_round=4, max_staleness=2)
        return {
            "local_optimizer": Hungry(most),
            "executor": "vectorized",
            "arrivals": arrivals,
            "max_rounds": 8,
        }

    def same():
        torch.manual_seed(0)
        return Boring()

    data = classes(sizes=(8, 8, 8, 8))
    whole = fitted(same(), data, **arguments(3))
    fitted(
        same(),
        data,
        **arguments(3) | {"max_rounds": 4},
        callbacks=FedCheckpoint(tmp_path),
    )
    resumed = trainer(**arguments(3))
    seen = resumed.local_optimizer.sizes
    resumed.fit(same(), data, ckpt_path=tmp_path / "last.ckpt")
    assert max(seen) == 3  # nothing larger is tried again
    assert resumed.fingerprint() == whole.fingerprint()


def test_what_counts_as_out_of_memory():
    assert ran_out_of_memory(torch.OutOfMemoryError("HIP out of memory"))
    assert ran_out_of_memory(MemoryError())
    assert not ran_out_of_memory(RuntimeError("shapes do not fit"))
    assert not is_oom_error(torch.OutOfMemoryError("HIP out of memory"))  # why there is our own
