"""fedlight on the conformance set: every case, both executors, both precisions."""

from dataclasses import replace

import pytest

from fedlight.conformance import Case, NotImplementedHere, check, load_cases
from fedlight.conformance.ours import Fedlight

CASES = {case.name: case for case in load_cases()}
TIMED = {name: case for name, case in CASES.items() if case.kind == "timed"}


# Each case on both executors and in both precisions; neighbours differ in which goes with which.
PRECISIONS = [("float64", "float32"), ("float32", "float64")]
RUNS = {
    f"{name}-{executor}-{precision}": (case, executor, precision)
    for number, (name, case) in enumerate(CASES.items())
    for executor, precision in zip(
        ("sequential", "vectorized"), PRECISIONS[number % 2], strict=True
    )
}


@pytest.mark.parametrize(("case", "executor", "precision"), RUNS.values(), ids=RUNS)
def test_the_models_are_the_known_ones(case: Case, executor: str, precision: str) -> None:
    result = check(Fedlight(executor, precision), case)
    assert result.verdict == "agrees", result.detail


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


def test_an_unknown_method_is_not_implemented() -> None:
    case = replace(CASES["afa_cd"], method={"name": "fedsomething"})
    with pytest.raises(NotImplementedHere, match="'fedsomething'"):
        Fedlight().play(case)


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("ringmaster_stops_ties", {"stopped"}),
        ("rennala_no_restart_timed", {"dropped", "left"}),
        ("afa_cd_cut_at_deadline", {"dropped", "cut"}),
        ("over_selection_first_2_of_4", {"stopped"}),
    ],
)
def test_what_is_not_used_is_reported_as_the_case_has_it(name: str, outcomes: set[str]) -> None:
    case = CASES[name]
    found = [u for u in Fedlight().play(case).updates if u["outcome"] != "used"]
    wanted = [u for u in case.expected["updates"] if u["outcome"] in outcomes]
    assert {update["outcome"] for update in found} == outcomes
    assert {(u["client"], u["ended_at"], u["outcome"]) for u in found} == {
        (u["client"], u["ended_at"], u["outcome"]) for u in wanted
    }
