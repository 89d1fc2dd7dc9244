"""The recipes run, shortened."""

import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

from fedlight import FedTrainer, sweep

RECIPES = Path(__file__).parents[2] / "recipes"


def recipe(name):
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_quickstart(monkeypatch, tmp_path, capsys):
    module = recipe("quickstart")
    asked = {}

    def two_rounds(*args, **options):
        asked.update(options)
        return sweep(*args, **options | {"max_rounds": 2, "seeds": [0, 1]})

    monkeypatch.setattr(module, "sweep", two_rounds)
    module.main()
    assert (asked["max_rounds"], len(asked["seeds"])) == (60, 3)
    shown = capsys.readouterr().out
    logs = tmp_path / "fedlight_logs" / "quickstart"
    for name in ("AFACD", "AFACS", "FedAvg"):
        assert re.search(rf"{name} +│ 0\.\d{{4}} ± ", shown)
        for seed in (0, 1):
            (events,) = (logs / f"aggregator={name}" / f"seed={seed}").glob("events.*")
            assert events.stat().st_size > 500
    assert "95%" in shown, "the table has intervals"
    assert (logs / "curves.png").stat().st_size > 5000
    assert "Picture: fedlight_logs/quickstart/curves.png" in shown
    command = shlex.split(shown.splitlines()[-1].removeprefix("Curves: "))
    assert command[0] == sys.executable
    assert command[-2:] == ["--logdir", "fedlight_logs/quickstart"], "the folder of the README"
    version = subprocess.run([*command[:3], "--version"], capture_output=True, check=False)
    assert version.returncode == 0


@pytest.mark.parametrize("script", sorted(RECIPES.glob("*.py")), ids=lambda script: script.stem)
def test_a_recipe_fits_on_a_screen(script):
    assert len(script.read_text().splitlines()) <= 80
    assert len(signature(recipe(script.stem).main).parameters) <= 8


def test_what_is_no_recipe_is_imported_by_one():
    others = {path.stem for path in (RECIPES / "parts").glob("*.py")} - {"__init__"}
    text = "".join(script.read_text() for script in RECIPES.glob("*.py"))
    assert len(others) >= 5
    assert all(
        re.search(rf"^from parts(\.| import ){name}\b", text, re.MULTILINE) for name in others
    )


@pytest.mark.parametrize(("option", "code"), [("--help", 0), ("--max_rounds=3", 2)])
def test_quickstart_does_not_train_when_asked_for_help(option, code, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["quickstart.py", option])
    monkeypatch.delattr(FedTrainer, "fit")
    monkeypatch.delattr(FedTrainer, "steps_of_fit")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(RECIPES / "quickstart.py"), run_name="__main__")
    assert ended.value.code == code
    assert ("three aggregators" in capsys.readouterr().out) == (code == 0)
