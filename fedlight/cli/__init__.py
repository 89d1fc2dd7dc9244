"""Command lines: of a script, and of a module with its data (they need jsonargparse).

`FedCLI` is Lightning's `LightningCLI` with a `FedTrainer`: subcommands, ``--config`` and
``--print_config``. `run` makes each argument of a script's own function an option; `Figure`,
`Folder` and `PositiveNumber` are types of such arguments, and `help_first` answers ``--help``
before the script has loaded anything large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedlight.cli.quick_help import help_first
from fedlight.cli.script import (
    Figure,
    Folder,
    PositiveNumber,
    distinct,
    figure_file,
    folder,
    run,
)

if TYPE_CHECKING:
    from fedlight.cli.fed_cli import FedCLI

__all__ = [
    "FedCLI",
    "Figure",
    "Folder",
    "PositiveNumber",
    "distinct",
    "figure_file",
    "folder",
    "help_first",
    "run",
]


def __getattr__(name: str) -> Any:
    if name == "FedCLI":  # it loads torch, which a script's help does without
        from fedlight.cli.fed_cli import FedCLI

        return FedCLI
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
