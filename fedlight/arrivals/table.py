"""A recorded schedule: a record for each arrival and each cancelled local run."""

from __future__ import annotations

import hashlib
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlight._support.checks import (
    flag,
    non_negative_int,
    number,
    optional,
    positive,
    positive_int,
    shown,
)
from fedlight._support.files import existing_file, new_file, replacing
from fedlight.types import Chunk

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_METADATA = b"fedlight.schedule"
_HASH = b"fedlight.hash"
_RARE = (
    "round_tags",
    "groups",
    "arrivals_per_send",
    "feedback",
    "unfinished",
    "may_stop",
    "lost",
    "waste_known",
)
_END = b"fedlight.end"
_LOST = b"fedlight.lost"
_MOST_SHOWN = 3  # the repr of a longer table is a summary
_CHECKS: dict[str, Callable[[str, object], Any]] = {
    "client": non_negative_int,
    "pulled_version": partial(optional, non_negative_int),
    "time": positive,
    "num_steps": non_negative_int,
    "visit": partial(optional, non_negative_int),
    "stopped_at_version": partial(optional, non_negative_int),
    "chunk_start": partial(optional, non_negative_int),
    "chunk_shard": partial(optional, non_negative_int),
}


@dataclass(frozen=True, slots=True)
class ReplayEvent:
    """One arrival of a recorded schedule, or one local run that was cancelled.

    Attributes:
        client: The index of the client.
        pulled_version: The server version that its task started from; None, together with
            `dispatched_at`, for the newest one at that time (``ReplayArrivals(pull="newest")``).
        time: Virtual time of the arrival or the cancellation.
        num_steps: K, the local steps of its task; 0 only together with `dispatched_at`, for a
            client that was polled before its first step had ended.
        dispatched_at: Virtual time of its pull; None for a pull as soon as its version exists and
            the client's previous record has arrived.
        visit: Number of earlier tasks of the client, including lost ones. It determines which
            examples the client sees. None counts the client's records.
        stopped_at_version: The server's version when the local run was cancelled; None for an
            arrival.
        tag: The group that the client works in (`Tiers`), or None.
        cut: Whether the local run was cut short (`Cut`); it arrives after the others of that
            time.
        chunk_start: `Chunk.start` of a task that reads shared data (`SharedStream`); None for the
            client's own examples.
        chunk_shard: `Chunk.shard` of such a task.
        chunk_shuffle: `Chunk.shuffle` of such a task.
    """

    client: int
    pulled_version: int | None = None
    time: float = 0.0  # which is refused: it has to be given
    num_steps: int = 1
    dispatched_at: float | None = None
    visit: int | None = None
    stopped_at_version: int | None = None
    tag: str | None = None
    cut: bool = False
    chunk_start: int | None = None
    chunk_shard: int | None = None
    chunk_shuffle: bool | None = None

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            TypeError: A number is of the wrong kind.
            ValueError: A number is outside its range.
        """
        for name, check in _CHECKS.items():
            given = getattr(self, name)
            # Tables give NumPy's numbers, but JSON and equal reprs need Python's.
            if (checked := check(f"ReplayEvent.{name}", given)) is not given:
                object.__setattr__(self, name, checked)
        if self.dispatched_at is None:
            positive_int("ReplayEvent.num_steps", self.num_steps)
        if self.dispatched_at is not None and not (
            0 <= number("ReplayEvent.dispatched_at", self.dispatched_at) < self.time
            or (self.stopped_at_version is not None and self.dispatched_at == self.time)
        ):
            raise ValueError(
                "ReplayEvent.dispatched_at must be between 0 and the arrival at "
                f"time={self.time!r}, got {self.dispatched_at!r}"
            )
        if self.stopped_at_version is not None and self.dispatched_at is None:
            raise ValueError(
                f"ReplayEvent.stopped_at_version={self.stopped_at_version} needs dispatched_at, "
                "the virtual time at which the cancelled run began"
            )
        if self.pulled_version is None and self.dispatched_at is None:
            raise ValueError(
                "ReplayEvent.pulled_version must be the server version that the client pulled, got "
                "None; or give dispatched_at, the virtual time at which it pulled the newest one"
            )
        if self.tag is not None and not isinstance(self.tag, str):
            raise TypeError(f"ReplayEvent.tag must be a string or None, got {shown(self.tag)}")
        object.__setattr__(self, "cut", flag("ReplayEvent.cut", self.cut))
        if self.chunk_shuffle is not None:
            shuffle = flag("ReplayEvent.chunk_shuffle", self.chunk_shuffle)
            object.__setattr__(self, "chunk_shuffle", shuffle)
        if self.chunk_start is None and self.chunk_shard is not None:
            raise ValueError(
                f"ReplayEvent.chunk_shard={self.chunk_shard} needs chunk_start, the number of "
                "examples of the shard that earlier tasks have taken"
            )
        if self.chunk_shuffle is not None:
            if not isinstance(self.chunk_shuffle, bool | np.bool_):
                raise TypeError(
                    "ReplayEvent.chunk_shuffle must be True, False or None, got "
                    f"{self.chunk_shuffle!r}"
                )
            object.__setattr__(self, "chunk_shuffle", bool(self.chunk_shuffle))
            if self.chunk_start is None:
                raise ValueError(
                    f"ReplayEvent.chunk_shuffle={self.chunk_shuffle} needs chunk_start, the number "
                    "of examples of the stream that earlier tasks have taken"
                )

    @property
    def chunk(self) -> Chunk | None:
        """What the task read of shared data, or None."""
        if self.chunk_start is None:
            return None
        return Chunk(self.chunk_start, self.chunk_shard, self.chunk_shuffle is not False)


@dataclass(frozen=True, slots=True)
class ScheduleTable:
    """A recorded schedule, which `ReplayArrivals` replays.

    ``staleness = version just before its use - pulled_version`` for each arrival that was used.

    Attributes:
        events: The arrivals and the cancelled local runs, in their order.
        round_ends: Virtual times at which the process's rounds end; empty for arrivals by the
            clock.
        num_clients: M, the number of clients.
        durations: T_i, the mean duration of each client's tasks in virtual time, or None if it is
            unknown.
        versions: For each record, the server's version just before the server update that used or
            dropped it, or None if it was never used. None as a whole if this was not recorded.
        round_tags: For each of `round_ends`, the group whose round it is; empty without groups.
        groups: The tags of the groups, in their order (`Tiers`).
        arrivals_per_send: Of groups with a server each (`Regions`): K, the arrivals after which one
            sends; None for other groups.
        feedback: Whether the process was told what clients had logged; it becomes
            `ArrivalProcess.early_results` of the replay.
        unfinished: The tasks in flight at the end; their time is that of the planned arrival. In a
            replay their clients are at work and never arrive: where the bits of a result depend on
            the others in its stack, they are a part of it. Empty if this was not recorded.
        may_stop: Whether the process may have stopped clients, so that nothing was computed before
            it had arrived.
        lost: The tasks whose results were lost; their time is that of the loss, or of the
            cancellation of one that would have been lost. A replay loses them again.
        waste_known: Whether `events` and `lost` are all tasks that have ended, each as it ended, so
            that a report on the table can tell the goodput. This is so for a table of ``simulate``
            and for a `Recording`, but for one case, which only a run with a model has: a local run
            that failed as it was computed is listed as an arrival, since a replay computes it anew.
            Then it is False, and only a report on the trainer knows the goodput. It is False as
            well for files of earlier versions, for recordings that go on from a checkpoint of
            theirs, and for tables made by hand, unless one says otherwise. (Updates that the
            aggregator drops are arrivals in any case: it drops them in the replay, too.)

    Example:
        >>> from fedlight.arrivals import UniformArrivals
        >>> table = UniformArrivals(per_round=2, max_staleness=4, local_steps=3).simulate(
        ...     num_clients=4, max_rounds=100
        ... )
        >>> len(table), int(table.staleness().max())
        (200, 4)
    """

    events: list[ReplayEvent]
    round_ends: list[float] = field(default_factory=list)
    num_clients: int | None = None
    durations: list[float] | None = None
    versions: list[int | None] | None = None
    round_tags: list[str | None] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    arrivals_per_send: int | None = None
    feedback: bool = False
    unfinished: list[ReplayEvent] = field(default_factory=list)
    may_stop: bool = False
    lost: list[ReplayEvent] = field(default_factory=list)
    waste_known: bool = False

    def __len__(self) -> int:
        """The number of records: arrivals, and local runs that were cancelled."""
        return len(self.events)

    def __repr__(self) -> str:
        """All fields, or a one-line summary if there are more than a few records."""
        if len(self.events) <= _MOST_SHOWN:
            shown = {name: getattr(self, name) for name in self.__slots__}
            shown = {k: v for k, v in shown.items() if v or k not in _RARE}
            return f"ScheduleTable({', '.join(f'{name}={x!r}' for name, x in shown.items())})"
        times = [event.time for event in self.events]
        clients = len({event.client for event in self.events})
        of = "" if self.num_clients is None else f" of {self.num_clients}"
        rounds = f", {len(self.round_ends)} rounds" if self.round_ends else ""
        return (
            f"ScheduleTable({len(self.events)} arrivals of {clients}{of} clients, "
            f"virtual time {min(times):g} to {max(times):g}{rounds})"
        )

    def staleness(self) -> NDArray[np.int64]:
        """Return the staleness of each update that was used, in the order of arrivals.

        It is the version just before the update was used minus the version that was pulled.

        Raises:
            ValueError: The table does not contain when its updates were used.
        """
        if self.versions is None:
            raise ValueError(
                "this schedule does not contain the versions at which its updates were used; make "
                "one with arrivals.simulate(…) or Recording(arrivals, path)"
            )
        pulled = [event.pulled_version for event in self.events]
        pairs = zip(pulled, self.versions, strict=True)
        known = [v - p for p, v in pairs if v is not None and p is not None]
        return np.array(known, dtype=np.int64)

    def to_arrow(self) -> pa.Table:
        """Return the events as an Arrow table, one row each; the rest is in the schema's metadata.

        The columns are the attributes of `ReplayEvent` and ``version``. ``stopped_at_version``,
        ``tag``, ``cut`` and those of chunks are present only if an event uses them.
        """
        import pyarrow as pa

        types = {
            "client": pa.int64(),
            "pulled_version": pa.int64(),
            "time": pa.float64(),
            "num_steps": pa.int64(),
            "dispatched_at": pa.float64(),
            "visit": pa.int64(),
        }
        if any(event.stopped_at_version is not None for event in self.events):
            types["stopped_at_version"] = pa.int64()
        if any(event.tag is not None for event in self.events):
            types["tag"] = pa.string()
        if any(event.cut for event in self.events):
            types["cut"] = pa.bool_()
        if any(event.chunk_start is not None for event in self.events):
            types |= {"chunk_start": pa.int64(), "chunk_shard": pa.int64()}
            types["chunk_shuffle"] = pa.bool_()
        columns = {
            name: pa.array([getattr(event, name) for event in self.events], kind)
            for name, kind in types.items()
        }
        if self.versions is not None:
            columns["version"] = pa.array(self.versions, pa.int64())
        rest: dict[str, Any] = {
            "round_ends": self.round_ends,
            "num_clients": self.num_clients,
            "durations": self.durations,
        }
        if self.groups or self.round_tags:
            rest |= {"round_tags": self.round_tags, "groups": self.groups}
        if self.arrivals_per_send is not None:
            rest["arrivals_per_send"] = self.arrivals_per_send
        if self.feedback:
            rest["feedback"] = True
        metadata = {_METADATA: json.dumps(rest).encode()}
        if self.unfinished or self.may_stop:
            metadata[_END] = _packed("unfinished", self.unfinished, may_stop=self.may_stop)
        if self.lost or self.waste_known:
            metadata[_LOST] = _packed("lost", self.lost, waste_known=self.waste_known)
        return pa.table(columns).replace_schema_metadata(metadata)

    def to_pandas(self) -> Any:
        """Return the events as a data frame, one row each, with the columns of `to_arrow`."""
        return self.to_arrow().to_pandas()

    def save(self, path: str | Path) -> None:
        """Write the schedule to a parquet file; an existing one is replaced when it is complete.

        The file carries a hash of its content, by which `load` finds out whether it was changed.

        Raises:
            OSError: The file cannot be written.
            TypeError: `path` is no path.
            ValueError: It is empty, or a folder.
        """
        import pyarrow.parquet as pq

        path = new_file("path", path, "schedule.parquet")
        table = self.to_arrow()
        metadata = table.schema.metadata
        digest = _hash_of(table, metadata[_METADATA])
        with replacing(path) as file:
            pq.write_table(table.replace_schema_metadata({**metadata, _HASH: digest}), file)

    @classmethod
    def load(cls, path: str | Path) -> ScheduleTable:
        """Read a schedule that `save` wrote.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is not such a schedule, or was changed since.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = existing_file("path", path, "schedule file")
        try:
            table = pq.read_table(path)
            metadata = table.schema.metadata or {}
            rest = json.loads(metadata[_METADATA])
            # Files of 0.2 have no hash.
            if metadata.get(_HASH) not in (None, _hash_of(table, metadata[_METADATA])):
                raise _changed(path)
            versions = None
            if "version" in table.column_names:
                versions = table["version"].to_pylist()
                table = table.drop_columns(["version"])
            events = [ReplayEvent(**row) for row in table.to_pylist()]
            for name, key in (("unfinished", _END), ("lost", _LOST)):
                if key in metadata:
                    rest |= _unpacked(name, metadata[key], path)
            return cls(events=events, versions=versions, **rest)
        except (
            pa.ArrowException,
            OSError,
            KeyError,
            TypeError,
            UnicodeError,
            json.JSONDecodeError,
        ) as error:
            raise ValueError(
                f"{str(path)!r} is not a schedule written by fedlight "
                "(ScheduleTable.save or Recording)"
            ) from error


# Tasks that have not arrived are metadata of their own, with a hash of their own: versions of
# fedlight that do not know of them read the rest as before.
def _packed(name: str, tasks: list[ReplayEvent], **flags: bool) -> bytes:
    columns = {
        column: [getattr(event, column) for event in tasks]
        for column in ReplayEvent.__slots__
        if any(getattr(event, column) is not None for event in tasks)
    }
    content = zlib.compress(json.dumps({name: columns, **flags}).encode())
    return hashlib.blake2b(content, digest_size=16).hexdigest().encode() + b64encode(content)


def _unpacked(name: str, packed: bytes, path: Path) -> dict[str, Any]:
    content = b64decode(packed[32:])
    if hashlib.blake2b(content, digest_size=16).hexdigest().encode() != packed[:32]:
        raise _changed(path)
    found: dict[str, Any] = json.loads(zlib.decompress(content))
    columns, rows = list(found[name]), zip(*found[name].values(), strict=True)
    found[name] = [ReplayEvent(**dict(zip(columns, row, strict=True))) for row in rows]
    return found


def _changed(path: Path) -> ValueError:
    return ValueError(
        f"{str(path)!r} was changed since fedlight has written it (its hash does not "
        "fit); record the schedule again, or write it with ScheduleTable.save"
    )


def _hash_of(table: pa.Table, rest: bytes) -> bytes:
    """32 hexadecimal digits of a schedule, as it is written and as it is read."""
    import pyarrow as pa

    digest = hashlib.blake2b(rest, digest_size=16)
    for name in table.column_names:
        column = table[name]
        digest.update(f"{name} {column.type} ".encode())
        digest.update(column.is_null().to_numpy().tobytes())
        if pa.types.is_string(column.type):
            digest.update(repr(column.to_pylist()).encode())
        else:  # what a missing value holds is not defined
            zero = pa.scalar(0).cast(column.type)
            digest.update(column.fill_null(zero).to_numpy().tobytes())
    return digest.hexdigest().encode()
