"""AFA-CS: anarchic federated averaging that remembers each client's last update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlight.aggregators.mifa import MIFA

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight._support.checks import Rate
    from fedlight.aggregators._server_step import OptimizerFactory
    from fedlight.aggregators.buffered import Updates
    from fedlight.types import ServerState


class AFACS(MIFA):  # with another default and another form of an update
    """memory_i <- delta_i / K_i for each arrival; then x <- x + eta * (1/M) * sum over all memory.

    The memory of all M clients starts at zero and the divisor is M from the first round on (a
    reading). If the buffer holds two updates of one client, the memory keeps the later one, and the
    earlier one has weight 0. The memory takes P numbers for each client that has arrived. A step
    costs m * P, since only the changes are added to the sum.

    Args:
        buffer_size: m, the number of updates per step; None to step when the process's round ends.
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.
        memory_device: Where the memory is stored: "model" for the model's device, or "cpu", which
            saves GPU memory but transfers 2 * m * P numbers per step.

    Raises:
        ValueError: An argument is outside its range.

    Source: Yang et al., Anarchic Federated Learning, 2022, Algorithm 3 (AFA-CS),
    https://arxiv.org/abs/2108.09875.

    Example:
        >>> AFACS(buffer_size=5, memory_device="cpu")
        AFACS(buffer_size=5, memory_device='cpu')
    """

    def __init__(
        self,
        buffer_size: int | None = None,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
        memory_device: str = "model",
    ) -> None:
        super().__init__(buffer_size, server_lr, server_optimizer, memory_device)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """Lines 2 and 3: update the memory, then take the mean over all clients."""
        latest = {update.client_id: update for update in updates}
        news = [update.delta / max(1, update.num_steps) for update in latest.values()]
        self.memory.replace(list(latest), news)
        return self.memory.mean()
