"""Every event of a run in one parquet file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlight._files import replacing
from fedlight.callbacks.base import Callback

if TYPE_CHECKING:
    import pyarrow as pa
    from lightning import LightningModule

    from fedlight.trainer import FedTrainer
    from fedlight.types import ClientUpdate, Task

EVENTS = ("dispatch", "arrival", "drop", "failure", "use", "server_update")
_FLOATS = ("time", "arrives_at", "weight", "norm")
_INTS = ("event", "version", "client", "serial", "pulled_version", "num_steps", "staleness")
_USED = ("serial", "pulled_version", "num_steps", "staleness", "weight", "norm")
_MISSING = -1


class EventLog(Callback):
    """Writes every event of a run to one parquet file, at the end of the run.

    A row per event, in the order in which they happened:

    - ``dispatch``: a client pulls ``pulled_version``; its result would arrive at ``arrives_at``,
      which is null where it is lost on the way;
    - ``arrival``: a result arrives;
    - ``drop``: it is dropped;
    - ``failure``: its local run turns out to have failed, or it was lost (where that is noticed);
    - ``use``: the server uses it, with ``weight``, ``staleness`` and the ``norm`` of its delta;
    - ``server_update``: the server makes ``version``.

    Columns: ``time`` and ``arrives_at`` (virtual time), ``event``, ``version`` (of the server,
    after the event), ``client``, ``serial`` (which names a task in all its rows),
    ``pulled_version``, ``num_steps`` (local steps), ``staleness`` (versions), ``weight``,
    ``norm``. What an event does not have is null. A run that goes on from a checkpoint writes the
    file that an uninterrupted one would have written. `fedlight.plot.timeline` draws it.

    Args:
        path: The file; it appears, whole, when the run is over (also after an error). Its folder
            is made.

    Raises:
        TypeError: `path` is no path.

    Example:
        >>> callback = EventLog("runs/events.parquet")
    """

    def __init__(self, path: str | Path) -> None:
        if not isinstance(path, str | Path):
            raise TypeError(f'path must name a file, such as "events.parquet", got {path!r}')
        self.path = Path(path)
        if self.path.is_dir():
            raise ValueError(f"path must name a file, but {str(path)!r} is a folder")
        self._columns = _empty()
        self._restored = False
        self._num_clients = 0

    def on_fit_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Begin anew, unless the run goes on from a checkpoint."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._restored:
            self._columns = _empty()
        self._restored = False
        self._num_clients = trainer.federation.num_clients

    def on_dispatch(self, trainer: FedTrainer, module: LightningModule, task: Task) -> None:
        """A client pulls."""
        arrives_at = math.nan if task.lost else task.arrives_at
        self._add("dispatch", task.dispatched_at, trainer.version, task, arrives_at=arrives_at)

    def on_update(self, trainer: FedTrainer, module: LightningModule, update: ClientUpdate) -> None:
        """A result arrives, and is perhaps dropped."""
        task, version = update.task, trainer.version
        staleness = update.staleness(version)
        self._add("arrival", task.arrives_at, version, task)
        if not trainer.aggregator.accepts(update, version):
            self._add("drop", task.arrives_at, version, task, staleness=staleness)

    def on_client_failure(
        self, trainer: FedTrainer, module: LightningModule, task: Task, error: BaseException
    ) -> None:
        """A task has failed."""
        self._add("failure", trainer.now, trainer.version, task)

    def on_round_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """The server has used updates and made a version."""
        record = trainer.history[-1]
        for used in record.updates:
            self._append(
                event=EVENTS.index("use"),
                time=record.now,
                version=record.version,
                client=used.client_id,
                **{name: getattr(used, name) for name in _USED},
            )
        self._append(event=EVENTS.index("server_update"), time=record.now, version=record.version)

    def teardown(self, trainer: FedTrainer, module: LightningModule, stage: str) -> None:
        """Write the file."""
        import pyarrow.parquet as pq

        if stage != "fit":
            return
        with replacing(self.path) as file:
            pq.write_table(self.table(), file)

    def table(self) -> pa.Table:
        """The events so far."""
        import pyarrow as pa

        columns: dict[str, Any] = {}
        for name in ("time", "event", *_INTS[1:4], "arrives_at", *_INTS[4:], *_FLOATS[2:]):
            values = self._columns[name]
            if name == "event":
                kinds = pa.array(EVENTS, pa.string())
                columns[name] = pa.DictionaryArray.from_arrays(pa.array(values, pa.int8()), kinds)
            elif name in _FLOATS:
                columns[name] = pa.array(values, pa.float64(), from_pandas=True)
            else:
                array = np.asarray(values, dtype=np.int64)
                columns[name] = pa.array(array, mask=array == _MISSING)
        return pa.table(columns).replace_schema_metadata(
            {b"fedlight.num_clients": str(self._num_clients).encode()}
        )

    def state_dict(self) -> dict[str, Any]:
        """The events so far."""
        return {
            name: np.asarray(values, dtype=np.float64 if name in _FLOATS else np.int64)
            for name, values in self._columns.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the events."""
        self._columns = {name: values.tolist() for name, values in state.items()}
        self._restored = True

    def _add(self, event: str, time: float, version: int, task: Task, **more: Any) -> None:
        self._append(
            event=EVENTS.index(event),
            time=time,
            version=version,
            client=task.client_id,
            serial=task.serial,
            pulled_version=task.pulled_version,
            num_steps=task.num_steps,
            **more,
        )

    def _append(self, **row: Any) -> None:
        for name, values in self._columns.items():
            values.append(row.get(name, math.nan if name in _FLOATS else _MISSING))


def _empty() -> dict[str, list[Any]]:
    return {name: [] for name in (*_FLOATS, *_INTS)}
