"""Oort: rounds of clients with large losses that are fast enough, and of some new ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedlight._support.checks import (
    flag,
    fraction,
    non_negative,
    one_of,
    optional,
    positive,
    positive_int,
)
from fedlight.arrivals.base import ArrivalProcess
from fedlight.arrivals.client_selection import ClientSelection, statistical_utility
from fedlight.arrivals.power_of_choice import metric_name

if TYPE_CHECKING:
    from fedlight.types import Federation, Seen, Task

_NEW_CLIENTS_CONSIDERED = 5
"""The code draws each new client from so many (its ``sample_window``)."""


class Oort(ClientSelection):
    """Each round has clients of large utility, fast ones among them preferred, and new clients.

    ``Util_i = (min(U_i, clip) + sqrt(0.1 * log(R) / L_i)) * (T / D_i)^alpha``, the last factor
    only if ``T < D_i``; ``U_i = n_i * sqrt(mean of the squared losses)``

    R counts the rounds, L_i is the round in which the client last reported, D_i the duration of its
    latest task, T the preferred duration. Of the m clients of a round ``floor((1 - eps) * m)`` are
    drawn in proportion to Util_i, among those with at least `cut_off` times the utility of the last
    one of the best; the others are new. eps starts at `exploration` and decays. Places for which
    nobody is left go to other free clients, drawn uniformly.

    The paper and the authors' code differ, and `reading` says which of them counts:

    - In the sum, U_i is as it is ("paper"), or (U_i - 0.999 min) / (max - 0.999 min), the largest
      and the smallest U_i of the known clients ("code").
    - T is Δ at first, and Δ longer after each round at which the last W rounds have a smaller
      utility than the W before ("paper"). Or it is a percentile of the durations of the clients:
      all W rounds, Δ points higher if the mean utility differs by at most 10 % from that of the W
      rounds before, and Δ points lower if it differs by at least 500 % ("code").
    - New clients are drawn in proportion to their speed 1 / T_i, T_i the expected duration
      ("paper"); or in proportion to n_i * (T / T_i)^alpha, the last factor only if they are slower
      than T, among the five best for each place ("code").
    - eps decays after a choice ("paper") or before it ("code").
    - The utility that is cut off is relative to that of the last one of the best ("paper") or of
      the first that is not among them ("code").

    Args:
        arrivals: A process by rounds whose clients are chosen. The paper has m clients more than
            needed (1.3 m): ``SynchronousArrivals(per_round=10, over_select=3)``.
        metric: The name under which ``training_step`` logs the loss.
        squared: Whether the metric is the mean of the squared losses of the examples, as the paper
            has it. Otherwise it is the mean loss, and its square stands for that mean.
        exploration: eps in the first round.
        exploration_decay: Its factor per round.
        least_exploration: Its smallest value; without new clients it is 0.
        penalty: alpha.
        cut_off: c.
        clip: The quantile of the utilities that bounds them.
        most_tasks: After more updates than this a client is no longer chosen; None for no limit.
            At most 30 % of the clients are left out.
        pacer_window: W, in rounds.
        pacer_step: Δ: in virtual time for the paper, which needs it; in points of a percentile for
            the code, whose default is 10.
        preferred: T at first, in the same unit. None is Δ for the paper, and 100, which is no
            limit, for the code.
        reading: "paper" or "code".

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: An argument is outside its range, or `arrivals` has no rounds.

    Source: Lai, Zhu, Madhyastha and Chowdhury, [Oort](https://arxiv.org/abs/2010.06081), Algorithm
    1 and Section 4; [the authors' code](https://github.com/SymbioticLab/Oort).

    Example:
        >>> from fedlight.arrivals import SynchronousArrivals
        >>> Oort(SynchronousArrivals(per_round=10, over_select=3), pacer_window=5).by_rounds
        True
    """

    _saved_attributes = (
        "_round",
        "_epsilon",
        "_pace",
        "_utilities",
        "_durations",
        "_reported",
        "_tasks",
        "_exploited",
        "_this_round",
        "_sums",
    )

    def __init__(
        self,
        arrivals: ArrivalProcess,
        metric: str = "train_loss",
        squared: bool = False,
        exploration: float = 0.9,
        exploration_decay: float = 0.98,
        least_exploration: float = 0.2,
        penalty: float = 2.0,
        cut_off: float = 0.95,
        clip: float = 0.95,
        most_tasks: int | None = None,
        pacer_window: int = 20,
        pacer_step: float | None = None,
        preferred: float | None = None,
        reading: str = "code",
    ) -> None:
        super().__init__(arrivals)
        if not self.by_rounds:
            raise ValueError(
                f"Oort chooses the clients of a round, but {arrivals!r} has no rounds; write "
                "Oort(SynchronousArrivals(per_round=…)), or take Pisces"
            )
        self.metric, self.squared = metric_name(metric), flag("squared", squared)
        self.exploration = fraction("exploration", exploration)
        self.exploration_decay = fraction("exploration_decay", exploration_decay)
        self.least_exploration = fraction("least_exploration", least_exploration)
        self.penalty = non_negative("penalty", penalty)
        self.cut_off, self.clip = fraction("cut_off", cut_off), fraction("clip", clip)
        self.most_tasks = optional(positive_int, "most_tasks", most_tasks)
        self.pacer_window = positive_int("pacer_window", pacer_window)
        self.pacer_step = optional(positive, "pacer_step", pacer_step)
        self.preferred = optional(positive, "preferred", preferred)
        self.reading = one_of("reading", reading, ("paper", "code"))
        if self.reading == "paper" and self.pacer_step is None:
            raise ValueError(
                "reading='paper' needs pacer_step, by which the preferred duration of a round "
                "grows, in virtual time, got None; for example pacer_step=1.0"
            )

    def setup(self, federation: Federation) -> None:
        """Start with clients that are all unknown."""
        super().setup(federation)
        self._sizes = np.asarray(federation.num_examples, dtype=np.float64)
        self._expected = self.expected_durations()
        code = self.reading == "code"
        self._step = self.pacer_step or 10.0
        self._round, self._epsilon = 0, self.exploration
        self._pace = self.preferred or (100.0 if code else self._step)
        self._utilities: dict[int, float] = {}
        self._durations: dict[int, float] = {}
        self._reported: dict[int, int] = {}
        self._tasks: dict[int, int] = {}
        self._exploited: list[int] = []
        self._this_round: list[int] = []  # clients that have reported since the last choice
        self._sums: list[float] = []  # utilities of the last 2 W rounds

    def on_feedback(self, task: Task, seen: Seen, now: float) -> None:
        """Keep U_i, D_i and L_i of the client."""
        super().on_feedback(task, seen, now)
        client = task.client_id
        utility = statistical_utility(seen, self.metric, self.squared)
        if utility is None:
            return
        self._utilities[client], self._durations[client] = utility, seen.duration
        self._reported[client] = self._round
        self._tasks[client] = self._tasks.get(client, 0) + 1
        self._this_round.append(client)

    def choose(
        self, clients: Sequence[int], count: int, rng: np.random.Generator, now: float
    ) -> list[int]:
        """Return the clients of the next round."""
        self._round += 1
        self._pacer()
        blocked = self._blocked()
        known = [c for c in clients if c in self._utilities and c not in blocked]
        new = [c for c in clients if c not in self._utilities]
        if self.reading == "code":
            self._decay()
        if len(self._utilities) == len(self._sizes):
            self._epsilon = 0.0
        scores = self._scores(known)
        # 10 * (1 - 0.9) is less than 1 in binary numbers.
        number = min(int(count * (1 - self._epsilon) + 1e-9), len(known))
        picked = self._exploit(scores, number, rng) if number else []
        self._exploited = picked
        if room := min(len(new), count - len(picked)):
            picked = picked + self._explore(new, room, rng)
        for rest in (known, list(clients)):  # those that were left out only if nobody else is free
            others = [c for c in rest if c not in picked]
            if others and len(picked) < count:
                more = min(count - len(picked), len(others))
                picked = picked + rng.choice(others, more, replace=False).tolist()
        if self.reading == "paper":
            self._decay()
        return picked

    def _decay(self) -> None:
        if self._epsilon:
            self._epsilon = max(self._epsilon * self.exploration_decay, self.least_exploration)

    def _blocked(self) -> set[int]:
        """Clients that have had their share of tasks, the busiest first, at most 30 %."""
        if self.most_tasks is None:
            return set()
        tasks = sorted(self._tasks, key=lambda client: (-self._tasks[client], client))
        busy = [client for client in tasks if self._tasks[client] > self.most_tasks]
        return set(busy[: int(0.3 * len(self._sizes))])

    def _pacer(self) -> None:
        """Change T by the utilities of the last 2 W rounds."""
        window, code = self.pacer_window, self.reading == "code"
        reported = [c for c in self._exploited if c in self._this_round] if code else []
        found = [self._utilities[c] for c in (reported if code else self._this_round)]
        # The code's mean: the 1e-4 avoids a division by zero.
        self._sums.append(sum(found) / (len(found) + 1e-4) if code else sum(found))
        self._sums = self._sums[-2 * window :]
        self._this_round = []
        if code:
            if self._round < 2 * window or self._round % window:
                return
            before, after = sum(self._sums[-2 * window : -window]), sum(self._sums[-window:])
            if abs(after - before) <= 0.1 * before:
                self._pace = min(100.0, self._pace + self._step)
            elif abs(after - before) >= 5 * before:
                self._pace = max(self._step, self._pace - self._step)
        elif self._round > 2 * window and sum(self._sums[:window]) > sum(self._sums[window:]):
            self._pace += self._step

    def _times(self) -> Mapping[int, float]:
        """D_i: of the latest task, or expected; none for a new client if that is unknown."""
        expected = {} if self._expected is None else dict(enumerate(self._expected.tolist()))
        return expected | self._durations

    def _preferred(self, times: Mapping[int, float]) -> float:
        """T."""
        if self.reading == "paper":
            return self._pace
        found = sorted(times.values())
        if self._pace >= 100 or not found:
            return math.inf
        return found[min(int(len(found) * self._pace / 100), len(found) - 1)]

    def _penalty(self, duration: float, preferred: float) -> float:
        """The factor of a slow client."""
        return (preferred / duration) ** self.penalty if duration > preferred else 1.0

    def _scores(self, known: Sequence[int]) -> dict[int, float]:
        """Util_i of each client."""
        if not known:
            return {}
        utilities = sorted(self._utilities[c] for c in known)
        most = utilities[min(int(len(utilities) * self.clip), len(utilities) - 1)]
        least, width = 0.0, 1.0
        if self.reading == "code":
            positive_ones = [each for each in utilities if each > 0] or [0.0]
            most = positive_ones[min(int(len(positive_ones) * self.clip), len(positive_ones) - 1)]
            least = positive_ones[0] * 0.999
            width = max(positive_ones[-1] - least, 1e-4)
        times, log = self._times(), 0.1 * math.log(self._round)
        preferred = self._preferred(times)
        scores = {}
        for c in known:
            utility = (min(self._utilities[c], most) - least) / width
            uncertainty = math.sqrt(log / self._reported[c])
            scores[c] = (utility + uncertainty) * self._penalty(times[c], preferred)
        return scores

    def _exploit(
        self, scores: Mapping[int, float], number: int, rng: np.random.Generator
    ) -> list[int]:
        """Draw by utility among those that are nearly as good as the best."""
        order = sorted(scores, key=lambda client: -scores[client])  # stable
        last = number - 1 if self.reading == "paper" else min(number, len(order) - 1)
        # Below 0 if a utility is 0: then the best `number` at least.
        enough = min(self.cut_off * scores[order[last]], scores[order[number - 1]])
        pool = [c for c in order if scores[c] >= enough]
        return _draw(pool, [scores[c] for c in pool], number, rng)

    def _explore(self, new: Sequence[int], number: int, rng: np.random.Generator) -> list[int]:
        """Draw new clients, by their speed or their number of examples."""
        times = self._times()
        if self.reading == "paper":
            weights = [1 / times[c] if c in times else 1.0 for c in new]
            return _draw(new, weights, number, rng)
        preferred = self._preferred(times)
        worth = {
            c: float(self._sizes[c]) * self._penalty(times.get(c, 0.0), preferred) for c in new
        }
        pool = sorted(worth, key=lambda c: -worth[c])[: _NEW_CLIENTS_CONSIDERED * number]
        return _draw(pool, [worth[c] for c in pool], number, rng)


def _draw(
    clients: Sequence[int], weights: Sequence[float], number: int, rng: np.random.Generator
) -> list[int]:
    """Draw clients without replacement, in proportion to weights of which some may be 0."""
    shares = np.maximum(np.array(weights), 1e-12 * max(*weights, 1e-12))
    drawn: list[int] = rng.choice(clients, number, replace=False, p=shares / shares.sum()).tolist()
    return drawn
