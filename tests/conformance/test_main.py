"""The command: table, JSON, exit codes, and its words for wrong arguments."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from fedlight.conformance import Case, NotImplementedHere, Outcome, Update, play_events
from fedlight.conformance.__main__ import load_adapter, main


class Mixing:
    """FedAsync without its staleness, in four lines."""

    name = "mixing"
    version = "0"
    precision = "float64"

    def play(self, case: Case) -> Outcome:
        if case.method["name"] != "fedasync":
            raise NotImplementedHere("only FedAsync")
        self.x, self.alpha = case.x0, case.method["alpha"]
        return play_events(case, self)

    def receive(self, update: Update):
        self.x = (1 - self.alpha) * np.asarray(self.x) + self.alpha * update.end
        return self.x


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the adapter for the command."""
    monkeypatch.setitem(sys.modules, "mixing", sys.modules[__name__])
    return "mixing:Mixing"


@pytest.mark.filterwarnings("ignore:.*found in sys.modules after import of package:RuntimeWarning")
def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["conformance", "--only", "fedbuff", "mifa_0"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("fedlight.conformance", run_name="__main__")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    (row,) = (line for line in shown.splitlines() if "fedbuff_fedprox" in line)
    assert "agrees" in row
    assert "mifa_0" in shown
    assert list(tmp_path.iterdir()) == []


def test_a_difference_makes_it_fail(adapter: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--adapter", adapter, "--only", "fedasync"]) == 1
    shown = capsys.readouterr().out
    assert "mixing 0, float64" in shown
    assert "1 agrees, 0 another reading, 5 differs" in shown
    assert main(["--adapter", adapter, "--only", "fedbuff"]) == 0
    assert main(["--adapter", adapter, "--only", "fedbuff", "--strict"]) == 1


def test_json(adapter: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--adapter", adapter, "--only", "fedasync_c", "fedbuff_f", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["version"]) == ("mixing", "0")
    verdicts = {row["case"]: row["verdict"] for row in shown["results"]}
    assert verdicts == {
        "fedasync_constant": "agrees",
        "fedasync_constant_drops": "differs",
        "fedbuff_fedprox": "not implemented",
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--adapter", "fedlight"], "adapter must be MODULE:NAME, got 'fedlight'"),
        (["--adapter", "fedlight.nothing:Here"], "No module named 'fedlight.nothing'"),
        (["--adapter", "json:nothing"], "the module 'json' has no 'nothing'"),
        (["--adapter", "json:dumps"], "cannot make the adapter json:dumps: TypeError: "),
        (["--adapter", ":Mine"], "cannot import '': ValueError: Empty module name"),
        (["--adapter", "math:pi"], "the adapter math:pi has no 'name'; it is of type float"),
        (["--adapter", "fedlight.conformance:load_cases"], "has no 'name'"),
        (["--only", "fedsgd"], "only='fedsgd' fits no case and no method"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("precision", "double", 'must be "float64" or "float32", got \'double\''),
        ("play", "nothing", "play of the adapter mixing:Mixing must be a method, got 'nothing'"),
    ],
)
def test_what_is_no_adapter(
    attribute: str, value: str, words: str, adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mixing, attribute, value)
    with pytest.raises(ValueError, match=words):
        load_adapter(adapter)


@pytest.mark.parametrize("lines", ["raise RuntimeError('two\\nlines')", "x = ("])
def test_a_module_that_cannot_be_imported(
    lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_adapter.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"cannot import 'broken_adapter': [^\n]+$"):
        load_adapter("broken_adapter:Mine")


@pytest.mark.parametrize(
    "answer", [None, [[1.0]], Outcome("none"), Outcome([["a"]]), Outcome([[1.0], [1.0, 2.0]])]
)
def test_nonsense_from_an_adapter_is_a_failure(
    answer: object,
    adapter: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Mixing, "play", lambda self, case: answer)
    assert main(["--adapter", adapter, "--only", "fedasync_constant"]) == 1
    assert "2 failed" in capsys.readouterr().out


def test_an_adapter_may_be_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "made", Mixing(), raising=False)
    monkeypatch.setitem(sys.modules, "mixing", sys.modules[__name__])
    assert load_adapter("mixing:made").name == "mixing"
