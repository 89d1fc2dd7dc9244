"""Synchronous rounds, which end when the slowest client arrives, or without waiting for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedlight._support.checks import non_negative, one_of, optional, positive, positive_int
from fedlight.arrivals._cohorts import Cohorts, Participants
from fedlight.arrivals.base import Action, ArrivalProcess, Cancel, Cut, Dispatch, EndRound, Wake
from fedlight.arrivals.durations import SHORTEST, DurationModel, as_durations
from fedlight.arrivals.local_steps import LocalEpochs, LocalSteps, as_local_steps
from fedlight.events import to_ticks
from fedlight.randomness import Concern, stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.arrivals.base import Choose
    from fedlight.types import Federation, Task


class SynchronousArrivals(ArrivalProcess):
    """In each round m clients pull the latest model; the round ends when the last one arrives.

    ``length of a round = max of T_i over its m clients``, where T_i is the duration of client i's
    task.

    With `over_select` or a `timeout` a round does not wait for its slowest clients: it ends when m
    of its clients have arrived, or at the timeout. Clients that are still working are stopped at
    that moment, even those that would arrive at the same time. Arrivals exactly at the timeout
    count.

    With a `quorum` q or a `grace` period a round ends `grace` after its q-th arrival, or earlier if
    no client is still working: ``length of a round = min(max of T_i, T_(q) + grace)``, T_(q) the
    q-th smallest of the T_i. Arrivals exactly at that moment count, so ``quorum=q`` alone waits for
    q clients and takes those that arrive together with the q-th one. A lost task is not an arrival.
    If several of these arguments are given, the first end counts.

    With ``late="continue"`` late clients are not stopped, and their results are not lost: they
    arrive in a later round, stale by the versions made since their pull. There they count towards
    the quorum, and the round waits for them as for its own clients. A client that is drawn or
    listed while it is at work continues with this work instead. After the last listed round late
    results still arrive, but no round uses them.

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
            that they have had time for (`Cut`), "continue" lets them arrive in a later round.
        quorum: q, the number of arrivals after which a round waits only for the grace period, at
            most m; None for 1 if `grace` is given, else a round has no quorum.
        grace: The time from the q-th arrival to the end of the round, in virtual time; None for 0
            if `quorum` is given.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range, or `late` does not fit the others.

    Source: McMahan et al., [Communication-Efficient Learning of Deep Networks from Decentralized
    Data](https://arxiv.org/abs/1602.05629), Algorithm 1; with durations, Fraboni et al., [the
    FedFix paper](https://arxiv.org/abs/2206.10189), Section 4.2; over-selection and the timeout,
    Bonawitz et al., [Towards Federated Learning at Scale: System
    Design](https://arxiv.org/abs/1902.01046), Section 9; the grace period, Liu et al.,
    [Asynchronous Local-SGD Training for Language Modeling](https://arxiv.org/abs/2401.09135), whose
    workers start again together if they arrive within such a period.

    Example:
        >>> from fedlight.arrivals import FixedDurations
        >>> arrivals = SynchronousArrivals(
        ...     [[0, 1, 2]], FixedDurations([3.0, 1.0, 2.0]), local_steps=1, over_select=1
        ... )
        >>> table = arrivals.simulate(num_clients=3)
        >>> [(event.client, event.time, event.stopped_at_version) for event in table.events]
        [(1, 1.0, None), (2, 2.0, None), (0, 2.0, 0)]
        >>> arrivals = SynchronousArrivals(
        ...     None, FixedDurations([3.0, 1.0, 1.5]), local_steps=1, late="continue", grace=0.5
        ... )
        >>> table = arrivals.simulate(num_clients=3, max_rounds=2)
        >>> table.round_ends, [(event.client, event.pulled_version) for event in table.events]
        ([1.5, 3.0], [(1, 0), (2, 0), (1, 1), (0, 0), (2, 1)])
    """

    by_rounds = True
    _choose: Choose | None = None
    _saved_attributes = ("_round", "_working", "_missing", "_open", "_latest", "_needed", "_ending")

    def __init__(
        self,
        per_round: Cohorts | None = None,
        durations: DurationModel | None = None,
        local_steps: LocalSteps | int = LocalEpochs(num_epochs=1),
        over_select: int | None = None,
        timeout: float | None = None,
        late: str = "cancel",
        quorum: int | None = None,
        grace: float | None = None,
    ) -> None:
        self._participants = None if per_round is None else Participants("per_round", per_round)
        self.per_round = None if self._participants is None else self._participants.given
        self.over_select = optional(positive_int, "over_select", over_select)
        self.timeout = optional(positive, "timeout", timeout)
        if self.timeout is not None and self.timeout < SHORTEST:
            raise ValueError(f"timeout must be at least 1e-9 of virtual time, got {timeout!r}")
        self.quorum = optional(positive_int, "quorum", quorum)
        self.grace = optional(non_negative, "grace", grace)
        self.late = one_of("late", late, ("cancel", "cut", "continue"))
        limits = (over_select, timeout, quorum, grace)
        self._ends_early = any(limit is not None for limit in limits)
        self._continues = self.late == "continue"
        self.may_stop = self._ends_early and not self._continues
        if self.late != "cancel" and not self._ends_early:
            raise ValueError(
                f"late={self.late!r} needs over_select, timeout, quorum or grace, else no client "
                "is late"
            )
        if self._continues and self.over_select is not None:
            raise ValueError(
                f"over_select={over_select} draws clients to stop the slowest of them, but "
                "late='continue' stops none; write quorum= for the number of arrivals to wait for"
            )
        self._last = None if self._participants is None else self._participants.rounds
        self.finite = self._last is not None
        if self._participants is not None and self._participants.listed is not None:
            fewest = min(map(len, self._participants.listed))
            if self.over_select is not None and fewest <= self.over_select:
                raise ValueError(
                    f"over_select={self.over_select} leaves no client to wait for in a round with "
                    f"{fewest} clients; write a smaller number"
                )
            self._check_quorum(fewest - (self.over_select or 0))
        if self._participants is not None and self._participants.count is not None:
            self._check_quorum(self._participants.count)
        self.durations = None if durations is None else as_durations(durations)
        self.local_steps = as_local_steps(local_steps)

    def choose_by(self, choose: Choose) -> None:
        """Let a function choose the clients of each round among those that are not working.

        Raises:
            ValueError: `per_round` is not a number, so that no clients are drawn.
        """
        if self._participants is None or self._participants.count is None:
            raise ValueError(
                f"per_round must be a number if the clients of a round are to be chosen, got "
                f"{self!r}; write SynchronousArrivals(per_round=10, …)"
            )
        self._choose = choose

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
        if self._participants is None:
            self._check_quorum(federation.num_clients - more)
        self.local_steps.check(federation)
        if self.durations is not None:
            self.durations.check(federation)
        self._federation = federation
        self._round = 0
        # Of a round that may end early: whether it is under way, whether its end is not handled
        # yet, the clients that are working, the number of arrivals that are still missing, its
        # latest end in ticks, and the number of arrivals up to the quorum.
        self._open = self._ending = False
        self._working: set[int] = set()
        self._missing = 0
        self._latest = 0
        self._needed = 0

    def _check_quorum(self, most: int) -> None:
        if self.quorum is not None and self.quorum > most:
            raise ValueError(
                f"quorum={self.quorum} is more than the {most} clients that a round waits for; "
                f"write quorum={most} or less"
            )

    def on_wake(self, now: float) -> Iterable[Action]:
        """Start a round: its tasks and its end; or end a round that has lasted long enough."""
        if self._open:
            # Other times are those of rounds that have ended before their latest end. Without a
            # limit that has been reached, late clients of earlier rounds are waited for.
            limited = not self._continues or self.timeout is not None or self._needed <= 0
            due = to_ticks(now) == self._latest and (limited or not self._working)
            return self._end() if due else ()
        # The next round has to wait for the version that is made at the end of this one, even if an
        # earlier round has asked for this time, too.
        if self._ending or self._round == self._last:
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
        if not task.lost:
            self._missing -= 1
            self._needed -= 1
        if self._missing <= 0 or not self._working:
            return self._end()
        return () if task.lost or self._needed != 0 else self._wait_for_others(now)

    def on_round_end(self, now: float) -> Iterable[Action]:
        """Start the next round, if rounds may end early; otherwise it is already planned."""
        self._ending = False
        return (Wake(delay=0.0),) if self._ends_early else ()

    def on_unavailable(
        self, dispatch: Dispatch, until: float | None, now: float
    ) -> Iterable[Action]:
        """The client does not take part in this round."""
        self._working.discard(dispatch.client_id)
        return super().on_unavailable(dispatch, until, now)

    def _wait_for_others(self, now: float) -> Iterable[Action]:
        """The quorum has arrived: set the end of the round."""
        grace = self.grace or 0.0
        end = to_ticks(now) + to_ticks(grace)
        # A planned end without a timeout is only that of the round's own clients.
        if (self._continues and self.timeout is None) or end < self._latest:
            self._latest = end
            return (Wake(delay=grace),)
        return ()

    def _end(self) -> Iterator[Action]:
        self._open, self._ending = False, True
        if self._continues:
            yield EndRound(delay=0.0)
            return
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
        if self._choose is not None:
            assert isinstance(self.per_round, int)
            free = [client for client in clients if client not in self._working]
            clients = self._choose(free, min(self.per_round + more, len(free)), now)
        elif self._participants is not None:
            clients = self._participants.of_round(self._round, federation, more)
        busy: frozenset[int] = frozenset()
        if self._ends_early:
            clients = list(clients)
            busy = frozenset(self._working)
            self._open, self._missing = True, len(clients) + len(busy) - more
            self._needed = self.quorum or int(self.grace is not None)
        steps = stream(seed, Concern.STEPS, self._round)
        durations = stream(seed, Concern.DURATIONS, self._round)
        slowest, last = 0.0, (0, -1)
        for client in clients:
            num_steps = self.local_steps.draw(steps, client, federation)
            duration = 1.0
            if self.durations is not None:
                duration = self.durations.draw(durations, client, num_steps, federation, now)
            if client in busy:  # the others' numbers do not depend on who is at work
                continue
            slowest, last = max(slowest, duration), max(last, (to_ticks(duration), client))
            if self._continues:
                self._working.add(client)
            yield Dispatch(client, duration, num_steps)
        self._round += 1
        if self._ends_early:
            latest = slowest
            if self.timeout is not None:
                latest = self.timeout if self._continues else min(slowest, self.timeout)
            self._latest = to_ticks(now) + to_ticks(latest)
            if latest:  # without a new client the arrivals of the others end the round
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
        early = ("over_select", "timeout", "quorum", "grace")
        return early if self._ends_early else (*early, "late")
