"""The recipe of the islands runs, shortened."""

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("jsonargparse")
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
def test_islands_prints_the_losses_of_all_methods(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        "fedlight.data.python_texts",
        lambda: {f"{k}.py": f"print({k}) # and so on\n".encode() * 20 for k in range(8)},
    )
    options = ["--texts", "python", "--size", "tiny", "--tasks", "8", "--seeds", "1"]
    monkeypatch.setattr(sys, "argv", ["islands.py", *options, "--path", str(tmp_path)])
    monkeypatch.syspath_prepend(str(RECIPES))
    runpy.run_path(str(RECIPES / "islands.py"), run_name="__main__")
    tables = [part for part in capsys.readouterr().out.split("\n\n") if part.startswith("|")]
    assert len(tables) == 2
    for table, axis in zip(tables, ("tokens", "virtual_time"), strict=True):
        rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
        assert [row[0].strip() for row in rows] == [
            "DiLoCo, rounds",
            "delayed Nesterov",
            "delayed Nesterov, DyLU",
            "look-ahead",
            "HeLoCo",
            "asynchronous Nesterov",
            "asynchronous SGD",
        ]
        # About log(256) = 5.545 at the start; all methods have learned something at the end.
        if axis == "virtual_time":  # in which the slowest island makes no round
            name, *values = (each.strip() for each in rows.pop(0))
            assert [name, *values] == ["DiLoCo, rounds", *["no value"] * 3]
        losses = {row[0].strip(): float(row[-1].split()[0]) for row in rows}
        assert all(2 < loss < 5.6 for loss in losses.values()), str(losses)
    assert (tmp_path / "tokens.png").exists()
    assert (tmp_path / "virtual_time.png").exists()


def test_all_methods_make_about_as_many_steps():
    """By hand: 40 tasks of 20 steps; by speed int(20 v / 5.7) is 3, 4, 9 and 20, at least 5."""
    sys.path.insert(0, str(RECIPES))
    try:
        from parts.islands import table
    finally:
        sys.path.remove(str(RECIPES))
    every = table(lr=0.01, num_steps=20, tasks=40)
    assert every.pop("DiLoCo, rounds")["max_rounds"] == 10
    assert {name: each["max_updates"] for name, each in every.items()} == {
        "delayed Nesterov": 40,
        "delayed Nesterov, DyLU": 82,  # 800 / ((5 + 5 + 9 + 20) / 4)
        "look-ahead": 40,
        "HeLoCo": 40,
        "asynchronous Nesterov": 40,
        "asynchronous SGD": 800,
    }
