"""Power-of-choice: of some candidates, the clients with the largest losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedlight._support.checks import positive_int
from fedlight._support.strategy import brief
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
        candidates: d, at least m; if fewer clients are free, all of them are candidates.
        metric: The name under which ``training_step`` logs the loss.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: `candidates` is below 1, or (during the run) fewer than the clients to choose.

    Source: Cho, Wang and Joshi, [Client Selection in Federated Learning: Convergence Analysis and
    Power-of-Choice Selection Strategies](https://arxiv.org/abs/2010.01243), Section 3.

    Example:
        >>> from fedlight.arrivals import SynchronousArrivals
        >>> PowerOfChoice(SynchronousArrivals(per_round=2, local_steps=5), candidates=6).candidates
        6
    """

    _saved_attributes = ("_losses",)

    def __init__(
        self, arrivals: ArrivalProcess, candidates: int, metric: str = "train_loss"
    ) -> None:
        super().__init__(arrivals)
        self.candidates = positive_int("candidates", candidates)
        self.metric = metric_name(metric)

    def setup(self, federation: Federation) -> None:
        """Start with unknown losses."""
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
        if self.candidates < count:
            raise ValueError(
                f"candidates={self.candidates} is fewer than the {count} clients to choose; write "
                f"candidates={count} or more"
            )
        weights = self._sizes[clients]
        size = min(self.candidates, len(clients))
        drawn = rng.choice(clients, size, replace=False, p=weights / weights.sum()).tolist()
        # Stable: of equal losses, the one drawn first.
        return sorted(drawn, key=lambda client: -self._losses.get(client, math.inf))[:count]


def metric_name(name: object) -> str:
    """Check the argument `metric`.

    Raises:
        TypeError: It is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(
            "metric must be the name under which training_step logs the loss, such as "
            f'"train_loss", got {brief(name)}'
        )
    return name
