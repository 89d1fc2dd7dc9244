"""Rounds of trials: local runs that are given up after an allotted time, and begun anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedlight._support.checks import non_negative_int, positive
from fedlight.arrivals._per_client import check_length, of_client, one_for_all_or_each
from fedlight.arrivals._task_draws import TaskDraws
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, EndRound
from fedlight.arrivals.durations import SHORTEST, DurationModel, as_durations
from fedlight.arrivals.local_steps import LocalSteps, as_local_steps
from fedlight.events import to_ticks, to_time
from fedlight.types import Federation


class TrialRounds(ArrivalProcess):
    """In each round client i makes B_i trials one after another, each in at most t_i.

    ``given up = duration > t_i``, for each trial.

    All trials of a round start from the round's version. One that is given up has no result and is
    never computed; it is recorded as lost at t_i, and the next one begins at once, on other
    batches. The round ends when all trials of all clients are over, so it lasts at most the largest
    ``t_i * B_i``, whatever the durations are.

    Args:
        durations: The duration of a trial that is not given up.
        allotted: t_i, virtual time, for all clients or for each.
        trials: B_i, for all clients or for each; a client with 0 takes no part.
        local_steps: Policy for K, the number of local steps of a trial, or a number of steps.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range, or there is no trial at all.

    Source: Maranjyan, Shaikh Omar, Richtárik, [MindFlayer
    SGD](https://arxiv.org/abs/2410.04285), UAI 2025; `fedlight.aggregators.MindFlayer` has the
    server's side.

    Example:
        >>> from fedlight.arrivals import FixedDurations
        >>> arrivals = TrialRounds(FixedDurations([1.0, 3.0]), allotted=[1.0, 2.0], trials=[3, 1])
        >>> table = arrivals.simulate(num_clients=2, max_rounds=1)
        >>> [(event.client, event.time) for event in table.events], table.round_ends
        ([(0, 1.0), (0, 2.0), (0, 3.0)], [3.0])
    """

    by_rounds = True
    _repr_positional = 1
    _saved_attributes = ("_tasks",)

    def __init__(
        self,
        durations: DurationModel,
        allotted: float | Sequence[float],
        trials: int | Sequence[int],
        local_steps: LocalSteps | int = 1,
    ) -> None:
        self.durations, self.local_steps = as_durations(durations), as_local_steps(local_steps)
        self.allotted = one_for_all_or_each("allotted", allotted, _time)
        self.trials = one_for_all_or_each("trials", trials, non_negative_int)
        if not (any(self.trials) if isinstance(self.trials, list) else self.trials):
            raise ValueError(f"trials must be above 0 for at least one client, got {trials!r}")

    def setup(self, federation: Federation) -> None:
        """Start before the first round.

        Raises:
            ValueError: There is not one number for each client, or the durations or steps do not
                fit the federation.
        """
        check_length("allotted", self.allotted, federation)
        check_length("trials", self.trials, federation)
        self._num_clients = federation.num_clients
        self._draws = TaskDraws(federation, self.durations, self.local_steps)
        self._tasks = self._draws.visits

    def on_wake(self, now: float) -> Iterator[Action]:
        """Begin the first round."""
        return self._round(now)

    def on_round_end(self, now: float) -> Iterator[Action]:
        """Begin the next round."""
        return self._round(now)

    def _round(self, now: float) -> Iterator[Action]:
        begin, longest = to_ticks(now), 0
        for client in range(self._num_clients):
            most, spent = to_ticks(of_client(self.allotted, client)), 0
            for _ in range(of_client(self.trials, client)):
                drawn, num_steps = self._draws.draw(client, starts_at=to_time(begin + spent))
                ticks = min(most, to_ticks(drawn))
                given_up = to_ticks(drawn) > most
                yield Dispatch(client, to_time(ticks), num_steps, to_time(spent), lost=given_up)
                spent += ticks
            longest = max(longest, spent)
        yield EndRound(to_time(longest))


def _time(name: str, value: object) -> float:
    time = positive(name, value)
    if time < SHORTEST:
        raise ValueError(f"{name} must be at least 1e-9 of virtual time, got {value!r}")
    return time
