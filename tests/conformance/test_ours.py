"""fedlight on the conformance set: each case one by one, and stacked, in both precisions."""

from dataclasses import replace

import numpy as np
import pytest

from fedlight.arrivals import Availability
from fedlight.conformance import Case, NotImplementedHere, check, load_cases, ours
from fedlight.conformance.ours import Fedlight

CASES = {case.name: case for case in load_cases()}
TIMED = {name: case for name, case in CASES.items() if case.kind == "timed"}


PRECISIONS = [("float64", "float32"), ("float32", "float64")]


def shapes(case: Case) -> str:
    """What decides how the case goes through an executor, apart from its numbers."""
    names = [case.method["name"], sorted(case.method), case.process["name"], sorted(case.process)]
    local = {key: value for key, value in case.local.items() if isinstance(value, str)}
    return repr([*names, case.kind, sorted(case.local), sorted(local.items()), len(case.layers)])


def runs() -> dict[str, tuple[Case, str, str]]:
    """Each case one by one and the first of each shape stacked, in the other precision.

    Neighbours differ in which precision goes with which executor.
    """
    found, seen = {}, set()
    for number, (name, case) in enumerate(CASES.items()):
        one, other = PRECISIONS[number % 2]
        found[f"{name}-sequential-{one}"] = case, "sequential", one
        if shapes(case) not in seen:
            found[f"{name}-vectorized-{other}"] = case, "vectorized", other
        seen.add(shapes(case))
    return found


RUNS = runs()


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


@pytest.mark.parametrize(
    ("name", "method", "local", "reading"),
    [
        ("delayed_nesterov_c_0", {"c": 1 / 3}, {}, "c = 1/N"),
        ("delayed_nesterov_spread_equal_times", {"c": 0.0}, {}, "c = 0"),
        ("look_ahead_0", {"send": "model"}, {}, "the model itself"),
        ("look_ahead_model_equal_times", {"send": "look_ahead"}, {}, "clients pull x + eta g v"),
        ("heloco_0", {"send": "model"}, {}, "the model itself"),
        ("heloco_equal_times", {"send": "look_ahead"}, {}, "clients pull x + eta g v"),
        ("halos_unequal_transfers", {"summed": "since_send"}, {}, "in the region's next sum"),
        ("halos_unequal_transfers", {"send": "deltas"}, {}, "the sum of the deltas"),
        ("halos_unequal_transfers", {"at_return": "reset"}, {}, "is reset"),
        ("halos_unequal_transfers", {"alpha": 0.75}, {}, "the region's own model"),
        ("halos_sum_of_deltas", {"summed": "since_return"}, {}, "in no sum"),
        ("halos_sum_of_deltas", {"send": "change"}, {}, "the change of its model"),
        ("halos_sum_of_deltas", {"at_return": "keep"}, {}, "is kept"),
        ("heloco_0", {"turn": 0.0}, {}, "not turned"),
        ("adamw_anew_fedbuff", {}, {"keep": "client"}, "a client goes on with the moments"),
        ("adamw_kept_fedavg", {}, {"keep": "task"}, "start anew in each task"),
        ("diloco_kept", {}, {"keep": "task"}, "start anew in each task"),
        ("sparse_loco_unequal_islands", {"decay": 1.0}, {}, "does not fade"),
        ("sparse_loco_unequal_islands", {"decay": 0.0}, {}, "is lost"),
        ("fedcompass_late", {"average": "models"}, {}, "models are averaged"),
        ("fedcompass_models", {"average": "deltas"}, {}, "deltas are averaged"),
        ("fedasmu_drops", {"fresh": 2}, {}, "tau = 2"),
        ("fedasmu_refreshed", {"fresh": 2}, {}, "tau = 2"),
    ],
)
def test_an_argument_chooses_the_other_reading(
    name: str, method: dict, local: dict, reading: str
) -> None:
    case = CASES[name]
    other = replace(case, method={**case.method, **method}, local={**case.local, **local})
    models = Fedlight().play(other).models
    (found,) = (each for each in case.readings if reading in each.reading)
    np.testing.assert_allclose(models, found.models, rtol=1e-10, atol=1e-12)


def test_one_layer_is_the_other_reading_of_heloco() -> None:
    case = CASES["heloco_0"]
    models = Fedlight().play(replace(case, layers=())).models
    (found,) = (each for each in case.readings if each.name == "one_vector")
    np.testing.assert_allclose(models, found.models, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("cgad_0", {"method": {**CASES["cgad_0"].method, "eps": 0.1}}, "the eps of cgad is 1e-8"),
        (
            "rate_by_steps_fedavg",
            {"local": {"rule": "sgd", "lr": {"kind": "linear"}}},
            "no local rate of the kind 'linear'",
        ),
    ],
)
def test_an_unknown_part_is_not_implemented(name: str, change: dict, words: str) -> None:
    with pytest.raises(NotImplementedHere, match=words):
        Fedlight().play(replace(CASES[name], **change))


def test_windows_whose_lost_tasks_are_heard_of_late_are_another_reading_of_failures() -> None:
    """`Availability(unfinished="lose")`: the server waits for a task that is lost."""
    case = CASES["failures_fedasync"]
    up = {}
    for client, pairs in enumerate(case.process["down"]):
        edges = [0.0, *(time for pair in pairs for time in pair), 99.0]
        up[client] = list(zip(edges[::2], edges[1::2], strict=True))
    always = replace(case, process={**case.process, "down": None})
    clock = ours._process(always)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours, "_process", lambda case: Availability(clock, up, unfinished="lose"))
        models = Fedlight().play(always).models
    (found,) = (each for each in case.readings if each.name == "waits")
    np.testing.assert_allclose(models, found.models, rtol=1e-10, atol=1e-12)


def test_what_is_sent_is_compared() -> None:
    case = CASES["heloco_0"]
    sent = np.array(case.expected["sent"])
    sent[-1] += 0.1
    result = check(Fedlight(), replace(case, expected={**case.expected, "sent": sent.tolist()}))
    assert result.verdict == "differs"
    assert result.detail.startswith("sent is")


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
        ("failures_restarts", {"stopped"}),
        ("mindflayer_trials", {"stopped"}),
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
