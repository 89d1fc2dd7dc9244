"""Compares the outcome of a code with the expected one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedlight.conformance.adapter import (
    Adapter,
    NotImplementedHere,
    Outcome,
    OutOfStepError,
)
from fedlight.conformance.case import Case

Verdict = Literal["agrees", "another reading", "differs", "not implemented", "failed"]


@dataclass(frozen=True)
class Result:
    """The verdict on one case.

    Attributes:
        case: Name of the case.
        method: Name of its method.
        verdict: "agrees": models, and whatever else the code reports, are those of the case;
            "another reading": its models are those of another reading of the paper; "differs";
            "not implemented": the code does not claim to have the method; "failed": it raised, or
            returned something that cannot be compared.
        deviation: Largest relative deviation of a model, |x - x'| / max(1, |x'|) with the case's
            x'; None if there are no models to compare, infinite if their number differs.
        detail: The reading, the first difference, or the error.
    """

    case: str
    method: str
    verdict: Verdict
    deviation: float | None = None
    detail: str = ""

    @property
    def failed(self) -> bool:
        """Whether the verdict is "differs" or "failed"."""
        return self.verdict in ("differs", "failed")


def check(adapter: Adapter, case: Case) -> Result:
    """Play a case with an adapter and compare."""
    method = str(case.method["name"])
    try:
        outcome = adapter.play(case)
    except NotImplementedHere as answer:
        return Result(case.name, method, "not implemented", detail=str(answer))
    except OutOfStepError as difference:
        return Result(case.name, method, "differs", math.inf, str(difference))
    except Exception as error:
        # A code under test may raise anything; one case must not end the others.
        return Result(case.name, method, "failed", detail=f"{type(error).__name__}: {error}")
    if not isinstance(outcome, Outcome):
        detail = f"play must return an Outcome, got {type(outcome).__name__}"
        return Result(case.name, method, "failed", detail=detail)
    try:
        return _compared(outcome, case, adapter.precision)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        detail = f"the Outcome cannot be compared: {type(error).__name__}: {error}"
        return Result(case.name, method, "failed", detail=detail)


def _compared(outcome: Outcome, case: Case, precision: str) -> Result:
    method = str(case.method["name"])
    tolerance = case.tolerance[precision]
    deviation = _deviation(outcome.models, case.expected["models"])
    if deviation <= tolerance:
        detail = next(_differences(outcome, case.expected, tolerance), "")
        return Result(case.name, method, "differs" if detail else "agrees", deviation, detail)
    for reading in case.readings:
        if _deviation(outcome.models, reading.models) <= tolerance:
            return Result(case.name, method, "another reading", deviation, reading.reading)
    detail = _first_version(outcome.models, case.expected["models"], tolerance)
    return Result(case.name, method, "differs", deviation, detail)


def _deviation(actual: Any, wanted: Any) -> float:
    """Largest relative deviation; infinite if shapes differ or a number is not finite."""
    x, right = (np.asarray(value, dtype=np.float64) for value in (actual, wanted))
    if x.shape != right.shape or not np.isfinite(x).all():
        return math.inf
    return float((abs(x - right) / np.maximum(1.0, abs(right))).max(initial=0.0))


def _first_version(
    actual: Sequence[Sequence[float]], wanted: Sequence[Sequence[float]], tolerance: float
) -> str:
    for version, (x, right) in enumerate(zip(actual, wanted, strict=False), start=1):
        if _deviation(x, right) > tolerance:
            shown = ", ".join(f"{value:.6g}" for value in x)
            expected = ", ".join(f"{value:.6g}" for value in right)
            return f"version {version} is [{shown}], not [{expected}]"
    return f"{len(actual)} versions, not {len(wanted)}"


def _differences(outcome: Outcome, expected: Mapping[str, Any], tolerance: float) -> Iterator[str]:
    """Differences apart from the models, in values that both the code and the case report."""
    if outcome.times is not None and "times" in expected:
        times = list(outcome.times)
        if times != expected["times"]:
            yield f"the versions are made at {times}, not at {expected['times']}"
    for name, value in outcome.more.items():
        if name in expected and _deviation(value, expected[name]) > tolerance:
            yield f"{name} is {value}, not {expected[name]}"
    if outcome.updates is not None and "updates" in expected:
        yield from _different_updates(outcome.updates, expected["updates"])


def _different_updates(
    actual: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    reported = {_key(update): update for update in actual}
    if len(reported) != len(actual):
        yield "two updates of one client at the same time"
    for client, ended_at, _ in reported.keys() - {_key(update) for update in wanted}:
        yield f"client {client} has no update at {ended_at}"
    for right in wanted:
        key = _key(right)
        if key not in reported:
            # A run that was stopped never arrives, and not every code lists those.
            if right["outcome"] != "stopped":
                yield f"the update of client {key[0]} at {key[1]} is missing"
            continue
        for name, value in reported[key].items():
            if name in right and not _same(value, right[name]):
                yield f"client {key[0]} at {key[1]}: {name} is {value}, not {right[name]}"


def _key(update: Mapping[str, Any]) -> tuple[int, float, bool]:
    """Who and when; a client's work can be stopped at the instant at which it also arrives."""
    return update["client"], update["ended_at"], update.get("outcome") == "stopped"


def _same(value: Any, right: Any) -> bool:
    if isinstance(value, float) and isinstance(right, float):
        return math.isclose(value, right, rel_tol=1e-12, abs_tol=1e-15)
    return bool(value == right)
