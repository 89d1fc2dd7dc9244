"""An arrival process that records its schedule."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlight._support.files import new_file
from fedlight.arrivals._table_writer import TableWriter
from fedlight.arrivals.actions import Action
from fedlight.arrivals.base import ArrivalProcess
from fedlight.arrivals.wrapper import Wrapper

if TYPE_CHECKING:
    from fedlight.arrivals.table import ScheduleTable
    from fedlight.types import Federation, Task


class Recording(Wrapper):
    """Behaves like `arrivals` and writes its schedule to a file when the run is over.

    The file holds a `ScheduleTable`, which `ReplayArrivals` replays: the arrivals, the tasks that
    were lost, the local runs that the process has cancelled, and those in flight at the end. What a
    process with feedback has decided is in it, so that the replay needs no model.

    So `fedlight.participation_report` of the record tells the same goodput as that of the process.
    One thing happens only with a model: a local run may fail as it is computed
    (``FedTrainer(on_client_failure=…)``). The record of such a run says that it does not know its
    waste (`ScheduleTable.waste_known`), and a report on it has the goodput nan.

    Args:
        arrivals: Any arrival process.
        path: The parquet file, written at the end of the run; None to keep the table in memory
            only. An existing file is replaced.

    Raises:
        TypeError: An argument is of the wrong kind.

    Example:
        >>> from fedlight.arrivals import UniformArrivals
        >>> arrivals = Recording(UniformArrivals(per_round=2), "schedule.parquet")
        >>> arrivals.path.name
        'schedule.parquet'
    """

    _repr_positional = 2
    _saved_attributes = ("_table",)

    def __init__(self, arrivals: ArrivalProcess, path: str | Path | None = None) -> None:
        super().__init__(arrivals)
        self.path = None if path is None else new_file("path", path, "schedule.parquet")

    def setup(self, federation: Federation) -> None:
        """Start with an empty table.

        Raises:
            FileNotFoundError: The folder to write to does not exist.
        """
        if self.path is not None and not self.path.absolute().parent.is_dir():
            raise FileNotFoundError(f"there is no folder {str(self.path.absolute().parent)!r}")
        super().setup(federation)
        self._num_clients = federation.num_clients
        self._table = TableWriter()

    def change(self, actions: Iterable[Action], now: float) -> Iterable[Action]:
        """Return the actions unchanged."""
        return actions

    def on_arrival(self, task: Task, now: float) -> Iterable[Action]:
        """Record the arrival."""
        self._table.arrive(task)
        return self.arrivals.on_arrival(task, now)

    def on_round_end(self, now: float) -> Iterable[Action]:
        """Record the end of the round."""
        self._table.end_round(now)
        return self.arrivals.on_round_end(now)

    def on_round_end_of(self, group: str, now: float) -> Iterable[Action]:
        """Record the end of the group's round."""
        self._table.end_round(now, group)
        return self.arrivals.on_round_end_of(group, now)

    def on_stop(self, task: Task, version: int, now: float) -> None:
        """Record that the local run was cancelled."""
        self._table.stop(task, version, now)
        self.arrivals.on_stop(task, version, now)

    def on_failure(self, task: Task, now: float) -> None:
        """Note that a local run has failed as it was computed."""
        self._table.fail()
        self.arrivals.on_failure(task, now)

    def on_version(self, version: int, clients: Collection[int], now: float) -> Iterable[Action]:
        """Record the version at which the updates were used."""
        self._table.use(clients, version, now)
        return self.arrivals.on_version(version, clients, now)

    def table(self) -> ScheduleTable:
        """Return the schedule so far."""
        return self._table.table(self.arrivals, self._num_clients)

    def on_end(self, in_flight: Iterable[Task]) -> None:
        """Record the tasks that are in flight."""
        tasks = list(in_flight)
        self._table.end(tasks)
        super().on_end(tasks)

    def finish(self) -> None:
        """Write the file.

        Raises:
            OSError: The file cannot be written.
        """
        super().finish()
        if self.path is not None:
            self.table().save(self.path)

    def __repr__(self) -> str:
        # A run that is recorded in memory only is the same run.
        return repr(self.arrivals) if self.path is None else super().__repr__()

    def _kept_otherwise(self) -> dict[str, Any]:
        return {"path": None if self.path is None else str(self.path)}
