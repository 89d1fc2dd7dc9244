"""A polling server: at its own times it collects the results that some clients have so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlight._support.checks import positive, positive_int
from fedlight.arrivals._cohorts import Cohorts, Participants
from fedlight.arrivals._per_client import (
    as_list,
    check_length,
    of_client,
    one_for_all_or_each,
    one_for_each,
)
from fedlight.arrivals._task_draws import Visits
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, EndRound
from fedlight.arrivals.durations import SHORTEST, DurationModel, FixedDurations, as_durations
from fedlight.events import to_ticks, to_time
from fedlight.randomness import Concern, Streams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation


class PolledArrivals(ArrivalProcess):
    """The server polls s clients at the times dt, 2 dt, ...; each sends the steps that it has made.

    ``K_i = min(max_steps, whole steps of client i since its last poll)``, which may be 0.

    All clients work from time 0 on, and continue after their polls. A step that ends at the time of
    the poll counts; an unfinished step is lost. A client that has made `max_steps` steps waits for
    its poll. Each poll is the end of a round.

    A schedule does not depend on the model: the next poll of a client is known when its task
    begins, so no task has to be interrupted.

    Args:
        per_poll: s, the number of clients of a poll, drawn uniformly without replacement; or a list
            of clients for each poll, possibly empty, after which the process ends.
        interval: dt, virtual time between two polls.
        step_durations: The duration of one local step, as a `DurationModel` or a list of one number
            for each client. Random durations are drawn for each step.
        max_steps: Largest number of steps between two polls of a client, one number for all clients
            or one for each.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range.

    Source: Zakerinia et al., [QuAFL](https://arxiv.org/abs/2206.10032), Algorithm 1, whose authors
    do not count a step that ends at the time of a poll, and make the first poll at time 0; Leconte
    et al., [FAVAS](https://arxiv.org/abs/2305.16099).

    Example:
        >>> arrivals = PolledArrivals([[0], [0, 1]], 1.0, [0.4, 3.0], max_steps=4)
        >>> table = arrivals.simulate(num_clients=2)
        >>> [(e.client, e.dispatched_at, e.time, e.num_steps) for e in table.events]
        [(0, 0.0, 1.0, 2), (0, 1.0, 2.0, 2), (1, 0.0, 2.0, 0)]
    """

    by_rounds = True
    _saved_attributes = ("_polls", "_drawn", "_visits")

    def __init__(
        self,
        per_poll: Cohorts,
        interval: float,
        step_durations: DurationModel | Sequence[float],
        max_steps: int | Sequence[int],
    ) -> None:
        self._participants = Participants("per_poll", per_poll, empty=True)
        self.per_poll = self._participants.given
        self.finite = self._participants.rounds is not None
        self.interval = positive("interval", interval)
        if self.interval < SHORTEST:
            raise ValueError(f"interval must be at least 1e-9 of virtual time, got {interval!r}")
        if as_list("step_durations", step_durations) is not None:
            listed = one_for_each("step_durations", step_durations, positive)
            step_durations = FixedDurations(listed)
        self.step_durations = as_durations(step_durations, "step_durations")
        self.max_steps = one_for_all_or_each("max_steps", max_steps, positive_int)

    def setup(self, federation: Federation) -> None:
        """Start before the first poll.

        Raises:
            ValueError: There are fewer clients than `per_poll`, or the durations do not fit.
        """
        self._participants.check(federation)
        self.step_durations.check(federation)
        check_length("max_steps", self.max_steps, federation)
        self._federation = federation
        self._polls = 0  # that have taken place
        self._drawn = 0  # that are known
        self._ahead: dict[int, list[int]] = {}  # by client: its polls to come, the last one first
        self._durations = Streams(federation.seed, Concern.DURATIONS)
        self._visits = Visits()

    def on_wake(self, now: float) -> Iterator[Action]:
        """Start all clients."""
        yield from self._go_on(range(self._federation.num_clients), now)

    def on_round_end(self, now: float) -> Iterator[Action]:
        """Let the polled clients continue."""
        self._polls += 1
        clients = self._participants.of_round(self._polls - 1, self._federation)
        for client in clients:  # a client without a task is polled without a result
            polls = self._ahead.get(client)
            if polls and polls[-1] < self._polls:
                polls.pop()
        yield from self._go_on(sorted(clients), now)

    def _go_on(self, clients: Sequence[int], now: float) -> Iterator[Action]:
        for client in clients:
            poll = self._next_poll(client)
            if poll is not None:
                ticks = (poll + 1 - self._polls) * to_ticks(self.interval)
                yield Dispatch(client, to_time(ticks), self._steps(client, ticks, now))
        if self._polls != self._participants.rounds:
            yield EndRound(self.interval)

    def _next_poll(self, client: int) -> int | None:
        """The number of the client's next poll; None if it is never polled again."""
        while not self._ahead.get(client):
            if self._drawn == self._participants.rounds:
                return None
            self._know(self._participants.of_round(self._drawn, self._federation))
        return self._ahead[client][-1]

    def _know(self, clients: Sequence[int]) -> None:
        """Note the clients of the next poll that is not known yet."""
        for client in clients:
            self._ahead.setdefault(client, []).insert(0, self._drawn)
        self._drawn += 1

    def _steps(self, client: int, ticks: int, now: float) -> int:
        """How many steps the client makes in this number of ticks."""
        model, rng, federation = self.step_durations, self._durations.generator, self._federation
        most = of_client(self.max_steps, client)
        if not model.uses_rng:
            one = to_ticks(model.draw(rng, client, 1, federation, now))
            return min(most, ticks // one)
        rng = self._durations.at(client, self._visits.next(client))
        spent = 0
        for made in range(most):
            starts_at = now + to_time(spent)
            spent += to_ticks(model.draw(rng, client, 1, federation, starts_at))
            if spent > ticks:
                return made
        return most

    def expected_durations(self) -> NDArray[np.float64] | None:
        """Mean virtual time between two polls of a client, shape ``[M]``; None if listed."""
        if self._participants.count is None:
            return None
        clients = self._federation.num_clients
        return np.full(clients, self.interval * clients / self._participants.count)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        # The clients of the polls to come are drawn again.
        self._ahead, self._drawn = {}, self._polls
        while self._drawn < state["drawn"]:
            self._know(self._participants.of_round(self._drawn, self._federation))
