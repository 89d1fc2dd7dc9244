"""The recipes run, shortened."""

import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedlight import FedTrainer
from fedlight.arrivals import ArrivalProcess

RECIPES = Path(__file__).parents[1] / "recipes"


def recipe(name):
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_quickstart(monkeypatch, tmp_path, capsys):
    simulate = ArrivalProcess.simulate

    def four_rounds(self, num_clients, *, max_rounds):
        assert max_rounds >= 50
        return simulate(self, num_clients, max_rounds=4)

    limits, fit = [], FedTrainer.fit

    def remember(self, *args, **kwargs):
        limits.append(self.limits.max_rounds)
        fit(self, *args, **kwargs)

    monkeypatch.setattr(ArrivalProcess, "simulate", four_rounds)
    monkeypatch.setattr(FedTrainer, "fit", remember)
    recipe("quickstart").main()
    shown = capsys.readouterr().out
    for name in ("AFACD", "AFACS", "FedAvg"):
        assert re.search(rf"{name} +│ 0\.\d{{4}} ", shown)
        (events,) = (tmp_path / "fedlight_logs" / "quickstart" / name).glob("events.*")
        assert events.stat().st_size > 1000
    assert limits == [60] * 3, "otherwise the progress bar has no total"
    command = shlex.split(shown.splitlines()[-1].removeprefix("Curves: "))
    assert command[0] == sys.executable
    assert command[-2:] == ["--logdir", "fedlight_logs"], "the folder that the README names"
    version = subprocess.run([*command[:3], "--version"], capture_output=True, check=False)
    assert version.returncode == 0


@pytest.mark.parametrize(("option", "code"), [("--help", 0), ("--max_rounds=3", 2)])
def test_quickstart_does_not_train_when_asked_for_help(option, code, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["quickstart.py", option])
    monkeypatch.delattr(FedTrainer, "fit")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(RECIPES / "quickstart.py"), run_name="__main__")
    assert ended.value.code == code
    assert ("Three aggregators" in capsys.readouterr().out) == (code == 0)
