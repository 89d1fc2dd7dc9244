"""The interface of a code to be tried, and a driver for codes that only have server rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedlight.conformance.case import Case, Event

Array = NDArray[np.float64]


class NotImplementedHere(Exception):
    """Raised by an adapter for a case that its code does not claim to implement."""


class OutOfStepError(Exception):
    """An update of the case starts from a version that the code has not made."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case on a code.

    Attributes:
        models: The server's models: version 1, version 2, …
        times: When each was made, in virtual time, or None if the code has no clock.
        updates: One mapping for each update that arrived, or None. Each has `client` and
            `ended_at`, and may have the other fields of the case's `expected.updates`.
        more: Other values under the names that the case's `expected` has for them, such as
            `server_variates`.
    """

    models: Sequence[Sequence[float]]
    times: Sequence[float] | None = None
    updates: Sequence[Mapping[str, Any]] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


class Adapter(Protocol):
    """Plays cases on a code.

    Attributes:
        name: The code's name.
        version: Its version.
        precision: Of its models; chooses the tolerance.
    """

    name: str
    version: str
    precision: Literal["float64", "float32"]

    def play(self, case: Case) -> Outcome:
        """Run the case.

        Raises:
            NotImplementedHere: The code does not claim to implement the case.
        """


@dataclass(frozen=True)
class Update:
    """A client's update, as a server gets it from `play_events`.

    Attributes:
        client: Index of the client.
        num_examples: Number of its examples.
        num_steps: Local steps made.
        pulled_version: Version of the model that it started from.
        staleness: Server versions made since then; a fresh update has 0.
        time: Virtual time of its arrival.
        start: The model that it started from.
        end: Its model after the local steps.
    """

    client: int
    num_examples: int
    num_steps: int
    pulled_version: int
    staleness: int
    time: float
    start: Array
    end: Array

    @property
    def delta(self) -> Array:
        """`end - start`."""
        return self.end - self.start


class ServerRule(Protocol):
    """A server that receives one update after the other.

    A rule that sends its clients something else than the model also has a method `outgoing()`,
    which returns that for the newest version.
    """

    def receive(self, update: Update) -> Array | None:
        """Take an update; return the new model, or None if it makes no version."""


class Clients:
    """The clients of a case of kind "events", in numpy: they make the updates of its events.

    Args:
        case: The case.

    Raises:
        NotImplementedHere: The case has SCAFFOLD's clients, whose state the server changes, AdamW's
            clients, or a rate that is not a number.
    """

    def __init__(self, case: Case) -> None:
        if case.local["rule"] not in ("sgd", "fedprox", "feddyn"):
            raise NotImplementedHere(f"the driver has no local rule {case.local['rule']!r}")
        if isinstance(case.local["lr"], Mapping):
            raise NotImplementedHere("the driver has no local rate by steps")
        self._case = case
        # FedDyn's c_i; zero under the other rules.
        self._memory = np.zeros((len(case.clients), len(case.x0)))

    def local_run(self, client: int, start: Array, steps: int) -> Array:
        """Return a client's model after some local steps: SGD, FedProx or FedDyn."""
        local = self._case.local
        a, c = (np.asarray(v) for v in (self._case.clients[client].a, self._case.clients[client].c))
        pull = local.get("mu", local.get("alpha", 0.0))
        y = start.copy()
        for _ in range(steps):
            y = y - local["lr"] * (a * (y - c) + pull * (y - start) - self._memory[client])
        if local["rule"] == "feddyn":
            self._memory[client] -= local["alpha"] * (y - start)
        return y

    def update(self, event: Event, models: Sequence[Array]) -> Update:
        """Return the update of an event; `models` are what clients pull of each version so far.

        Raises:
            OutOfStepError: It starts from a version that has not been made.
        """
        version = len(models) - 1
        if event.pulled_version > version:
            raise OutOfStepError(
                f"client {event.client} at {event.time} starts from version "
                f"{event.pulled_version}; the newest is {version}"
            )
        start = models[event.pulled_version]
        return Update(
            client=event.client,
            num_examples=self._case.clients[event.client].num_examples,
            num_steps=event.steps,
            pulled_version=event.pulled_version,
            staleness=version - event.pulled_version,
            time=event.time,
            start=start.copy(),
            end=self.local_run(event.client, start, event.steps),
        )


def play_events(case: Case, server: ServerRule) -> Outcome:
    """Play a case of kind "events" for a server rule; the clients' part is done here, in numpy.

    Each event is handled wholly before the next; those of one instant by client index.

    Raises:
        NotImplementedHere: The case has no list of events, has deadlines, or has clients that
            `Clients` does not have.
        OutOfStepError: An update starts from a version that the server has not made.
    """
    if case.kind != "events" or "interval" in case.method:
        raise NotImplementedHere("the driver has no clock")
    clients = Clients(case)
    models: list[Array] = []
    sent = [np.asarray(case.x0, dtype=np.float64)]
    outgoing = getattr(server, "outgoing", None)
    for event in sorted(case.events, key=lambda event: (event.time, event.client)):
        made = server.receive(clients.update(event, sent))
        if made is not None:
            models.append(np.array(made, dtype=np.float64))
            sent.append(np.array(outgoing(), dtype=np.float64) if outgoing else models[-1])
    return Outcome(models=[model.tolist() for model in models])
