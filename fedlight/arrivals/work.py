"""What the processes on the clock share: a task's size, and the pool of idle clients."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from fedlight.arrivals.durations import DurationModel, as_durations
from fedlight.arrivals.local_steps import LocalSteps, as_local_steps
from fedlight.events import to_ticks
from fedlight.randomness import Concern, Streams, Uniforms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedlight.types import Federation


class Visits:
    """Counts the tasks of each client; takes memory for the clients met alone."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def next(self, client: int) -> int:
        """How often the client came before; one more from now on."""
        count = self._counts.get(client, 0)
        self._counts[client] = count + 1
        return count

    def state_dict(self) -> list[tuple[int, int]]:
        """The counts."""
        return list(self._counts.items())

    def load_state_dict(self, state: list[tuple[int, int]]) -> None:
        """Take the counts up."""
        self._counts = dict(state)


class Work:
    """How long, and how many steps: drawn from streams of (seed, concern, client, its k-th task).

    So a client's tasks do not depend on when the others come.

    Args:
        durations: A duration model.
        local_steps: Policy for K, or a number of steps.
    """

    def __init__(self, durations: DurationModel, local_steps: LocalSteps | int) -> None:
        self.durations = as_durations(durations)
        self.local_steps = as_local_steps(local_steps)

    def setup(self, federation: Federation) -> None:
        """Start with the first task of each client.

        Raises:
            ValueError: The durations or steps do not fit the federation.
        """
        self.durations.check(federation)
        self.local_steps.check(federation)
        self._federation = federation
        self._steps = Streams(federation.seed, Concern.STEPS)
        self._durations = Streams(federation.seed, Concern.DURATIONS)
        self._visits = Visits()
        self._random = self.durations.uses_rng or self.local_steps.uses_rng

    def draw(self, client: int) -> tuple[float, int]:
        """Duration in virtual time, and K, of the client's next task."""
        steps, durations = self._steps.generator, self._durations.generator
        if self._random:
            visit = self._visits.next(client)
            if self.local_steps.uses_rng:
                steps = self._steps.at(client, visit)
            if self.durations.uses_rng:
                durations = self._durations.at(client, visit)
        num_steps = self.local_steps.draw(steps, client, self._federation)
        return self.durations.draw(durations, client, num_steps, self._federation), num_steps

    def expected_durations(self) -> NDArray[np.float64] | None:
        """T_i of the duration model, shape ``[M]``, where it is known."""
        steps = self.local_steps.expected(self._federation)
        return self.durations.expected(self._federation, steps)

    def state_dict(self) -> list[tuple[int, int]]:
        """How many tasks were drawn for each client."""
        return self._visits.state_dict()

    def load_state_dict(self, state: list[tuple[int, int]]) -> None:
        """Go on with the tasks that follow those."""
        self._visits.load_state_dict(state)


class IdleClients:
    """The clients that may be drawn next, and beside them those that rest until a given time.

    Drawing and adding take the same short time whatever the number of clients; at the start nothing
    is stored for any client: the list 0..M-1 is kept as the places where it was changed.
    """

    def __init__(self, federation: Federation) -> None:
        self._size = federation.num_clients
        self._changed: dict[int, int] = {}
        self._resting: list[tuple[int, int]] = []
        self._uniforms = Uniforms(federation.seed, Concern.NEXT_CLIENT)

    def __len__(self) -> int:
        return self._size

    def draw(self) -> int:
        """Take one of the idle clients out, each with the same chance."""
        place = int(self._uniforms.next() * self._size)
        client = self._changed.get(place, place)
        self._size -= 1
        last = self._changed.pop(self._size, self._size)
        if last == place:
            self._changed.pop(place, None)
        elif place < self._size:
            self._changed[place] = last
        return client

    def add(self, client: int) -> None:
        """Put a client in."""
        if client != self._size:
            self._changed[self._size] = client
        self._size += 1

    def rest(self, client: int, until: int) -> None:
        """Put a client in once `until` (in ticks) has come."""
        heapq.heappush(self._resting, (until, client))

    def wake(self, now: float) -> None:
        """Put in those who have rested enough."""
        if not self._resting:
            return
        ticks = to_ticks(now)
        while self._resting and self._resting[0][0] <= ticks:
            self.add(heapq.heappop(self._resting)[1])

    @property
    def next_wake(self) -> int | None:
        """When the next client has rested enough (in ticks), if any rests."""
        return self._resting[0][0] if self._resting else None

    def state_dict(self) -> dict[str, Any]:
        """Who is idle, who rests, and how many numbers were drawn."""
        return {
            "size": self._size,
            "changed": [list(pair) for pair in self._changed.items()],
            "resting": [list(pair) for pair in self._resting],
            "drawn": self._uniforms.taken,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it up."""
        self._size = state["size"]
        self._changed = dict(state["changed"])
        self._resting = [(until, client) for until, client in state["resting"]]
        self._uniforms.taken = state["drawn"]
