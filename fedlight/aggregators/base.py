"""What an aggregator is: when the server steps, and what it does with the updates that it holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from fedlight.aggregators.server import UpdateBuffer

if TYPE_CHECKING:
    from fedlight.types import ClientUpdate, Federation, ServerState


class Aggregator(ABC):
    """Turns client updates into new versions of the server's model.

    An update is computed when an aggregator first looks at its `delta`, so `receive` should only
    store it: whatever is in flight by the time of `step` is then computed as one batch.
    """

    buffer: UpdateBuffer
    """The updates received and not used yet."""

    interval: float | None = None
    """Virtual time between forced steps, or None."""

    needs_rounds: bool = False
    """Whether it steps only where the arrival process says that a round is over."""

    client_weights: str = "uniform"

    remembers: bool = False
    """Whether a client's last update is used again in every later round."""

    @abstractmethod
    def setup(self, federation: Federation, state: ServerState) -> None:
        """Forget any earlier run and get ready for this one, at its version 0."""

    def accepts(self, update: ClientUpdate, version: int) -> bool:
        """False where an arriving update is dropped: it makes no version and is not computed."""
        return True

    @abstractmethod
    def receive(self, update: ClientUpdate) -> bool:
        """Take an update that has arrived; True where the server has to step now."""

    def end_round(self) -> bool:
        """Called when the arrival process ends a round; True where the server has to step now."""
        return False

    @abstractmethod
    def step(self, state: ServerState) -> ServerState:
        """The next version; its `used` names the updates that made it and their weights."""

    @property
    def held(self) -> list[ClientUpdate]:
        """Updates received and not used yet, in their order of arrival."""
        return self.buffer.updates if hasattr(self, "buffer") else []

    def discard(self, failed: Collection[ClientUpdate]) -> bool:
        """Forget updates held that came to nothing; True where the others still fill the buffer.

        Raises:
            NotImplementedError: The aggregator has no `buffer` and does not say how.
        """
        if not hasattr(self, "buffer"):
            raise NotImplementedError(
                f"{type(self).__name__} has no buffer; define discard(failed) and held"
            )
        return self.buffer.discard(failed)

    def state_dict(self) -> dict[str, Any]:
        """What has to be kept to go on from here, without the updates held; tensors and data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state that `state_dict` gave, after `setup`."""
        return
