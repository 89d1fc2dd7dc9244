"""The record of a run of a study, and its place in the study's plan."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedlight._runs.records import record_from_list, record_to_list
from fedlight.methods._papers import papers_of
from fedlight.studies.keys import RunKey
from fedlight.types import RoundRecord

if TYPE_CHECKING:
    from fedlight.arrivals import ScheduleTable
    from fedlight.studies.grid import Cell


@dataclass(frozen=True, slots=True, eq=False)
class StudyRun:
    """One run of a study.

    Attributes:
        cell: The name of its value on each axis.
        seed: Its seed.
        history: The records of its rounds, ``trainer.history``.
        fingerprint: That of the server's last model, ``trainer.fingerprint()``; "" if it failed.
        error: Why it failed, in words; None if it ran.
        seconds: Real time that it took; in a study that was stopped, since it was last resumed.
            Runs that are advanced together share their time.
        papers: The keys of the papers of its strategies, see `fedlight.cite`.
        key: What defines it, in a study with a folder; else None.
    """

    cell: dict[str, Hashable]
    seed: int
    history: list[RoundRecord] = field(repr=False)
    fingerprint: str
    error: str | None = None
    seconds: float = 0.0
    papers: tuple[str, ...] = ()
    key: RunKey | None = field(default=None, repr=False)

    def to_plain(self) -> dict[str, Any]:
        """The run as plain data."""
        return {
            "cell": {axis: plain_name(name) for axis, name in self.cell.items()},
            "seed": self.seed,
            "fingerprint": self.fingerprint,
            "error": self.error,
            "seconds": self.seconds,
            "papers": list(self.papers),
            "history": [record_to_list(record) for record in self.history],
        }

    @classmethod
    def from_plain(
        cls, data: Mapping[str, Any], cell: dict[str, Hashable] | None = None
    ) -> StudyRun:
        """The run of plain data made by `to_plain`; `cell` replaces the names of its cell."""
        history = [record_from_list(record) for record in data["history"]]
        cell = data["cell"] if cell is None else cell
        papers = tuple(data.get("papers", ()))  # a run that 0.2 has kept has none
        return cls(**{**data, "cell": cell, "history": history, "papers": papers})


def plain_name(name: Hashable) -> Any:
    """The name of a value as plain data."""
    return name if name is None or isinstance(name, bool | int | float | str) else str(name)


@dataclass(slots=True, eq=False)
class Planned:
    """A run in the plan of a study.

    Attributes:
        cell: Its cell.
        seed: Its seed.
        defined: What defines it; None in a study without a folder.
        after: The run whose recorded schedule this one replays, or None.
        schedule: The recorded schedule, once the run is over, if others replay it.
        records: Whether others replay its schedule.
        shows_data: Whether it is the first run in the plan that has its data.
    """

    cell: Cell
    seed: int
    defined: RunKey | None = None
    after: Planned | None = None
    schedule: ScheduleTable | None = None
    records: bool = False
    shows_data: bool = False

    @property
    def key(self) -> str:
        """The name of the file that keeps it; "" in a study without a folder."""
        return "" if self.defined is None else self.defined.key

    @property
    def data_key(self) -> tuple[int, int | None]:
        """Equal for runs that have the same data."""
        given = self.cell.arguments["datamodule"]
        return id(given), self.seed if callable(given) else None

    def __str__(self) -> str:
        return f"{self.cell}, seed {self.seed}"

    @property
    def papers(self) -> tuple[str, ...]:
        """The keys of the papers of its strategies."""
        return papers_of(self.cell.arguments)

    def failed(self, error: BaseException, seconds: float = 0.0) -> StudyRun:
        """The record of this run if it failed."""
        words = f"{type(error).__name__}: {error}"
        names = dict(self.cell.names)
        return StudyRun(names, self.seed, [], "", words, seconds, self.papers)
