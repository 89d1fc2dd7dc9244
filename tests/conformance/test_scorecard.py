"""The scorecard: made of what was run, with what its script says about each difference."""

import re
from pathlib import Path

import pytest

from benchmarks import scorecard
from fedlight.conformance import load_cases

PAGE = (Path(__file__).parents[2] / "docs" / "scorecard.md").read_text(encoding="utf-8")
ADAPTERS = Path(scorecard.__file__).parent / "conformance_adapters"


def result(name: str, *rows: tuple[str, str, str]) -> dict:
    cases = [
        {"case": case, "method": method, "verdict": verdict, "deviation": 0.5, "detail": "why"}
        for case, method, verdict in rows
    ]
    return {"name": name, "version": "1.0", "precision": "float64", "results": cases}


def test_the_page_says_what_the_script_says() -> None:
    assert PAGE.startswith(scorecard.HEAD)
    assert PAGE.endswith(scorecard.READ)
    assert scorecard.NOTES.keys() == scorecard.PACKAGES.keys()
    for package, notes in scorecard.NOTES.items():
        assert re.search(rf"^\| {package} [\d.]+ \|", PAGE, re.MULTILINE)
        assert all(note in PAGE for note in notes)


def test_the_page_names_cases_of_the_set() -> None:
    named = set(re.findall(r"\| `(\w+)` \|", PAGE))
    assert len(named) >= 8
    assert named <= {case.name for case in load_cases()}


def test_every_adapter_is_run() -> None:
    for adapters in scorecard.PACKAGES.values():
        for adapter in adapters:
            module, name = adapter.split(":")
            text = (ADAPTERS / f"{module}.py").read_text(encoding="utf-8")
            assert re.search(rf"^class {name}\b", text, re.MULTILINE), adapter
    classes = {
        name
        for path in ADAPTERS.glob("with_*.py")
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    run = {adapter.split(":")[1] for each in scorecard.PACKAGES.values() for adapter in each}
    assert classes - {"Model"} == run


def test_the_tables() -> None:
    one = result(
        "FLSim, lr = eta / K",
        ("fedbuff_sgd", "fedbuff", "agrees"),
        ("fedbuff_fedprox", "fedbuff", "differs"),
        ("fedasync_hinge", "fedasync", "not implemented"),
        ("over_selection_0", "fedavg", "failed"),
    )
    table = scorecard.summary({"FLSim": [one]}).splitlines()
    assert table[2] == "| FLSim 1.0, lr = eta / K |  |  | 1 of 2 |  |  |"
    rows = scorecard.differences([one])
    assert "| `fedbuff_fedprox` | differs | 5.0e-01 | why |" in rows
    assert "fedbuff_sgd" not in rows
    assert "fedasync_hinge" not in rows


def test_a_package_that_is_missing_ends_the_script() -> None:
    with pytest.raises(RuntimeError, match="no_such_package"):
        scorecard.run("no_such_package:Adapter")
