"""Each verdict, from adapters that give known answers."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedlight.conformance import (
    Case,
    NotImplementedHere,
    Outcome,
    OutOfStepError,
    check,
    load_cases,
)

(CASE,) = load_cases(["fedasync_constant_drops"])
MODELS = np.array(CASE.expected["models"])


class Answer:
    """An adapter with one answer."""

    name = "answer"
    version = "1"
    precision = "float64"

    def __init__(self, answer: Outcome | Exception) -> None:
        self.answer = answer

    def play(self, case: Case) -> Outcome:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def verdict(models: object, **more: object) -> tuple[str, float | None, str]:
    result = check(Answer(Outcome(models, **more)), CASE)
    return result.verdict, result.deviation, result.detail


def test_the_right_models_agree() -> None:
    assert verdict(MODELS.tolist()) == ("agrees", 0.0, "")
    near = MODELS.copy()
    near[3, 1] += 5e-11
    said, deviation, _ = verdict(near.tolist())
    assert said == "agrees"
    assert deviation == pytest.approx(5e-11 / abs(MODELS[3, 1]), rel=1e-4)


def test_the_precision_chooses_the_tolerance() -> None:
    far = Answer(Outcome((MODELS + 5e-6).tolist()))
    assert check(far, CASE).verdict == "differs"
    far.precision = "float32"
    assert check(far, CASE).verdict == "agrees"


def test_the_first_version_that_differs_is_named() -> None:
    models = MODELS.copy()
    models[4:] += 1.0
    said, deviation, detail = verdict(models.tolist())
    assert said == "differs"
    # |x'| is 2.16…: relative to the larger numbers, absolute for those below 1.
    assert deviation == pytest.approx(1.0)
    assert detail.startswith("version 5 is [3.1639, -0.210494], not [2.1639, -1.21049]")


def test_a_version_too_few_is_a_difference() -> None:
    said, deviation, detail = verdict(MODELS[:-1].tolist())
    assert (said, deviation, detail) == ("differs", math.inf, "9 versions, not 10")


def test_what_is_no_number_is_a_difference() -> None:
    models = MODELS.copy()
    models[2, 0] = math.nan
    assert verdict(models.tolist())[:2] == ("differs", math.inf)


def test_another_reading_is_named() -> None:
    for reading in CASE.readings:
        said, deviation, detail = verdict(reading.models)
        assert (said, detail) == ("another reading", reading.reading)
        assert deviation > 1e-3


def test_what_else_is_reported_must_agree() -> None:
    updates = CASE.expected["updates"]
    assert verdict(MODELS.tolist(), updates=updates)[0] == "agrees"
    stale = [dict(update) for update in updates]
    stale[1]["staleness"] = 2
    assert verdict(MODELS.tolist(), updates=stale)[::2] == (
        "differs",
        "client 0 at 1.6: staleness is 2, not 1",
    )
    assert verdict(MODELS.tolist(), updates=updates[1:])[2] == (
        "the update of client 2 at 0.5 is missing"
    )
    late = [*updates, {"client": 3, "ended_at": 99.0}]
    assert verdict(MODELS.tolist(), updates=late)[2] == "client 3 has no update at 99.0"


def test_times_and_other_values_must_agree() -> None:
    (case,) = load_cases(["fedfix_timed_decimals"])
    models, times = case.expected["models"], case.expected["times"]
    assert check(Answer(Outcome(models, times=times)), case).verdict == "agrees"
    shifted = [times[0] + 1e-9, *times[1:]]
    result = check(Answer(Outcome(models, times=shifted)), case)
    assert result.verdict == "differs"
    assert "made at [0.300000001" in result.detail
    (scaffold,) = load_cases(["afa_cd_scaffold"])
    wrong = {"server_variates": np.zeros((6, 2)).tolist()}
    result = check(Answer(Outcome(scaffold.expected["models"], more=wrong)), scaffold)
    assert result.verdict == "differs"
    assert result.detail.startswith("server_variates is")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotImplementedHere("no FedAsync"), "not implemented"),
        (OutOfStepError("version 3"), "differs"),
        (ZeroDivisionError("by zero"), "failed"),
    ],
)
def test_what_an_adapter_raises(error: Exception, said: str) -> None:
    result = check(Answer(error), CASE)
    assert result.verdict == said
    assert str(error) in result.detail
    assert result.failed == (said in ("differs", "failed"))


def test_a_stopped_run_need_not_be_reported() -> None:
    (case,) = load_cases(["ringmaster_stops_0"])
    updates = [u for u in case.expected["updates"] if u["outcome"] != "stopped"]
    assert len(updates) < len(case.expected["updates"])
    outcome = Outcome(case.expected["models"], updates=updates)
    assert check(Answer(outcome), case).verdict == "agrees"
    assert check(Answer(replace(outcome, updates=updates[1:])), case).verdict == "differs"
