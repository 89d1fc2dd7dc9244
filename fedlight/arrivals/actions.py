"""The actions that an arrival process returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from fedlight.types import Chunk


class Dispatch(NamedTuple):
    """A client pulls the model and starts a local run.

    Attributes:
        client_id: The client.
        duration: Virtual time from the pull to the arrival, at least 1e-9.
        num_steps: K, the number of local steps; 0 for a client that has no time for a step.
        delay: Virtual time from now to the pull.
        pulled_version: The version to pull; None for the latest one.
        lost: True if the result never reaches the server. At the time of the arrival, the process
            is told of the task (`on_arrival` with ``task.lost``), but the aggregator is not.
        visit: Number of earlier tasks of the client; None to count them automatically.
        tag: The group that the client works in, or None.
        cut: Whether the task is the record of one that was cut; see `Task`.
        chunk: What the task reads of shared data; None for what the process says at the pull
            (`ArrivalProcess.chunk`).
        unfinished: Whether it is the record of a task that was in flight when the recorded run
            ended. Its client pulls the model and never arrives; the duration was the planned one.
    """

    client_id: int
    duration: float
    num_steps: int
    delay: float = 0.0
    pulled_version: int | None = None
    lost: bool = False
    visit: int | None = None
    tag: str | None = None
    cut: bool = False
    chunk: Chunk | None = None
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class EndRound:
    """The round of the process ends.

    Attributes:
        delay: Virtual time from now to the end, which comes after the arrivals at that time. 0
            means now, and is not allowed in response to the end of a round.
        client_id: The client whose arrival completes the round. If several rounds end at the same
            time, the one with the smallest client number is handled first.
        tag: The group whose round it is; None for a process without groups.
    """

    delay: float
    client_id: int = -1
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Wake:
    """`on_wake` of the process is called.

    Attributes:
        delay: Virtual time from now to the call. 0 means now, and is not allowed in response to
            `on_wake`.
    """

    delay: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client's task in flight is stopped, and its result is lost.

    It is never computed. Nothing happens if the client has no task. A process that stops clients
    must set `may_stop` to True.

    Attributes:
        client_id: The client.
    """

    client_id: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The client's task in flight ends now, with the steps that it has had time for.

    ``K' = floor(K * t / T)`` of its K local steps, t after the pull, for a task of duration T. The
    result arrives now, after all other arrivals at this time. A local run without a complete step
    is cancelled. Nothing happens if the client has no task. A process that stops clients must set
    `may_stop` to True.

    Attributes:
        client_id: The client.
    """

    client_id: int


Action: TypeAlias = Dispatch | EndRound | Wake | Cancel | Cut
