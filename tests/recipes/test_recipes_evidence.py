"""The recipes that compare methods run, shortened."""

import importlib.util
from pathlib import Path

import pytest

from fedlight import sweep

pytest.importorskip("jsonargparse")
pytest.importorskip("matplotlib")

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def recipe(monkeypatch):
    monkeypatch.syspath_prepend(RECIPES)  # as `python recipes/evidence.py` has it

    def load(name):
        spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def cells(shown):
    """The lines of the table, without its head."""
    return [line.strip("| ").split(" | ") for line in shown.splitlines()[2:]]


@pytest.mark.filterwarnings("ignore:fedlight")  # of unequal shares, which are the point
def test_a_memory_removes_the_floor(recipe, capsys, tmp_path):
    recipe("evidence").main(
        "floor", rates=[0.05, 0.02], max_updates=300, seeds=2, figure=tmp_path / "figure.png"
    )
    table = cells(capsys.readouterr().out)
    assert [row[0] for row in table] == ["biased, FedBuff", "biased, CA2FL", "biased, MIFA"]
    assert table[0][-1] == "+0.000 [+0.000, +0.000]"
    error = [min(float(cell.split(" ± ")[0]) for cell in row[1:3]) for row in table]
    for row, own in zip(table[1:], error[1:], strict=True):
        assert own < error[0] / 2
        assert float(row[-1].split(" [")[0]) == pytest.approx(own - error[0], abs=0.002)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("ignore:fedlight")
@pytest.mark.parametrize(
    ("claim", "dataset", "lines"),
    [("delays", "quadratic", 8), ("stops", "quadratic", 6), ("bias", "mnist-mini", 2)],
)
def test_the_other_claims(recipe, capsys, claim, dataset, lines):
    recipe("evidence").main(claim, dataset, rates=[0.1], max_updates=60, seeds=1)
    table = cells(capsys.readouterr().out)
    assert len(table) == lines
    assert all(len(row) == 3 for row in table)


@pytest.mark.filterwarnings("ignore:fedlight")
def test_leaderboard(recipe, capsys, tmp_path, monkeypatch):
    module = recipe("leaderboard")
    monkeypatch.setattr(module, "SETTINGS", {"FedFix": module.SETTINGS["FedFix"]})

    def one_seed(over, seeds, **options):
        return sweep(over, seeds=seeds[:1], **options)

    monkeypatch.setattr(module, "sweep", one_seed)
    module.main(
        "mnist-mini", target=0.15, rates=[0.05], max_updates=20, seeds=1,
        figure=tmp_path / "figure.png",
    )  # fmt: skip
    table = cells(capsys.readouterr().out)
    assert len({row[1] for row in table}) == len(table) == 26
    assert table[0][1:4] == ["FedBuff, 0.05", table[0][2], "0 [nan, nan]"]
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
