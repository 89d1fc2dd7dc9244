"""Pisces: places go to the clients of the largest utility, discounted by their staleness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fedlight._support.checks import (
    flag,
    fraction,
    non_negative,
    optional,
    positive,
    positive_int,
)
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, EndRound, Wake
from fedlight.arrivals.client_selection import ClientSelection, statistical_utility
from fedlight.arrivals.power_of_choice import metric_name
from fedlight.events import to_ticks, to_time

if TYPE_CHECKING:
    import numpy as np

    from fedlight.types import Federation, Seen, Task


class Pisces(ClientSelection):
    """Fills free places with the clients of the largest loss that are not expected to be stale.

    ``U_i = n_i * sqrt(mean of the squared losses) / (tau_i + 1)^beta``

    tau_i is the mean staleness of the client's latest `window` updates. With a probability of
    `exploration`, which decays with each choice, a place goes to a client that has never started,
    drawn uniformly; otherwise to the client of the largest U_i, of equal ones to the smallest
    number. A client that has started and not yet reported has U_i = 0.

    With `staleness_bound` the process also ends rounds, and an aggregator by rounds steps then:
    as soon as an update waits and ``now - (the last step) >= max of T_i over those at work / b``.
    T_i is the duration of the client's latest task, or the expected one before its first.

    Args:
        arrivals: The process whose clients are chosen, usually ``ContinuousArrivals(…,
            concurrency=c)``.
        metric: The name under which ``training_step`` logs the loss.
        squared: Whether the metric is the mean of the squared losses of the examples, as the papers
            have it. Otherwise it is the mean loss, and its square stands for that mean.
        beta: The exponent; 0 ignores staleness. Plato's default is 1, and 0.5 in its example.
        exploration: The probability of a new client.
        exploration_decay: Its factor at each choice after the first arrival.
        least_exploration: Its smallest value.
        window: The number of updates whose staleness is averaged.
        staleness_bound: b; None if the aggregator decides when to step.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range.

    Source: Jiang, Wang, Li and Li, [Pisces](https://arxiv.org/abs/2206.09264), Sections 4 and 5,
    without its detection of outliers; the exploration is that of the authors' code in
    [Plato](https://github.com/TL-System/plato).

    Example:
        >>> from fedlight.arrivals import ContinuousArrivals, UniformSpeeds
        >>> arrivals = ContinuousArrivals(UniformSpeeds(0.8), concurrency=4, resume="on_arrival")
        >>> Pisces(arrivals, staleness_bound=4).by_rounds
        True
    """

    _saved_attributes = (
        "_explored",
        "_exploration",
        "_staleness",
        "_utilities",
        "_durations",
        "_working",
        "_held",
        "_ending",
        "_last_step",
        "_next_look",
    )

    def __init__(
        self,
        arrivals: ArrivalProcess,
        metric: str = "train_loss",
        squared: bool = False,
        beta: float = 0.5,
        exploration: float = 0.3,
        exploration_decay: float = 0.99,
        least_exploration: float = 0.1,
        window: int = 5,
        staleness_bound: float | None = None,
    ) -> None:
        super().__init__(arrivals)
        self.metric, self.squared = metric_name(metric), flag("squared", squared)
        self.beta = non_negative("beta", beta)
        self.exploration = fraction("exploration", exploration)
        self.exploration_decay = fraction("exploration_decay", exploration_decay)
        self.least_exploration = fraction("least_exploration", least_exploration)
        self.window = positive_int("window", window)
        self.staleness_bound = optional(positive, "staleness_bound", staleness_bound)
        if self.staleness_bound is not None:
            if self.by_rounds:
                raise ValueError(
                    f"staleness_bound={staleness_bound} ends rounds, which {arrivals!r} does "
                    "already; wrap ContinuousArrivals, or leave the bound out"
                )
            self.by_rounds = True

    def setup(self, federation: Federation) -> None:
        """Start with clients that are all unknown."""
        super().setup(federation)
        self._expected = self.expected_durations()
        self._explored: set[int] = set()
        self._exploration = self.exploration
        self._staleness: dict[int, list[int]] = {}
        self._utilities: dict[int, float] = {}
        self._durations: dict[int, float] = {}
        self._working: set[int] = set()
        self._held, self._ending = 0, False
        self._last_step = 0  # in ticks, as is the next one
        self._next_look = -1

    def on_feedback(self, task: Task, seen: Seen, now: float) -> None:
        """Set U_i of the client."""
        super().on_feedback(task, seen, now)
        client = task.client_id
        self._held += 1
        self._durations[client] = seen.duration
        latest = [*self._staleness.get(client, ()), seen.staleness][-self.window :]
        self._staleness[client] = latest
        utility = statistical_utility(seen, self.metric, self.squared)
        if utility is not None:
            self._utilities[client] = utility / (sum(latest) / len(latest) + 1) ** self.beta

    def choose(
        self, clients: Sequence[int], count: int, rng: np.random.Generator, now: float
    ) -> list[int]:
        """Return new clients and those of the largest utility."""
        new = [client for client in clients if client not in self._explored]
        known = [client for client in clients if client in self._explored]
        known.sort(key=lambda client: -self._utilities.get(client, 0.0))  # stable
        explore = min(len(new), int(rng.binomial(count, self._exploration)))
        if self._utilities:
            decayed = self._exploration * self.exploration_decay
            self._exploration = max(decayed, self.least_exploration)
        best = known[: count - explore]
        first = self._explore(new, count - len(best), rng)
        self._explored.update(first)
        return best + first

    def _explore(self, new: Sequence[int], number: int, rng: np.random.Generator) -> list[int]:
        """Draw new clients."""
        drawn: list[int] = rng.choice(new, number, replace=False).tolist() if number else []
        return drawn

    def change(self, actions: Iterable[Action], now: float) -> Iterable[Action]:
        """Note who works."""
        if self.staleness_bound is None:
            return actions
        return self._noted(actions)

    def _noted(self, actions: Iterable[Action]) -> Iterator[Action]:
        for action in actions:
            if isinstance(action, Dispatch):
                self._working.add(action.client_id)
            yield action

    def on_arrival(self, task: Task, now: float) -> Iterable[Action]:
        """Choose the next client; end the round if it is time to step."""
        if self.staleness_bound is None:
            return super().on_arrival(task, now)
        self._working.discard(task.client_id)
        return self._then_look(super().on_arrival(task, now), now)

    def on_wake(self, now: float) -> Iterable[Action]:
        """End the round if it is time to step."""
        if self.staleness_bound is None:
            return super().on_wake(now)
        return self._then_look(super().on_wake(now), now)

    def on_round_end(self, now: float) -> Iterable[Action]:
        """Note the time of the step."""
        self._held, self._ending = 0, False
        self._last_step, self._next_look = to_ticks(now), -1
        return super().on_round_end(now)

    def on_unavailable(
        self, dispatch: Dispatch, until: float | None, now: float
    ) -> Iterable[Action]:
        """The client does not work."""
        self._working.discard(dispatch.client_id)
        return super().on_unavailable(dispatch, until, now)

    def _then_look(self, actions: Iterable[Action], now: float) -> Iterator[Action]:
        """The actions, and then the end of the round, or a `Wake` at its time."""
        yield from actions
        if not self._held or self._ending:
            return
        due, ticks = self._last_step + self._interval(), to_ticks(now)
        if due <= ticks:
            self._ending = True  # others may arrive at this time, before the end
            yield EndRound(0.0)
        elif due != self._next_look:
            self._next_look = due
            yield Wake(to_time(due - ticks))

    def _interval(self) -> int:
        """The longest task of the clients at work over b, in ticks."""
        assert self.staleness_bound is not None
        known = self._durations
        if self._expected is not None:
            known = {client: self._expected[client] for client in self._working} | known
        longest = max((known[client] for client in self._working if client in known), default=0.0)
        return to_ticks(longest / self.staleness_bound)
