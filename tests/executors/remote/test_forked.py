"""The shared memory of forked workers: a version is written once, and no block is used twice."""

from __future__ import annotations

import gc

import torch

from fedlight.executors import Job
from fedlight.executors._remote.forked import SharedTensors
from fedlight.types import LocalResult, ServerState, Task

P = 1000
NOTHING = torch.empty(0)


def version(number: int, shared: bool = False) -> ServerState:
    params = torch.full((P,), float(number))
    return ServerState(number, params, NOTHING, NOTHING, params + 0.5 if shared else None)


def job(state: ServerState, own: float | None = None) -> Job:
    task = Task(0, state.version, 0.0, 1.0, num_steps=1, serial=0, visit=0)
    return Job(task, state, None if own is None else torch.full((P,), own))


def made(num_jobs: int = 2, num_results: int = 4) -> SharedTensors:
    return SharedTensors(version(0), num_jobs, num_results)


def test_a_version_is_written_once_however_many_tasks_pull_it() -> None:
    tensors, state = made(), version(3, shared=True)
    for _ in range(5):
        parts = tensors.put_job(job(state), None)
        there = tensors.job(parts, []).pulled
        assert there.version == 3
        assert torch.equal(there.params, state.params)
        assert torch.equal(there.shared, state.shared)
        tensors.results.give_back(parts.result)
        tensors.release(parts)
    assert (tensors.traffic.tasks, tensors.traffic.versions) == (5, 1)
    assert tensors.traffic.sent == 2 * 4 * P


def test_a_version_without_a_shared_state_has_none() -> None:
    tensors = made()
    assert tensors.job(tensors.put_job(job(version(1)), None), []).pulled.shared is None


def test_a_tensor_that_was_changed_in_place_is_another_version() -> None:
    tensors, state = made(), version(1)
    first = tensors.put_job(job(state), None)
    state.params.add_(1.0)
    second = tensors.put_job(job(state), None)
    assert tensors.traffic.versions == 2
    assert tensors.job(first, []).pulled.params[0] == 1.0  # a worker may be reading it
    assert tensors.job(second, []).pulled.params[0] == 2.0


def test_the_block_of_a_version_that_a_worker_reads_is_not_used_again() -> None:
    tensors = made(num_jobs=2)
    blocks = tensors.versions.num_free
    kept = version(7)
    read = tensors.put_job(job(kept), None)
    tensors.results.give_back(read.result)
    for number in range(3 * blocks):
        parts = tensors.put_job(job(version(number)), None)  # at once forgotten by all others
        assert parts.version != read.version
        tensors.results.give_back(parts.result)
        tensors.release(parts)
    assert tensors.job(read, []).pulled.params[0] == 7.0
    tensors.release(read)
    again = tensors.put_job(job(kept), None)
    assert tensors.job(again, []).pulled.params[0] == 7.0


def test_a_forgotten_version_frees_its_block_with_its_last_reader() -> None:
    tensors, state = made(), version(1)
    free = tensors.versions.num_free
    readers = [tensors.put_job(job(state), None) for _ in range(2)]
    state.params.add_(1.0)
    other = tensors.put_job(job(state), None)
    assert tensors.versions.num_free == free - 2
    tensors.release(readers[0])
    assert tensors.versions.num_free == free - 2
    tensors.release(readers[1])
    assert tensors.versions.num_free == free - 1
    assert tensors.job(other, []).pulled.params[0] == 2.0


def test_the_state_of_a_client_crosses_with_each_task() -> None:
    tensors, state = made(), version(0)
    one, two = (tensors.put_job(job(state, own), None) for own in (4.0, 5.0))
    assert [tensors.job(parts, []).client_state[0] for parts in (one, two)] == [4.0, 5.0]
    free = tensors.states.num_free
    tensors.release(one)
    assert tensors.states.num_free == free + 1


def result_of(tensors: SharedTensors, value: float) -> LocalResult:
    parts = tensors.put_job(job(version(0)), None)
    delta = torch.full((P,), value)
    answer = tensors.put_result(LocalResult(delta, NOTHING, NOTHING, {}), parts)
    tensors.release(parts)
    return tensors.result(parts, answer)


def test_a_result_keeps_its_block_until_it_is_gone_and_never_changes() -> None:
    tensors = made(num_jobs=2, num_results=4)
    all_of_them = tensors.results.num_free
    held = [result_of(tensors, float(number)) for number in range(3 * all_of_them)]
    assert tensors.results.num_free == 3  # kept for what workers write; the others are copies
    assert [each.delta[0].item() for each in held] == [float(n) for n in range(len(held))]
    row = held[0].delta[10:20]
    del held
    gc.collect()
    assert tensors.results.num_free == all_of_them - 1  # of which a part is still there
    assert row[0] == 0.0
    del row
    assert tensors.results.num_free == all_of_them
    assert tensors.traffic.received == 3 * all_of_them * 4 * P


def test_what_a_worker_writes_is_read_without_a_copy() -> None:
    tensors = made()
    parts = tensors.put_job(job(version(0)), None)
    answer = tensors.put_result(LocalResult(torch.ones(P), NOTHING, NOTHING, {}), parts)
    result = tensors.result(parts, answer)
    assert result.delta.data_ptr() == tensors.results.tensors(parts.result)[0].data_ptr()
    assert result.client_state is None
