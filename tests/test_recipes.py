"""The recipes run, shortened."""

import importlib.util
import re
from pathlib import Path

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

    monkeypatch.setattr(ArrivalProcess, "simulate", four_rounds)
    recipe("quickstart").main()
    shown = capsys.readouterr().out
    for name in ("AFACD", "AFACS", "FedAvg"):
        assert re.search(rf"{name} +│ 0\.\d{{4}} ", shown)
        (events,) = (tmp_path / "logs" / "quickstart" / name).glob("events.*")
        assert events.stat().st_size > 1000
    assert "tensorboard --logdir logs" in shown
