"""All events of a run in one parquet file."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlight._support.files import new_file, replacing
from fedlight._support.growing import Growing
from fedlight.callbacks.base import Callback

if TYPE_CHECKING:
    import pyarrow as pa
    from lightning import LightningModule

    from fedlight.trainer import FedTrainer
    from fedlight.types import ClientUpdate, Task, UpdateRecord

EVENTS = ("dispatch", "arrival", "drop", "failure", "use", "server_update", "cancel")
_DISPATCH, _ARRIVAL, _DROP, _FAILURE, _USE, _SERVER_UPDATE, _CANCEL = range(len(EVENTS))
_COLUMNS = (
    "time",
    "event",
    "version",
    "client",
    "serial",
    "arrives_at",
    "pulled_version",
    "num_steps",
    "staleness",
    "weight",
    "norm",
)
_FLOATS = frozenset({"time", "arrives_at", "weight", "norm"})


class EventLog(Callback):
    """Writes all events of a run to one parquet file at the end of the run.

    The file has one row per event, in the order in which the events happened:

    - ``dispatch``: a client pulls ``pulled_version``. Its result arrives at ``arrives_at``, unless
      it is stopped before; it is null if the result is lost.
    - ``arrival``: a result arrives, of ``num_steps`` local steps.
    - ``cancel``: the arrival process stops a task, whose result is lost.
    - ``drop``: the server drops the result that has just arrived.
    - ``failure``: a local run has failed, or its result was lost; the row is written when the
      server notices.
    - ``use``: the server uses the result, with ``weight``, ``staleness`` and the ``norm`` of its
      delta.
    - ``server_update``: the server makes ``version``.

    Columns: ``time`` and ``arrives_at`` (virtual time), ``event``, ``version`` (of the server,
    after the event), ``client``, ``serial`` (the same number in all rows of a task),
    ``pulled_version``, ``num_steps`` (local steps), ``staleness`` (versions), ``weight`` and
    ``norm``. A value that an event does not have is null. A resumed run writes the same file as an
    uninterrupted one. `fedlight.plot.timeline` draws the file. Under ``fast_dev_run`` no file is
    written; `table` has the events.

    Args:
        path: The file. It is written when the run ends, also after an error. Its folder is made.

    Raises:
        TypeError: `path` is not a path.
        ValueError: `path` is a folder.
        OSError: (at the end of ``fit``) The file cannot be written. `table` still has the events.

    Example:
        >>> callback = EventLog("runs/events.parquet")
    """

    def __init__(self, path: str | Path) -> None:
        self.path = new_file("path", path, "events.parquet")
        # A row is never changed once it is here: a checkpoint has to store only the new rows.
        # Tuples of numbers, unlike lists, cost the garbage collector nothing: of 100,000 events
        # an event costs 0.8 microseconds; as a list it cost 1 to 5.
        self._rows: list[tuple[float, ...]] = []
        self._restored = False
        self._begun = False
        self._num_clients = 0

    def on_fit_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Start with no events, unless the run was resumed from a checkpoint."""
        if not trainer.fast_dev_run:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._restored:
            self._rows = []
        self._restored = False
        self._num_clients = trainer.federation.num_clients
        self._begun = not trainer.fast_dev_run

    def on_dispatch(self, trainer: FedTrainer, module: LightningModule, task: Task) -> None:
        """Note that a client has pulled the model."""
        arrives_at = nan if task.lost else task.arrives_at
        self._add(_DISPATCH, task.dispatched_at, trainer.version, task, arrives_at)

    def on_update(self, trainer: FedTrainer, module: LightningModule, update: ClientUpdate) -> None:
        """Note that a result has arrived."""
        self._add(_ARRIVAL, update.task.arrives_at, trainer.version, update.task)

    def on_drop(self, trainer: FedTrainer, module: LightningModule, update: ClientUpdate) -> None:
        """Note that the server has dropped the result."""
        task, version = update.task, trainer.version
        self._add(_DROP, task.arrives_at, version, task, staleness=update.staleness(version))

    def on_cancel(self, trainer: FedTrainer, module: LightningModule, task: Task) -> None:
        """Note that a task was stopped."""
        self._add(_CANCEL, trainer.now, trainer.version, task)

    def on_client_failure(
        self, trainer: FedTrainer, module: LightningModule, task: Task, error: BaseException
    ) -> None:
        """Note that a task has failed."""
        self._add(_FAILURE, trainer.now, trainer.version, task)

    def on_round_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Note the updates that the server has used, and the version that it has made."""
        record = trainer.history[-1]
        now, version = record.now, record.version
        for used in record.updates:
            self._add(_USE, now, version, used, nan, used.staleness, used.weight, used.norm)
        self._rows.append((now, _SERVER_UPDATE, version, *[nan] * (len(_COLUMNS) - 3)))

    def teardown(self, trainer: FedTrainer, module: LightningModule, stage: str) -> None:
        """Write the file."""
        import pyarrow.parquet as pq

        if stage == "fit" and self._begun:  # a fit that fails before that leaves the file alone
            self._begun = False
            with replacing(self.path) as file:
                pq.write_table(self.table(), file)

    def table(self) -> pa.Table:
        """The events so far."""
        import pyarrow as pa

        # float64 holds every integer up to 2^53: enough for clients, versions and task numbers.
        values = np.array(self._rows, dtype=np.float64).reshape(-1, len(_COLUMNS))
        columns: dict[str, Any] = {}
        for name, column in zip(_COLUMNS, values.T, strict=True):
            array = pa.array(column, mask=np.isnan(column))
            columns[name] = array if name in _FLOATS else array.cast(pa.int64())
        kinds = pa.array(EVENTS, pa.string())
        indices = columns["event"].cast(pa.int8())
        columns["event"] = pa.DictionaryArray.from_arrays(indices, kinds)
        return pa.table(columns).replace_schema_metadata(
            {b"fedlight.num_clients": str(self._num_clients).encode()}
        )

    def state_dict(self) -> dict[str, Any]:
        """The events so far, a row of numbers for each; nan stands for a missing value."""
        return {"rows": Growing(self._rows, list)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the events that `state_dict` returned."""
        self._rows = [tuple(row) for row in state["rows"]]
        self._restored = True

    def _add(
        self,
        event: int,
        time: float,
        version: int,
        task: Task | UpdateRecord,
        arrives_at: float = nan,
        staleness: float = nan,
        weight: float = nan,
        norm: float = nan,
    ) -> None:
        # Written out, in the order of _COLUMNS: this runs two or three times for each update.
        self._rows.append(
            (
                time,
                event,
                version,
                task.client_id,
                task.serial,
                arrives_at,
                task.pulled_version,
                task.num_steps,
                staleness,
                weight,
                norm,
            )
        )
