"""Several workers that take jobs and give results as they come."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from lightning.pytorch.utilities import rank_zero_warn

if TYPE_CHECKING:
    from fedlight.executors._remote.shared_crew import CrewShare
    from fedlight.executors.base import Job, Outcome

AT_ONCE = 2
"""Parcels that a worker has: one to compute, and one that lies ready."""

_TRIES = 3
_MESSAGES = 0.004  # seconds, about, that the messages of a parcel take
_TIME_FOR_EACH = 0.01  # seconds between two parcels of all workers together
_LONG = 0.05  # seconds that a parcel of several jobs takes at most: others may be needed sooner
_LOOK = 5.0  # seconds between two looks at workers from which nothing comes
_SILENT = 60.0  # seconds after which a worker is named
_SLOWER = 5.0  # times the longest wait so far


class WorkerLost(RuntimeError):
    """A worker has died."""


class Worker(Protocol):
    """One worker, as this process sees it. It computes parcels of jobs in the order of sending."""

    seconds: float = 0.0
    """How long the computation of the last parcel took; 0.0 where messages cost next to nothing."""

    @property
    def is_there(self) -> bool:
        """Whether it has started; on a cluster it may wait for room."""
        return True

    @property
    def name(self) -> str:
        """Its name in messages, such as "worker 2 (process 4711)"."""

    def fits(self, jobs: Sequence[Job]) -> bool:
        """Whether it knows all that the jobs need; else it is replaced when it has no work."""

    def send(self, jobs: Sequence[Job]) -> None:
        """Send a parcel of jobs.

        Raises:
            WorkerLost: It has died.
        """

    def receive(self) -> list[Outcome]:
        """Return the outcomes of the earliest parcel that it has, once they are there.

        Raises:
            WorkerLost: It has died.
        """

    def stop(self) -> None:
        """End it, even in the middle of its work."""


W = TypeVar("W", bound=Worker)


@dataclass(slots=True)
class Traffic:
    """What has crossed the boundaries between processes.

    Attributes:
        tasks: Local runs that were sent to workers.
        sent: Bytes of tensors on their way to workers.
        received: Bytes of tensors on their way back.
        versions: How often a version of the model was sent.
    """

    tasks: int = 0
    sent: int = 0
    received: int = 0
    versions: int = 0


class Parcel(NamedTuple):
    """Jobs that one worker computes in one go, with a number and how many workers they cost."""

    number: int
    jobs: Sequence[Job]
    tries: int = 0


Finished: TypeAlias = "tuple[int, list[Outcome] | Exception]"
"""The number of a parcel, and its outcomes or the error for which there are none."""


@dataclass(slots=True)
class _Place(Generic[W]):
    """The place of a worker, also after that worker was replaced."""

    worker: W
    parcels: deque[Parcel] = field(default_factory=deque)
    steps: int = 0
    since: float = 0.0  # when it was last heard of, or got work after it had none
    patience: float = 0.0


class Crew(Generic[W]):
    """Deals parcels of jobs to workers and collects what they have computed.

    A parcel goes to the worker with the fewest local steps to make. A worker that dies is replaced,
    and only its parcels are computed again; one of which nothing is heard is named.

    Args:
        hire: Makes the worker of a place, which fits some jobs.
        wait: Returns those of some workers that have something to receive, after so many seconds
            at the latest.
        num_workers: How many workers.

    Attributes:
        num_replaced: How many workers have died.
    """

    def __init__(
        self,
        hire: Callable[[int, Sequence[Job]], W],
        wait: Callable[[Sequence[W], float], Sequence[W]],
        num_workers: int,
    ) -> None:
        self._hire, self._wait = hire, wait
        self._places: list[_Place[W]] = []
        try:
            for number in range(num_workers):
                self._places.append(_Place(hire(number, ())))
        except BaseException:
            self.stop()
            raise
        self._dealt: deque[Parcel] = deque()  # those that no worker has yet
        self._done: list[Finished] = []
        self._own = count(-1, -1)  # numbers of the parcels of `run`
        self._longest = 0.0
        self._pace: float | None = None  # seconds of a worker for a job, as of late
        self.num_replaced = 0

    @property
    def workers(self) -> list[W]:
        """The workers."""
        return [place.worker for place in self._places]

    @property
    def num_under_way(self) -> int:
        """How many parcels are not collected yet."""
        waiting = sum(len(place.parcels) for place in self._places)
        return waiting + len(self._dealt) + len(self._done)

    @property
    def room(self) -> int:
        """How many more parcels keep all workers busy until the first of them has finished."""
        return max(0, AT_ONCE * len(self._places) - self.num_under_way)

    @property
    def someone_idle(self) -> bool:
        """Whether a worker has nothing to do."""
        return any(not place.parcels for place in self._places)

    def bounds(self, parcel: int) -> tuple[int, int]:
        """The least and the most jobs with which a parcel is worth its messages.

        They take a worker as long as the messages do, or, if none is idle, so long that this
        process has time for all of them. Slow jobs are sent one at a time.

        Args:
            parcel: The most in any case.
        """
        if self._pace is None:
            return 1, 1
        pace, for_all = max(self._pace, 1e-9), min(_LONG, _TIME_FOR_EACH * len(self._places))
        least, most = (
            max(1, min(parcel, round(seconds / pace)))
            for seconds in (_MESSAGES if self.someone_idle else for_all, for_all)
        )
        return least, most

    def submit(self, number: int, jobs: Sequence[Job]) -> None:
        """Take a parcel; it waits here if every worker has enough to do.

        Args:
            number: Names the parcel in the answer of `wait`.
            jobs: Its jobs.
        """
        self._dealt.append(Parcel(number, jobs))
        self._deal()

    def wait(self) -> list[tuple[int, list[Outcome]]]:
        """Return the parcels that are finished, at least one, each with its outcomes.

        Raises:
            RuntimeError: A worker failed for a reason that is not the client's, workers died
                several times over the same jobs, or there is nothing to wait for.
        """
        found = []
        for number, outcomes in self.finished():
            if isinstance(outcomes, Exception):
                raise outcomes
            found.append((number, outcomes))
        return found

    def finished(self) -> list[Finished]:
        """The same as `wait`, but a parcel for which it would raise an error has that error.

        Raises:
            RuntimeError: There is nothing to wait for.
        """
        if not self.num_under_way:
            raise RuntimeError("no worker has anything to compute")
        while not self._done:
            self._collect()
        done, self._done = self._done, []
        return done

    def run(self, parcels: Sequence[Sequence[Job]]) -> list[list[Outcome]]:
        """Compute parcels before all others that wait, and return their outcomes in their order."""
        numbers = [next(self._own) for _ in parcels]
        mine = [Parcel(number, jobs) for number, jobs in zip(numbers, parcels, strict=True)]
        self._dealt.extendleft(reversed(mine))
        self._deal()
        found: dict[int, list[Outcome]] = {}
        others: list[Finished] = []
        wanted = set(numbers)
        while len(found) < len(numbers):
            for number, outcomes in self.finished():
                if number not in wanted:
                    others.append((number, outcomes))
                elif isinstance(outcomes, Exception):
                    raise outcomes
                else:
                    found[number] = outcomes
        self._done = [*others, *self._done]
        return [found[number] for number in numbers]

    def withdraw(self, numbers: Collection[int]) -> list[int]:
        """Forget those of some parcels that no worker has yet; return their numbers."""
        found = [each.number for each in self._dealt if each.number in numbers]
        self._dealt = deque(each for each in self._dealt if each.number not in numbers)
        return found

    def stop(self) -> None:
        """End all workers."""
        for place in self._places:
            place.worker.stop()
        self._places = []

    def _deal(self) -> None:
        """Send parcels to workers that have no work, or have one parcel."""
        while self._dealt:
            there = [place for place in self._places if place.worker.is_there]
            # One that waits for room holds up nobody, as long as there are others.
            free = [place for place in there or self._places if len(place.parcels) < AT_ONCE]
            jobs = self._dealt[0].jobs
            fitting = [place for place in free if place.worker.fits(jobs)]
            idle = next((place for place in free if not place.parcels), None)
            if idle is not None and all(place.parcels for place in fitting):
                self._replace(idle, jobs)  # sooner than another has finished what it has
                fitting = [idle]
            if not fitting:
                return
            place = min(fitting, key=lambda each: (len(each.parcels), each.steps))
            self._send(place, self._dealt.popleft())

    def _send(self, place: _Place[W], parcel: Parcel) -> None:
        if not place.parcels:
            place.since = time.monotonic()
            place.patience = max(_SILENT, _SLOWER * self._longest)
        place.parcels.append(parcel)
        place.steps += _steps(parcel)
        lost = None
        try:
            place.worker.send(parcel.jobs)
        except WorkerLost as error:
            lost = error
        if lost is not None:  # the next worker, forked within `except`, would have that error, too
            self._lose(place, lost)

    def _collect(self) -> None:
        """Receive what has come, and deal anew; also return after a while without news."""
        self._deal()
        busy = {id(place.worker): place for place in self._places if place.parcels}
        came = self._wait([place.worker for place in busy.values()], _LOOK)
        now = time.monotonic()
        for worker in came:
            place = busy[id(worker)]
            failure: Exception | None = None
            outcomes: list[Outcome] = []
            try:
                outcomes = worker.receive()
            except Exception as error:
                failure = error
            if isinstance(failure, WorkerLost):
                self._lose(place, failure)
                continue
            if failure is not None:
                self._give_up(place, failure)
                continue
            parcel = place.parcels.popleft()
            place.steps -= _steps(parcel)
            taken = worker.seconds / max(1, len(parcel.jobs))
            self._pace = taken if self._pace is None else 0.8 * self._pace + 0.2 * taken
            self._longest = max(self._longest, now - place.since)
            place.since, place.patience = now, max(_SILENT, _SLOWER * self._longest)
            self._done.append((parcel.number, outcomes))
        for place in busy.values():
            if place.parcels and now - place.since > place.patience:
                self._name(place, now - place.since)
        self._deal()

    def _lose(self, place: _Place[W], error: WorkerLost) -> None:
        """Replace a worker that has died; its parcels are the next to be computed."""
        self.num_replaced += 1
        first, *others = place.parcels
        first = first._replace(tries=first.tries + 1)  # only this one may have cost the worker
        if first.tries == _TRIES:
            clients = ", ".join(str(job.task.client_id) for job in first.jobs[:5])
            more = ", …" if len(first.jobs) > 5 else ""
            failure = RuntimeError(
                f"{error}. It is the {_TRIES}rd over the same local runs (clients {clients}{more})"
            )
            failure.__cause__ = error
            self._give_up(place, failure)
            return
        self._dealt.extendleft(reversed([first, *others]))
        place.parcels.clear()
        place.steps = 0
        self._replace(place, first.jobs)

    def _give_up(self, place: _Place[W], error: Exception) -> None:
        """Compute the first parcel of a worker no more; a new worker takes its place."""
        first, *others = place.parcels
        self._done.append((first.number, error))
        self._dealt.extendleft(reversed(others))
        place.parcels.clear()
        place.steps = 0
        self._replace(place, ())

    def _replace(self, place: _Place[W], jobs: Sequence[Job]) -> None:
        place.worker.stop()
        place.worker = self._hire(self._places.index(place), jobs)

    def _name(self, place: _Place[W], silent: float) -> None:
        """Say which worker has been silent for long, and over what."""
        place.patience = 2 * silent
        if not place.worker.is_there:
            rank_zero_warn(
                f"fedlight: {place.worker.name} has not started for {silent:.0f} s, and no other "
                "is there: it waits until a node of the cluster has room for it"
            )
            return
        task = place.parcels[0].jobs[0].task
        longest = f"; the longest wait before was {self._longest:.3g} s" if self._longest else ""
        rank_zero_warn(
            f"fedlight: {place.worker.name} has been silent for {silent:.0f} s. It computes the "
            f"local run of client {task.client_id} from version {task.pulled_version} "
            f"({task.num_steps} steps){longest}. If it hangs, end that process: another takes over"
        )


def _steps(parcel: Parcel) -> int:
    return sum(job.task.num_steps for job in parcel.jobs)


def run_in_parcels(crew: Crew[Any] | CrewShare, jobs: Sequence[Job], size: int) -> list[Outcome]:
    """Compute jobs in parcels of a size; return the outcomes in the order of the jobs."""
    # The longest first: one that starts last would leave the other workers idle.
    order = sorted(range(len(jobs)), key=lambda index: -jobs[index].task.num_steps)
    parts = [order[at : at + size] for at in range(0, len(order), size)]
    parcels = crew.run([[jobs[index] for index in part] for part in parts])
    found: dict[int, Outcome] = {}
    for part, outcomes in zip(parts, parcels, strict=True):
        found.update(zip(part, outcomes, strict=True))
    return [found[index] for index in range(len(jobs))]
