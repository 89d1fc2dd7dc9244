"""The recipes for patterns of communication and for a module of one's own run, shortened."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from fedlight import Study
from fedlight.aggregators import AFACD, FedAsync
from fedlight.local_optimizers import FedProx

pytest.importorskip("jsonargparse")

RECIPES = Path(__file__).parents[2] / "recipes"
PATTERNS = ["full", "synchronous", "periodic", "random", "imbalanced"]


def recipe(name):
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def number(cell):
    return float(cell.split(" ")[0])


def cells(shown):
    """The rows of the table, without its head."""
    lines = [line for line in shown.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[1:] if "---" not in line]


def test_patterns_of_communication(capsys, tmp_path):
    path = tmp_path / "study"
    recipe("arbitrary_communication").main(
        dataset="mnist-mini", mixing_ratios=[1, 0], max_time=30, seeds=1, path=path
    )
    table = cells(capsys.readouterr().out)
    assert [row[:2] for row in table] == [[r, pattern] for r in ("1", "0") for pattern in PATTERNS]
    study = Study.load(path)
    models = [run.history[-1].metrics["fed/models"] for run in study.runs]
    assert all(48 <= number <= 84 for number in models)
    last = {(row[0], row[1]): number(row[3]) for row in table}
    for pattern in PATTERNS[1:]:
        assert 0.1 < last["0", pattern] < last["1", pattern] < 0.95
    assert last["0", "imbalanced"] < last["0", "synchronous"]
    assert (path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(path.glob("logs/*/seed=*/events*"))) == 10
    evaluated = {
        (run.cell["pattern"], run.seed): sum("val_acc" in record.metrics for record in run.history)
        for run in study.runs
    }
    assert evaluated["full", 0] == evaluated["synchronous", 0]  # after as many models


def test_who_communicates_when():
    def ticks(pattern):
        arrivals = recipe("arbitrary_communication").PATTERNS[pattern]
        events = arrivals.simulate(num_clients=10, interval=1.0, max_time=1000).events
        assert max(event.num_steps for event in events) <= 100
        return [[event.time for event in events if event.client == client] for client in range(10)]

    assert ticks("full") == [[float(tick) for tick in range(1, 1001)]] * 10
    assert ticks("synchronous") == [[float(tick) for tick in range(10, 1001, 10)]] * 10
    periodic = ticks("periodic")
    assert [times[0] for times in periodic] == list(range(1, 11))
    assert all(set(np.diff(times)) == {10} for times in periodic)
    random = [len(times) for times in ticks("random")]
    assert all(60 < number < 140 for number in random)
    imbalanced = [len(times) for times in ticks("imbalanced")]
    assert min(imbalanced[:5]) > 1.5 * max(imbalanced[5:])


def test_strategies_of_the_communication_recipe(tmp_path):
    path = tmp_path / "study"
    recipe("arbitrary_communication").main(
        dataset="mnist-mini",
        mixing_ratios=[0.5],
        aggregator=FedAsync(alpha=0.1),
        local_optimizer=FedProx(lr=0.05, mu=0.1),
        max_time=12,
        seeds=1,
        path=path,
    )
    (written,) = path.glob("logs/*pattern=random/seed=0/hparams.yaml")
    text = written.read_text()
    assert "FedAsync" in text
    assert "FedProx" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label": "returns"}, "column 'name' must hold a number"),
        ({"label": "return"}, "label must be one of .*'returns'.*, got 'return'"),
        ({"label": "returns", "client": "shop"}, "client must be one of .*, got 'shop'"),
    ],
)
def test_columns_of_ones_own_are_checked(arguments, message):
    Path("visits.csv").write_text("name,spend,returns\nAnn,1,no\nBob,2,yes\n")
    options = {"csv": Path("visits.csv"), "client": None} | arguments
    with pytest.raises(ValueError, match=message):
        recipe("bring_your_own_module").main(**options)


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more:UserWarning")
def test_a_module_of_ones_own(capsys):
    recipe("bring_your_own_module").main(max_updates=60, seeds=1)
    shown = capsys.readouterr().out
    table = {row[0]: number(row[1]) for row in cells(shown)}
    assert list(table) == ["FedBuff", repr(FedAsync(alpha=0.3))]
    assert table["FedBuff"] > 0.8
    assert float(re.search(r"Pooled rows, \d+ steps: val_acc (0\.\d{4})", shown)[1]) > 0.8
    assert not list(Path().iterdir())


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more:UserWarning")
@pytest.mark.parametrize("client", ["shop", None])
def test_rows_of_ones_own(client, capsys):
    random = np.random.default_rng(0)
    lines = [
        f"{shop},{spend:.2f},{'yes' if spend > 50 else 'no'}"
        for shop, spend in zip(
            random.integers(3, size=200), random.normal(50, 20, 200), strict=True
        )
    ]
    Path("visits.csv").write_text("\n".join(["shop,spend,returns", *lines]))
    own = AFACD(buffer_size=2, server_lr=5.0)
    recipe("bring_your_own_module").main(
        csv=Path("visits.csv"),
        label="returns",
        client=client,
        aggregator=own,
        max_updates=80,
        seeds=1,
        path=Path("study"),
    )
    table = {row[0]: number(row[1]) for row in cells(capsys.readouterr().out)}
    assert table[repr(own)] > 0.7
    (events,) = Path("study", "logs").glob("aggregator=AFACD*/seed=0/events*")
    assert events.stat().st_size > 1000
    rows = importlib.import_module("parts.own_rows").OwnRows(Path("visits.csv"), "returns", client)
    data = rows.split(0)
    data.setup()
    assert data.num_clients == (3 if client else 10)
