"""How long nothing has come of a schedule: the bound at which a run that has no end is ended."""

from __future__ import annotations

from fedlight.arrivals._state import Saved

_TASKS = 10_000
_PER_CLIENT = 10


class Silence(Saved):
    """Counts what has come to nothing since the last update that the server may use.

    Nothing can prove that a schedule has no further use: the next task may be the one that is not
    lost. The run is therefore given up after B = 10,000 + 10 M tasks in a row (M clients) that have
    ended without an update. While no client is at work, rounds without a task count as one and
    wake-ups as a tenth of one, but not before a time at which a client is known to become
    available: however long a night is, it is no sign that nobody comes back. Virtual time does not
    count.

    An aggregator that receives updates and makes no version is given up after 10 B of them, or ten
    of its buffers if these are more.

    Args:
        num_clients: M.
        buffer_size: The number of updates that the server collects for a version, or None.

    Attributes:
        most: B.
        lost: Tasks that were lost.
        stopped: Tasks that were cancelled, or cut before their first complete step.
        dropped: Updates that the aggregator did not accept.
        rounds: Rounds in which no task has ended.
        wakes: Wake-ups while no client is at work.
        received: Updates that were received since the last version.
        ends: Ends of rounds since the last version.
    """

    _saved_attributes = (
        *("lost", "stopped", "dropped", "rounds", "wakes"),
        *("received", "ends", "_busy"),
    )

    def __init__(self, num_clients: int, buffer_size: int | None = None) -> None:
        self.most = _TASKS + _PER_CLIENT * num_clients
        self.most_received = 10 * max(self.most, buffer_size or 0)
        self.hear()
        self.step()
        self._busy = False  # a task has ended since the end of a round

    def hear(self) -> None:
        """An update has arrived that the server may use."""
        self.lost = self.stopped = self.dropped = self.rounds = self.wakes = 0
        self._busy = True

    def lose(self, stopped: bool = False) -> None:
        """A task has ended without a result: it was lost or stopped."""
        self.lost += not stopped
        self.stopped += stopped
        self._busy = True

    def drop(self) -> None:
        """The aggregator has not accepted an update."""
        self.dropped += 1
        self._busy = True

    def rest(self, end_of_round: bool) -> None:
        """A round has ended, or the process was woken, and no client is at work."""
        self.wakes += not end_of_round
        self.rounds += end_of_round and not self._busy
        self._busy = self._busy and not end_of_round

    def step(self) -> None:
        """The server has made a version."""
        self.received = self.ends = 0

    @property
    def too_long(self) -> bool:
        """Whether tasks have come to nothing for so long that the run is given up."""
        tasks = self.lost + self.stopped + self.dropped + self.rounds
        return tasks + self.wakes // 10 >= self.most

    @property
    def words(self) -> str:
        """What has happened instead, and how to change it."""
        if not self.too_long:
            return (
                f"the aggregator has received {self.received:,} updates since its last version and "
                "does not step; does it wait for a client that never arrives?"
            )
        kinds = [
            (self.lost, "tasks lost", "lose fewer tasks (DropOut, Availability, Failures)"),
            (self.stopped, "tasks stopped", "give them more time (timeout, durations)"),
            (self.dropped, "updates dropped", "let the aggregator accept more (max_staleness)"),
            (self.rounds, "rounds without a task", "give the clients other windows"),
        ]
        if not any(count for count, *_ in kinds):
            kinds = [(self.wakes, "wake-ups without a task", "give the clients other windows")]
        found = ", ".join(f"{count:,} {name}" for count, name, _ in kinds if count)
        return f"no update can be used ({found} in a row; {max(kinds)[2]})"
