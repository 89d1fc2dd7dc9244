"""The conformance set: small federations with known models, for fedlight and for other codes.

`python -m fedlight.conformance` plays the cases on fedlight and prints a table. An `Adapter` lets
another code be tried; `play_events` does the clients' part for codes that only have server rules.
"""

from fedlight.conformance.adapter import (
    Adapter,
    Clients,
    NotImplementedHere,
    Outcome,
    OutOfStepError,
    ServerRule,
    Update,
    play_events,
)
from fedlight.conformance.case import Case, Client, Event, Reading, load_cases, schema
from fedlight.conformance.verdict import Result, Verdict, check

__all__ = [
    "Adapter",
    "Case",
    "Client",
    "Clients",
    "Event",
    "NotImplementedHere",
    "OutOfStepError",
    "Outcome",
    "Reading",
    "Result",
    "ServerRule",
    "Update",
    "Verdict",
    "check",
    "load_cases",
    "play_events",
    "schema",
]
