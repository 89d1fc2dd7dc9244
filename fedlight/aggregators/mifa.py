"""MIFA: the server steps along the mean of every client's latest update, however old it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlight._support.checks import Rate, one_of
from fedlight.aggregators._client_memory import ClientMemory
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import Federation, ServerState


class MIFA(BufferedAggregator):
    """h_i <- delta_i for each arrival; then x <- x + eta * (1/M) * sum over all h_i.

    Readings: the server steps from the first buffer on, h_i = 0 before a client's first update, and
    the divisor is always M (in the paper's analysis every client responds in the first round). The
    memory holds delta_i, not the gradient ``-delta_i / lr``, which is equivalent as long as the
    clients' rate is constant. If the buffer holds two updates of one client, the memory keeps the
    later one, and the earlier one has weight 0.

    With a buffer of one this is ACE. `AFACS` is the same rule with ``delta_i / K_i``.

    Args:
        buffer_size: m, the number of updates per step; None to step when the process's round ends.
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.
        memory_device: Where the memory is stored: "model" for the model's device, or "cpu".

    Raises:
        ValueError: An argument is outside its range.

    Source: Gu, Huang, Zhang, Huang, Fast Federated Learning in the Presence of Arbitrary Device
    Unavailability, NeurIPS 2021, https://arxiv.org/abs/2106.04159. ACE: Chang et al., 2025,
    https://arxiv.org/abs/2511.19066.

    Example:
        >>> MIFA()
        MIFA(buffer_size=1, memory_device='model')
    """

    remembers = True

    def __init__(
        self,
        buffer_size: int | None = 1,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
        memory_device: str = "model",
    ) -> None:
        super().__init__(buffer_size, server_lr, server_optimizer)
        self.memory_device = one_of("memory_device", memory_device, ("model", "cpu"))

    def start(self, federation: Federation, state: ServerState) -> None:
        """The memory of every client is zero."""
        self.memory = ClientMemory(federation.num_clients, state.params, self.memory_device)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1/M for each client's latest update."""
        return self.memory.shares(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """The mean of the memory, including the new updates."""
        self.memory.remember(updates)  # first: the mean includes the updates of this step
        return self.memory.mean()
