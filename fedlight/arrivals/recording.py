"""A process that writes down the schedule that it gives."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlight.arrivals.base import Action, ArrivalProcess
from fedlight.arrivals.table import ReplayEvent, ScheduleTable
from fedlight.arrivals.wrapper import Wrapper

if TYPE_CHECKING:
    from fedlight.types import Federation, Task


class Recording(Wrapper):
    """Behaves as `arrivals` and writes its `ScheduleTable` when the run is over.

    What was lost on its way is not in the table.

    Args:
        arrivals: Any arrival process.
        path: The parquet file to write; None to keep the table in memory alone.
    """

    def __init__(self, arrivals: ArrivalProcess, path: str | Path | None = None) -> None:
        super().__init__(arrivals)
        if path is not None and not isinstance(path, str | Path):
            raise TypeError(f'path must name a file, such as "schedule.parquet", got {path!r}')
        self.path = None if path is None else Path(path)

    def setup(self, federation: Federation) -> None:
        """Start with an empty table.

        Raises:
            FileNotFoundError: The folder to write to does not exist.
        """
        if self.path is not None and not self.path.absolute().parent.is_dir():
            raise FileNotFoundError(f"there is no folder {str(self.path.absolute().parent)!r}")
        super().setup(federation)
        self._num_clients = federation.num_clients
        self._rows: list[list[Any]] = []
        self._versions: list[int | None] = []
        self._round_ends: list[float] = []
        self._version = 0
        self._held: dict[int, list[int]] = {}

    def change(self, actions: Iterable[Action], now: float) -> Iterable[Action]:
        """The actions as they are."""
        return actions

    def on_arrival(self, task: Task, now: float) -> Iterable[Action]:
        """Write the arrival down."""
        if not task.lost:
            self._held.setdefault(task.client_id, []).append(len(self._rows))
            self._rows.append(
                [
                    task.client_id,
                    task.pulled_version,
                    task.arrives_at,
                    task.num_steps,
                    task.dispatched_at,
                    task.visit,
                ]
            )
            self._versions.append(None)
        return self.arrivals.on_arrival(task, now)

    def on_round_end(self, now: float) -> Iterable[Action]:
        """Write the end of the round down."""
        self._round_ends.append(now)
        return self.arrivals.on_round_end(now)

    def on_version(self, version: int, clients: Collection[int], now: float) -> Iterable[Action]:
        """Write down at which version the updates were used: the one before this update."""
        for client in clients:
            if rows := self._held.get(client):
                self._versions[rows.pop(0)] = self._version
                if not rows:
                    del self._held[client]
        self._version = version
        return self.arrivals.on_version(version, clients, now)

    def table(self) -> ScheduleTable:
        """The schedule so far."""
        durations = self.expected_durations()
        return ScheduleTable(
            [ReplayEvent(*row) for row in self._rows],
            list(self._round_ends),
            self._num_clients,
            None if durations is None else durations.tolist(),
            list(self._versions),
        )

    def finish(self) -> None:
        """Write the file."""
        super().finish()
        if self.path is not None:
            self.table().save(self.path)

    def state_dict(self) -> dict[str, Any]:
        """What was written down so far, and the state of the process."""
        return {
            **super().state_dict(),
            "rows": [list(row) for row in self._rows],
            "versions": list(self._versions),
            "round_ends": list(self._round_ends),
            "version": self._version,
            "held": [[client, list(rows)] for client, rows in self._held.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on writing behind what `state_dict` gave."""
        super().load_state_dict(state)
        self._rows = [list(row) for row in state["rows"]]
        self._versions = list(state["versions"])
        self._round_ends = list(state["round_ends"])
        self._version = state["version"]
        self._held = {client: list(rows) for client, rows in state["held"]}

    def __repr__(self) -> str:
        of = repr(self.arrivals)
        return of if self.path is None else f"{of}.record({str(self.path)!r})"
