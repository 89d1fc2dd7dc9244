"""QuAFL: the server averages its model with those of the clients that it polls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlight.aggregators._server_step import pulled
from fedlight.aggregators.buffered import BufferedAggregator, Updates
from fedlight.channel._lattice import Lattice, as_quantizer
from fedlight.parameters import weighted_sum

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import ServerState


class QuAFL(BufferedAggregator):
    """x <- (x + sum over S of y_i) / (s + 1), S the s clients polled, y_i their own models.

    The clients continue from ``(x + s * y_i) / (s + 1)``, where x is the server's model before this
    step. Use ``local_optimizer=OwnModel(LocalSGD(lr), per_poll=s)`` and `PolledArrivals` for this.
    `OwnModel` can also correct the local rate, and takes the quantizer of the models that the
    server sends.

    Floating buffers become the mean of the clients' buffers.

    Args:
        buffer_size: s, the number of updates per step; None to step when the process's round ends.
        quantizer: The quantizer through which y_i is sent, with x as its key; None for no
            quantization.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its range.

    Source: Zakerinia, Talaei, Nadiradze, Alistarh, Communication-Efficient Federated Learning With
    Data and Client Heterogeneity, AISTATS 2024, Algorithm 1, https://arxiv.org/abs/2206.10032. That
    clients mix with the model before the step is taken from the authors' code.

    Example:
        >>> QuAFL()
        QuAFL(buffer_size=None, quantizer=None)
    """

    sends_before = True

    def __init__(self, buffer_size: int | None = None, quantizer: Lattice | None = None) -> None:
        super().__init__(buffer_size)
        self.quantizer = as_quantizer(quantizer)

    def bytes_up(self, size: int, itemsize: int) -> int:
        """The bytes of y_i when sent through the quantizer."""
        quantizer = self.quantizer
        return size * itemsize if quantizer is None else quantizer.nbytes(size)

    def weights(self, updates: Updates, version: int) -> list[float]:
        """1 / (s + 1)."""
        return [1 / (len(updates) + 1)] * len(updates)

    def direction(self, updates: Updates, weights: Sequence[float], state: ServerState) -> Tensor:
        """The mean of the server's and the clients' models, minus x."""
        x = state.params
        models = [
            pulled(update, "QuAFL averages models and").params + update.delta for update in updates
        ]
        if self.quantizer is not None:
            models = [self.quantizer.sent(model, key=x) for model in models]
        return weighted_sum([model - x for model in models], weights)
