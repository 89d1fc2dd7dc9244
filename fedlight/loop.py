"""The event loop, once for everything that drives it: training, simulation, reports.

The loop computes nothing. It yields where local runs have to be computed before it can go on, and
whoever drives it decides how that is done: `FedTrainer.fit` hands them to its pool, `simulate` has
nothing to compute.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from fedlight._checks import positive, positive_int
from fedlight.events import Kind
from fedlight.types import Task

R_co = TypeVar("R_co", covariant=True)


class Event(NamedTuple):
    """Something that happens at one instant of virtual time.

    Attributes:
        kind: What happens.
        task: The task that arrives; it may be lost on the way.
        action: For a pull that was planned for this time, what the arrival process asked for.
    """

    kind: Kind
    task: Task | None = None
    action: Any = None


class Handled(NamedTuple):
    """What a receiver made of an event: all that the schedule has to know.

    Attributes:
        version: The server's version now.
        released: Clients whose updates were used or dropped.
        retried: Failed tasks that are to be tried once more, from the newest version.
    """

    version: int
    released: Collection[int] = ()
    retried: Sequence[Task] = ()


class Events(Protocol):
    """A stream of events whose continuation depends on how they are handled."""

    def next(self) -> Event | None:
        """The next event, or None if nothing is left that could happen."""

    def send_on(self, event: Event, handled: Handled) -> Iterable[Task]:
        """Let the clients go on; the tasks of those that pull the model now."""


class Receiver(Protocol[R_co]):
    """What handles the events, such as the server.

    Attributes:
        version: Server updates so far.
        num_updates: Client updates that have arrived so far.
        over: Whether it is no use to go on.
    """

    version: int
    num_updates: int
    over: bool

    def handle(self, event: Event) -> Generator[Sequence[R_co], None, Handled]:
        """Handle one event wholly; yields the local runs that have to be computed first."""

    def dispatch(self, task: Task) -> None:
        """A client pulls the model and starts to work."""


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
            TypeError: A limit is no number.
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
            arrivals: The arrival process, which may end by itself.

        Raises:
            ValueError: No limit is given and the process does not end by itself.
        """
        if self == Limits() and not arrivals.finite:
            raise ValueError(
                f"nothing would stop a run over {arrivals!r}: "
                "give max_rounds, max_updates or max_time"
            )

    @property
    def most(self) -> tuple[float, float]:
        """The numbers of server updates and of arrivals after which the run is over."""
        return (
            math.inf if self.max_rounds is None else self.max_rounds,
            math.inf if self.max_updates is None else self.max_updates,
        )

    def reached(self, version: int, num_updates: int) -> bool:
        """Whether the run is over after so many server updates and arrivals."""
        rounds, updates = self.most
        return version >= rounds or num_updates >= updates

    def updates_left(self, version: int, num_updates: int, per_round: float) -> float:
        """How many arrivals may still be used after the round that is being made.

        Args:
            version: Server updates so far.
            num_updates: Arrivals so far.
            per_round: Updates that the latest round used, as an estimate for the next ones.
        """
        rounds, updates = self.most
        rounds -= version + 1
        return min(updates - num_updates, rounds * per_round if rounds else 0)


def play(schedule: Events, receiver: Receiver[R_co], limits: Limits) -> Iterator[Sequence[R_co]]:
    """Handle one event after the other, in the order of (time, kind, client, serial).

    ::

        until a limit is reached or nothing is left that could happen:
            take the next event      an arrival, an end of round, a deadline, a client's wake-up
            handle it                the receiver; what it has to have computed is yielded
            send the clients on      those that are free pull the newest model and work on
            yield ()                 between two events: the moment for checkpoints; not after
                                     events that concern the clients alone

    Args:
        schedule: The events.
        receiver: Handles them.
        limits: When to stop. The event at which a limit is reached is handled wholly.

    Yields:
        The local runs that have to be computed before the loop can go on; an empty sequence
        between two events.
    """
    rounds, updates = limits.most
    while receiver.version < rounds and receiver.num_updates < updates and not receiver.over:
        event = schedule.next()
        if event is None:
            return
        handled = yield from receiver.handle(event)
        for task in schedule.send_on(event, handled):
            receiver.dispatch(task)
        if event.kind <= Kind.DEADLINE:
            yield ()
