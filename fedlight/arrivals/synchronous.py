"""The classical barrier: the round ends with its slowest client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedlight._checks import positive_int
from fedlight.arrivals.base import Action, ArrivalProcess, Dispatch, EndRound, Wake
from fedlight.arrivals.durations import DurationModel, as_durations
from fedlight.arrivals.local_steps import LocalEpochs, LocalSteps, as_local_steps
from fedlight.randomness import Concern, stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation


class SynchronousArrivals(ArrivalProcess):
    """In each round m clients pull the newest model; the round ends when the last one arrives.

    ``length of a round = max of T_i over its m clients``, T_i the duration of client i's task.

    Args:
        per_round: m, the clients of a round, drawn uniformly without replacement; None for all.
        durations: How long a task takes; None for one unit of virtual time.
        local_steps: Policy for K, the number of local steps of a task, or a number of steps.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: `per_round` is below 1.

    Source: McMahan et al., [Communication-Efficient Learning of Deep Networks from Decentralized
    Data](https://arxiv.org/abs/1602.05629), Algorithm 1; with durations, Fraboni et al., [the
    FedFix paper](https://arxiv.org/abs/2206.10189), Section 4.2.
    """

    by_rounds = True

    def __init__(
        self,
        per_round: int | None = None,
        durations: DurationModel | None = None,
        local_steps: LocalSteps | int = LocalEpochs(1),
    ) -> None:
        self.per_round = None if per_round is None else positive_int("per_round", per_round)
        self.durations = None if durations is None else as_durations(durations)
        self.local_steps = as_local_steps(local_steps)

    def setup(self, federation: Federation) -> None:
        """Start at round 0.

        Raises:
            ValueError: There are fewer clients than `per_round`, or the durations or steps do
                not fit the federation.
        """
        if self.per_round is not None and self.per_round > federation.num_clients:
            raise ValueError(
                f"per_round={self.per_round} is more than the {federation.num_clients} clients; "
                f"write per_round={federation.num_clients} or less"
            )
        self.local_steps.check(federation)
        if self.durations is not None:
            self.durations.check(federation)
        self._federation = federation
        self._round = 0

    def on_wake(self, now: float) -> Iterator[Action]:
        """Start a round: its tasks and its end."""
        # A stream for each concern and round: the clients drawn do not change with the durations.
        federation, seed = self._federation, self._federation.seed
        clients = range(federation.num_clients)
        if self.per_round is not None:
            clients = (
                stream(seed, Concern.PARTICIPANTS, self._round)
                .choice(federation.num_clients, size=self.per_round, replace=False)
                .tolist()
            )
        steps = stream(seed, Concern.STEPS, self._round)
        durations = stream(seed, Concern.DURATIONS, self._round)
        slowest = 0.0
        for client in clients:
            num_steps = self.local_steps.draw(steps, client, federation)
            duration = 1.0
            if self.durations is not None:
                duration = self.durations.draw(durations, client, num_steps, federation, now)
            slowest = max(slowest, duration)
            yield Dispatch(client, duration, num_steps)
        self._round += 1
        yield EndRound(delay=slowest)
        yield Wake(delay=slowest)

    def expected_durations(self) -> NDArray[np.float64] | None:
        """T_i of the duration model."""
        if self.durations is None:
            return np.ones(self._federation.num_clients)
        return self.durations.expected(
            self._federation, self.local_steps.expected(self._federation)
        )

    def state_dict(self) -> dict[str, int]:
        """The next round."""
        return {"round": self._round}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue with the round that `state_dict` gave."""
        self._round = state["round"]

    def __repr__(self) -> str:
        return (
            f"SynchronousArrivals(per_round={self.per_round}, durations={self.durations}, "
            f"local_steps={self.local_steps})"
        )
