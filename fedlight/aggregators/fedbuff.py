"""FedBuff: asynchronous clients, and a server that steps after a number of their updates."""

from __future__ import annotations

from fedlight._support.checks import Rate, one_of, positive_int
from fedlight.aggregators._server_step import OptimizerFactory
from fedlight.aggregators.buffered import BufferedAggregator, Updates
from fedlight.aggregators.staleness import Polynomial, Staleness, check_staleness, discount


class FedBuff(BufferedAggregator):
    """x <- x + eta * (1/m) * sum of s(tau_i) * delta_i, after every m updates.

    delta_i is relative to the version that client i pulled. The divisor is m regardless of the
    staleness, so stale updates make the step smaller.

    Args:
        buffer_size: m.
        staleness: s, a function of tau that returns a factor: 1 / sqrt(1 + tau) by default; None
            for 1.
        server_lr: eta.
        normalize: The divisor: "buffer" for m, "weights" for the sum of the s(tau_i), "none" for 1.
        server_optimizer: A function of the parameters that returns an optimizer, used instead of
            `server_lr`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, 2022,
    Algorithm 1, https://arxiv.org/abs/2106.06639.

    Example:
        >>> FedBuff(buffer_size=10)
        FedBuff(buffer_size=10, staleness=Polynomial(a=0.5), normalize='buffer')
    """

    def __init__(
        self,
        buffer_size: int,
        staleness: Staleness | None = Polynomial(a=0.5),
        server_lr: Rate = 1.0,
        normalize: str = "buffer",
        server_optimizer: OptimizerFactory | None = None,
    ) -> None:
        super().__init__(positive_int("buffer_size", buffer_size), server_lr, server_optimizer)
        self.staleness = check_staleness(staleness)
        self.normalize = one_of("normalize", normalize, ("buffer", "weights", "none"))

    def weights(self, updates: Updates, version: int) -> list[float]:
        """s(tau_i) over the divisor."""
        factors = [discount(self.staleness, u.staleness(version)) for u in updates]
        divisors = {"buffer": len(updates), "weights": sum(factors), "none": 1}
        # If every factor is 0, any divisor gives the same step of length 0.
        divisor = divisors[self.normalize] or 1
        return [factor / divisor for factor in factors]
