"""What an arrival process may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


class Dispatch(NamedTuple):
    """A client pulls the model and starts to work.

    Attributes:
        client_id: Who.
        duration: Virtual time from the pull to the arrival, larger than 0.
        num_steps: K, local steps.
        delay: Virtual time from now to the pull.
        pulled_version: The version pulled; None for the newest one.
        lost: True if the result never reaches the server. The process hears of it (`on_arrival`
            with ``task.lost``) when it would have arrived, the server does not.
        visit: How many tasks the client was given before; None to have them counted.
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
    """The process's round ends after `delay` of virtual time, behind the arrivals at that time."""

    delay: float


@dataclass(frozen=True, slots=True)
class Wake:
    """The process wants to be asked again after `delay` of virtual time."""

    delay: float


Action: TypeAlias = Dispatch | EndRound | Wake
