"""Power-of-choice: of some candidates, the clients with the largest losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedlight._support.strategy import brief
from fedlight.arrivals._cohorts import Cohorts, Participants
from fedlight.arrivals.base import ArrivalProcess
from fedlight.arrivals.client_selection import ClientSelection, finite_metric

if TYPE_CHECKING:
    from fedlight.types import Federation, Seen, Task


class PowerOfChoice(ClientSelection):
    """Draws d candidates by their share of the examples; those of the largest losses start.

    ``A = d clients without replacement, p_k = n_k / n;  S = the m clients of A of largest L_k``

    L_k is the mean loss over the examples of client k's latest local run whose update has arrived,
    and infinite before the first one: the paper's rpow-d. Clients with equal losses are taken in
    the order in which they were drawn. The paper's pow-d and cpow-d ask all candidates for the loss
    of the server's newest model, which costs a visit to each of them; they are not offered.

    Args:
        arrivals: The process whose clients are chosen.
        candidates: d, at least m; if fewer clients are free, all of them are candidates. Or a list
            of candidates for each choice, of which those that are free count.
        metric: The name under which ``training_step`` logs the loss.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: `candidates` is below 1 or above M, or (during the run) fewer than the clients
            to choose, or a list that ends.

    Source: Cho, Wang and Joshi, [Client Selection in Federated Learning: Convergence Analysis and
    Power-of-Choice Selection Strategies](https://arxiv.org/abs/2010.01243), Section 3.

    Example:
        >>> from fedlight.arrivals import SynchronousArrivals
        >>> PowerOfChoice(SynchronousArrivals(per_round=2, local_steps=5), candidates=6).candidates
        6
    """

    _saved_attributes = ("_losses",)

    def __init__(
        self, arrivals: ArrivalProcess, candidates: Cohorts, metric: str = "train_loss"
    ) -> None:
        super().__init__(arrivals)
        self._candidates = Participants("candidates", candidates)
        self.candidates = self._candidates.given
        self.metric = metric_name(metric)

    def setup(self, federation: Federation) -> None:
        """Start with unknown losses.

        Raises:
            ValueError: There are fewer clients than candidates.
        """
        self._candidates.check(federation)
        super().setup(federation)
        self._sizes = np.asarray(federation.num_examples, dtype=np.float64)
        self._losses: dict[int, float] = {}

    def on_feedback(self, task: Task, seen: Seen, now: float) -> None:
        """Keep the client's loss."""
        super().on_feedback(task, seen, now)
        loss = finite_metric(seen, self.metric)
        if loss is not None:
            self._losses[task.client_id] = loss

    def choose(
        self, clients: Sequence[int], count: int, rng: np.random.Generator, now: float
    ) -> list[int]:
        """Draw the candidates, and return those of the largest losses."""
        drawn = self._draw(clients, rng)
        if len(drawn) < count:
            raise ValueError(
                f"candidates={self.candidates!r:.80} gives {len(drawn)} of the free clients, but "
                f"{count} are to be chosen; write candidates={count} or more"
            )
        # Stable: of equal losses, the one drawn first.
        return sorted(drawn, key=lambda client: -self._losses.get(client, math.inf))[:count]

    def _draw(self, clients: Sequence[int], rng: np.random.Generator) -> list[int]:
        """The candidates, in the order in which they were drawn."""
        if self._candidates.listed is not None:
            number = self._choices - 1
            if number >= len(self._candidates.listed):
                raise ValueError(
                    f"candidates lists {number} choices, but the run makes more; list one for each "
                    "choice, or write a number of candidates to draw"
                )
            return [each for each in self._candidates.listed[number] if each in set(clients)]
        assert self._candidates.count is not None
        weights = self._sizes[clients]
        size = min(self._candidates.count, len(clients))
        drawn: list[int] = rng.choice(
            clients, size, replace=False, p=weights / weights.sum()
        ).tolist()
        return drawn


def metric_name(name: object) -> str:
    """Check the argument `metric`.

    Raises:
        TypeError: It is not a string, or an empty one.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(
            "metric must be the name under which training_step logs the loss, such as "
            f'"train_loss", got {brief(name)}'
        )
    return name
