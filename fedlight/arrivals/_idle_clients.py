"""The clients from which the next one is drawn."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, ClassVar

from fedlight.arrivals._state import Saved
from fedlight.events import to_ticks
from fedlight.randomness import Concern, Uniforms

if TYPE_CHECKING:
    from fedlight.arrivals.base import Choose
    from fedlight.types import Federation


def idle_clients(federation: Federation, choose: Choose | None) -> IdleClients:
    """The clients at first: all idle, and drawn uniformly unless a function chooses them."""
    return IdleClients(federation) if choose is None else ChosenClients(federation, choose)


class IdleClients(Saved):
    """The clients that may be drawn now, and those that rest until a given time.

    Drawing is a Fisher-Yates shuffle that is carried out one step at a time: the drawn place is
    filled with the last client of the list. Only the places that differ from the list 0..M-1 are
    stored, so a million clients that never work cost no memory and no set-up time. The resting
    clients are in a heap ordered by time, so each event examines only those that are due.
    """

    _saved_attributes: ClassVar[tuple[str, ...]] = ("_size", "_changed", "_resting", "_drawn")

    def __init__(self, federation: Federation) -> None:
        self._size = federation.num_clients
        self._changed: dict[int, int] = {}
        # In ticks, not in virtual time, so that a client is due exactly when it said.
        self._resting: list[tuple[int, int]] = []
        self._drawn = Uniforms(federation.seed, Concern.NEXT_CLIENT)

    def __len__(self) -> int:
        return self._size

    def draw(self) -> int:
        """Remove and return one of the idle clients, each with the same probability."""
        place = int(self._drawn.next() * self._size)
        client = self._changed.get(place, place)
        self._size -= 1
        last = self._changed.pop(self._size, self._size)
        if last == place:
            self._changed.pop(
                place, None
            )  # the place holds its own number again, so nothing is stored
        elif place < self._size:
            self._changed[place] = last
        return client

    def add(self, client: int) -> None:
        """Add a client."""
        if client != self._size:
            self._changed[self._size] = client
        self._size += 1

    def rest(self, client: int, until: int) -> None:
        """Add a client at the time `until`, in ticks."""
        heapq.heappush(self._resting, (until, client))

    def wake(self, now: float) -> None:
        """Add the clients whose rest is over at the virtual time `now`."""
        if not self._resting:
            return
        ticks = to_ticks(now)
        while self._resting and self._resting[0][0] <= ticks:
            self.add(heapq.heappop(self._resting)[1])

    @property
    def next_wake(self) -> int | None:
        """When the next client's rest is over, in ticks, or None if no client rests."""
        return self._resting[0][0] if self._resting else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the clients from `state_dict`."""
        super().load_state_dict(state)
        # The heap needs pairs that compare with those of `rest`; a checkpoint has lists.
        self._resting = [(until, client) for until, client in self._resting]


class ChosenClients(IdleClients):
    """Idle clients of whom a function chooses the next one; see `ArrivalProcess.choose_by`."""

    _saved_attributes = ("_idle",)

    def __init__(self, federation: Federation, choose: Choose) -> None:
        super().__init__(federation)
        self._idle = set(range(federation.num_clients))
        self._choose = choose
        self._now = 0.0

    def draw(self) -> int:
        """Remove and return the client that is chosen."""
        (client,) = self._choose(sorted(self._idle), 1, self._now)
        self._idle.remove(client)
        self._size -= 1
        return client

    def add(self, client: int) -> None:
        """Add a client."""
        self._idle.add(client)
        self._size += 1

    def wake(self, now: float) -> None:
        """Add the clients whose rest is over at the virtual time `now`."""
        self._now = now
        super().wake(now)
