"""The contract of an aggregator: when the server steps, and how it makes the next version."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from fedlight._support.strategy import Strategy

if TYPE_CHECKING:
    from torch import Tensor

    from fedlight.types import ClientUpdate, Federation, ServerState


class Aggregator(Strategy, ABC):
    """Turns client updates into new versions of the server's model.

    Most aggregators derive from `BufferedAggregator` and only define their weights. Derive from
    `Aggregator` itself if the rule needs another way to hold updates.

    Before the server calls `step`, all held updates are computed together. So `receive` should only
    store them: reading a `delta` earlier computes it separately, in addition.
    """

    # Other parts of the library read these declarations; they never probe for other attributes.

    buffer_size: int | None = None
    """m, the number of updates that triggers a step, or None if the number does not matter."""

    interval: float | None = None
    """Virtual time between forced steps, or None."""

    needs_rounds: bool = False
    """Whether it steps only when the arrival process ends a round."""

    remembers: bool = False
    """Whether a client's last update is used again in every later round."""

    sends_before: bool = False
    """Whether clients that continue right after a step get the version before it (QuAFL)."""

    regional: bool = False
    """Whether each group of clients has a server of its own (`Regions`), whose model it pulls.

    The parameters of a version are those of the global model. `outgoing` returns the model of the
    group whose event has made the version."""

    max_staleness: int | None = None
    """The largest staleness (versions) that `accepts` lets through, or None for any."""

    client_weights: str = "uniform"
    """The intended importance p_i: "uniform" for 1/M, "examples" for n_i / sum of n."""

    noise_multiplier: float | None = None
    """z, if it adds Gaussian noise to a sum of clipped updates (`PrivateSum`)."""

    speed_counts: bool = False
    """Whether clients that arrive more often are meant to count for more, as islands that all read
    the same data are. A run then does not warn of it, unless some clients never arrive."""

    @property
    def drops(self) -> bool:
        """Whether `accepts` may answer False."""
        return self.max_staleness is not None or self._accepts_by_own_rule

    @property
    def can_discard(self) -> bool:
        """Whether it can omit updates that failed, that is, defines `discard`."""
        return type(self).discard is not Aggregator.discard

    @property
    def occasions(self) -> tuple[object, ...]:
        """When it makes versions: equal for two aggregators that make them at the same events."""
        # A custom rule is a black box, so such an aggregator is equal to no other.
        counts = self.buffer_size is not None
        unknown = self._accepts_by_own_rule if counts else not (self.needs_rounds or self.interval)
        limit = self.max_staleness if counts else None
        more = "before" if self.sends_before else "regions" if self.regional else None
        own = id(self) if unknown else more
        return self.needs_rounds, self.interval, self.buffer_size, limit, own

    def bytes_up(self, size: int, itemsize: int) -> int:
        """Bytes that are sent for an update's parameters, if the rule itself quantizes them.

        Args:
            size: Number of parameters.
            itemsize: Bytes of one of them.
        """
        return size * itemsize

    def rates(self, version: int) -> dict[str, float]:
        """The rates of the step from a version, such as ``{"server": eta}``; empty if none."""
        return {}

    def setup(self, federation: Federation, state: ServerState) -> None:
        """Forget any earlier run and prepare for this one, which starts from `state`."""
        return

    def accepts(self, update: ClientUpdate, version: int) -> bool:
        """Return False to drop an arriving update; it makes no version.

        A dropped update is computed only if a client's state depends on it (SCAFFOLD).

        This method is called exactly once for each arrival.
        """
        return self.max_staleness is None or update.staleness(version) <= self.max_staleness

    @abstractmethod
    def receive(self, update: ClientUpdate) -> bool:
        """Store an accepted update; return True if the server has to step now."""

    def end_round(self) -> bool:
        """The arrival process has ended a round; return True if the server has to step now."""
        return self.needs_rounds

    def end_round_of(self, group: str) -> bool:
        """A group of clients (`Tiers`) has ended its round; True if the server has to step now."""
        return self.end_round()

    @abstractmethod
    def step(self, state: ServerState) -> ServerState:
        """Return the next version; its `used` holds the updates that made it and their weights.

        Use `ServerStep` or `next_version` to make it.
        """

    def outgoing(self, state: ServerState) -> Tensor | None:
        """The parameters that clients pull in place of the version's own, shape ``[P]``.

        Called for each new version, after `step`, and again when a run is resumed or a hook has
        changed the version; it must not change anything. The delta of a client is the change from
        what it has pulled. The version itself is what is evaluated and saved.

        Args:
            state: The new version.

        Returns:
            A tensor, which is copied, or None for the version's own parameters.
        """
        return None

    @property
    def held(self) -> list[ClientUpdate]:
        """Updates received and not used yet, in order of arrival."""
        return []

    def discard(self, failed: Collection[ClientUpdate]) -> bool:
        """Forget held updates that failed; return True if the server still has to step now.

        Raises:
            NotImplementedError: The aggregator does not define it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define discard(failed) and held; "
            "a BufferedAggregator has both"
        )

    def state_dict(self) -> dict[str, Any]:
        """The state needed to resume, without the held updates; tensors and plain data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; `setup` and `receive` were called before."""
        return

    @property
    def _accepts_by_own_rule(self) -> bool:
        return type(self).accepts is not Aggregator.accepts
