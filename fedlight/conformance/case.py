"""Reads the cases: federations of a few numbers with known models.

A case is a JSON file in the folder `cases`, described by `case.schema.json` next to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

Vector = Sequence[float]


@dataclass(frozen=True)
class Client:
    """A client with the loss f(x) = 1/2 * sum of a * (x - c)^2.

    Attributes:
        a: Curvatures, one for each coordinate.
        c: The client's optimum.
        num_examples: Number of its examples; all are the same, so every gradient is exact.
        steps: Local steps of each of its tasks, in a case that does not list its events.
        compute_time: Virtual time of a whole task.
        step_time: Virtual time of one local step.
        step_times: Pairs (start, time): that of the tasks that begin at or after a start.
    """

    a: Vector
    c: Vector
    num_examples: int
    steps: int | None = None
    compute_time: float | None = None
    step_time: float | None = None
    step_times: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Event:
    """The arrival of an update: who, from which version, when, and after how many local steps."""

    client: int
    pulled_version: int
    time: float
    steps: int


@dataclass(frozen=True)
class Reading:
    """Another way to read the paper, with the models that it gives."""

    name: str
    reading: str
    models: Sequence[Vector]
    times: Sequence[float] | None = None


@dataclass(frozen=True)
class Case:
    """A federation and its expected outcome. `docs/conformance.md` explains each field."""

    name: str
    description: str
    kind: Literal["events", "timed"]
    topics: tuple[str, ...]
    method: Mapping[str, Any]
    local: Mapping[str, Any]
    x0: Vector
    clients: tuple[Client, ...]
    process: Mapping[str, Any]
    until: Mapping[str, Any]
    events: tuple[Event, ...]
    expected: Mapping[str, Any]
    readings: tuple[Reading, ...]
    tolerance: Mapping[str, float]
    notes: str = ""
    layers: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Case:
        """Make a case of the contents of its file.

        Raises:
            ValueError: It has another format than this version of fedlight reads.
        """
        if data.get("format") != 1:
            raise ValueError(f"format must be 1, got {data.get('format')!r}")
        given = {"until": {}, **data}
        del given["format"]
        given["topics"] = tuple(data["topics"])
        given["layers"] = tuple(tuple(shape) for shape in data.get("layers", ()))
        for name, kind in (("clients", Client), ("events", Event), ("readings", Reading)):
            given[name] = tuple(kind(**each) for each in data.get(name, ()))
        return cls(**given)


def load_cases(only: Sequence[str] = ()) -> list[Case]:
    """Return the cases, sorted by method and name.

    Args:
        only: Parts of names of cases or methods; a case is returned if it has one of them.

    Raises:
        ValueError: A part of a name that fits no case.

    Example:
        >>> [case.name for case in load_cases(["fedbuff_f"])]
        ['fedbuff_fedprox']
    """
    folder = resources.files(__package__) / "cases"
    files = [path for path in folder.iterdir() if path.name.endswith(".json")]
    cases = [Case.from_dict(json.loads(path.read_text(encoding="utf-8"))) for path in files]
    cases.sort(key=lambda case: (case.method["name"], case.name))
    for part in only:
        if not any(_fits(case, part) for case in cases):
            methods = ", ".join(sorted({case.method["name"] for case in cases}))
            raise ValueError(f"only={part!r} fits no case and no method; the methods: {methods}")
    return [case for case in cases if not only or any(_fits(case, part) for part in only)]


def schema() -> Mapping[str, Any]:
    """Return the JSON schema of a case."""
    path = resources.files(__package__) / "case.schema.json"
    content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _fits(case: Case, part: str) -> bool:
    return part in case.name or part == case.method["name"]
