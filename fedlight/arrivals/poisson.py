"""The open loop: clients come by themselves, at random times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, Wake
from fedlight.arrivals.durations import SHORTEST, DurationModel
from fedlight.arrivals.local_steps import LocalEpochs, LocalSteps
from fedlight.arrivals.work import IdleClients, Work
from fedlight.checks import positive
from fedlight.events import to_ticks
from fedlight.randomness import Concern, Uniforms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.types import Federation, Task


class PoissonArrivals(ArrivalProcess):
    """Clients start to work at the times of a Poisson process, whatever the server does.

    The times between two starts are exponential with mean ``1 / rate``. Each time a client that is
    not at work is drawn evenly; it pulls, works and arrives. Where all are at work nobody starts.

    Args:
        rate: Mean number of starts in one unit of virtual time.
        durations: How long a task takes.
        local_steps: Policy for K, or a number of steps.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: `rate` is not above 0.

    Source: Anarchic Federated Learning, Algorithm 2: a worker pulls once it has decided to take
    part. That the times are those of a Poisson process is our choice.

    Example:
        >>> from fedlight.arrivals import UniformSpeeds
        >>> table = PoissonArrivals(rate=20, durations=UniformSpeeds(0.8)).simulate(
        ...     num_clients=1000, buffer_size=10, max_time=100
        ... )
        >>> 1800 < len(table) < 2200
        True
    """

    def __init__(
        self,
        rate: float,
        durations: DurationModel,
        local_steps: LocalSteps | int = LocalEpochs(1),
    ) -> None:
        self.rate = positive("rate", rate)
        self._work = Work(durations, local_steps)

    def setup(self, federation: Federation) -> None:
        """Start with all clients idle.

        Raises:
            ValueError: The durations or steps do not fit the federation.
        """
        self._work.setup(federation)
        self._pool = IdleClients(federation)
        self._gaps = Uniforms(federation.seed, Concern.STARTS)
        self._clients_left = federation.num_clients
        self._started = False

    def on_wake(self, now: float) -> Iterator[Action]:
        """A client starts, and the next start is announced."""
        if self._started:
            yield from self._start(now)
        self._started = True
        if self._clients_left:
            yield Wake(max(SHORTEST, -math.log1p(-self._gaps.next()) / self.rate))

    def on_arrival(self, task: Task, now: float) -> tuple[()]:
        """The client is idle again."""
        self._pool.add(task.client_id)
        return ()

    def on_unavailable(
        self, dispatch: Dispatch, until: float | None, now: float
    ) -> Iterator[Action]:
        """Another client is drawn in its place."""
        if until is None:
            self._clients_left -= 1
        else:
            self._pool.rest(dispatch.client_id, to_ticks(until))
        return self._start(now)

    def _start(self, now: float) -> Iterator[Action]:
        self._pool.wake(now)
        if len(self._pool):
            client = self._pool.draw()
            duration, num_steps = self._work.draw(client)
            yield Dispatch(client, duration, num_steps)

    def expected_durations(self) -> NDArray[np.float64] | None:
        """T_i of the duration model."""
        return self._work.expected_durations()

    def state_dict(self) -> dict[str, Any]:
        """The starts so far, who is idle, and how many tasks each client had."""
        return {
            "started": self._started,
            "gaps": self._gaps.taken,
            "clients_left": self._clients_left,
            "pool": self._pool.state_dict(),
            "work": self._work.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._started, self._gaps.taken = state["started"], state["gaps"]
        self._clients_left = state["clients_left"]
        self._pool.load_state_dict(state["pool"])
        self._work.load_state_dict(state["work"])

    def __repr__(self) -> str:
        return (
            f"PoissonArrivals(rate={self.rate:g}, durations={self._work.durations!r}, "
            f"local_steps={self._work.local_steps!r})"
        )
