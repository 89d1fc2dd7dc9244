"""Rounds of clients whose models are some rounds old, as events in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from fedlight._support.checks import non_negative_int
from fedlight.arrivals._cohorts import Cohorts, Participants
from fedlight.arrivals.base import Action, Dispatch, EndRound, Wake
from fedlight.arrivals.local_steps import LocalSteps, as_local_steps
from fedlight.randomness import Concern, stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.types import Federation


class Participant(NamedTuple):
    """A client that arrives in a round: its model's age in rounds, and its local steps."""

    client_id: int
    age: int
    num_steps: int


class StaleRounds:
    """Draws the clients of each round and dispatches them early enough to be stale.

    A client that arrives at the end of round t with a model of age a is dispatched at the start of
    round t - a: it then pulls the version of that round, and its work can be computed together with
    all other work in flight. Hence rounds are drawn `max_staleness` rounds ahead. A round lasts one
    unit of virtual time.

    The clients, ages and steps of each round come from streams of their own (seed, concern, round).
    The same clients come with and without staleness, and a resumed run needs the round's number
    only: the rounds ahead are drawn again.
    """

    def __init__(
        self, per_round: Cohorts, max_staleness: int, local_steps: LocalSteps | int
    ) -> None:
        self.who = Participants("per_round", per_round)
        self.per_round = self.who.given
        self.max_staleness = non_negative_int("max_staleness", max_staleness)
        self.local_steps = as_local_steps(local_steps)

    def setup(
        self, federation: Federation, probabilities: NDArray[np.float64] | None = None
    ) -> None:
        """Start at round 0.

        Args:
            federation: M clients.
            probabilities: Probability of each client to be drawn first, shape ``[M]``; None for
                equal ones.

        Raises:
            ValueError: There are fewer clients than `per_round`, or the steps do not fit.
        """
        self.who.check(federation)
        self.local_steps.check(federation)
        self._federation = federation
        self._probabilities = probabilities
        self._ahead: dict[int, list[Participant]] = {}
        self.round = 0

    def draw(self, round_: int) -> list[Participant]:
        """Return who arrives at the end of a round, a function of the seed and the round only."""
        federation, seed = self._federation, self._federation.seed
        if self._probabilities is None:
            clients = self.who.of_round(round_, federation)
        else:
            rng = stream(seed, Concern.PARTICIPANTS, round_)
            clients = rng.choice(
                federation.num_clients,
                size=self.who.count,
                replace=False,
                p=self._probabilities,
            ).tolist()
        # In round t there are only t + 1 versions to pull, so no model can be older.
        ages = stream(seed, Concern.AGES, round_).integers(
            0, min(self.max_staleness, round_) + 1, size=len(clients)
        )
        steps = stream(seed, Concern.STEPS, round_)
        return [
            Participant(client, age, self.local_steps.draw(steps, client, federation))
            for client, age in zip(clients, ages.tolist(), strict=True)
        ]

    def actions(self) -> Iterator[Action]:
        """Yield what starts with the present round, and move on to the next one."""
        now, rounds = self.round, self.who.rounds
        if now == rounds:
            return
        end = now + self.max_staleness + 1
        for round_ in range(now, end if rounds is None else min(end, rounds)):
            if round_ not in self._ahead:
                self._ahead[round_] = self.draw(round_)
            for client_id, age, num_steps in self._ahead[round_]:
                if round_ - age == now:
                    yield Dispatch(client_id, duration=1.0 + age, num_steps=num_steps)
        del self._ahead[now]
        self.round += 1
        yield EndRound(delay=1.0)
        yield Wake(delay=1.0)
