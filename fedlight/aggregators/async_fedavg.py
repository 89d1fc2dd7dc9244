"""Asynchronous FedAvg: the server steps along each client's delta as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedlight.aggregators.base import Aggregator
from fedlight.aggregators.client_times import ClientTimes
from fedlight.aggregators.server import (
    OptimizerFactory,
    ServerStep,
    UpdateBuffer,
    check_client_weights,
    client_importance,
)
from fedlight.checks import one_of
from fedlight.types import UsedUpdate

if TYPE_CHECKING:
    from fedlight.checks import Rate
    from fedlight.types import ClientUpdate, Federation, ServerState


class AsyncFedAvg(Aggregator):
    """x <- x + eta * d_i * delta_i, after every update.

    "identical": d_i = 1, which pulls the model toward the fast clients. "time_based":
    ``d_i = (sum over all j of 1/T_j) * T_i * p_i``, which does not: slow clients come less often
    and weigh more. T_i, compute plus communication time, is what the arrival process states;
    where it does not, the mean over the client's tasks so far, and clients that were never seen
    are taken to be like the average of those seen (so the very first update has d_i = M * p_i).

    Args:
        weights: "time_based" or "identical".
        client_weights: p_i of "time_based": "uniform" for 1/M, "examples" for n_i / sum of n.
            Without effect on "identical", whose d_i is 1 for every client.
        server_lr: eta.
        server_optimizer: A function of parameters giving an optimizer, in place of `server_lr`.

    Raises:
        ValueError: An argument is outside its range.

    Source: the FedFix paper (Fraboni et al.), Section 4.3, equation (12); Section 5 for IDENTICAL.

    Example:
        >>> AsyncFedAvg("identical")
        AsyncFedAvg(weights='identical', client_weights='uniform')
    """

    def __init__(
        self,
        weights: str = "time_based",
        client_weights: str = "uniform",
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        self.weights = one_of("weights", weights, ("time_based", "identical"))
        self.client_weights = check_client_weights(client_weights)
        self.server = ServerStep(server_lr, server_optimizer)
        self.buffer = UpdateBuffer(1)
        self.times = ClientTimes()

    def setup(self, federation: Federation, state: ServerState) -> None:
        """Take p_i, and T_i where it is known."""
        self.buffer.clear()
        self.server.setup(state)
        self.times.setup(federation)
        self.importance = client_importance(self.client_weights, federation)

    def receive(self, update: ClientUpdate) -> bool:
        """Each update is used at once."""
        return self.buffer.add(update)

    def step(self, state: ServerState) -> ServerState:
        """Equation (5) with the one client that has come."""
        (update,) = self.buffer.drain()
        weight = 1.0
        if self.weights == "time_based":
            self.times.observe(update.task)
            weight = self.times.share(update.client_id) * float(self.importance[update.client_id])
        return self.server(state, update.delta * weight, [UsedUpdate(update, weight)])

    def state_dict(self) -> dict[str, Any]:
        """The durations seen and the server optimizer's state."""
        return {"server": self.server.state_dict(), "times": self.times.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the durations seen and the server optimizer's state."""
        self.server.load_state_dict(state["server"])
        self.times.load_state_dict(state["times"])

    def __repr__(self) -> str:
        return (
            f"AsyncFedAvg(weights={self.weights!r}, client_weights={self.client_weights!r}"
            f"{self.server})"
        )
