"""Arrivals by rounds: which clients arrive in a round, and how old their models are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedlight._support.checks import non_negative, non_negative_int, positive_int
from fedlight.arrivals._cohorts import Cohorts, Participants
from fedlight.arrivals._per_client import check_length, one_for_each
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, EndRound, Wake
from fedlight.arrivals.local_steps import LocalEpochs, LocalSteps, as_local_steps
from fedlight.randomness import Concern, stream

if TYPE_CHECKING:
    from fedlight.types import Federation


class Participant(NamedTuple):
    """A client that arrives in a round: its model's age in rounds, and its local steps."""

    client_id: int
    age: int
    num_steps: int


class StaleRounds(ArrivalProcess):
    """Draws the clients of each round and dispatches them early enough to be stale.

    A client that arrives at the end of round t with a model of age a is dispatched at the start of
    round t - a: it then pulls the version of that round, and its work can be computed together with
    all other work in flight. Hence rounds are drawn `max_staleness` rounds ahead. A round lasts one
    unit of virtual time.

    The clients, ages and steps of each round come from streams of their own (seed, concern, round).
    The same clients are drawn with and without staleness, and a resumed run needs only the number
    of the round: the rounds ahead are drawn again.
    """

    by_rounds = True
    _saved_attributes = ("_round",)

    def __init__(
        self,
        per_round: Cohorts,
        max_staleness: int = 0,
        local_steps: LocalSteps | int = LocalEpochs(num_epochs=1),
    ) -> None:
        self._participants = Participants("per_round", per_round)
        self.per_round = self._participants.given
        self.max_staleness = non_negative_int("max_staleness", max_staleness)
        self.local_steps = as_local_steps(local_steps)
        self.finite = self._participants.rounds is not None

    def setup(self, federation: Federation) -> None:
        """Start at round 0.

        Raises:
            ValueError: There are fewer clients than `per_round`, or the steps do not fit.
        """
        self._participants.check(federation)
        self.local_steps.check(federation)
        self._federation = federation
        self._ahead: dict[int, list[Participant]] = {}
        self._round = 0

    def _clients_of(self, round_: int) -> list[int]:
        """Return the clients of a round, a function of only the seed and the round."""
        return self._participants.of_round(round_, self._federation)

    def _draw(self, round_: int) -> list[Participant]:
        """Return the clients that arrive in a round, a function of only the seed and the round."""
        clients, seed = self._clients_of(round_), self._federation.seed
        # In round t there are only t + 1 versions to pull, so no model can be older.
        ages = self._ages(round_, min(self.max_staleness, round_), len(clients))
        steps = stream(seed, Concern.STEPS, round_)
        return [
            Participant(client, age, self.local_steps.draw(steps, client, self._federation))
            for client, age in zip(clients, ages, strict=True)
        ]

    def _ages(self, round_: int, most: int, count: int) -> list[int]:
        """Return the ages of the models with which clients arrive in a round."""
        rng = stream(self._federation.seed, Concern.AGES, round_)
        ages: list[int] = rng.integers(0, most + 1, size=count).tolist()
        return ages

    def on_wake(self, now: float) -> Iterator[Action]:
        """Start the tasks of this round, and announce its end."""
        this, rounds = self._round, self._participants.rounds
        if this == rounds:
            return
        end = this + self.max_staleness + 1
        # A client that arrives in a later round with an old model may start now.
        for round_ in range(this, end if rounds is None else min(end, rounds)):
            if round_ not in self._ahead:
                self._ahead[round_] = self._draw(round_)
            for client_id, age, num_steps in self._ahead[round_]:
                if round_ - age == this:
                    yield Dispatch(client_id, duration=1.0 + age, num_steps=num_steps)
        del self._ahead[this]
        self._round += 1
        yield EndRound(delay=1.0)
        yield Wake(delay=1.0)


class UniformArrivals(StaleRounds):
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

    # Not inherited, so that errors about missing arguments name this class.
    def __init__(
        self,
        per_round: Cohorts,
        max_staleness: int = 0,
        local_steps: LocalSteps | int = LocalEpochs(num_epochs=1),
    ) -> None:
        super().__init__(per_round, max_staleness, local_steps)


class BiasedArrivals(StaleRounds):
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

    def __init__(
        self,
        per_round: int,
        probabilities: Sequence[float],
        max_staleness: int = 0,
        local_steps: LocalSteps | int = LocalEpochs(num_epochs=1),
    ) -> None:
        positive_int("per_round", per_round)  # a list of clients leaves nothing to draw
        super().__init__(per_round, max_staleness, local_steps)
        weights = np.array(one_for_each("probabilities", probabilities, non_negative))
        if abs(weights.sum() - 1) > 1e-6:
            raise ValueError(f"probabilities must sum to 1, got a sum of {weights.sum():.6g}")
        drawable = int(np.count_nonzero(weights))
        if drawable < per_round:
            raise ValueError(
                f"probabilities leave only {drawable} clients that can be drawn, "
                f"fewer than per_round={per_round}"
            )
        self.probabilities: list[float] = (weights / weights.sum()).tolist()

    def setup(self, federation: Federation) -> None:
        """Start at round 0.

        Raises:
            ValueError: There is not one probability for each client, or the steps do not fit.
        """
        check_length("probabilities", self.probabilities, federation)
        super().setup(federation)

    def _clients_of(self, round_: int) -> list[int]:
        """Draw the clients by their probabilities."""
        rng = stream(self._federation.seed, Concern.PARTICIPANTS, round_)
        clients, count = self._federation.num_clients, self._participants.count
        drawn: list[int] = rng.choice(clients, count, replace=False, p=self.probabilities).tolist()
        return drawn


class ConstantStaleness(StaleRounds):
    """In each round m clients arrive, all with a model that is tau rounds old.

    ``staleness = min(t, tau)`` of every update that arrives in round t.

    A pipeline: the clients that start with version t arrive tau + 1 rounds later, so that
    ``(tau + 1) * m`` clients are at work. They come in a random order that is repeated, so all
    clients arrive equally often, and none has two tasks at a time. The server makes one version in
    each round: at its end, or with a buffer of m updates.

    Args:
        tau: The staleness; 0 is the synchronous case.
        per_round: m, the number of clients per round.
        local_steps: Policy for K, the number of local steps of a task, or a number of steps.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: `per_round` is below 1 or `tau` below 0.

    Source: the fixed delay of Arjevani, Shamir, Srebro, [A Tight Convergence Analysis for
    Stochastic Gradient Descent with Delayed Updates](https://arxiv.org/abs/1806.10188), ALT 2020.

    Example:
        >>> table = ConstantStaleness(tau=2, local_steps=3).simulate(num_clients=3, max_rounds=5)
        >>> [(event.pulled_version, event.time) for event in table.events]
        [(0, 1.0), (0, 2.0), (0, 3.0), (1, 4.0), (2, 5.0)]
    """

    def __init__(
        self,
        tau: int,
        per_round: int = 1,
        local_steps: LocalSteps | int = LocalEpochs(num_epochs=1),
    ) -> None:
        self.tau = non_negative_int("tau", tau)
        super().__init__(positive_int("per_round", per_round), self.tau, local_steps)
        self._count = positive_int("per_round", per_round)

    def setup(self, federation: Federation) -> None:
        """Start at round 0, and draw the order of the clients.

        Raises:
            ValueError: There are fewer clients than work at a time, or the steps do not fit.
        """
        needed, clients = (self.tau + 1) * self._count, federation.num_clients
        if clients < needed:
            raise ValueError(
                f"tau={self.tau} and per_round={self._count} need (tau + 1) * per_round = "
                f"{needed} clients, since so many work at a time, but there are {clients}; take "
                f"tau={max(clients // self._count - 1, 0)}, or fewer clients per round"
            )
        super().setup(federation)
        order = stream(federation.seed, Concern.PARTICIPANTS).permutation(clients)
        self._order: list[int] = order.tolist()

    def _clients_of(self, round_: int) -> list[int]:
        first, clients = round_ * self._count, len(self._order)
        return [self._order[(first + place) % clients] for place in range(self._count)]

    def _ages(self, round_: int, most: int, count: int) -> list[int]:
        return [most] * count
