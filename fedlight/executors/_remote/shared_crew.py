"""Workers that the local runs of several fits have in common, and the share of one fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from fedlight.executors._remote.crew import AT_ONCE

if TYPE_CHECKING:
    from fedlight.executors._remote.crew import Crew, Finished
    from fedlight.executors.base import Job, Outcome, Workplace


class Team(Protocol):
    """Workers, and what they have of each fit."""

    @property
    def crew(self) -> Crew[Any]:
        """The workers, which are started when they are first needed."""

    def drop(self, work: Workplace) -> None:
        """Release what workers have of a fit."""

    def close(self) -> None:
        """End all workers."""


T = TypeVar("T", bound=Team)


class SharedCrew(Generic[T]):
    """Passes the local runs of several fits to the same workers, and results to the right fit.

    Args:
        team: The workers.
        num_workers: How many they are.
        most_fits: How many fits are under way at once at most.
    """

    def __init__(self, team: T, num_workers: int, most_fits: int) -> None:
        self.team, self.most_fits = team, most_fits
        self.places = AT_ONCE * num_workers
        self._shares: dict[int, tuple[CrewShare, int]] = {}  # by the numbers that the crew knows
        self._numbers = count()
        self._turns = count(1)

    def join(self, work: Workplace) -> CrewShare:
        """The share of a fit, about which the team knows already."""
        return CrewShare(self, work)

    @property
    def room(self) -> int:
        """How many more parcels the workers take."""
        return self.team.crew.room

    @property
    def num_under_way(self) -> int:
        """How many parcels have not come back."""
        return len(self._shares)

    def submit(self, share: CrewShare, number: int, jobs: Sequence[Job]) -> None:
        """Pass on a parcel of a fit."""
        share.num_under_way += 1
        share.turn = next(self._turns)
        own = next(self._numbers)
        self._shares[own] = share, number
        self.team.crew.submit(own, jobs)

    def wait(self) -> None:
        """Wait until parcels are finished, and put them where their fits find them."""
        for own, outcomes in self.team.crew.finished():
            if own not in self._shares:  # of a call of `run` that has failed
                continue
            share, number = self._shares.pop(own)
            share.num_under_way -= 1
            if not share.is_over:
                share.finished.append((number, outcomes))
            elif not share.num_under_way:
                self.team.drop(share.work)

    def leave(self, share: CrewShare) -> None:
        """Forget the parcels of a fit that is over, and release it once no worker has one."""
        own = {number for number, (each, _) in self._shares.items() if each is share}
        if own:
            for number in self.team.crew.withdraw(own):
                del self._shares[number]
                share.num_under_way -= 1
        if not share.num_under_way:
            self.team.drop(share.work)

    def close(self) -> None:
        """End all workers."""
        self.team.close()


class CrewShare:
    """The workers, as one fit sees them: its own parcels, and a part of the room.

    Args:
        shared: The workers.
        work: The workplace of the fit, which its jobs name.

    Attributes:
        finished: Parcels that the fit has not taken yet.
        num_under_way: How many parcels are with workers, or wait for one.
        most: How many of them there may be.
        turn: Grows with each parcel of any fit; smaller for one that was fed longer ago.
        is_over: Whether the fit is over.
    """

    def __init__(self, shared: SharedCrew[Any], work: Workplace) -> None:
        self._shared, self.work = shared, work
        self.finished: list[Finished] = []
        self.num_under_way = 0
        self.most = 0.0  # until all fits are set up, so that workers know them from their start
        self.turn = 0
        self.is_over = False

    @property
    def _crew(self) -> Crew[Any]:
        crew: Crew[Any] = self._shared.team.crew
        return crew

    @property
    def workers(self) -> list[Any]:
        """The workers."""
        return self._crew.workers

    @property
    def someone_idle(self) -> bool:
        """Whether a worker has nothing to do."""
        return self._crew.someone_idle

    def bounds(self, parcel: int) -> tuple[int, int]:
        """How many jobs are worth a message; see `Crew.bounds`."""
        return self._crew.bounds(parcel)

    @property
    def num_replaced(self) -> int:
        """How many workers have died so far, over whichever fit."""
        return self._crew.num_replaced if self.turn else 0

    @property
    def room(self) -> int:
        """How many more parcels of this fit the workers take."""
        left = self.most - self.num_under_way
        return 0 if left <= 0 else int(min(left, self._shared.room))

    def submit(self, number: int, jobs: Sequence[Job]) -> None:
        """Take a parcel; see `Crew.submit`."""
        self._shared.submit(self, number, self._named(jobs))

    def wait(self) -> list[Finished]:
        """Return what has come of this fit since the last call; wait first if nothing has.

        It may be nothing, since the parcels of others come, too, and leave room.
        """
        # A fit that waits here, in a callback, holds up all others.
        self.most = math.inf
        if not self.finished and self._shared.num_under_way:
            self._shared.wait()
        return self.take()

    def take(self) -> list[Finished]:
        """Return what has come of this fit."""
        finished, self.finished = self.finished, []
        return finished

    def run(self, parcels: Sequence[Sequence[Job]]) -> list[list[Outcome]]:
        """Compute parcels before all others; see `Crew.run`."""
        return self._crew.run([self._named(jobs) for jobs in parcels])

    def stop(self) -> None:
        """Leave the workers to others."""
        self.is_over = True
        self._shared.leave(self)

    def _named(self, jobs: Sequence[Job]) -> list[Job]:
        return [job._replace(work=self.work) for job in jobs]
