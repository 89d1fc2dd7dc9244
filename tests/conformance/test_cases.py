"""The files of the conformance set: what the schema says, and what it cannot say."""

import dataclasses
import json
import math
from collections import Counter
from importlib import resources

import jsonschema
import numpy as np
import pytest

from fedlight.conformance import Case, load_cases, schema

FILES = {
    path.name.removesuffix(".json"): json.loads(path.read_text(encoding="utf-8"))
    for path in (resources.files("fedlight.conformance") / "cases").iterdir()
}
CASES = {case.name: case for case in load_cases()}


def test_the_set_has_all_cases() -> None:
    assert FILES.keys() == CASES.keys()
    assert len(CASES) == 131
    assert Counter(case.kind for case in CASES.values()) == {"events": 53, "timed": 78}
    topics = {topic for case in CASES.values() for topic in case.topics}
    assert topics == set(schema()["properties"]["topics"]["items"]["enum"])


@pytest.mark.parametrize("name", FILES)
def test_each_file_keeps_to_the_schema(name: str) -> None:
    validator = jsonschema.Draft202012Validator(schema())
    assert [error.message for error in validator.iter_errors(FILES[name])] == []
    assert FILES[name]["name"] == name


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 2),
        (("kind",), "rounds"),
        (("clients", 0, "num_examples"), 0),
        (("process", "name"), "poll"),
        (("expected", "updates", 0, "outcome"), "late"),
        (("local", "beta"), 0.1),
        (("local", "lr"), {"kind": "cosine", "peak": 0.1, "warmup": 1, "total": 9, "floor": 0.0}),
        (("local", "keep"), "round"),
        (("layers",), [[]]),
    ],
)
def test_the_schema_notices(path: tuple[str | int, ...], value: object) -> None:
    data = json.loads(json.dumps(FILES["fedasync_constant_drops"]))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert not jsonschema.Draft202012Validator(schema()).is_valid(data)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_belongs_together_fits(case: Case) -> None:
    size = len(case.x0)
    for client in case.clients:
        assert len(client.a) == len(client.c) == size
    models = case.expected["models"]
    assert {len(model) for model in models} == {size}
    if case.layers:
        assert sum(math.prod(shape) for shape in case.layers) == size
    assert ("layers" in case.topics) == (len(case.layers) > 1)
    # What is sent is listed where it is not the model, and then differs from it.
    assert ("sent model" in case.topics) == ("sent" in case.expected)
    if "sent" in case.expected:
        assert np.shape(case.expected["sent"]) == np.shape(models)
        assert abs(np.subtract(case.expected["sent"], models)).max() > 1e-3
    assert ("inner state" in case.topics) == (case.local["rule"] == "adamw")
    assert ("rate by steps" in case.topics) == isinstance(case.local["lr"], dict)
    if "times" in case.expected:
        assert case.expected["times"] == sorted(case.expected["times"])
        assert len(case.expected["times"]) == len(models)
    assert list(case.events) == sorted(case.events, key=lambda event: (event.time, event.client))
    assert (case.kind == "events") == (case.process["name"] == "replay")
    updates = case.expected.get("updates", [])
    if case.events:
        assert {(event.client, event.time) for event in case.events} == {
            (update["client"], update["ended_at"]) for update in updates
        }
    for update in updates:
        made = update["made_version"]
        assert (made is not None) == (update["outcome"] in ("used", "cut"))
        if made is not None:
            assert 0 <= update["pulled_version"] < made <= len(models)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_topics_are_those_of_the_updates(case: Case) -> None:
    updates = case.expected.get("updates")
    if updates is None:
        pytest.skip("the case lists none")
    outcomes = {update["outcome"] for update in updates}
    for topic, outcome in (("drops", "dropped"), ("left over", "left"), ("stops", "stopped")):
        assert (topic in case.topics) == (outcome in outcomes)
    assert ("staleness" in case.topics) == any(update["staleness"] for update in updates)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_other_readings_would_be_noticed(case: Case) -> None:
    models = np.array(case.expected["models"])
    for other in case.readings:
        theirs = np.array(other.models)
        assert theirs.shape != models.shape or abs(theirs - models).max() > 1e-3, other.name


def test_cases_are_found_by_method_and_by_name() -> None:
    assert {case.method["name"] for case in load_cases(["mifa"])} == {"mifa"}
    assert {case.name for case in load_cases(["mifa"])} == {"ace_0", "ace_1", "mifa_0", "mifa_1"}
    assert [case.name for case in load_cases(["decay", "afa_cs"])] == [
        "afa_cs",
        "fedasync_hinge_alpha_decay",
    ]
    with pytest.raises(ValueError, match=r"only='fedbufff' fits no case.*fedbuff"):
        load_cases(["fedbufff"])


def test_a_case_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format must be 1, got 2"):
        Case.from_dict(FILES["afa_cd"] | {"format": 2})
    assert dataclasses.is_dataclass(Case.from_dict(FILES["afa_cd"]))
