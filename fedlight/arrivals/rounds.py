"""Arrivals by rounds: who takes part in a round, and how old the model is that each one used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, EndRound, Wake
from fedlight.arrivals.local_steps import LocalEpochs, LocalSteps, as_local_steps
from fedlight.checks import non_negative_int, positive_int
from fedlight.randomness import Concern, stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation


class Participant(NamedTuple):
    """A client that arrives in a round: its model's age in rounds and its number of steps."""

    client_id: int
    age: int
    num_steps: int


class StaleRounds:
    """Draws round after round and spreads it over time.

    The client that arrives at the end of round t with age a is dispatched at the start of round
    t - a, so rounds are drawn `max_staleness` rounds ahead. A round lasts one unit of virtual time.
    Each round is drawn from streams of its own: participants, ages and steps do not depend on one
    another, so the same clients come with and without staleness.
    """

    def __init__(self, per_round: int, max_staleness: int, local_steps: LocalSteps | int) -> None:
        self.per_round = positive_int("per_round", per_round)
        self.max_staleness = non_negative_int("max_staleness", max_staleness)
        self.local_steps = as_local_steps(local_steps)

    def setup(
        self, federation: Federation, probabilities: NDArray[np.float64] | None = None
    ) -> None:
        """Start at round 0 with `probabilities` of being drawn, or with even ones."""
        if self.per_round > federation.num_clients:
            raise ValueError(
                f"per_round={self.per_round} is more than the {federation.num_clients} clients; "
                f"write per_round={federation.num_clients} or less"
            )
        self.local_steps.check(federation)
        self._federation = federation
        self._probabilities = probabilities
        self._ahead: dict[int, list[Participant]] = {}
        self.round = 0

    def draw(self, round_: int) -> list[Participant]:
        """Who arrives at the end of a round; a function of the seed and the round alone."""
        federation, seed = self._federation, self._federation.seed
        clients = stream(seed, Concern.PARTICIPANTS, round_).choice(
            federation.num_clients, size=self.per_round, replace=False, p=self._probabilities
        )
        ages = stream(seed, Concern.AGES, round_).integers(
            0, min(self.max_staleness, round_) + 1, size=self.per_round
        )
        steps = stream(seed, Concern.STEPS, round_)
        return [
            Participant(client, age, self.local_steps.draw(steps, client, federation))
            for client, age in zip(clients.tolist(), ages.tolist(), strict=True)
        ]

    def actions(self) -> Iterator[Action]:
        """What begins with the present round; then goes on to the next one."""
        now = self.round
        for round_ in range(now, now + self.max_staleness + 1):
            if round_ not in self._ahead:
                self._ahead[round_] = self.draw(round_)
            for client_id, age, num_steps in self._ahead[round_]:
                if round_ - age == now:
                    yield Dispatch(client_id, duration=1.0 + age, num_steps=num_steps)
        del self._ahead[now]
        self.round += 1
        yield EndRound(delay=1.0)
        yield Wake(delay=1.0)


class UniformArrivals(ArrivalProcess):
    """In each round m of M clients arrive, drawn evenly without replacement.

    Each one worked from a model of age 0..max_staleness rounds, drawn evenly and limited by the
    rounds that there were ("each participated worker choose one global model from the last recent
    five models": max_staleness 4).

    Args:
        per_round: m, clients per round.
        max_staleness: Largest age in rounds; 0 is the synchronous case.
        local_steps: Policy for K, or a number of steps.

    Source: Anarchic Federated Learning, Appendix E.1.

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
        per_round: int,
        max_staleness: int = 0,
        local_steps: LocalSteps | int = LocalEpochs(1),
    ) -> None:
        self._rounds = StaleRounds(per_round, max_staleness, local_steps)

    def setup(self, federation: Federation) -> None:
        """Start at round 0.

        Raises:
            ValueError: There are fewer clients than `per_round`.
        """
        self._rounds.setup(federation)

    def on_wake(self, now: float) -> Iterator[Action]:
        """The tasks that start with this round, and its end."""
        return self._rounds.actions()

    def state_dict(self) -> dict[str, int]:
        """The present round."""
        return {"round": self._rounds.round}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on with the round that `state_dict` gave."""
        self._rounds.round = state["round"]

    def __repr__(self) -> str:
        rounds = self._rounds
        return (
            f"UniformArrivals(per_round={rounds.per_round}, "
            f"max_staleness={rounds.max_staleness}, local_steps={rounds.local_steps})"
        )


class BiasedArrivals(ArrivalProcess):
    """In each round m of M clients arrive, drawn without replacement by given weights.

    The clients are drawn one after the other, each with a chance in proportion to its weight among
    those not drawn yet.

    Args:
        per_round: m, clients per round.
        probabilities: Weight of each client, summing to 1.
        max_staleness: Largest age in rounds; 0 is the synchronous case.
        local_steps: Policy for K, or a number of steps.

    Raises:
        ValueError: The probabilities are negative, do not sum to 1, or leave fewer than `per_round`
            clients that can be drawn.

    Source: Anarchic Federated Learning, Appendix E.1 (its weights for ten clients are 0.19, 0.19,
    six times 0.1, 0.01, 0.01).
    """

    by_rounds = True

    def __init__(
        self,
        per_round: int,
        probabilities: Sequence[float],
        max_staleness: int = 0,
        local_steps: LocalSteps | int = LocalEpochs(1),
    ) -> None:
        self._rounds = StaleRounds(per_round, max_staleness, local_steps)
        weights = np.asarray(probabilities, dtype=np.float64)
        if weights.ndim != 1 or not len(weights):
            raise ValueError(f"probabilities must be a list of numbers, got {probabilities!r}")
        bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        if len(bad):
            raise ValueError(
                f"probabilities[{bad[0]}] must be a number of at least 0, got {weights[bad[0]]}"
            )
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
        if len(self._probabilities) != federation.num_clients:
            raise ValueError(
                f"probabilities has {len(self._probabilities)} numbers, "
                f"but there are {federation.num_clients} clients; give one for each"
            )
        self._rounds.setup(federation, self._probabilities)

    def on_wake(self, now: float) -> Iterator[Action]:
        """The tasks that start with this round, and its end."""
        return self._rounds.actions()

    def state_dict(self) -> dict[str, int]:
        """The present round."""
        return {"round": self._rounds.round}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on with the round that `state_dict` gave."""
        self._rounds.round = state["round"]

    def __repr__(self) -> str:
        rounds = self._rounds
        return (
            f"BiasedArrivals(per_round={rounds.per_round}, probabilities={self._probabilities}, "
            f"max_staleness={rounds.max_staleness}, local_steps={rounds.local_steps})"
        )
