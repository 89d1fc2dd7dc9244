"""Arrivals by the clock: each client works at its own pace."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, Wake
from fedlight.arrivals.durations import DurationModel
from fedlight.arrivals.local_steps import LocalEpochs, LocalSteps
from fedlight.arrivals.work import IdleClients, Work
from fedlight.checks import non_negative, one_of, positive_int
from fedlight.events import to_ticks, to_time

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.types import Federation, Task


class ContinuousArrivals(ArrivalProcess):
    """Each client pulls, works, arrives, waits for the server if told to, idles, and pulls again.

    Args:
        durations: How long a task takes, for example ``UniformSpeeds(0.8)``.
        concurrency: How many clients work at any time. Whenever one has arrived, the next one is
            drawn evenly among the idle clients; one whose update waits at the server is neither at
            work nor idle. Where nobody is idle, the place is filled as soon as somebody is. None
            for all clients, each of which goes on by itself.
        idle: Virtual time from when a client is free until it pulls (or may be drawn) again.
        resume: "on_aggregation": a client is free when its update was used (or dropped), and so
            pulls the model made from it; "on_arrival": as soon as it has arrived.
        local_steps: Policy for K, or a number of steps.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range.

    Source: FedFix paper (Fraboni et al.), Sections 2.2, 2.3 and 5.1 ("on_aggregation"); Nguyen et
    al. 2022, FedBuff, Algorithm 1 ("on_arrival", with a concurrency).

    Example:
        >>> from fedlight.arrivals import FixedDurations
        >>> arrivals = ContinuousArrivals(FixedDurations([1.0, 0.4]), local_steps=5)
        >>> table = arrivals.simulate(num_clients=2, interval=0.5, max_time=1.5)
        >>> [(event.client, event.dispatched_at, event.time) for event in table.events]
        [(1, 0.0, 0.4), (1, 0.5, 0.9), (0, 0.0, 1.0), (1, 1.0, 1.4)]
    """

    def __init__(
        self,
        durations: DurationModel,
        concurrency: int | None = None,
        idle: float = 0.0,
        resume: str = "on_aggregation",
        local_steps: LocalSteps | int = LocalEpochs(1),
    ) -> None:
        self._work = Work(durations, local_steps)
        self.concurrency = None if concurrency is None else positive_int("concurrency", concurrency)
        self.idle = non_negative("idle", idle)
        if 0 < self.idle < 1e-9:
            raise ValueError(f"idle must be 0 or at least 1e-9 of virtual time, got {idle!r}")
        self.resume = one_of("resume", resume, ("on_aggregation", "on_arrival"))

    def setup(self, federation: Federation) -> None:
        """Start with all clients idle.

        Raises:
            ValueError: There are fewer clients than `concurrency`, or the durations or steps do
                not fit.
        """
        num_clients = federation.num_clients
        if self.concurrency is not None and self.concurrency > num_clients:
            raise ValueError(
                f"concurrency={self.concurrency} is more than the {num_clients} clients; "
                f"write concurrency={num_clients} or less, or None for all"
            )
        self._work.setup(federation)
        self._num_clients = num_clients
        self._started = False
        self._waiting: set[int] = set()
        self._pool: IdleClients | None = None
        if self.concurrency is not None and self.concurrency < num_clients:
            self._pool = IdleClients(federation)
            self._places = self.concurrency
            self._wake_at = -1

    def on_wake(self, now: float) -> Iterable[Action]:
        """All that work start; later, places that were empty are filled."""
        if self._pool is not None:
            return self._fill(self._pool, now)
        if self._started:
            return ()
        self._started = True
        return map(self._dispatch, range(self._num_clients))

    def on_arrival(self, task: Task, now: float) -> Iterable[Action]:
        """The client waits for the server, or is free."""
        waits = self.resume == "on_aggregation" and not task.lost
        if waits:
            self._waiting.add(task.client_id)
        if self._pool is not None:
            self._places += 1
            if not waits:
                self._free(self._pool, task.client_id, now)
            return self._fill(self._pool, now)
        return () if waits else (self._dispatch(task.client_id, self.idle),)

    def on_version(self, version: int, clients: Collection[int], now: float) -> Iterable[Action]:
        """Those whose updates were used are free."""
        free = sorted(self._waiting.intersection(clients))
        self._waiting.difference_update(free)
        if self._pool is None:
            return [self._dispatch(client, self.idle) for client in free]
        for client in free:
            self._free(self._pool, client, now)
        return self._fill(self._pool, now) if free else ()

    def on_unavailable(
        self, dispatch: Dispatch, until: float | None, now: float
    ) -> Iterable[Action]:
        """With a concurrency another client is drawn in its place."""
        if self._pool is None:
            return super().on_unavailable(dispatch, until, now)
        if until is not None:
            self._pool.rest(dispatch.client_id, to_ticks(until))
        self._places += 1
        return self._fill(self._pool, now)

    def _free(self, pool: IdleClients, client: int, now: float) -> None:
        if self.idle:
            pool.rest(client, to_ticks(now) + to_ticks(self.idle))
        else:
            pool.add(client)

    def _fill(self, pool: IdleClients, now: float) -> list[Action]:
        pool.wake(now)
        actions: list[Action] = []
        while self._places and len(pool):
            self._places -= 1
            actions.append(self._dispatch(pool.draw()))
        due = pool.next_wake if self._places else None
        if due is not None and due != self._wake_at:
            self._wake_at = due
            actions.append(Wake(to_time(due - to_ticks(now))))
        return actions

    def _dispatch(self, client: int, delay: float = 0.0) -> Dispatch:
        duration, num_steps = self._work.draw(client)
        return Dispatch(client, duration, num_steps, delay)

    def expected_durations(self) -> NDArray[np.float64] | None:
        """T_i of the duration model."""
        return self._work.expected_durations()

    def state_dict(self) -> dict[str, Any]:
        """Who waits and who is idle, and how many tasks each client had."""
        state: dict[str, Any] = {
            "started": self._started,
            "waiting": sorted(self._waiting),
            "work": self._work.state_dict(),
        }
        if self._pool is not None:
            state["pool"] = self._pool.state_dict()
            state["places"], state["wake_at"] = self._places, self._wake_at
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._started = state["started"]
        self._waiting = set(state["waiting"])
        self._work.load_state_dict(state["work"])
        if self._pool is not None:
            self._pool.load_state_dict(state["pool"])
            self._places, self._wake_at = state["places"], state["wake_at"]

    def __repr__(self) -> str:
        return (
            f"ContinuousArrivals({self._work.durations!r}, concurrency={self.concurrency}, "
            f"idle={self.idle:g}, resume={self.resume!r}, local_steps={self._work.local_steps!r})"
        )
