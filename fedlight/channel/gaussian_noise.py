"""Local differential privacy: each client clips its update and adds noise to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedlight._support.checks import positive
from fedlight.channel._draws import row_norms
from fedlight.channel.base import Channel, Message, Senders
from fedlight.parameters import shrinking

if TYPE_CHECKING:
    from torch import Tensor


class GaussianNoise(Channel):
    """A client clips its update to the norm C and adds Gaussian noise: the local model.

    ``C(u) = u * min(1, C / |u|) + z * C * N(0, I)``, with the Euclidean norm over all P parameters.

    Each message is a Gaussian mechanism, so the server need not be trusted. Whatever it does with
    the messages, such as remembering them (MIFA), costs no further privacy. Channels before this
    one run on the client, and channels after it see the noisy update. `fedlight.privacy` has the
    epsilon of a run. The noise is a function of the seed, the client and its visit.

    All P numbers are sent.

    Args:
        noise_multiplier: z, the standard deviation of the noise of each number, divided by C.
        clipping_norm: C, the largest norm, in the unit of the parameters.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is not above 0.

    Source: Abadi et al., [Deep Learning with Differential
    Privacy](https://arxiv.org/abs/1607.00133), Algorithm 1, for gradients of one trusted server;
    here each client does it with its update.

    Example:
        >>> GaussianNoise(noise_multiplier=8.0, clipping_norm=0.5)
        GaussianNoise(noise_multiplier=8.0, clipping_norm=0.5)
    """

    def __init__(self, noise_multiplier: float, clipping_norm: float) -> None:
        self.noise_multiplier = positive("noise_multiplier", noise_multiplier)
        self.clipping_norm = positive("clipping_norm", clipping_norm)

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return the updates, clipped and with noise."""
        assert self.noise_multiplier is not None
        clipped = updates * shrinking(row_norms(updates), self.clipping_norm)
        # In two operations: a fused one rounds once, and not on every device.
        noise = senders.normal(updates).mul_(self.noise_multiplier * self.clipping_norm)
        return clipped.add_(noise)

    def message(self, message: Message) -> Message:
        """Return the same message."""
        return message

    def contraction(self) -> Channel:
        """Refuse: a memory of the noise would take it out of the next update.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"{self!r} must not be inside ErrorFeedback, which would add to the next update what "
            "the noise has changed in this one, so that the noise cancels; write "
            "[ErrorFeedback(TopK(0.01)), GaussianNoise(…)]"
        )
