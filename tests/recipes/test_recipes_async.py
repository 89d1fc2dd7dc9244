"""The recipes of FedAsync and FedFix run, shortened."""

import importlib.util
import math
import re
import runpy
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import datasets
import pytest

from data_partitioners import DirichletPartitioner, IidPartitioner
from fedlight import Study
from fedlight.aggregators import FedBuff
from fedlight.data.sources import load_splits
from fedlight.local_optimizers import LocalSGD

pytest.importorskip("jsonargparse")
RECIPES = Path(__file__).parents[2] / "recipes"


def recipe(name):
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(text):
    """The cells of the first Markdown table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def tables(text):
    """The Markdown tables, without their titles."""
    return [part for part in text.strip().split("\n\n") if part.startswith("|")]


def number(cell):
    return float(cell.split(" ")[0])


@pytest.fixture(scope="module")
def few():
    """Every tenth image of the bundled sample."""
    every = load_splits("mnist-mini", None, None, "train")
    return datasets.DatasetDict(
        {split: data.select(range(0, len(data), 10)) for split, data in every.items()}
    )


@pytest.fixture
def fedasync(monkeypatch, few):
    """The recipe with runs that are smaller still."""
    paper = importlib.import_module("parts.fedasync")
    tiny = paper.Size(12, 2, 6, width=4, shrink=3, local_steps=4, val_every=3)
    monkeypatch.setitem(paper.SIZES, "small", tiny)
    return partial(recipe("fedasync").main, dataset=few, size="small", seeds=1)


def test_fedasync_makes_the_table_the_curves_and_the_figures(fedasync, tmp_path, capsys):
    path = tmp_path / "study"
    fedasync(max_staleness=[4, 5], alphas=[0.6, 0.9], path=path)
    baselines, cells = map(rows, tables(capsys.readouterr().out))
    assert [row[0] for row in baselines] == ["FedAvg", "single-thread SGD"]
    asynchronous = ["FedAsync", "FedAsync+Poly", "FedAsync+Hinge"]
    assert [row[2] for row in cells] == 4 * asynchronous
    assert all(0 < number(cell) < 1 for row in cells for cell in row[3:])
    assert cells[0][3:] == cells[2][3:]  # the hinge is the constant up to a staleness of 4
    assert cells[0][3:] != cells[1][3:]
    assert all((path / name).stat().st_size > 10_000 for name in ("axes.png", "alpha.png"))
    assert len(list(path.glob("logs/*/seed=0"))) == 14


def test_fedasync_takes_another_aggregator_and_optimizer(fedasync, capsys):
    found = []
    for optimizer in (LocalSGD(lr=0.1), LocalSGD(lr=1e-6)):
        own = FedBuff(buffer_size=2)
        fedasync(max_staleness=[1], aggregator=own, local_optimizer=optimizer)
        found.append(tables(capsys.readouterr().out))
    fast, slow = found
    assert rows(fast[1])[-1][2] == repr(FedBuff(buffer_size=2))
    assert fast[0] == slow[0]  # the baselines have an optimizer of their own
    assert all(a[3:] != b[3:] for a, b in zip(rows(fast[1])[-1:], rows(slow[1])[-1:], strict=True))


def test_alpha_is_halved_at_a_round():
    rule = importlib.import_module("parts.fedasync").SIZES["paper"].rules(0.6, None)["FedAsync"]
    assert [rule.alpha(version) for version in (0, 798, 799, 1999)] == [0.6, 0.6, 0.3, 0.3]


def test_the_cnn_is_the_one_of_the_paper():
    module = importlib.import_module("parts.fedasync").PaperCNN(channels=3, side=24, width=64)
    shapes = [tuple(p.shape) for n, p in module.named_parameters() if p.ndim > 1]
    assert shapes == [
        *((64, 3, 3, 3), (64, 64, 3, 3), (128, 64, 3, 3), (128, 128, 3, 3)),
        *((512, 128 * 6 * 6), (10, 512)),
    ]
    names = [type(layer).__name__ for layer in module.layers]
    assert names[:3] == ["Conv2d", "ReLU", "BatchNorm2d"]
    assert (names.count("BatchNorm2d"), names.count("Dropout")) == (4, 3)


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more:UserWarning")
def test_fedfix_weighs_by_time(few, tmp_path, capsys, monkeypatch):
    paper = importlib.import_module("parts.fedfix")
    parts = {"iid": IidPartitioner(5), "non-iid": DirichletPartitioner(5, alpha=0.1)}
    monkeypatch.setattr(paper, "WEIGHTS", replace(paper.WEIGHTS, parts=parts, num_clients=5))
    path = tmp_path / "study"
    recipe("fedfix").main(dataset=few, max_time=2, seeds=2, path=path)
    loss, spread = capsys.readouterr().out.split("clients/val_loss_std")
    table = rows(loss)
    assert [row[:3] for row in table] == [
        [f"{data}, F80", "0.003", weights]
        for data in ("iid", "non-iid")
        for weights in ("identical", "time-based")
    ]
    assert [row[-1] == "" for row in table] == [True, False] * 2
    assert number(table[3][-1]) < 0  # better than identical weights
    assert all(re.fullmatch(r"\d\.\d{4} ± \d\.\d{4}", row[4]) for row in table + rows(spread))
    assert (path / "losses.png").stat().st_size > 10_000
    assert len(list(path.glob("logs/*/seed=*"))) == 8
    for run in Study.load(path).runs:
        evaluated = [r for r in run.history if "clients/val_loss_mean" in r.metrics]
        assert 20 <= len(evaluated) <= 25


def test_fedfix_weighs_equal_times_equally(few, capsys):
    recipe("fedfix").main(dataset=few, spreads=[0], max_time=2, seeds=1)
    identical, time_based, *_ = rows(capsys.readouterr().out)
    assert identical[0] == "iid, F0"
    assert identical[4] == time_based[4]
    assert number(time_based[-1]) == 0


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more:UserWarning")
def test_fedfix_compares_methods_at_their_best_rates(few, capsys, tmp_path, monkeypatch):
    paper = importlib.import_module("parts.fedfix")
    parts = {"non-iid": DirichletPartitioner(12, alpha=0.1)}
    small = replace(paper.METHODS, parts=parts, num_clients=12, local_steps=5)
    monkeypatch.setattr(paper, "METHODS", small)
    shown = []
    monkeypatch.setattr(Study, "plot", lambda self, **options: shown.append(self) or Mock())
    recipe("fedfix").main(
        experiment="methods",
        dataset=few,
        spreads=[0.5],
        lrs=[0.001, 0.1],
        aggregator=FedBuff(buffer_size=3),
        max_time=2,
        seeds=1,
        path=tmp_path / "study",
    )
    table = rows(capsys.readouterr().out.partition("clients/val_loss_std")[0])
    names = ["FedAvg", "AsyncFedAvg", "FedFix-0.5", "FedBuff-10", repr(FedBuff(buffer_size=3))]
    assert [row[2] for row in table] == 2 * names
    losses = {(row[2], float(row[1])): number(row[4]) for row in table}
    assert losses["FedAvg", 0.1] < losses["FedAvg", 0.001]
    assert all(map(math.isfinite, losses.values()))
    (best,) = shown
    for run in best.runs:
        name, rate = run.cell["aggregator"], run.cell["lr"]
        assert losses[name, rate] == min(losses[name, other] for other in (0.001, 0.1))
    assert len(best.runs) == len(names)


def shell(monkeypatch, name, *arguments):
    """Run a recipe as the shell does."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    runpy.run_path(str(RECIPES / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("fedasync", ["--aggregator", "FedBuf"], "did you mean FedBuff?"),
        ("fedasync", ["--local_optimizer", "LocalSGD", "--local_optimizer.lr", "x"], "lr"),
        ("fedfix", ["--experiment", "method"], "'weights', 'methods'"),
        ("fedfix", ["--aggregator", "FedFix"], "also needs --aggregator.interval"),
        ("fedasync", ["--size", "tiny"], "'paper', 'small'"),
        ("fedasync", ["--max_staleness", "4"], "--max_staleness must be a list"),
        ("arbitrary_communication", ["--max_time", "0"], "--max_time must be"),
        ("bring_your_own_module", ["--csv", "none.csv"], "--csv: File does not exist"),
    ],
)
def test_a_wrong_argument_is_named(name, arguments, message, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        shell(monkeypatch, name, *arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert ended.value.code == 2


def test_a_value_out_of_range_is_named(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        shell(monkeypatch, "fedfix", "--aggregator", "FedBuff", "--aggregator.buffer_size", "0")
    assert "error: buffer_size must be at least 1, got 0" in capsys.readouterr().err
