"""AREA: clients report how they have changed since their own last report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlight._support.checks import one_of, positive_int
from fedlight.aggregators._client_memory import ClientMemory
from fedlight.aggregators._server_step import pulled
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import Federation, ServerState


class AREA(BufferedAggregator):
    """x <- x + (1/M) * sum of (y_i - s_i) over m updates; then s_i <- y_i.

    y_i = x_p + delta_i is the client's model after its local run, and s_i is the model that it sent
    last, x_0 at first. The divisor is M, not m, so x stays the mean of all s_i, and fast clients
    count no more than slow ones. There is no server rate, because it would break this property. If
    the buffer holds two updates of one client, both changes count, each relative to the previous
    report.

    The server stores s_i - x_0 for the clients. Readings: a client pulls after the step that its
    own update may have caused; and for the mean of all f_i, all clients use the same local rate
    (for importances p_i, use ``lr * M * p_i``).

    Args:
        buffer_size: m.
        memory_device: Where the s_i are stored: "model" for the model's device, or "cpu".

    Raises:
        TypeError: An argument is of another kind.
        ValueError: An argument is outside its range.

    Source: Iakovidou, Kim, Asynchronous Federated Stochastic Optimization for Heterogeneous
    Objectives Under Arbitrary Delays, 2024, https://arxiv.org/abs/2405.10123; the rule is checked
    against public code, not against the paper's listing.

    Example:
        >>> AREA(buffer_size=3)
        AREA(buffer_size=3, memory_device='model')
    """

    def __init__(self, buffer_size: int, memory_device: str = "model") -> None:
        super().__init__(positive_int("buffer_size", buffer_size))
        self.memory_device = one_of("memory_device", memory_device, ("model", "cpu"))

    def start(self, federation: Federation, state: ServerState) -> None:
        """s_i = x_0 for every client."""
        self.first = state.params.clone()
        self.sent = ClientMemory(federation.num_clients, state.params, self.memory_device)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1/M."""
        return [1 / self.federation.num_clients] * len(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """(1/M) * sum of y_i - s_i; the changes of a client with two updates add up."""
        latest = {update.client_id: update for update in updates}
        starts = [pulled(update, "AREA sums up models and").params for update in latest.values()]
        news = [
            update.delta + (start - self.first)
            for update, start in zip(latest.values(), starts, strict=True)
        ]
        return self.sent.replace(list(latest), news) / self.federation.num_clients
