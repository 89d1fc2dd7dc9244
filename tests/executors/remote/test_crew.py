"""The crew: who gets which parcel, what a lost worker costs, and who is named."""

import re
import warnings
from collections.abc import Callable, Sequence

import pytest
import torch

from fedlight.executors import Job
from fedlight.executors._remote import crew as module
from fedlight.executors._remote.crew import Crew
from fedlight.types import ServerState, Task
from tests.crews import Here

STATE = ServerState(0, *(torch.zeros(0) for _ in range(3)))


def job(serial: int, steps: int = 1) -> Job:
    return Job(Task(serial, 0, 0.0, 1.0, steps, serial, 0), STATE)


class Echo:
    """The outcome of a job is its serial."""

    def run(self, jobs: Sequence[Job]) -> list[int]:
        return [each.task.serial for each in jobs]


def crew(
    number: int,
    wait: Callable[[Sequence[Here], float], Sequence[Here]] | None = None,
    lives: Sequence[int | None] = (),
) -> Crew[Here]:
    """A crew whose workers live so long, in the order in which they are hired."""
    left = list(lives)

    def hire(place: int, jobs: Sequence[Job]) -> Here:
        return Here(place, Echo(), left.pop(0) if left else None)

    return Crew(hire, wait or (lambda workers, timeout: workers), number)


def held(made: Crew[Here]) -> list[list[list[int]]]:
    """The serials of each parcel of each worker."""
    return [
        [[each.task.serial for each in jobs] for jobs in worker.parcels] for worker in made.workers
    ]


def test_parcels_go_to_who_has_least_to_do_and_two_lie_with_a_worker() -> None:
    made = crew(2)
    for serial, steps in enumerate([5, 1, 1, 9, 1]):
        made.submit(serial, [job(serial, steps)])
    # Each has one; then the third goes to the worker with one step, the fourth to the other.
    assert held(made) == [[[0], [3]], [[1], [2]]]
    assert (made.room, made.num_under_way) == (0, 5)
    done = made.wait()
    assert done == [(0, [0]), (1, [1])]
    assert held(made) == [[[3]], [[2], [4]]]
    assert made.room == 1


def test_only_finished_parcels_are_waited_for() -> None:
    made = crew(2, wait=lambda workers, timeout: workers[1:] or workers)
    for serial in range(3):
        made.submit(serial, [job(serial)])
    assert [number for number, _ in made.wait()] == [1]
    assert [number for number, _ in made.wait()] == [0]
    assert [number for number, _ in made.wait()] == [2]
    with pytest.raises(RuntimeError, match="no worker has anything to compute"):
        made.wait()


def test_what_is_asked_for_at_once_goes_first_and_leaves_the_others_to_be_collected() -> None:
    made = crew(1)
    for serial in range(3):
        made.submit(serial, [job(serial)])  # the third waits
    assert made.run([[job(7)], [job(8), job(9)]]) == [[7], [8, 9]]
    assert [number for number, _ in made.wait()] == [0, 1]
    assert [number for number, _ in made.wait()] == [2]


def test_a_lost_worker_costs_its_parcels_only() -> None:
    made = crew(2, lives=[0, None, None])
    for serial in range(4):
        made.submit(serial, [job(serial)])
    first = made.workers[0]
    found = []
    while made.num_under_way:
        found += made.wait()
    assert first.stopped
    assert made.num_replaced == 1
    assert sorted(found) == [(serial, [serial]) for serial in range(4)]


def test_a_worker_that_dies_at_the_sending_is_replaced_too() -> None:
    made = crew(1)
    made.workers[0].send = lambda jobs: made.workers[0].dies()
    made.workers[0].dies = lambda: (_ for _ in ()).throw(module.WorkerLost("gone"))
    made.submit(0, [job(0)])
    assert made.wait() == [(0, [0])]
    assert made.num_replaced == 1


def test_jobs_that_cost_three_workers_are_named() -> None:
    made = crew(1, lives=[0, 0, 0])
    made.submit(0, [job(number) for number in range(6)])
    made.submit(1, [job(9)])
    words = "worker 0 has died. It is the 3rd over the same local runs (clients 0, 1, 2, 3, 4, …)"
    with pytest.raises(RuntimeError, match=re.escape(words)):
        made.wait()
    # What only lay with those workers is not to blame.
    made = crew(1, lives=[1, 1, 1, 1])
    for serial in range(4):
        made.submit(serial, [job(serial)])
    found = []
    while made.num_under_way:
        found += made.wait()
    assert [number for number, _ in found] == [0, 1, 2, 3]
    assert made.num_replaced == 3


def test_a_worker_that_does_not_fit_is_replaced_once_it_has_no_work() -> None:
    made = crew(1)
    first = made.workers[0]
    made.submit(0, [job(0)])
    first.fits = lambda jobs: False
    made.submit(1, [job(1)])
    assert held(made) == [[[0]]]
    assert made.wait() == [(0, [0])]
    assert first.stopped
    assert held(made) == [[[1]]]
    assert made.num_replaced == 0  # it has not died


def test_one_that_is_idle_and_does_not_fit_is_replaced_sooner_than_another_is_waited_for() -> None:
    made = crew(2)
    second = made.workers[1]
    second.fits = lambda jobs: False
    for serial in range(2):
        made.submit(serial, [job(serial)])
    assert second.stopped
    assert held(made) == [[[0]], [[1]]]


def test_one_that_is_silent_is_named_at_ever_longer_intervals(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    looks = []

    def wait(workers, timeout):
        looks.append(now[0])
        now[0] += 30.0
        return workers[1:] if len(looks) < 9 else workers

    made = crew(2, wait)
    made.submit(0, [job(3, steps=20)])
    made.submit(1, [job(1)])
    assert [number for number, _ in made.wait()] == [1]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [number for number, _ in made.wait()] == [0]
    said = [str(each.message) for each in caught]
    assert [re.findall(r"silent for (\d+) s", each) for each in said] == [["90"], ["210"]]
    assert said[0].startswith("fedlight: worker 0 has been silent for 90 s. It computes the local ")
    assert "run of client 3 from version 0 (20 steps); the longest wait before was 30 s" in said[0]


def test_a_slow_run_is_not_taken_for_a_silent_one(monkeypatch) -> None:
    """Where local runs take a minute, five minutes are a silence."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    answers = iter([True, *[False] * 4, True])

    def wait(workers, timeout):
        now[0] += 60.0
        return workers if next(answers) else []

    made = crew(1, wait)
    made.submit(0, [job(0)])
    made.submit(1, [job(1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.wait()
        made.wait()


def test_if_one_cannot_be_hired_the_others_are_ended() -> None:
    hired = []

    def hire(place, jobs):
        if place == 2:
            raise OSError("no room")
        hired.append(Here(place, Echo()))
        return hired[-1]

    with pytest.raises(OSError, match="no room"):
        Crew(hire, lambda workers, timeout: workers, 3)
    assert [each.stopped for each in hired] == [True, True]


def test_a_worker_that_waits_for_room_gets_nothing_as_long_as_others_are_there(monkeypatch) -> None:
    made = crew(2)
    monkeypatch.setattr(Here, "is_there", property(lambda self: self.number != 1))
    for serial in range(3):
        made.submit(serial, [job(serial)])
    assert held(made) == [[[0], [1]], []]
    found = []
    while made.num_under_way:
        found += made.wait()
    assert [number for number, _ in found] == [0, 1, 2]


def test_if_no_other_is_there_it_is_named_as_one_that_waits_for_room(monkeypatch) -> None:
    now, answers = [0.0], iter([False, False, True])
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Here, "is_there", False)

    def wait(workers, timeout):
        now[0] += 40.0
        return workers if next(answers) else []

    made = crew(1, wait)
    made.submit(0, [job(0)])
    with pytest.warns(
        UserWarning, match="worker 0 has not started for 80 s, and no other is there"
    ):
        made.wait()
