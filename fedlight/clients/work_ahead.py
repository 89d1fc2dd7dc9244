"""Local runs on several workers, which begin before the server needs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING

from fedlight.clients.pending import PendingRun, Status, earliest

if TYPE_CHECKING:
    from fedlight.clients.pool import Pool
    from fedlight.executors._remote.crew import Finished
    from fedlight.executors.base import Executor


class WorkAhead:
    """Keeps the workers of an executor busy, and lets the server wait only for what it uses.

    ::

        until the runs that the server needs are there:
            give workers parcels         first the runs needed, the longest first;
                                         then those that arrive next, within the budget
            store what has come          the next run of a client may read its state

    The schedule is known before any model is, and a run can begin as soon as the version that it
    pulls exists. So this is list scheduling by planned arrival, without barriers between server
    steps. Which run is computed when, where and beside which depends on how fast the workers are,
    and changes no bit, since results are `independent`.

    Where they are not, the runs that are computed together follow from the schedule alone: those
    that `Pool.batches` would choose, cut into parcels of `Executor.parcel` with equal numbers of
    steps side by side. Only the waiting is left out.

    Args:
        pool: The runs that wait.
        executor: The executor, set up.
    """

    def __init__(self, pool: Pool, executor: Executor) -> None:
        assert executor.crew is not None
        self._pool, self._executor = pool, executor
        self._crew = executor.crew
        self._numbers = count()
        self._parcels: dict[int, list[PendingRun]] = {}
        self._chosen: deque[list[PendingRun]] = deque()  # parcels for which there was no room
        self._under_way: set[int] = set()  # serials of runs that workers have or are about to get
        self._unwanted: set[int] = set()  # those of them that were dropped

    def has(self, run: PendingRun) -> bool:
        """Whether workers have a run or are about to get it."""
        return run.task.serial in self._under_way

    def wants(self, run: PendingRun) -> bool:
        """Whether workers have it, and nobody has dropped it."""
        return self.has(run) and run.task.serial not in self._unwanted

    def discard(self, run: PendingRun) -> None:
        """Note that the server does not need a run."""
        if self.has(run):
            self._unwanted.add(run.task.serial)

    def compute(
        self, needed: Sequence[PendingRun], until: float, useful: float
    ) -> Generator[None, Sequence[Finished], None]:
        """Compute the runs that the server needs.

        Args:
            needed: The runs.
            until: Virtual time after which no result is used.
            useful: Number of future arrivals that may still be used.

        Yields:
            Where it has to wait. Send the parcels that are finished; if there are none, workers get
            more, as long as they take any.
        """
        if not self._executor.independent:
            yield from self._compute_in_stacks(needed)
            return
        waiting = [run for run in needed if run.status is Status.OPEN]
        first = deque(sorted(waiting, key=lambda run: -run.task.num_steps))
        for run in waiting:
            while run.status is Status.OPEN:
                self._feed(first, until, useful)
                self._store((yield))
        self._feed(first, until, useful)

    def _feed(self, first: deque[PendingRun], until: float, useful: float) -> None:
        """Give workers as much as they take.

        Args:
            first: Runs that the server needs; those that are given away are taken out.
            until: As for `compute`.
            useful: As for `compute`.
        """
        pool, executor, crew = self._pool, self._executor, self._crew
        most = executor.max_batch if executor.max_ahead is None else executor.max_ahead
        while crew.room:
            ahead = min(pool.num_open, max(0, most - pool.num_ahead), useful)
            if executor.few_at_once:
                least, size = crew.bounds(executor.parcel)
                busy = crew.num_under_way > 0
            else:
                least = size = executor.parcel
                busy = not crew.someone_idle
            if busy and not first and ahead < least:
                return  # a parcel so small is not worth its messages yet
            size = max(1, min(size, round((len(first) + ahead) / len(crew.workers))))
            parcel = self._next_needed(first, size)
            ahead = pool.num_ahead
            parcel += pool.next_ones(size - len(parcel), most - ahead, until, useful - ahead)
            if not parcel:
                return
            self._submit(parcel)

    def _next_needed(self, first: deque[PendingRun], most: int) -> list[PendingRun]:
        """Take runs that can be computed out of those that the server needs.

        In the place of one that waits for an earlier run of its client, that one is taken.
        """
        parcel: dict[int, PendingRun] = {}
        later = []
        while first and len(parcel) < most:
            target = first.popleft()
            if target.status is not Status.OPEN:
                continue
            run = earliest(target)
            if not self.has(run):
                parcel.setdefault(run.task.serial, run)
            if run is not target:
                later.append(target)
        first.extendleft(reversed(later))
        return list(parcel.values())

    def _submit(self, parcel: list[PendingRun]) -> None:
        number = next(self._numbers)
        self._mark(parcel)
        self._parcels[number] = parcel
        self._crew.submit(number, [run.job() for run in parcel])

    def _mark(self, runs: Sequence[PendingRun]) -> None:
        self._pool.take(runs)
        self._under_way.update(run.task.serial for run in runs)

    def _store(self, finished: Sequence[Finished]) -> None:
        """Store what has come."""
        for number, outcomes in finished:
            if isinstance(outcomes, Exception):
                raise outcomes
            runs = self._parcels.pop(number)
            self._under_way.difference_update(run.task.serial for run in runs)
            # One that was released meanwhile has no use for a result.
            pairs = zip(runs, outcomes, strict=True)
            found = [(run, outcome) for run, outcome in pairs if run.status is Status.OPEN]
            if found:
                self._pool.finish(*zip(*found, strict=True))
            for run in runs:
                if run.task.serial in self._unwanted:
                    self._unwanted.remove(run.task.serial)
                    if self._pool.order is None:  # else it goes into the memory of the channel
                        run.release()

    def collect(self, runs: Iterable[PendingRun]) -> None:
        """Wait for those of some runs that workers have or are about to get."""
        for run in runs:
            while run.status is Status.OPEN and self.has(run):
                self._submit_chosen()
                self._store(self._crew.wait())

    def drain(self) -> None:
        """Wait for all that workers have or are about to get."""
        while self._parcels or self._chosen:
            self._submit_chosen()
            self._store(self._crew.wait())

    def _compute_in_stacks(
        self, needed: Sequence[PendingRun]
    ) -> Generator[None, Sequence[Finished], None]:
        for target in needed:
            while target.status is Status.OPEN:
                if not self.has(target):
                    self._choose(target)
                self._submit_chosen()
                if target.status is Status.OPEN:
                    self._store((yield))

    def _choose(self, target: PendingRun) -> None:
        """Choose what is computed together with a run."""
        pool, executor = self._pool, self._executor
        if pool.has_chains:
            # Whether an earlier run of a client has come yet must not matter.
            self.drain()
        batch = pool.batch(target)
        self._mark(batch)
        batch.sort(key=lambda run: -run.task.num_steps)
        size = executor.parcel
        self._chosen.extend(batch[at : at + size] for at in range(0, len(batch), size))

    def _submit_chosen(self) -> None:
        while self._chosen and self._crew.room:
            parcel = self._chosen.popleft()
            number = next(self._numbers)
            self._parcels[number] = parcel
            self._crew.submit(number, [run.job() for run in parcel])
