"""The command: table, JSON, exit codes, and its words for wrong arguments."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedlight.conformance import Case, NotImplementedHere, Outcome, Update, play_events
from fedlight.conformance.__main__ import load_adapter, main

ROOT = Path(__file__).parents[2]


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


def test_the_command_in_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedlight.conformance", "--only", "fedbuff", "mifa_0"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (row,) = (line for line in done.stdout.splitlines() if "fedbuff_fedprox" in line)
    assert "agrees" in row
    assert "mifa_0" in done.stdout
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
        (["--adapter", "fedlight.conformance:load_cases"], "has no 'name'"),
        (["--adapter", "json:dumps"], "json:dumps cannot be made without arguments: dumps()"),
        (["--only", "fedsgd"], "only='fedsgd' fits no case and no method"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert words in capsys.readouterr().err


def test_an_adapter_may_be_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "made", Mixing(), raising=False)
    monkeypatch.setitem(sys.modules, "mixing", sys.modules[__name__])
    assert load_adapter("mixing:made").name == "mixing"
