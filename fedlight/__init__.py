"""fedlight: asynchronous federated learning for LightningModules."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedlight._support.garbage_collection import leave_libraries_alone
from fedlight._support.products import make_reproducible

if TYPE_CHECKING:
    from fedlight.callbacks import Callback
    from fedlight.citation import cite
    from fedlight.data import FederatedDataModule
    from fedlight.independence import check_independence
    from fedlight.participation import participation_report
    from fedlight.privacy import privacy_report
    from fedlight.studies import Study, sweep
    from fedlight.studies.comparison import compare
    from fedlight.trainer import FedTrainer
    from fedlight.types import ClientUpdate

__version__ = "0.2.0"

__all__ = [
    "Callback",
    "ClientUpdate",
    "FedTrainer",
    "FederatedDataModule",
    "Study",
    "check_independence",
    "cite",
    "compare",
    "methods",
    "participation_report",
    "privacy_report",
    "sweep",
]

_HOMES = {
    "Callback": "fedlight.callbacks",
    "ClientUpdate": "fedlight.types",
    "FedTrainer": "fedlight.trainer",
    "FederatedDataModule": "fedlight.data",
    "Study": "fedlight.studies",
    "check_independence": "fedlight.independence",
    "cite": "fedlight.citation",
    "compare": "fedlight.studies.comparison",
    "participation_report": "fedlight.participation",
    "privacy_report": "fedlight.privacy",
    "sweep": "fedlight.studies",
}


make_reproducible()  # before the first product


def __getattr__(name: str) -> Any:
    # Loaded when first asked for, so that schedules can be made without torch.
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        if name in ("FedTrainer", "check_independence", "compare", "sweep"):
            leave_libraries_alone()
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
