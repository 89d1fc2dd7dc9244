"""Arrivals by rounds: which clients arrive in a round, and how old their models are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedlight._support.arguments import arguments
from fedlight._support.checks import number, positive_int
from fedlight.arrivals._cohorts import Cohorts
from fedlight.arrivals._per_client import check_length, one_for_each
from fedlight.arrivals._stale_rounds import StaleRounds
from fedlight.arrivals.base import Action, ArrivalProcess
from fedlight.arrivals.local_steps import LocalEpochs, LocalSteps
from fedlight.types import Federation


class UniformArrivals(ArrivalProcess):
    """In each round m of M clients arrive, drawn uniformly without replacement.

    ``age ~ Uniform{0, ..., min(max_staleness, t)}`` for each client that arrives in round t: it
    started from the model that was the latest one `age` rounds ago.

    The paper's "last recent five models" correspond to ``max_staleness=4``.

    Args:
        per_round: m, the number of clients per round; or a list of clients for each round, after
            which the process ends.
        max_staleness: Largest age of a model in rounds; 0 is the synchronous case.
        local_steps: Policy for K, the number of local steps of a task, or a number of steps.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: `per_round` is below 1 or `max_staleness` below 0.

    Source: Yang et al., [Anarchic Federated Learning](https://arxiv.org/abs/2108.09875), Appendix
    E.1.

    Example:
        >>> table = UniformArrivals(per_round=2, max_staleness=1, local_steps=3).simulate(
        ...     num_clients=4, max_rounds=2
        ... )
        >>> len(table.events), table.round_ends
        (4, [1.0, 2.0])
    """

    by_rounds = True

    def __init__(
        self,
        per_round: Cohorts,
        max_staleness: int = 0,
        local_steps: LocalSteps | int = LocalEpochs(1),
    ) -> None:
        self._rounds = StaleRounds(per_round, max_staleness, local_steps)
        self.finite = self._rounds.who.rounds is not None

    def setup(self, federation: Federation) -> None:
        """Start at round 0.

        Raises:
            ValueError: There are fewer clients than `per_round`.
        """
        self._rounds.setup(federation)

    def on_wake(self, now: float) -> Iterator[Action]:
        """Start the tasks of this round, and announce its end."""
        return self._rounds.actions()

    def state_dict(self) -> dict[str, int]:
        """The present round."""
        return {"round": self._rounds.round}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue with the round that `state_dict` gave."""
        self._rounds.round = state["round"]

    def _other_arguments(self) -> dict[str, Any]:
        return arguments(self._rounds)


class BiasedArrivals(ArrivalProcess):
    """In each round m of M clients arrive, drawn without replacement by given weights.

    ``P(next is i) = p_i / (sum of p_j over the clients j not drawn yet)``

    The m clients of a round are drawn one after the other. Ages of models are as in
    `UniformArrivals`.

    Args:
        per_round: m, the number of clients per round.
        probabilities: p_i, the weight of each of the M clients; they must sum to 1.
        max_staleness: Largest age of a model in rounds; 0 is the synchronous case.
        local_steps: Policy for K, the number of local steps of a task, or a number of steps.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: The probabilities are negative, do not sum to 1, or leave fewer than `per_round`
            clients that can be drawn.

    Source: Yang et al., [Anarchic Federated Learning](https://arxiv.org/abs/2108.09875), Appendix
    E.1; its weights for ten clients are 0.19, 0.19, six times 0.1, 0.01, 0.01.
    """

    by_rounds = True

    def __init__(
        self,
        per_round: int,
        probabilities: Sequence[float],
        max_staleness: int = 0,
        local_steps: LocalSteps | int = LocalEpochs(1),
    ) -> None:
        positive_int("per_round", per_round)
        self._rounds = StaleRounds(per_round, max_staleness, local_steps)
        weights = np.array(one_for_each("probabilities", probabilities, _weight))
        if abs(weights.sum() - 1) > 1e-6:
            raise ValueError(f"probabilities must sum to 1, got a sum of {weights.sum():.6g}")
        drawable = int(np.count_nonzero(weights))
        if drawable < per_round:
            raise ValueError(
                f"probabilities leave only {drawable} clients that can be drawn, "
                f"fewer than per_round={per_round}"
            )
        self._probabilities = weights / weights.sum()

    def setup(self, federation: Federation) -> None:
        """Start at round 0.

        Raises:
            ValueError: There is not one probability for each client.
        """
        check_length("probabilities", self._probabilities, federation)
        self._rounds.setup(federation, self._probabilities)

    def on_wake(self, now: float) -> Iterator[Action]:
        """Start the tasks of this round, and announce its end."""
        return self._rounds.actions()

    def state_dict(self) -> dict[str, int]:
        """The present round."""
        return {"round": self._rounds.round}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue with the round that `state_dict` gave."""
        self._rounds.round = state["round"]

    def _other_arguments(self) -> dict[str, Any]:
        return {**arguments(self._rounds), "probabilities": self._probabilities.tolist()}


def _weight(name: str, value: object) -> float:
    weight = number(name, value)
    if weight < 0:
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
    return weight
