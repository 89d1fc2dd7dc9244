"""T_i, the duration of a task of each client, for aggregators whose weights depend on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedlight._support.checks import positive
from fedlight.events import to_ticks

if TYPE_CHECKING:
    from fedlight.types import Federation, Task


class ClientTimes:
    """T_i in ticks: as given by the arrival process, or else the mean over the tasks seen.

    If the process does not give it, T_i is the running mean of arrival - pull over the tasks of
    client i that the server has used, including the one being weighted. A client not seen yet
    counts as the average of those seen (of their 1/T_j). Memory is O(clients seen). Sums are whole
    ticks, so that means of equal durations are exact.

    Args:
        federation: Who takes part, with the durations that are known.

    Raises:
        ValueError: A duration that the process gives is not above 0.
    """

    def __init__(self, federation: Federation) -> None:
        self._num_clients = federation.num_clients
        self._known: list[int] | None = None
        self._seen: dict[int, tuple[int, int]] = {}
        self._rates = 0.0
        if federation.expected_durations is not None:
            durations = federation.expected_durations.tolist()
            self._known = [
                max(1, to_ticks(positive(f"expected_durations[{client}]", duration)))
                for client, duration in enumerate(durations)
            ]
            self._rates = sum(1 / ticks for ticks in self._known)

    def observe(self, task: Task) -> None:
        """Learn from a task that has arrived."""
        if self._known is not None:
            return
        ticks, count = self._seen.get(task.client_id, (0, 0))
        before = count / ticks if ticks else 0.0
        ticks, count = ticks + to_ticks(task.arrives_at) - to_ticks(task.dispatched_at), count + 1
        self._seen[task.client_id] = ticks, count
        self._rates += count / ticks - before

    def windows(self, client_id: int, interval: float) -> int:
        """ceil(T_i / interval), exact."""
        ticks, count = self._of(client_id)
        return -(-ticks // (count * to_ticks(interval)))

    def share(self, client_id: int) -> float:
        """T_i * sum over all clients j of 1/T_j."""
        ticks, count = self._of(client_id)
        unseen = 1.0 if self._known is not None else self._num_clients / len(self._seen)
        return self._rates * unseen * ticks / count

    def _of(self, client_id: int) -> tuple[int, int]:
        """T_i as (ticks, tasks): their quotient."""
        return self._seen[client_id] if self._known is None else (self._known[client_id], 1)

    def state_dict(self) -> dict[str, Any]:
        """The observed durations."""
        return {"seen": dict(self._seen), "rates": self._rates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the observed durations."""
        self._seen, self._rates = dict(state["seen"]), state["rates"]
