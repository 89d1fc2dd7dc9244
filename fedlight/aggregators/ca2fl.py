"""CA2FL: a buffer of asynchronous updates, calibrated by the cached updates of all clients."""

from __future__ import annotations

from fedlight._support.checks import Rate, positive_int
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.fedvarp import FedVARP


class CA2FL(FedVARP):  # with a constructor of its own and no other method
    """x <- x + eta * (h + (1/m) * sum of (delta_i - h_i)), after every m updates; h_i <- delta_i.

    h_i is the cached update of client i and h is the mean over all M clients, both from before the
    step. There is no factor for staleness. This is `FedVARP` with beta = 1 and asynchronous
    clients, with the same readings: h_i = 0 before a client's first update, the divisor is M from
    the start, and two updates of one client are corrected by the same h_i.

    Args:
        buffer_size: m.
        server_lr: eta.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.
        memory_device: Where the cache is stored: "model" for the model's device, or "cpu".

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Wang, Cao, Wu, Chen, Chen, Tackling the Data Heterogeneity in Asynchronous Federated
    Learning with Cached Update Calibration, ICLR 2024,
    https://openreview.net/forum?id=4aywmeb97I.

    Example:
        >>> CA2FL(buffer_size=10)
        CA2FL(buffer_size=10, memory_device='model')
    """

    def __init__(
        self,
        buffer_size: int,
        server_lr: Rate = 1.0,
        server_optimizer: OptimizerFactory | None = None,
        memory_device: str = "model",
    ) -> None:
        positive_int("buffer_size", buffer_size)  # None stands for rounds, which FedVARP has alone
        super().__init__(buffer_size, 1.0, server_lr, server_optimizer, memory_device)
