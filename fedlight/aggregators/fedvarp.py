"""FedVARP and FedStale: stored updates of all clients correct the updates that have arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlight._support.checks import Rate, fraction, one_of
from fedlight.aggregators._client_memory import ClientMemory
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import Federation, ServerState


class FedVARP(BufferedAggregator):
    """x <- x + eta * (beta * h + (1/m) * sum of (delta_i - beta * h_i)); then h_i <- delta_i.

    h_i is the previous update of client i and h is the mean of all h_i over the M clients, both
    from before the step. beta = 1 is FedVARP, 0 < beta < 1 is FedStale, and beta = 0 averages
    without memory. `CA2FL` is beta = 1 with a buffer of asynchronous updates.

    Readings: h_i = 0 before a client's first update, and the divisor is M from the start. If the
    buffer holds two updates of one client, both are corrected by the same h_i, and the later one is
    remembered. Updates have equal weights; FedStale's general weights are equal for uniform
    importance and participation.

    Args:
        buffer_size: m, the number of updates per step; None to step when the process's round ends.
        beta: The factor of the memory, in [0, 1].
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.
        memory_device: Where the memory is stored: "model" for the model's device, or "cpu".

    Raises:
        ValueError: An argument is outside its range.

    Source: Jhunjhunwala, Sharma, Nagarkatti, Joshi, FedVARP: Tackling the Variance Due to Partial
    Client Participation in Federated Learning, UAI 2022, https://arxiv.org/abs/2207.14130; Rodio,
    Neglia, FedStale: Leveraging Stale Client Updates in Federated Learning, ECAI 2024,
    https://arxiv.org/abs/2405.04171.

    Example:
        >>> FedVARP(buffer_size=5, beta=0.5)
        FedVARP(buffer_size=5, beta=0.5, memory_device='model')
    """

    def __init__(
        self,
        buffer_size: int | None = None,
        beta: float = 1.0,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
        memory_device: str = "model",
    ) -> None:
        super().__init__(buffer_size, server_lr, server_optimizer)
        self.beta = fraction("beta", beta)
        # At beta = 1 an update counts until the client's next one takes its place.
        self.remembers = self.beta == 1
        self.memory_device = one_of("memory_device", memory_device, ("model", "cpu"))

    def start(self, federation: Federation, state: ServerState) -> None:
        """The memory of every client is zero."""
        self.memory = ClientMemory(federation.num_clients, state.params, self.memory_device)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1/m."""
        return [1 / len(updates)] * len(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """The mean of the updates, corrected by the memory, which then stores them."""
        return self.memory.corrected(updates, weights, self.beta)
