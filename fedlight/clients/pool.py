"""The pool of local runs: they are computed when the server needs one, then many at once."""

from __future__ import annotations

import heapq
import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from fedlight.clients.pending import PendingRun, Status, earliest
from fedlight.clients.work_ahead import WorkAhead
from fedlight.executors.base import Executor, Outcome
from fedlight.types import LocalResult

if TYPE_CHECKING:
    from fedlight.clients.large_updates import NormLimit
    from fedlight.clients.sending import Sending
    from fedlight.executors._remote.crew import Finished
    from fedlight.types import ServerState, Task


class Pool:
    """Holds the local runs that are not computed yet, and decides which are computed together.

    When the server needs a local run, it is computed in one call of the executor together with
    those that arrive next, up to `Executor.max_batch`. At most `max_batch` local runs are computed
    ahead of their arrival at any time. This limits the memory for results, and how many are
    computed and not used at the end of a fit. If a local run reads a client state, it is computed
    after the earlier one that determines that state. An executor with workers is kept busy by
    `WorkAhead`, and the server does not wait for the others.

    The last bits of a result may depend on the others in its stack. Hence the members of a stack
    are a function of the schedule and the executor alone: limits, callbacks that read a result
    early (`preview`), and stopping and resuming have no influence. Only for an executor with
    `independent` results does the pool leave out local runs that the limits make useless.

    Where runs may be stopped before they arrive (`ArrivalProcess.may_stop`), none is computed
    ahead of its arrival at all.

    Args:
        executor: Computes the local runs.
        limit: Clips or refuses results that are too large; None accepts all.
        sending: Takes results through the channel; None leaves them as they are.
        ahead: Whether runs may be computed ahead of their arrival.

    Attributes:
        num_batches: Calls of the executor, or parcels of its workers, so far.
        num_computed: Local runs computed so far.
        num_ahead: Local runs that are computed, or with workers, and still in flight.
        pulled_before: Virtual time from which on what was pulled is in no stack yet. Where members
            of a stack matter, it is the present: a replay pulls at the end of an instant what the
            recorded process may have pulled in the midst of it.
        order: The order in which a client's updates are sent, if it matters; else None.
        has_chains: Whether a run has read the state that an earlier one leaves.
    """

    def __init__(
        self,
        executor: Executor,
        limit: NormLimit | None = None,
        sending: Sending | None = None,
        ahead: bool = True,
    ) -> None:
        self._executor = executor
        self._limit = limit
        self._sending = sending
        self.order = sending if sending is not None and sending.remembers else None
        self._ahead = ahead
        self._open: dict[int, PendingRun] = {}
        # A heap of (time of arrival, client, serial). Runs that are no longer open stay in it until
        # they come up, because removing an entry from the middle of a heap is expensive.
        self._queue: list[tuple[float, int, int]] = []
        self._work_ahead = None if executor.crew is None else WorkAhead(self, executor)
        self.has_chains = False
        self.pulled_before = math.inf
        self.num_ahead = 0
        self.num_batches = 0
        self.num_computed = 0

    def submit(self, task: Task, pulled: ServerState, after: PendingRun | None) -> PendingRun:
        """Add a task that was dispatched.

        Args:
            task: The task.
            pulled: The version that its client pulled.
            after: The earlier local run of the client whose state it reads, or None.

        Returns:
            The local run of the task.
        """
        return self.adopt(PendingRun(self, task, pulled, after))

    def adopt(self, run: PendingRun) -> PendingRun:
        """Add an open local run, or one that arrives earlier than planned; return it."""
        task = run.task
        self._open[task.serial] = run
        self.has_chains |= run.after is not None
        if self._executor.max_batch > 1:  # else nobody looks for runs that arrive next
            heapq.heappush(self._queue, (task.arrives_at, task.client_id, task.serial))
        return run

    def arrived(self, run: PendingRun) -> None:
        """Note that the update of a run has reached the server."""
        run.arrived = True
        if self.order is not None and not run.sent:
            self.order.arrived(run)
        if run.status is not Status.OPEN or self.is_with_workers(run):
            self.num_ahead -= 1

    def waits(self, run: PendingRun) -> bool:
        """Return whether a run is to be computed, and nobody has dropped it."""
        if run.task.serial in self._open:
            return True
        return self._work_ahead is not None and self._work_ahead.wants(run)

    def is_with_workers(self, run: PendingRun) -> bool:
        """Return whether a worker has a run, or is about to get it."""
        return self._work_ahead is not None and self._work_ahead.has(run)

    def discard(self, run: PendingRun) -> bool:
        """Leave out a run, which is then computed only if a client state depends on it.

        Returns:
            Whether its result is kept for the client's next update.
        """
        self._open.pop(run.task.serial, None)
        if self._work_ahead is not None:
            self._work_ahead.discard(run)
        if self.order is None or run.sent:
            return False
        self.order.drop(run)
        return True

    def let_go(self) -> None:
        """Forget the runs that nobody will compute. They hold the pool, which holds them."""
        self._open.clear()

    def compute(
        self,
        needed: Sequence[PendingRun],
        *,
        until: float = math.inf,
        useful: float = math.inf,
        send: bool = True,
    ) -> None:
        """Compute local runs, and with them those that arrive next.

        Args:
            needed: The local runs that the server needs now.
            until: Virtual time after which no result is used.
            useful: Number of future arrivals that may still be used. This and `until` are ignored
                unless the executor's results are independent of each other.
            send: Whether they are also sent through a channel with a memory: not before the server
                has accepted or dropped them.
        """
        if self._work_ahead is not None:
            assert self._executor.crew is not None
            waits = self.in_parcels(needed, until=until, useful=useful, send=send)
            with suppress(StopIteration):
                next(waits)
                while True:
                    waits.send(self._executor.crew.wait())
            return
        steps = self.batches(needed, until=until, useful=useful, send=send)
        batch = next(steps, None)
        while batch is not None:
            outcomes = self._executor.run([run.job() for run in batch])
            try:
                batch = steps.send(outcomes)
            except StopIteration:
                return

    def batches(
        self,
        needed: Sequence[PendingRun],
        *,
        until: float = math.inf,
        useful: float = math.inf,
        send: bool = True,
    ) -> Generator[list[PendingRun], Sequence[Outcome], None]:
        """Choose what `compute` computes; the caller computes it, perhaps with other pools' runs.

        Args:
            needed: As for `compute`.
            until: As for `compute`.
            useful: As for `compute`.
            send: As for `compute`.

        Yields:
            Local runs that are computed together. Send the executor's outcomes, in their order.
        """
        # The members of a stack follow from the schedule alone, so limits must not shorten it.
        if not self._executor.independent:
            until = useful = math.inf
        needed = self._in_order(needed)
        for number, target in enumerate(needed):
            # Several turns if the target waits for earlier runs of its client.
            while target.status is Status.OPEN:
                batch = self.batch(target, until, useful)
                if self._executor.independent and self._executor.max_batch == 1:
                    batch = _in_turn(batch, needed[number:])
                outcomes = yield batch
                self.num_ahead += sum(not run.arrived for run in batch)
                self.finish(batch, outcomes)
        self._send(needed, send)

    def in_parcels(
        self,
        needed: Sequence[PendingRun],
        *,
        until: float = math.inf,
        useful: float = math.inf,
        send: bool = True,
    ) -> Generator[None, Sequence[Finished], None]:
        """Compute with workers what `compute` does; the caller waits, perhaps for other pools, too.

        Args:
            needed: As for `compute`.
            until: As for `compute`.
            useful: As for `compute`.
            send: As for `compute`.

        Yields:
            Where it has to wait. Send the parcels of this pool that are finished, perhaps none.
        """
        assert self._work_ahead is not None
        needed = self._in_order(needed)
        yield from self._work_ahead.compute(needed, until, useful)
        self._send(needed, send)

    def _in_order(self, needed: Sequence[PendingRun]) -> Sequence[PendingRun]:
        """The runs, each after those that go through the channel before it."""
        return needed if self.order is None else self.order.with_earlier(needed)

    def _send(self, needed: Sequence[PendingRun], send: bool) -> None:
        # Not before all are computed: the next updates of all clients go through as one block.
        if self.order is not None and send:
            self.order.send(needed)

    def finish(self, runs: Sequence[PendingRun], outcomes: Sequence[Outcome]) -> None:
        """Store the outcomes of runs that were computed together."""
        for run, outcome in zip(runs, self._sent(runs, outcomes), strict=True):
            run.finish(outcome)
            self._open.pop(run.task.serial, None)
        self.num_batches += 1
        self.num_computed += len(runs)

    def settle(self) -> None:
        """Wait for what workers have, if a run would otherwise go on in another way.

        A resumed run computes anew what was with workers; in a stack whose members matter, the same
        ones would have to be together.
        """
        if self._work_ahead is not None and not self._executor.independent:
            self._work_ahead.drain()

    def preview(self, runs: Sequence[PendingRun]) -> None:
        """Compute open runs apart, because a callback or an aggregator reads them early.

        The runs stay open, unless results are independent of each other anyway.
        """
        if self._executor.independent:
            self.compute(runs, useful=0, send=False)
            return
        if self.order is not None:
            runs = self.order.with_earlier(runs)
        if self._work_ahead is not None:
            self._work_ahead.collect(runs)
        runs = [run for run in runs if not run.known]
        outcomes = self._executor.run([run.job() for run in runs]) if runs else ()
        for run, outcome in zip(runs, self._sent(runs, outcomes), strict=True):
            run.preview = outcome

    def look_ahead(self, run: PendingRun) -> Outcome:
        """Return what will arrive of a run through a channel with a memory."""
        assert self.order is not None
        self.preview([run])
        return self.order.look_ahead(run)

    def _sent(self, runs: Sequence[PendingRun], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """The outcomes, with those that are too large clipped or refused, through the channel.

        After a first half nothing is sent; without it there is no second one.
        """
        if any(run.task.tag is not None for run in runs):
            lost = [run.lost_half() for run in runs]
            outcomes = [new or old for new, old in zip(lost, outcomes, strict=True)]
        if self._limit is None and self._sending is None:
            return outcomes
        if any(run.task.is_first_half for run in runs):
            pairs = zip(runs, outcomes, strict=True)
            others = [(run, each) for run, each in pairs if not run.task.is_first_half]
            sent = iter(self._sent(*zip(*others, strict=True)) if others else ())
            pairs = zip(runs, outcomes, strict=True)
            return [each if run.task.is_first_half else next(sent) for run, each in pairs]
        if self._sending is not None:
            for run, outcome in zip(runs, outcomes, strict=True):
                self._sending.check(run, outcome)
        # The limit comes first: neither the channel nor its memory gets a refused update.
        if self._limit is not None:
            outcomes = [
                self._limit(run.task, outcome) if isinstance(outcome, LocalResult) else outcome
                for run, outcome in zip(runs, outcomes, strict=True)
            ]
        if self._sending is not None and self.order is None:
            outcomes = self._sending.through([run.task for run in runs], outcomes)
        return outcomes

    def batch(
        self, target: PendingRun, until: float = math.inf, useful: float = math.inf
    ) -> list[PendingRun]:
        """Return `target`, or the earliest run that it waits for; then others by their arrival.

        Arrivals at the same time are ordered by client, as events are. The updates of a round are
        then the rows of a stack in their order, and the server adds them up without a copy.
        """
        first = earliest(target)
        ahead = self._executor.max_batch - self.num_ahead - (not first.arrived)
        room = self._executor.max_batch - 1
        return [first, *self.next_ones(room, ahead, until, useful, first)]

    def next_ones(
        self,
        most: int,
        ahead: int,
        until: float,
        useful: float,
        first: PendingRun | None = None,
    ) -> list[PendingRun]:
        """Take runs that can be computed out of the queue, by their arrival.

        Args:
            most: How many at most.
            ahead: How many of them may have an arrival that is yet to come.
            until: Virtual time after which no result is used.
            useful: Number of future arrivals that may still be used.
            first: A run that is left out.
        """
        batch: list[PendingRun] = []
        later = []
        while self._queue and len(batch) < most:
            entry = self._queue[0]
            run = self._open.get(entry[-1])
            # A run that was cut short has a second entry, for the time at which it has arrived.
            moved = run is not None and run.task.arrives_at != entry[0]
            if run is not None and run is not first and not moved:
                if run.task.dispatched_at >= self.pulled_before:
                    later.append(heapq.heappop(self._queue))
                    continue
                if not run.arrived:
                    # The queue is ordered by arrival, so no later entry can be of use either.
                    if not self._ahead or entry[0] > until or ahead < 1 or useful < 1:
                        break
                    ahead, useful = ahead - 1, useful - 1
                if run.waits_for() is None:
                    batch.append(run)
                else:  # it waits for a run of this batch or of a later one, so it stays queued
                    later.append(entry)
            heapq.heappop(self._queue)
        for entry in later:
            heapq.heappush(self._queue, entry)
        return batch

    def take(self, runs: Iterable[PendingRun]) -> None:
        """Note that workers get runs, which no later stack contains."""
        for run in runs:
            self._open.pop(run.task.serial, None)
            self.num_ahead += not run.arrived

    @property
    def num_open(self) -> int:
        """How many runs are neither computed nor with workers."""
        return len(self._open)


def _in_turn(batch: list[PendingRun], needed: Sequence[PendingRun]) -> list[PendingRun]:
    """One local run, and those needed after it up to the first that waits for another.

    An executor that computes one after another prepares once for all of them, and their results
    have to be kept in any case.

    Args:
        batch: The first one.
        needed: The runs that the server needs, from the one on for which `batch` is computed.
    """
    if batch[0] is not needed[0]:  # an earlier one, for which it waits
        return batch
    together = dict.fromkeys(batch)
    for run in needed[1:]:
        if run.status is Status.OPEN:
            if run.waits_for() is not None:
                break
            together[run] = None
    return list(together)
