import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlight.executors import ProcessExecutor
from fedlight.executors.base import ClientError, loss_of, results_within
from fedlight.local_optimizers import LocalAdamW, LocalSGD, ModuleOptimizer, Scaffold
from fedlight.local_optimizers.base import state_size
from fedlight.types import ServerState, Task
from tests.boring import Point, points, workplace


def task(client=0, steps=1, visit=0, pulled=0, serial=0):
    return Task(client, pulled, 0.25, 1.0, steps, serial, visit)


def place(sizes=(5, 3), batch_size=2, seed=0, optimizer=None):
    clients = [[0.0] * size for size in sizes]
    return workplace(Point(), points(*clients, batch_size=batch_size), optimizer, seed)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    batch_size=st.integers(1, 12),
    steps=st.integers(1, 20),
    data=st.data(),
)
def test_batches_are_full_and_each_pass_is_a_permutation(sizes, batch_size, steps, data):
    work = place(sizes, batch_size)
    client = data.draw(st.integers(0, len(sizes) - 1))
    visit = data.draw(st.integers(0, 3))
    rows = work.batch_rows(task(client, steps, visit))
    size = sizes[client]
    assert rows.shape == (steps, min(batch_size, size))
    own = set(range(sum(sizes[:client]), sum(sizes[: client + 1])))
    stream = rows.reshape(-1).tolist()
    for start in range(0, len(stream), size):
        part = stream[start : start + size]
        assert len(set(part)) == len(part)
        assert set(part) <= own
    assert max(Counter(stream).values()) <= -(-len(stream) // size)


def test_batches_depend_on_seed_client_and_visit_alone():
    work = place((50, 50))
    rows = work.batch_rows(task(1, 5, 2))
    assert (rows == work.batch_rows(task(1, 5, 2, pulled=7, serial=9))).all()
    assert (rows == work.batch_rows(task(1, 20, 2))[:5]).all()
    assert (rows == place((50, 50)).batch_rows(task(1, 5, 2))).all()
    assert (rows != work.batch_rows(task(1, 5, 3))).any()
    assert (rows - 50 != work.batch_rows(task(0, 5, 2))).any()
    assert (rows != place((50, 50), seed=1).batch_rows(task(1, 5, 2))).any()


def test_global_generators_do_not_matter():
    work = place((50,))
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    one = work.batch_rows(task())
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    assert (one == work.batch_rows(task())).all()


def test_the_passes_differ():
    rows = place((20,), batch_size=20).batch_rows(task(steps=2))
    assert sorted(rows[0]) == sorted(rows[1]) == list(range(20))
    assert (rows[0] != rows[1]).any()


def test_the_rate_follows_the_pulled_version():
    assert place(optimizer=LocalSGD(lr=0.5)).lr(task(pulled=3)) == 0.5
    work = place(optimizer=LocalSGD(lr=lambda version: 1 / (1 + version)))
    assert [work.lr(task(pulled=version)) for version in (0, 1, 3)] == [1.0, 0.5, 0.25]
    assert place(optimizer=ModuleOptimizer()).lr(task()) == 0.0
    with pytest.raises(ValueError, match=r"lr\(version=2\) must be 0 or larger, got -1"):
        place(optimizer=LocalSGD(lr=lambda version: -1)).lr(task(pulled=2))


def test_the_loss_is_found():
    loss = torch.ones(())
    assert loss_of(Point(), loss) is loss
    assert loss_of(Point(), {"loss": loss, "scores": torch.zeros(3)}) is loss
    assert loss_of(Point(), torch.ones(1, 1)).numel() == 1


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (None, "training_step of Point returned NoneType; return the loss as a tensor"),
        (1.5, "returned float"),
        ({"scores": torch.ones(1)}, "returned dict; return the loss as a tensor, or a dict with"),
        (torch.ones(2), r"a loss of shape \(2,\); return one number, for example loss.mean"),
    ],
)
def test_what_is_no_loss(output, message):
    with pytest.raises(TypeError, match=message):
        loss_of(Point(), output)


def test_a_client_error_names_the_task():
    error = ClientError(task(client=4, steps=3, pulled=6), "why")
    assert str(error) == (
        "client 4 failed in its local run from version 6 "
        "(dispatched at virtual time 0.25, 3 steps): why"
    )
    assert error.task.client_id == 4


def test_an_error_may_pickle_though_its_cause_does_not():
    class Local(Exception):
        """Of a class that another process cannot import."""

    try:
        raise Local("no such column")
    except Local as cause:
        error = ClientError.of(task(client=3), cause)
    sent = pickle.loads(pickle.dumps(error))
    assert (str(sent), sent.task, sent.reason) == (str(error), error.task, error.reason)
    assert "in another process:" in str(sent.__cause__)
    assert 'raise Local("no such column")' in str(sent.__cause__)
    assert pickle.loads(pickle.dumps(ClientError(task(), "late"))).__cause__ is None


@pytest.mark.parametrize(
    ("optimizer", "kept", "most"),
    [
        (LocalSGD(0.1), 0, 100),  # 4,000 bytes: 10 parameters in single precision
        (Scaffold(0.1), 10, 50),
        (LocalAdamW(0.1), 0, 100),
        (LocalAdamW(0.1, keep="client"), 21, 32),  # two moments and a number: 4 * 31 bytes
    ],
    ids=["nothing", "scaffold", "moments of a task", "moments of a client"],
)
def test_results_ahead_count_what_a_client_keeps(optimizer, kept, most):
    nothing = torch.zeros(0)
    state = ServerState(0, torch.zeros(10), nothing, nothing)
    assert state_size(optimizer, 10) == kept
    assert results_within(4000, state, kept, most=1000, num_workers=2) == most
    assert results_within(4000, state, kept, most=7, num_workers=2) == 7
    assert results_within(1, state, kept, most=1000, num_workers=2) == 4


def test_processes_hold_fewer_results_with_kept_moments_ahead():
    places = [place(optimizer=LocalAdamW(0.1, keep=keep)) for keep in ("task", "client")]
    found = []
    for each in places:
        executor = ProcessExecutor(1, max_batch=1000, max_bytes=4000)
        executor.setup(each)
        found.append(executor.max_ahead)
        executor.teardown()
    params = places[0].state.read().params  # of `Point`: one number in single precision
    assert (params.numel(), params.nbytes) == (1, 4)
    assert found == [1000, 4000 // (4 + 4 * 3)]
