"""fedlight on the conformance set: every case, both executors, both precisions."""

import pytest

from fedlight.conformance import Case, NotImplementedHere, check, load_cases
from fedlight.conformance.ours import Fedlight

CASES = {case.name: case for case in load_cases()}
TIMED = {name: case for name, case in CASES.items() if case.kind == "timed"}
IMPLEMENTED = {
    *("afa_cd", "afa_cs", "async_comm_sgd", "async_fedavg", "fedasync", "fedavg", "fedbuff"),
    "fedfix",
}
"""Methods of which at least the cases of kind "events" must not be called "not implemented"."""


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_models_are_the_known_ones(case: Case, executor: str, precision: str) -> None:
    result = check(Fedlight(executor, precision), case)
    assert result.verdict in ("agrees", "not implemented"), result.detail
    if case.kind == "events" and case.method["name"] in IMPLEMENTED:
        assert result.verdict == "agrees"


@pytest.mark.parametrize("case", TIMED.values(), ids=TIMED)
def test_timed_cases_give_the_same_when_replayed(case: Case) -> None:
    result = check(Fedlight(replay=True), case)
    assert result.verdict in ("agrees", "not implemented"), result.detail


@pytest.mark.parametrize("name", ["async_fedavg_timed", "async_comm_sgd", "fedfix_timed_decimals"])
def test_these_are_played_by_the_clock_and_from_their_events(name: str) -> None:
    for replay in (False, True):
        assert check(Fedlight(replay=replay), CASES[name]).verdict == "agrees"


def test_the_updates_are_compared_too() -> None:
    """The adapter reports what the history has of each, those dropped or left over as well."""
    found = {}
    for name in ("fedasync_constant_drops", "fedbuff_fedprox", "afa_cd_scaffold"):
        outcome = Fedlight().play(CASES[name])
        assert len(outcome.updates) == len(CASES[name].events)
        found[name] = {update["outcome"] for update in outcome.updates}
    assert found["fedasync_constant_drops"] == {"used", "dropped"}
    assert found["fedbuff_fedprox"] == {"used", "left"}
    assert outcome.more.keys() == {"server_variates", "client_variates"}


def test_a_missing_class_is_not_implemented() -> None:
    from dataclasses import replace

    case = replace(CASES["afa_cd"], method={"name": "fedsomething"})
    with pytest.raises(NotImplementedHere, match="'fedsomething'"):
        Fedlight().play(case)
