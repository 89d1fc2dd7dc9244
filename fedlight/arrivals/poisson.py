"""Open-loop arrivals: clients start on their own, at random times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedlight._support.checks import positive
from fedlight.arrivals._idle_clients import idle_clients
from fedlight.arrivals._task_draws import TaskDraws
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, Wake
from fedlight.arrivals.durations import LONGEST, SHORTEST, DurationModel, as_durations
from fedlight.arrivals.local_steps import LocalEpochs, LocalSteps, as_local_steps
from fedlight.events import to_ticks
from fedlight.randomness import Concern, Uniforms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.arrivals.base import Choose
    from fedlight.types import Federation, Task


class PoissonArrivals(ArrivalProcess):
    """Clients start to work at the times of a Poisson process, independently of the server.

    ``gap = -log(1 - u) / rate``, u uniform in [0, 1): the virtual time between two starts is
    exponential with mean ``1 / rate``.

    At each start a client that is not working is drawn uniformly; it pulls, works and arrives. If
    all clients are working, no client starts.

    Args:
        rate: Mean number of starts per unit of virtual time.
        durations: The duration of a task.
        local_steps: Policy for K, the number of local steps of a task, or a number of steps.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: `rate` is not above 0, or its gaps are outside the range of virtual time.

    Source: Yang et al., [Anarchic Federated Learning](https://arxiv.org/abs/2108.09875), Algorithm
    2, in which a worker pulls the model when it decides to take part. The paper does not specify
    the times; the Poisson process is our choice.

    Example:
        >>> from fedlight.arrivals import UniformSpeeds
        >>> table = PoissonArrivals(rate=20, durations=UniformSpeeds(0.8)).simulate(
        ...     num_clients=1000, buffer_size=10, max_time=100
        ... )
        >>> 1800 < len(table) < 2200
        True
    """

    _choose: Choose | None = None
    _saved_attributes = ("_started", "_gaps", "_clients_left", "_pool", "_tasks")

    def __init__(
        self,
        rate: float,
        durations: DurationModel,
        local_steps: LocalSteps | int = LocalEpochs(num_epochs=1),
    ) -> None:
        self.rate = positive("rate", rate)
        if not 1 / LONGEST <= self.rate <= 1 / SHORTEST:
            raise ValueError(
                f"rate must be between {1 / LONGEST:.1e} and {1 / SHORTEST:g} starts per unit of "
                f"virtual time, got {rate!r}; choose another unit"
            )
        self.durations, self.local_steps = as_durations(durations), as_local_steps(local_steps)

    def choose_by(self, choose: Choose) -> None:
        """Let a function choose each client that starts."""
        self._choose = choose

    def setup(self, federation: Federation) -> None:
        """Start with all clients idle.

        Raises:
            ValueError: The durations or steps do not fit the federation.
        """
        self._draws = TaskDraws(federation, self.durations, self.local_steps)
        self._tasks = self._draws.visits
        self._pool = idle_clients(federation, self._choose)
        self._gaps = Uniforms(federation.seed, Concern.STARTS)
        self._clients_left = federation.num_clients
        self._started = False

    def on_wake(self, now: float) -> Iterator[Action]:
        """Start a client, and ask to be woken for the next start."""
        if self._started:
            yield from self._start(now)
        self._started = True
        # Once no client will be available again, further starts would only prolong the run.
        if self._clients_left:
            yield Wake(max(SHORTEST, -math.log1p(-self._gaps.next()) / self.rate))

    def on_arrival(self, task: Task, now: float) -> tuple[()]:
        """The client is idle again."""
        self._pool.add(task.client_id)
        return ()

    def on_unavailable(
        self, dispatch: Dispatch, until: float | None, now: float
    ) -> Iterator[Action]:
        """Draw another client instead."""
        if until is None:
            self._clients_left -= 1
        else:
            self._pool.rest(dispatch.client_id, to_ticks(until))
        return self._start(now)

    def _start(self, now: float) -> Iterator[Action]:
        self._pool.wake(now)
        if len(self._pool):
            client = self._pool.draw()
            duration, num_steps = self._draws.draw(client, starts_at=now)
            yield Dispatch(client, duration, num_steps)

    def expected_durations(self) -> NDArray[np.float64] | None:
        """T_i of the duration model."""
        return self._draws.expected_durations()
