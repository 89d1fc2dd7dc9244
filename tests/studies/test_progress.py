"""The bar of a study, and the line of what is running."""

import math
from io import StringIO

import pytest
from rich.console import Console

import fedlight.studies._progress
from fedlight.studies._progress import RunUnderWay, StudyBar, line_of
from fedlight.studies.grid import cells_of
from fedlight.studies.runs import Planned
from tests.studies.grid_of_boring import swept

CELLS = cells_of({"rule": {name: {"max_rounds": 30} for name in ("FedBuff", "n" * 99)}}, {})
PLAN = [Planned(cell, seed) for cell in CELLS for seed in (0, 1)]


@pytest.fixture
def screen():
    return Console(file=StringIO(), force_terminal=True, width=80, color_system=None)


def test_a_line_has_the_run_its_round_and_its_newest_metric() -> None:
    run = RunUnderWay(PLAN[0], 0.4, 12, 0.81234)
    assert line_of([run], "val_acc", 80) == "rule=FedBuff, seed 0: round 12/30, val_acc 0.8123"
    assert line_of([RunUnderWay(PLAN[0])], "val_acc", 80) == "rule=FedBuff, seed 0"
    assert line_of([RunUnderWay(PLAN[0], 0.1, 3)], "val_acc", 80).endswith("round 3/30")
    assert line_of([], "val_acc", 80) == ""


@pytest.mark.parametrize("width", [40, 80, 120, 400])
@pytest.mark.parametrize("number", [1, 2, 3, 32])
@pytest.mark.parametrize("planned", [PLAN[0], PLAN[2]], ids=["short", "long"])
def test_a_line_fits_and_counts_the_runs_that_have_no_room(width, number, planned) -> None:
    line = line_of([RunUnderWay(planned, 0.5, 15, 0.5)] * number, "val_acc", width)
    assert len(line) <= width
    shown = line.count("round 15/30, val_acc 0.5")
    assert shown >= 1
    more = int(line.rpartition("; ")[2].removesuffix(" more")) if line.endswith("more") else 0
    assert shown + more == number
    if planned is PLAN[0] and width >= 120:
        assert shown == min(number, 2 if width == 120 else 8)


def test_a_bar_and_a_line_are_right_at_80_columns(screen, monkeypatch) -> None:
    monkeypatch.setattr(fedlight.studies._progress, "_REFRESH", 0.0)
    plan = PLAN * 25_000
    with StudyBar(plan, {}, True, "val_acc", screen) as bar:
        bar._failed = 12_345
        bar.tick(RunUnderWay(planned, 0.5, 15, math.inf) for planned in PLAN)
        bar._progress.refresh()
        text = screen.file.getvalue()
        lines = text.splitlines()
        assert "runs 0/100000, 12345 failed" in lines[-2]
        assert "rule=FedBuff, seed 0: round 15/30, val_acc inf; 3 more" in lines[-1]
        screen.file.seek(0)
        screen.file.truncate()
    last = screen.file.getvalue()
    assert "runs 0/100000" in last
    assert "round 15" not in last.rpartition("runs")[2]  # the line goes, and the bar stays


@pytest.mark.parametrize("workers", [1, "together", 2])
def test_each_way_of_computing_tells_what_is_running(workers, screen, monkeypatch) -> None:
    monkeypatch.setattr(fedlight.studies._progress, "_REFRESH", 0.0)
    monkeypatch.setattr("fedlight.studies.forked_runs._LOOK", 0.001)
    lines = []
    monkeypatch.setattr(
        fedlight.studies._progress,
        "line_of",
        lambda going, metric, width: lines.append(line_of(going, metric, width)) or lines[-1],
    )
    # In other processes long enough to be seen at work, also on a busy machine.
    rounds = 200 if workers == 2 else 20
    swept(workers=workers, enable_progress_bar=True, max_rounds=rounds)
    told = "\n".join(lines)
    # Of runs that go together there is room for the first.
    for rule in ("FedAsync",) if workers == "together" else ("FedAsync", "FedBuff"):
        assert f"aggregator={rule}, seed 0: round " in told
    assert f"/{rounds}, val_loss 1." in told
    assert max(map(len, lines)) <= 80


def test_a_silent_study_draws_nothing(capfd) -> None:
    swept(seeds=[0])
    assert "runs" not in capfd.readouterr().err
