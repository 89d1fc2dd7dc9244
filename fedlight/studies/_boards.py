"""TensorBoard of a study: one folder a run, all arguments as columns, the chosen metric first."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from fedlight._runs.loggers import CellLogger
from fedlight.studies._comparing import plain

if TYPE_CHECKING:
    from fedlight.studies.runs import Planned

_LONGEST = 200


def logger_of(folder: Path, planned: Planned, axes: bool) -> CellLogger:
    """The logger of a run: ``<folder>/<axis>=<name>,…/seed=<seed>``.

    Args:
        folder: The folder of all runs.
        planned: The run.
        axes: Whether the names of folders have the axes in them; else they are ``<name>,…``.
    """
    cell = planned.cell.names
    name = plain(",".join(f"{axis}={name}" if axes else str(name) for axis, name in cell.items()))
    if len(name.encode()) > _LONGEST:  # the names of folders are limited to 255 bytes
        short = name.encode()[:_LONGEST].decode(errors="ignore")
        name = f"{short}… {blake2b(name.encode(), digest_size=4).hexdigest()}"
    return CellLogger(cell, planned.seed, folder, name=name, default_hp_metric=False)
