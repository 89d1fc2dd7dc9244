"""Synchronous rounds, which end when the slowest client arrives, or without waiting for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedlight._support.checks import one_of, optional, positive, positive_int
from fedlight.arrivals._cohorts import Cohorts, Participants
from fedlight.arrivals.base import Action, ArrivalProcess, Cancel, Cut, Dispatch, EndRound, Wake
from fedlight.arrivals.durations import SHORTEST, DurationModel, as_durations
from fedlight.arrivals.local_steps import LocalEpochs, LocalSteps, as_local_steps
from fedlight.events import to_ticks
from fedlight.randomness import Concern, stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation, Task


class SynchronousArrivals(ArrivalProcess):
    """In each round m clients pull the latest model; the round ends when the last one arrives.

    ``length of a round = max of T_i over its m clients``, where T_i is the duration of client i's
    task.

    With `over_select` or a `timeout` a round does not wait for its slowest clients: it ends when m
    of its clients have arrived, or at the timeout. Clients that are still working are stopped at
    that moment, even those that would arrive at the same time. Arrivals exactly at the timeout
    count.

    Args:
        per_round: m, the number of clients of a round, drawn uniformly without replacement; None
            for all; or a list of clients for each round, after which the process ends.
        durations: The duration of a task; None for one unit of virtual time.
        local_steps: Policy for K, the number of local steps of a task, or a number of steps.
        over_select: The number of clients that a round does not wait for. If m is a number,
            m + `over_select` clients are drawn; if all clients or listed ones take part,
            `over_select` of them are not waited for.
        timeout: The maximum length of a round, in virtual time.
        late: How late clients are handled: "cancel" discards their work, "cut" uses the local steps
            that they have had time for (`Cut`).

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range.

    Source: McMahan et al., [Communication-Efficient Learning of Deep Networks from Decentralized
    Data](https://arxiv.org/abs/1602.05629), Algorithm 1; with durations, Fraboni et al., [the
    FedFix paper](https://arxiv.org/abs/2206.10189), Section 4.2; over-selection and the timeout,
    Bonawitz et al., [Towards Federated Learning at Scale: System
    Design](https://arxiv.org/abs/1902.01046), Section 9.

    Example:
        >>> from fedlight.arrivals import FixedDurations
        >>> arrivals = SynchronousArrivals(
        ...     [[0, 1, 2]], FixedDurations([3.0, 1.0, 2.0]), local_steps=1, over_select=1
        ... )
        >>> table = arrivals.simulate(num_clients=3)
        >>> [(event.client, event.time, event.stopped_at_version) for event in table.events]
        [(1, 1.0, None), (2, 2.0, None), (0, 2.0, 0)]
    """

    by_rounds = True
    _saved_attributes = ("_round", "_working", "_missing", "_open", "_latest")

    def __init__(
        self,
        per_round: Cohorts | None = None,
        durations: DurationModel | None = None,
        local_steps: LocalSteps | int = LocalEpochs(num_epochs=1),
        over_select: int | None = None,
        timeout: float | None = None,
        late: str = "cancel",
    ) -> None:
        self._participants = None if per_round is None else Participants("per_round", per_round)
        self.per_round = None if self._participants is None else self._participants.given
        self.over_select = optional(positive_int, "over_select", over_select)
        self.timeout = optional(positive, "timeout", timeout)
        if self.timeout is not None and self.timeout < SHORTEST:
            raise ValueError(f"timeout must be at least 1e-9 of virtual time, got {timeout!r}")
        self.late = one_of("late", late, ("cancel", "cut"))
        self.may_stop = over_select is not None or timeout is not None
        if self.late == "cut" and not self.may_stop:
            raise ValueError("late='cut' needs over_select or a timeout, else no client is late")
        self._last = None if self._participants is None else self._participants.rounds
        self.finite = self._last is not None
        if self._participants is not None and self._participants.listed is not None:
            fewest = min(map(len, self._participants.listed))
            if self.over_select is not None and fewest <= self.over_select:
                raise ValueError(
                    f"over_select={self.over_select} leaves no client to wait for in a round with "
                    f"{fewest} clients; write a smaller number"
                )
        self.durations = None if durations is None else as_durations(durations)
        self.local_steps = as_local_steps(local_steps)

    def setup(self, federation: Federation) -> None:
        """Start at round 0.

        Raises:
            ValueError: There are fewer clients than `per_round`, or the durations or steps do
                not fit the federation.
        """
        more = self.over_select or 0
        begin = None
        if self._participants is None:
            begin = more + 1  # at least one is waited for
        else:
            self._participants.check(federation)
            if self._participants.count is not None:
                begin = self._participants.count + more
        if begin is not None and begin > federation.num_clients:
            raise ValueError(
                f"over_select={more} needs {begin} clients, but there are only "
                f"{federation.num_clients}; write a smaller number"
            )
        self.local_steps.check(federation)
        if self.durations is not None:
            self.durations.check(federation)
        self._federation = federation
        self._round = 0
        # Of a round that may end early: whether it is under way, the clients that are working, the
        # number of arrivals that are still missing, and its latest end in ticks.
        self._open = False
        self._working: set[int] = set()
        self._missing = 0
        self._latest = 0

    def on_wake(self, now: float) -> Iterable[Action]:
        """Start a round: its tasks and its end; or end a round that has lasted long enough."""
        if self._open:  # other times are those of rounds that have ended before their latest end
            return self._end() if to_ticks(now) == self._latest else ()
        if self._round == self._last:
            return ()
        return self._start(now)

    def on_start(self, task: Task) -> None:
        """Note that the client is working."""
        if self.may_stop and not task.tries:  # the end of a retry is not reported
            self._working.add(task.client_id)

    def on_arrival(self, task: Task, now: float) -> Iterable[Action]:
        """End the round if no other client is waited for."""
        self._working.discard(task.client_id)
        if not self._open:
            return ()
        self._missing -= not task.lost
        return () if self._missing > 0 and self._working else self._end()

    def on_round_end(self, now: float) -> Iterable[Action]:
        """Start the next round, if rounds may end early; otherwise it is already planned."""
        return (Wake(delay=0.0),) if self.may_stop else ()

    def _end(self) -> Iterator[Action]:
        self._open = False
        stop = Cut if self.late == "cut" else Cancel
        for client in sorted(self._working):
            yield stop(client)
        self._working.clear()
        yield EndRound(delay=0.0)

    def _start(self, now: float) -> Iterator[Action]:
        # A stream for each concern and round: the clients drawn do not change with the durations.
        federation, seed = self._federation, self._federation.seed
        more = self.over_select or 0
        clients: Iterable[int] = range(federation.num_clients)
        if self._participants is not None:
            clients = self._participants.of_round(self._round, federation, more)
        if self.may_stop:
            clients = list(clients)
            self._open, self._missing = True, len(clients) - more
        steps = stream(seed, Concern.STEPS, self._round)
        durations = stream(seed, Concern.DURATIONS, self._round)
        slowest, last = 0.0, (0, -1)
        for client in clients:
            num_steps = self.local_steps.draw(steps, client, federation)
            duration = 1.0
            if self.durations is not None:
                duration = self.durations.draw(durations, client, num_steps, federation, now)
            slowest, last = max(slowest, duration), max(last, (to_ticks(duration), client))
            yield Dispatch(client, duration, num_steps)
        self._round += 1
        if self.may_stop:
            latest = slowest if self.timeout is None else min(slowest, self.timeout)
            self._latest = to_ticks(now) + to_ticks(latest)
            yield Wake(delay=latest)
            return
        yield EndRound(delay=slowest, client_id=last[1])
        yield Wake(delay=slowest)

    def expected_durations(self) -> NDArray[np.float64] | None:
        """T_i of the duration model."""
        if self.durations is None:
            return np.ones(self._federation.num_clients)
        return self.durations.expected(
            self._federation, self.local_steps.expected(self._federation)
        )

    @property
    def _repr_optional(self) -> Collection[str]:
        # How late updates are handled matters only in rounds that may end early.
        early = ("over_select", "timeout")
        return early if self.may_stop else (*early, "late")
