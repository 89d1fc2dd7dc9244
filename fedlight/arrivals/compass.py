"""FedCompass' scheduler: groups of clients whose local steps are planned to arrive together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from fedlight._support.checks import fraction, number, positive_int
from fedlight.arrivals._task_draws import Visits
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, EndRound, Wake
from fedlight.arrivals.durations import DurationModel, as_durations
from fedlight.events import to_ticks, to_time
from fedlight.randomness import Concern, Streams

if TYPE_CHECKING:
    from fedlight.types import Federation, Task


class Group(NamedTuple):
    """Clients that are to arrive together; the times are in ticks, and 0 once it is closed."""

    end: int
    latest: int
    working: list[int]
    arrived: list[int]


class CompassArrivals(ArrivalProcess):
    """Clients work in groups: the server plans their steps so that a group arrives together.

    s_i is the virtual time of a local step of client i, estimated from its tasks so far::

        first task   Q_max steps; it is a round of its own when it arrives
        join         the group g with the largest K = floor((T_g - now) / s_i), Q_min <= K <= Q_max
        else create  a group with K = the largest of floor((L_g + s_g * Q_max - now) / s_i) that is
                     at most Q_max, over the groups g with now < L_g, but at least Q_min; Q_max if
                     there is none. Its times are T = now + K * s_i and L = now + latest * K * s_i

    Here s_g is the smallest s of the members of group g. A group's round ends when all members have
    arrived, or at L_g if one has by then. Its members that have arrived pull the new version and
    are planned again, the fastest first. A client that arrives after L_g is planned again at once.
    Use `FedCompass` as the aggregator: the tag of a task names its group, 0, 1, ... in the order of
    their creation, and a first task of client i has the tag "first i".

    The plan depends on the times of arrivals alone. After an arrival
    ``s_i <- (1 - momentum) * s_i + momentum * T / K`` with the T and K of the task; the first
    estimate is T / K. A client whose task is lost is planned again at the time at which it would
    have arrived.

    Args:
        durations: The durations of tasks, which should depend on the number of steps
            (`StepDurations`).
        min_steps: Q_min.
        max_steps: Q_max, at least `min_steps`.
        latest: lambda, at least 1: how late a group may be.
        momentum: The share of the newest task in the estimate, above 0, at most 1.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range; or (at set-up) the durations do not fit.

    Source: Li et al., FedCompass, ICLR 2024, https://arxiv.org/abs/2309.14675, Algorithm 1, and
    where it is silent, the authors' code (APPFL, ``compass_scheduler.py``): first tasks, clients
    that are late, the last of several groups with the same K.

    Example:
        >>> from fedlight.arrivals import StepDurations
        >>> arrivals = CompassArrivals(StepDurations([0.1, 0.2]), min_steps=2, max_steps=10)
        >>> table = arrivals.simulate(num_clients=2, max_rounds=3)
        >>> [(event.client, event.time, event.num_steps, event.tag) for event in table.events]
        [(0, 1.0, 10, 'first 0'), (0, 2.0, 10, '0'), (1, 2.0, 10, 'first 1')]
    """

    by_rounds = True
    groups = ("planned",)  # not their tags, which are unknown here: it has groups, says this
    _repr_positional = 1
    _saved_attributes = ("_started", "_speeds", "_groups", "_group_of", "_created", "_visits")

    def __init__(
        self,
        durations: DurationModel,
        min_steps: int = 20,
        max_steps: int = 100,
        latest: float = 1.2,
        momentum: float = 0.9,
    ) -> None:
        self.durations = as_durations(durations)
        self.min_steps = positive_int("min_steps", min_steps)
        self.max_steps = positive_int("max_steps", max_steps)
        if self.max_steps < self.min_steps:
            raise ValueError(
                f"max_steps={self.max_steps} must be at least min_steps={self.min_steps}"
            )
        self.latest = number("latest", latest)
        if self.latest < 1:
            raise ValueError(f"latest must be at least 1, got {latest!r}")
        self.momentum = fraction("momentum", momentum)
        if self.momentum == 0:
            raise ValueError(f"momentum must be above 0, got {momentum!r}; 1 is the last task only")

    def setup(self, federation: Federation) -> None:
        """Start with no groups.

        Raises:
            ValueError: The durations do not fit the federation.
        """
        self.durations.check(federation)
        self._federation = federation
        self._streams = Streams(federation.seed, Concern.DURATIONS)
        self._visits = Visits()
        self._started = False
        self._speeds: dict[int, float] = {}  # s_i, in ticks per step
        self._groups: dict[int, Group] = {}
        self._group_of: dict[int, int] = {}
        self._created = 0

    def on_wake(self, now: float) -> Iterator[Action]:
        """Start all clients; later, end the rounds of the groups whose latest time has come."""
        if not self._started:
            self._started = True
            for client in range(self._federation.num_clients):
                yield self._first(client, now)
            return
        for name, group in list(self._groups.items()):
            if group.working and 0 < group.latest <= to_ticks(now):
                yield self._close(name)

    def on_arrival(self, task: Task, now: float) -> Iterator[Action]:
        """The client waits for its group; if it is late or lost, it is planned again."""
        client, name = task.client_id, self._group_of.pop(task.client_id, None)
        if not task.lost:
            self._learn(task)
        if name is None:
            yield self._first(client, now) if task.lost else EndRound(0.0, client, tag=task.tag)
            return
        group = self._groups[name]
        group.working.remove(client)
        waits = bool(group.latest) and not task.lost
        if waits:
            group.arrived.append(client)
        yield from self._ended(name, client)
        if not waits:
            yield from self._plan(client, now)

    def on_round_end_of(self, group: str, now: float) -> Iterator[Action]:
        """Plan the clients that have arrived again, the fastest first."""
        if not group.isdecimal():
            yield from self._plan(int(group.split()[1]), now)
            return
        ended = self._groups.get(int(group))
        if ended is None:  # its last members have left it for good
            return
        clients = sorted(ended.arrived, key=lambda client: self._speeds[client])
        ended.arrived.clear()
        if not ended.working:
            del self._groups[int(group)]
        for client in clients:
            yield from self._plan(client, now)

    def on_unavailable(
        self, dispatch: Dispatch, until: float | None, now: float
    ) -> Iterable[Action]:
        """The same task at `until`; a client that never returns leaves its group."""
        if until is not None:
            return (dispatch._replace(delay=to_time(to_ticks(until) - to_ticks(now))),)
        name = self._group_of.pop(dispatch.client_id, None)
        if name is None:
            return ()
        self._groups[name].working.remove(dispatch.client_id)
        return self._ended(name, -1)

    def _learn(self, task: Task) -> None:
        ticks = to_ticks(task.arrives_at) - to_ticks(task.dispatched_at)
        speed = ticks / max(1, task.num_steps)
        before = self._speeds.get(task.client_id, speed)
        self._speeds[task.client_id] = (1 - self.momentum) * before + self.momentum * speed

    def _plan(self, client: int, now: float) -> Iterator[Action]:
        """Let the client join the group for which it has most steps, or create one."""
        ticks, speed = to_ticks(now), self._speeds[client]
        steps, joined = 0, -1
        for name, group in self._groups.items():
            possible = _floor((group.end - ticks) / speed)
            if self.min_steps <= possible <= self.max_steps and possible >= steps:
                steps, joined = possible, name
        if joined < 0:
            steps, joined = self._steps_of_new(ticks, speed), self._created
            self._created += 1
            length = steps * speed
            latest = ticks + round(self.latest * length)
            self._groups[joined] = Group(ticks + round(length), latest, [], [])
            yield Wake(to_time(latest - ticks))
        self._groups[joined].working.append(client)
        self._group_of[client] = joined
        yield self._dispatch(client, steps, now, str(joined))

    def _steps_of_new(self, ticks: int, speed: float) -> int:
        """K of the client that creates a group."""
        ends = [
            group.latest
            + self.max_steps * min(self._speeds[client] for client in group.working + group.arrived)
            for group in self._groups.values()
            if ticks < group.latest
        ]
        possible = [_floor((end - ticks) / speed) for end in ends]
        most = max((k for k in possible if k <= self.max_steps), default=self.max_steps)
        return max(most, self.min_steps)

    def _ended(self, name: int, client: int) -> Iterator[Action]:
        """End the round of a group, or forget it, if none of its members is at work."""
        group = self._groups[name]
        if group.working:
            return
        if group.arrived and group.latest:
            yield self._close(name, client)
        elif not group.arrived:
            del self._groups[name]

    def _close(self, name: int, client: int = -1) -> EndRound:
        """End the round of a group, which nobody can join from now on."""
        self._groups[name] = self._groups[name]._replace(end=0, latest=0)
        return EndRound(0.0, client, tag=str(name))

    def _first(self, client: int, now: float) -> Dispatch:
        return self._dispatch(client, self.max_steps, now, f"first {client}")

    def _dispatch(self, client: int, num_steps: int, now: float, tag: str) -> Dispatch:
        rng = self._streams.generator
        if self.durations.uses_rng:
            rng = self._streams.at(client, self._visits.next(client))
        duration = self.durations.draw(rng, client, num_steps, self._federation, now)
        return Dispatch(client, duration, num_steps, tag=tag)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self._groups = {name: Group(*group) for name, group in self._groups.items()}


def _floor(steps: float) -> int:
    """Round down, with 2.9999999999 as 3, since speeds are quotients."""
    return math.floor(round(steps, 9))
