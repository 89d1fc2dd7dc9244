"""MindFlayer SGD and Vecna SGD: the sum of what came in time, over the number expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from fedlight._support.checks import Rate, fraction, non_negative_int, one_of
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates
from fedlight.arrivals._per_client import check_length, one_for_all_or_each, spread_out

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlight.types import Federation, ServerState

T = TypeVar("T")


class MindFlayer(BufferedAggregator):
    """x <- x + eta * (1/B) * sum of the deltas of the round, B = sum over i of p_i * B_i.

    Client i makes B_i trials in a round, of which each succeeds with the probability p_i
    (`fedlight.arrivals.TrialRounds`), so B is the expected number of deltas. If the data of the
    clients differ, ``equal="clients"`` is Vecna SGD, in which all M clients count the same. The
    weight of a delta::

        equal = "trials":   1 / B                    MindFlayer
        equal = "clients":  1 / (M * p_i * B_i)      Vecna

    A round without a success leaves the model as it is. Reading: with ``divisor="received"``,
    numbers of deltas that have come take the place of the expected ones: the step is a mean.

    Args:
        trials: B_i, for all clients or for each.
        probabilities: p_i, for all clients or for each: P(duration <= t_i).
        equal: "trials" or "clients".
        divisor: "expected", as in the paper, or "received".
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range; or (at the start of a run) there is not one
            number for each client, or no delta is to be expected, from one client if all count the
            same.

    Source: Maranjyan, Shaikh Omar, Richtárik, MindFlayer SGD: Efficient Parallel SGD in the
    Presence of Heterogeneous and Random Worker Compute Times, UAI 2025,
    https://arxiv.org/abs/2410.04285.

    Example:
        >>> MindFlayer(trials=4, probabilities=[0.9, 0.5])
        MindFlayer(trials=4, probabilities=(0.9, 0.5), equal='trials', divisor='expected')
    """

    def __init__(
        self,
        trials: int | Sequence[int],
        probabilities: float | Sequence[float],
        equal: str = "trials",
        divisor: str = "expected",
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__(None, server_lr, server_optimizer)
        self.trials = _fixed(one_for_all_or_each("trials", trials, non_negative_int))
        self.probabilities = _fixed(one_for_all_or_each("probabilities", probabilities, fraction))
        self.equal = one_of("equal", equal, ("trials", "clients"))
        self.divisor = one_of("divisor", divisor, ("expected", "received"))

    def start(self, federation: Federation, state: ServerState) -> None:
        """Compute p_i * B_i."""
        check_length("trials", self.trials, federation)
        check_length("probabilities", self.probabilities, federation)
        each = spread_out(self.trials, federation) * spread_out(self.probabilities, federation)
        self.expected: NDArray[np.float64] = each
        if not (each.all() if self.equal == "clients" else each.any()):
            who = "every client" if self.equal == "clients" else "at least one client"
            raise ValueError(
                f"trials * probabilities must be above 0 for {who}, got trials={self.trials} and "
                f"probabilities={self.probabilities}"
            )

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1 / B, or 1 / (M * p_i * B_i)."""
        counts = self.expected
        if self.divisor == "received":
            who = [update.client_id for update in updates]
            counts = np.bincount(who, minlength=len(counts)).astype(np.float64)
        if self.equal == "trials":
            return [float(1 / counts.sum())] * len(updates)
        return [float(1 / (len(counts) * counts[update.client_id])) for update in updates]


def _fixed(value: T | list[T]) -> T | tuple[T, ...]:
    """A setting that cannot change in place."""
    return tuple(value) if isinstance(value, list) else value
