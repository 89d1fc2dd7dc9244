"""Arrivals by the clock: each client works at its own pace."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from fedlight._support.checks import non_negative, one_of, optional, positive_int
from fedlight.arrivals._idle_clients import IdleClients, idle_clients
from fedlight.arrivals._task_draws import TaskDraws
from fedlight.arrivals.base import Action, ArrivalProcess, Cancel, Dispatch, Wake
from fedlight.arrivals.durations import DurationModel, as_durations
from fedlight.arrivals.local_steps import LocalEpochs, LocalSteps, as_local_steps
from fedlight.events import to_ticks, to_time
from fedlight.theory import ClosedNetwork

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.arrivals.base import Choose
    from fedlight.types import Federation, Task


class ContinuousArrivals(ArrivalProcess):
    """Each client pulls the model, works, arrives, waits, idles, and pulls again.

    ``next pull = time at which the client is free + idle``

    A client is free as soon as it has arrived, or only when the server has used its update: see
    `resume`.

    Args:
        durations: The duration of a task, for example ``UniformSpeeds(0.8)``.
        concurrency: How many of the M clients work at the same time. When one of them arrives, the
            next one is drawn uniformly from the idle clients; a client whose update waits at the
            server is not idle. If no client is idle, the next client to become idle starts. None
            lets all clients work, each at its own pace.
        idle: Virtual time from when a client is free until it pulls or may be drawn again.
        resume: "on_aggregation": a client is free when its update was used or dropped, so it pulls
            a model that contains its own work; "on_arrival": it is free when it arrives.
        local_steps: Policy for K, the number of local steps of a task, or a number of steps.
        restart_after: R: as soon as a version is made, each working client whose model is R or more
            versions old is stopped and starts again with the latest model, for a complete new
            duration. Its work is lost. 1 restarts all clients at each version. None stops no
            client.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range.

    Source: Fraboni et al., [the FedFix paper](https://arxiv.org/abs/2206.10189), Sections 2.2, 2.3
    and 5.1 ("on_aggregation"); Nguyen et al., [FedBuff](https://arxiv.org/abs/2106.06639),
    Algorithm 1 ("on_arrival", with a concurrency); Maranjyan et al., [Ringmaster
    ASGD](https://arxiv.org/abs/2501.16168), Algorithm 5 (`restart_after`).

    Example:
        >>> from fedlight.arrivals import FixedDurations
        >>> arrivals = ContinuousArrivals(FixedDurations([1.0, 0.4]), local_steps=5)
        >>> table = arrivals.simulate(num_clients=2, interval=0.5, max_time=1.5)
        >>> [(event.client, event.dispatched_at, event.time) for event in table.events]
        [(1, 0.0, 0.4), (1, 0.5, 0.9), (0, 0.0, 1.0), (1, 1.0, 1.4)]
    """

    _choose: Choose | None = None
    _repr_positional = 1
    _repr_optional = ("restart_after",)
    _saved_attributes = (
        "_started",
        "_waiting",
        "_tasks",
        "_working",
        "_pool",
        "_places",
        "_wake_at",
    )

    def __init__(
        self,
        durations: DurationModel,
        concurrency: int | None = None,
        idle: float = 0.0,
        resume: str = "on_aggregation",
        local_steps: LocalSteps | int = LocalEpochs(num_epochs=1),
        restart_after: int | None = None,
    ) -> None:
        self.durations, self.local_steps = as_durations(durations), as_local_steps(local_steps)
        self.restart_after = optional(positive_int, "restart_after", restart_after)
        self.may_stop = self.restart_after is not None
        self.concurrency = optional(positive_int, "concurrency", concurrency)
        self.idle = non_negative("idle", idle)
        if 0 < self.idle < 1e-9:
            raise ValueError(f"idle must be 0 or at least 1e-9 of virtual time, got {idle!r}")
        self.resume = one_of("resume", resume, ("on_aggregation", "on_arrival"))

    def choose_by(self, choose: Choose) -> None:
        """Let a function choose each client that takes a free place.

        Raises:
            ValueError: There is no `concurrency`, so that all clients work.
        """
        if self.concurrency is None:
            raise ValueError(
                "concurrency must be a number if clients are to be chosen, got None, with which "
                "all clients work all the time; write ContinuousArrivals(…, concurrency=10)"
            )
        self._choose = choose

    def setup(self, federation: Federation) -> None:
        """Start with all clients idle.

        Raises:
            ValueError: There are fewer clients than `concurrency`, or the durations or steps do
                not fit the federation.
        """
        num_clients = federation.num_clients
        if self.concurrency is not None and self.concurrency > num_clients:
            raise ValueError(
                f"concurrency={self.concurrency} is more than the {num_clients} clients; "
                f"write concurrency={num_clients} or less, or None for all"
            )
        self._draws = TaskDraws(federation, self.durations, self.local_steps)
        self._tasks = self._draws.visits
        self._num_clients = num_clients
        self._started = False
        self._waiting: set[int] = set()
        # By client the version that it works from, and the same in a heap, the oldest first;
        # outdated entries stay in the heap until they reach the top.
        self._working: dict[int, int] = {}
        self._oldest: list[tuple[int, int]] = []
        # With a place for every client no draws are needed, and the pool would only cost time.
        self._pool: IdleClients | None = None
        if self.concurrency is not None and self.concurrency < num_clients:
            self._pool = idle_clients(federation, self._choose)
        self._places = self.concurrency or num_clients
        self._wake_at = -1

    def on_wake(self, now: float) -> Iterable[Action]:
        """Start the clients; later, fill places that were empty."""
        if self._pool is not None:
            return self._fill(self._pool, now)
        if self._started:
            return ()
        self._started = True
        return (self._dispatch(client, now) for client in range(self._num_clients))

    def on_arrival(self, task: Task, now: float) -> Iterable[Action]:
        """The client waits for the server, or is free."""
        self._working.pop(task.client_id, None)
        # A lost update never reaches the server, so there is nothing to wait for.
        waits = self.resume == "on_aggregation" and not task.lost
        if waits:
            self._waiting.add(task.client_id)
        if self._pool is not None:
            self._places += 1
            if not waits:
                self._free(self._pool, task.client_id, now)
            return self._fill(self._pool, now)
        return () if waits else (self._dispatch(task.client_id, now, self.idle),)

    def on_version(self, version: int, clients: Collection[int], now: float) -> Iterable[Action]:
        """The clients whose updates were used or dropped are free."""
        # Sorted, since the order of a set depends on its history, which a resumed run lacks.
        free = sorted(self._waiting.intersection(clients))
        self._waiting.difference_update(free)
        actions = self._restart(version, now) if self._oldest else []
        if self._pool is None:
            return actions + [self._dispatch(client, now, self.idle) for client in free]
        for client in free:
            self._free(self._pool, client, now)
        return actions + self._fill(self._pool, now) if free else actions

    def on_start(self, task: Task) -> None:
        """Note the version that the client works from."""
        if self.may_stop and not task.tries:  # the end of a retry is not reported
            self._working[task.client_id] = task.pulled_version
            heapq.heappush(self._oldest, (task.pulled_version, task.client_id))

    def _restart(self, version: int, now: float) -> list[Action]:
        """Stop the clients whose model is too old, and let them start again."""
        assert self.restart_after is not None
        stopped: list[int] = []
        while self._oldest and version - self._oldest[0][0] >= self.restart_after:
            pulled, client = heapq.heappop(self._oldest)
            if self._working.get(client) == pulled:
                del self._working[client]
                stopped.append(client)
        stopped.sort()
        cancels: list[Action] = [Cancel(client) for client in stopped]
        return cancels + [self._dispatch(client, now) for client in stopped]

    def on_unavailable(
        self, dispatch: Dispatch, until: float | None, now: float
    ) -> Iterable[Action]:
        """Wait for the window; with a concurrency, draw another client instead."""
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
            actions.append(self._dispatch(pool.draw(), now))
        # One `Wake` for the client that is due first; the next call asks for the one after it.
        due = pool.next_wake if self._places else None
        if due is not None and due != self._wake_at:
            self._wake_at = due
            actions.append(Wake(to_time(due - to_ticks(now))))
        return actions

    def _dispatch(self, client: int, now: float, delay: float = 0.0) -> Dispatch:
        duration, num_steps = self._draws.draw(client, starts_at=now + delay)
        return Dispatch(client, duration, num_steps, delay)

    def expected_durations(self) -> NDArray[np.float64] | None:
        """T_i of the duration model."""
        return self._draws.expected_durations()

    def closed_network(self, buffer_size: int) -> ClosedNetwork | None:
        """The network, if clients have exponential durations and neither idle nor wait."""
        means = self.expected_durations()
        waits = self.resume == "on_aggregation" and buffer_size > 1
        if waits or self.idle or means is None or not self.durations.exponential:
            return None
        return ClosedNetwork(means, self.concurrency)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self._oldest = [(version, client) for client, version in self._working.items()]
        heapq.heapify(self._oldest)
