"""The actions that an arrival process returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


class Dispatch(NamedTuple):
    """A client pulls the model and starts a local run.

    Attributes:
        client_id: The client.
        duration: Virtual time from the pull to the arrival, at least 1e-9.
        num_steps: K, the number of local steps.
        delay: Virtual time from now to the pull.
        pulled_version: The version to pull; None for the newest one.
        lost: True if the result never reaches the server. At the time of the arrival the process
            hears of the task (`on_arrival` with ``task.lost``); the aggregator never does.
        visit: Number of earlier tasks of the client; None to have them counted.
    """

    client_id: int
    duration: float
    num_steps: int
    delay: float = 0.0
    pulled_version: int | None = None
    lost: bool = False
    visit: int | None = None


@dataclass(frozen=True, slots=True)
class EndRound:
    """The round of the process ends.

    Attributes:
        delay: Virtual time from now to the end, which comes after the arrivals at that time.
    """

    delay: float


@dataclass(frozen=True, slots=True)
class Wake:
    """`on_wake` of the process is called.

    Attributes:
        delay: Virtual time from now to the call.
    """

    delay: float


Action: TypeAlias = Dispatch | EndRound | Wake
