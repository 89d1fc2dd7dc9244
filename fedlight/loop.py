"""The event loop of training, simulations and reports.

The loop computes nothing. It yields local runs that have to be computed before it can continue, and
its caller decides how to compute them: `FedTrainer.fit` hands them to its pool, and `simulate` has
nothing to compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Protocol, TypeVar

from fedlight._support.checks import positive, positive_int
from fedlight.events import Kind
from fedlight.types import Task

R_co = TypeVar("R_co", covariant=True)


class Event(NamedTuple):
    """An event at one instant of virtual time.

    Attributes:
        kind: Its kind.
        task: The task that arrives; its result may be lost.
        action: For a pull that was planned for this time, the `Dispatch` of the arrival process;
            for the end of the round of a group of clients, the group's tag.
    """

    kind: Kind
    task: Task | None = None
    action: Any = None


class Handled(NamedTuple):
    """The answer of a receiver to an event, for the schedule.

    Attributes:
        version: The server's version now.
        released: Clients whose updates were used or dropped.
        retried: Failed tasks that are to be dispatched again, from the newest version.
        answer: The version that the released clients pull if they continue at once, or None for the
            newest one.
        dropped: Whether the update that has arrived was dropped.
        failed: Tasks whose local runs have failed as they were computed, also those retried.
    """

    version: int
    released: Collection[int] = ()
    retried: Sequence[Task] = ()
    answer: int | None = None
    dropped: bool = False
    failed: Sequence[Task] = ()


class Stop(NamedTuple):
    """The end of a local run before its time.

    Attributes:
        task: The task as it was.
        instead: The task with the local steps that it has had time for, which arrives now; None if
            it was cancelled and there is no result.
    """

    task: Task
    instead: Task | None = None


class Events(Protocol):
    """A stream of events; the events to come depend on how the earlier ones were handled."""

    def next(self) -> Event | None:
        """Return the next event, or None if there is no other."""

    def send_on(self, event: Event, handled: Handled) -> Iterable[Task | Stop]:
        """Let clients continue; return, in order, the tasks that start and those stopped now."""


@dataclass(slots=True)
class Counts:
    """How far a run is. Only the receiver of its events counts.

    A run has them from its start, so that hooks before the first event read those of the checkpoint
    that the run resumes from.

    Attributes:
        version: Number of server updates.
        num_updates: Number of client updates that have arrived.
        num_pulls: Number of pulls.
        num_gradients: Number of local steps of the updates that have arrived.
        num_examples: Number of examples of these local steps, each counted as often as it was used;
            None if the run goes on from a checkpoint that did not count them.
        num_failures: Number of tasks that failed or were lost; those cancelled do not count.
        failed_in_a_row: Number of local runs that have failed since a version was made of updates.
        num_transfers: Number of transfers between servers that are over (`Regions`).
        over: Whether so many local runs have failed in a row that the run should end.
    """

    version: int = 0
    num_updates: int = 0
    num_pulls: int = 0
    num_gradients: int = 0
    num_failures: int = 0
    failed_in_a_row: int = 0
    over: bool = False
    num_examples: int | None = 0
    num_transfers: int = 0

    def state_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the numbers from what `state_dict` gave; `state` may hold more."""
        for each in fields(self):
            # Checkpoints of 0.2 and before have no number of examples, older ones none of
            # transfers.
            absent = {"num_examples": None, "num_transfers": 0}
            missing = each.name in absent and each.name not in state
            setattr(self, each.name, absent[each.name] if missing else state[each.name])


class Receiver(Protocol[R_co]):
    """The object that handles the events, such as the server."""

    @property
    def counts(self) -> Counts:
        """How far the run is."""

    def handle(self, event: Event) -> Generator[Sequence[R_co], None, Handled]:
        """Handle one event completely; yield local runs that have to be computed first."""

    def dispatch(self, task: Task) -> None:
        """Note that a client pulls the model and starts its task."""

    def stop(self, stop: Stop) -> None:
        """Note that a local run ends before its time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run stops.

    Attributes:
        max_rounds: After this many server updates.
        max_time: Before the first event later than this virtual time.
        max_updates: After this many arrivals.
    """

    max_rounds: int | None = None
    max_time: float | None = None
    max_updates: int | None = None

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            TypeError: A limit is not a number.
            ValueError: A limit is not above 0.
        """
        if self.max_rounds is not None:
            positive_int("max_rounds", self.max_rounds)
        if self.max_updates is not None:
            positive_int("max_updates", self.max_updates)
        if self.max_time is not None:
            positive("max_time", self.max_time)

    def check(self, arrivals: Any) -> None:
        """Refuse a run that nothing would stop.

        Args:
            arrivals: The arrival process, which may be finite.

        Raises:
            ValueError: No limit is given and the arrival process is not finite.
        """
        if self == Limits() and not arrivals.finite:
            raise ValueError(
                f"nothing would stop a run over {arrivals!r}: "
                "give max_rounds, max_updates or max_time, which are all None"
            )

    @property
    def most(self) -> tuple[float, float]:
        """Largest numbers of server updates and of arrivals."""
        return (
            math.inf if self.max_rounds is None else self.max_rounds,
            math.inf if self.max_updates is None else self.max_updates,
        )

    def reached(self, version: int, num_updates: int) -> bool:
        """Return whether the run is over after this many server updates and arrivals."""
        rounds, updates = self.most
        return version >= rounds or num_updates >= updates

    def updates_left(self, version: int, num_updates: int, per_round: float) -> float:
        """Estimate how many arrivals may still be used after the round that is being made.

        Args:
            version: Server updates so far.
            num_updates: Arrivals so far.
            per_round: Number of updates that the latest round used.
        """
        rounds, updates = self.most
        rounds -= version + 1
        return min(updates - num_updates, rounds * per_round if rounds else 0)


def play(schedule: Events, receiver: Receiver[R_co], limits: Limits) -> Iterator[Sequence[R_co]]:
    """Handle one event after another, in the order of (time, kind, client, serial).

    ::

        until a limit is reached or there are no more events:
            take the next event      an arrival, an end of round, a deadline, a wake-up, a pull
            handle it                by the receiver; yield the local runs that it needs computed
            send clients on          those that are free pull the newest model; some are stopped
            yield ()                 between two events, the moment for checkpoints; not after
                                     wake-ups and pulls, which do not change the server

    Args:
        schedule: The events.
        receiver: Handles the events.
        limits: When to stop. The event at which a limit is reached is handled completely.

    Yields:
        Local runs that have to be computed before the loop can continue, or an empty sequence
        between two events.
    """
    rounds, updates = limits.most
    counts = receiver.counts
    while counts.version < rounds and counts.num_updates < updates and not counts.over:
        event = schedule.next()
        if event is None:
            return
        handled = yield from receiver.handle(event)
        for task in schedule.send_on(event, handled):
            if isinstance(task, Stop):
                receiver.stop(task)
            else:
                receiver.dispatch(task)
        if event.kind <= Kind.DEADLINE:
            yield ()


def drive(steps: Generator[R_co, None, None], compute: Callable[[R_co], None]) -> None:
    """Run a generator to its end; compute each item that it yields before the next step.

    Args:
        steps: The generator. What `compute` raises is raised in it, where it waits.
        compute: Computes an item.
    """
    with suppress(StopIteration):
        waiting = next(steps)
        while True:
            try:
                compute(waiting)
            except BaseException as error:
                waiting = steps.throw(error)
            else:
                waiting = next(steps)
