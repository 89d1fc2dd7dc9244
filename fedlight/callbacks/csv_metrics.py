"""The rounds of a run as a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fedlight._support.checks import positive_int
from fedlight._support.files import appending, new_file, replacing
from fedlight.callbacks.base import Callback

if TYPE_CHECKING:
    from lightning import LightningModule

    from fedlight.trainer import FedTrainer
    from fedlight.types import RoundRecord


class CSVMetrics(Callback):
    """Writes one CSV file with a row for each round: its version and all its metrics.

    Those of ``self.log(…, logger=False)`` are left out.

    A metric that a round does not have, such as one of a validation, is an empty cell. The file
    always consists of whole rows. A resumed run continues after the last row of its checkpoint.
    Under ``fast_dev_run`` nothing is written.

    Args:
        path: The file. A file that exists is replaced when a run begins. The folder is made.
        flush_every_n_rounds: Write to the file after this many rounds, and at the end.

    Raises:
        TypeError: `path` is not a path.
        ValueError: `flush_every_n_rounds` is below 1.
        OSError: (during the run) The file cannot be written.

    Example:
        >>> callback = CSVMetrics("runs/first.csv")
    """

    def __init__(self, path: str | Path, flush_every_n_rounds: int = 10) -> None:
        self.path = new_file("path", path, "metrics.csv")
        self.flush_every_n_rounds = positive_int("flush_every_n_rounds", flush_every_n_rounds)
        self._columns: list[str] = []
        self._seen = 0

    def on_fit_start(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Start the file, with the rounds of the checkpoint in a resumed run."""
        self._columns = []
        if trainer.fast_dev_run:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._columns = ["version"]
        self._rewrite(trainer)

    def on_event_end(self, trainer: FedTrainer, module: LightningModule) -> None:
        """Write the new rounds if there are enough of them."""
        if self._columns and len(trainer.history) - self._seen >= self.flush_every_n_rounds:
            self._write(trainer)

    def teardown(self, trainer: FedTrainer, module: LightningModule, stage: str) -> None:
        """Write the remaining rounds, also after an error."""
        if stage == "fit" and self._columns:
            self._write(trainer)

    def _write(self, trainer: FedTrainer) -> None:
        records = trainer.history[self._seen :]
        if self._new_columns(records):
            # A column in the middle of the run changes the header, and with it every row.
            self._rewrite(trainer)
            return
        with appending(self.path, "a", newline="") as file:
            csv.writer(file).writerows(map(self._row, records))
        self._seen = len(trainer.history)

    def _rewrite(self, trainer: FedTrainer) -> None:
        self._columns += self._new_columns(trainer.history)
        with replacing(self.path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self._columns)
            writer.writerows(map(self._row, trainer.history))
        self._seen = len(trainer.history)

    def _new_columns(self, records: Iterable[RoundRecord]) -> list[str]:
        names = dict.fromkeys(name for record in records for name in record.metrics.logged())
        return [name for name in names if name not in self._columns]

    def _row(self, record: RoundRecord) -> list[object]:
        values: dict[str, object] = {"version": record.version, **record.metrics.logged()}
        return [values.get(name, "") for name in self._columns]
