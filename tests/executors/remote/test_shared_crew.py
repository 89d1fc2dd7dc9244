"""Several fits that share workers: results reach the right one, and a fit that is over leaves."""

import pytest

from fedlight.executors import Job
from fedlight.executors._remote.crew import AT_ONCE, Crew, Worker
from fedlight.executors._remote.shared_crew import SharedCrew
from fedlight.types import Task


class Echo(Worker):
    """Returns the client of each job; it fails over client 9."""

    def __init__(self, team) -> None:
        self.team, self.parcels = team, []

    name = "echo"

    def fits(self, jobs):
        assert all(job.work in self.team.known for job in jobs)
        return len(self.team.fitting) > 0

    def send(self, jobs):
        self.parcels.append(jobs)

    def receive(self):
        if self.parcels[0][0].task.client_id == 9:
            raise ArithmeticError("no room")
        return [(job.work, job.task.client_id) for job in self.parcels.pop(0)]

    def stop(self):
        self.parcels = []


class Team:
    def __init__(self, workers: int = 1) -> None:
        self.known, self.fitting, self.dropped = {"a", "b"}, ["all"], []
        self.crew = Crew(lambda place, jobs: Echo(self), lambda busy, seconds: busy, workers)

    def drop(self, work):
        self.known.discard(work)
        self.dropped.append(work)

    def close(self):
        self.crew.stop()


def job(client: int) -> Job:
    return Job(Task(client, 0, 0.0, 1.0, 1, client, 0), None)


@pytest.fixture
def shares():
    crew = SharedCrew(Team(), 1, 2)
    shares = crew.join("a"), crew.join("b")
    for each in shares:
        each.most = 5
    return crew, *shares


def test_a_fit_gets_its_own_parcels_under_its_own_numbers(shares) -> None:
    crew, a, b = shares
    a.submit(0, [job(1)])
    b.submit(0, [job(2), job(3)])
    assert (a.room, a.num_under_way, b.num_under_way) == (0, 1, 1)
    assert a.wait() == [(0, [("a", 1)])]
    assert b.take() == []
    assert b.wait() == [(0, [("b", 2), ("b", 3)])]
    assert b.run([[job(4)], [job(5)]]) == [[("b", 4)], [("b", 5)]]
    assert crew.num_under_way == a.num_under_way == b.num_under_way == 0
    assert a.wait() == []  # there is nothing to wait for


def test_a_fit_takes_no_more_than_its_part(shares) -> None:
    _, a, b = shares
    a.most, b.most = 1, 0
    assert (a.room, b.room) == (1, 0)
    a.submit(0, [job(1)])
    assert a.room == 0
    b.most = AT_ONCE
    assert b.room == AT_ONCE - 1
    a.wait()
    assert a.room > 0  # one that waits here holds up all others


def test_a_failure_reaches_its_fit_and_no_other(shares) -> None:
    crew, a, b = shares
    a.submit(0, [job(9)])
    b.submit(0, [job(1)])
    while crew.num_under_way:
        crew.wait()
    ((number, error),) = a.take()
    assert (number, str(error)) == (0, "no room")
    assert b.take() == [(0, [("b", 1)])]
    with pytest.raises(ArithmeticError, match="no room"):
        a.run([[job(9)], [job(1)]])
    b.submit(1, [job(2)])
    while crew.num_under_way:  # what is left of that call disturbs nobody
        crew.wait()
    assert b.take() == [(1, [("b", 2)])]


def test_a_fit_that_is_over_is_released_with_its_last_parcel(shares) -> None:
    crew, a, b = shares
    b.submit(0, [job(1)])
    a.submit(0, [job(2)])
    a.submit(1, [job(3)])  # no worker has it
    a.stop()
    assert crew.team.dropped == []
    assert (a.num_under_way, crew.num_under_way) == (1, 2)
    b.wait()
    crew.wait()
    assert crew.team.dropped == ["a"]
    assert a.take() == []
    b.stop()
    assert crew.team.dropped == ["a", "b"]
