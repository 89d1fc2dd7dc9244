"""The recipes of the Anarchic Federated Learning paper run, shortened, from their command lines."""

import importlib.util
import re
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import datasets
import numpy as np
import pytest
from PIL import Image

from fedlight.aggregators import AFACS

pytest.importorskip("jsonargparse")

from fedlight import cli

RECIPES = Path(__file__).parents[1] / "recipes"
ROW = re.compile(r"\| (.+?) \| (0\.\d{4})( ± 0\.\d{4})? \|")
TEXT = (
    "To be, or not to be, that is the question: Whether 'tis nobler in the mind to suffer "
    "The slings and arrows of outrageous fortune, Or to take arms against a sea of troubles "
) * 2


def recipe(name):
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    """Folders are converted into a cache that goes away."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture
def run(capsys):
    """Runs a recipe with the arguments of a command line; what it printed."""

    def run(name, *args, **options):
        args = [*args, *(str(part) for k, v in options.items() for part in (f"--{k}", v))]
        cli.run(recipe(name).main, args)
        return capsys.readouterr().out

    return run


def rows(printed):
    """The lines of the table by their first cells, with the best accuracy."""
    return {match[1]: float(match[2]) for match in map(ROW.match, printed.splitlines()) if match}


MNIST = {"dataset": "mnist-mini", "p": "[2]", "max_rounds": 3, "seeds": 1}


def test_table_of_mnist(run, tmp_path):
    printed = run(
        "afl_mnist",
        **MNIST | {"p": "[2,10]", "seeds": 2},
        settings="[async-dynamic]",
        logger_dir=tmp_path / "logs",
        figure=tmp_path / "curves.png",
    )
    found = rows(printed)
    assert list(found) == ["2 | async-dynamic", "10 | async-dynamic"]
    assert 0.05 < found["2 | async-dynamic"] < found["10 | async-dynamic"] < 0.9
    assert "paper" not in printed, "these are neither its images nor its rounds"
    assert len(list((tmp_path / "logs").glob("p=*/version_*/*/seed=*/events.*"))) == 4
    with Image.open(tmp_path / "curves.png") as image:
        assert image.width > image.height


def test_a_cell_of_the_paper_stands_beside_its_number(run, monkeypatch):
    """With the accuracies made up: the real cells take 150 rounds of 60,000 images."""
    reached = SimpleNamespace(best_mean=0.9, best_std=0.0, last_mean=0.8)
    made_up = SimpleNamespace(summary=lambda last: [reached])
    module = recipe("afl_mnist")
    monkeypatch.setattr(module, "compare", lambda *args, **kwargs: made_up)
    monkeypatch.setattr(module, "FederatedDataModule", Mock())
    monkeypatch.setattr(module, "is_mnist", lambda data: True)
    monkeypatch.setitem(globals(), "recipe", lambda name: module)
    table_2 = run("afl_mnist", dataset="mnist-mini", p="[1]", settings="[async-constant]")
    assert "| 1 | async-constant | 0.9000 ± 0.0000 | 0.8888 | +0.0112 | 0.8000 |" in table_2
    table_3 = run("afl_mnist", dataset="mnist-mini", local_optimizer="Scaffold", local_steps=10)
    assert "| 10 | async-dynamic | 0.9000 ± 0.0000 | 0.9038 | -0.0038 | 0.8000 |" in table_3
    for other in (
        {"local_optimizer.lr": 0.2},
        {"aggregator": "AFACS"},
        {"aggregator.server_lr": 2},
        {"num_clients": 20},
        {"max_rounds": 151},
        {"experiment": "figure5"},
    ):
        assert "paper" not in run("afl_mnist", dataset="mnist-mini", p="[1]", **other)
    monkeypatch.setattr(module, "is_mnist", lambda data: False)
    assert "paper" not in run("afl_mnist", dataset="mnist-mini", p="[1]")


def test_strategies_are_swapped_by_their_class(run):
    plain = run("afl_mnist", **MNIST, settings="[async-dynamic]")
    printed = run(
        "afl_mnist",
        **MNIST,
        settings="[async-dynamic]",
        **{"local_optimizer": "FedProx", "local_optimizer.mu": 0.5},
        **{"aggregator": "FedAvg", "aggregator.client_weights": "uniform"},
    )
    assert printed.startswith(
        "FedAvg(buffer_size=None, client_weights='uniform'), FedProx(mu=0.5, "
    )
    assert rows(printed).keys() == rows(plain).keys()
    assert rows(printed) != rows(plain)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"aggregator": "AFAXY"}, "AFAXY"),
        ({"aggregator.buffer": 3}, "AFACD has no buffer; --aggregator.help AFACD lists"),
        ({"local_optimizer": "Scaffold", "local_optimizer.mu": 1}, "Scaffold has no mu"),
        ({"settings": "[late]"}, "late"),
    ],
)
def test_wrong_names_are_refused(run, capsys, arguments, message):
    with pytest.raises(SystemExit):
        run("afl_mnist", **MNIST, **arguments)
    assert message in capsys.readouterr().err


def test_wrong_values_are_refused(run, capsys):
    with pytest.raises(SystemExit):
        run("afl_mnist", **MNIST, **{"aggregator.server_lr": -1})
    assert "server_lr must be larger than 0, got -1" in capsys.readouterr().err


@pytest.mark.parametrize(("experiment", "own"), [("figure1", 1), ("figure5", 2)])
def test_no_line_is_lost_where_the_aggregator_is_afacs(run, tmp_path, experiment, own):
    logs = tmp_path / "new" / "logs"
    mine = {"aggregator": "AFACS", "aggregator.server_lr": 0.5, "logger_dir": logs}
    found = rows(run("afl_mnist", **MNIST, experiment=experiment, **mine))
    assert len(found) == 3
    assert sum(repr(AFACS(server_lr=0.5)) in name for name in found) == own
    assert len(list(logs.rglob("events.*"))) == 3


def test_figure_1_has_the_three_algorithms(run):
    # With as many examples for each client, FedAvg at rate 1/c is AFA-CD with constant steps.
    printed = run("afl_mnist", **MNIST, experiment="figure1")
    found = rows(printed)
    assert list(found) == ["2 | FedAvg, sync-constant", "2 | AFACD", "2 | AFACS"]
    column = rows(run("afl_mnist", **MNIST))
    assert found["2 | FedAvg, sync-constant"] == pytest.approx(column["2 | sync-constant"])
    assert found["2 | AFACD"] == pytest.approx(column["2 | async-dynamic"])


def test_figure_5_has_biased_arrivals(run):
    found = rows(run("afl_mnist", **MNIST, experiment="figure5"))
    assert list(found) == ["2 | AFACD, even", "2 | AFACD, biased", "2 | AFACS, biased"]
    assert len(set(found.values())) == 3
    one_pair = f"[{', '.join(['0.2'] * 5 + ['0'] * 5)}]"
    other = rows(run("afl_mnist", **MNIST, experiment="figure5", probabilities=one_pair))
    assert other["2 | AFACD, even"] == found["2 | AFACD, even"]
    assert other["2 | AFACD, biased"] != found["2 | AFACD, biased"]


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory):
    """A folder like the hub's: columns img and label, splits train and test."""
    folder = tmp_path_factory.mktemp("cifar10")
    animals = ["bird", "cat", "deer", "dog", "frog", "horse"]
    classes = datasets.ClassLabel(names=["airplane", "automobile", *animals, "ship", "truck"])
    features = datasets.Features(img=datasets.Image(), label=classes)
    random = np.random.default_rng(0)
    for split, size in (("train", 200), ("test", 50)):
        labels = np.arange(size) % 10
        noise = random.integers(0, 60, (size, 32, 32, 3))
        pixels = (noise + 18 * labels[:, None, None, None]).astype(np.uint8)
        images = [Image.fromarray(each) for each in pixels]
        table = datasets.Dataset.from_dict({"img": images, "label": labels}, features)
        table.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({"settings": "[sync-dynamic]"}, ["5 | sync-dynamic"]),
        (
            {"experiment": "figure6", "local_optimizer": "FedProx"},
            ["5 | AFACD, even", "5 | AFACD, biased", "5 | AFACS, biased"],
        ),
    ],
)
def test_cifar10(run, cifar10, tmp_path, options, lines):
    printed = run(
        "afl_cifar10",
        dataset=cifar10,
        p="[5]",
        batch_size=10,
        local_steps=2,
        max_rounds=3,
        val_every=2,
        seeds=1,
        figure=tmp_path / "curves.png",
        **options,
    )
    found = rows(printed)
    assert list(found) == lines
    assert all(0 <= best <= 1 for best in found.values())
    assert "paper" not in printed
    assert (tmp_path / "curves.png").stat().st_size > 1000


def windows(first, last):
    """Windows of 80 characters and the one that follows, of two roles."""
    starts = range(first, last)
    return datasets.Dataset.from_dict(
        {
            "character_id": ["HAMLET_HAMLET"] * len(starts) + ["HAMLET_OPHELIA"] * len(starts),
            "x": [TEXT[i : i + 80] for i in starts] * 2,
            "y": [TEXT[i + 80] for i in starts] * 2,
        }
    )


SHAKESPEARE = {
    "settings": "[async-dynamic]",
    "per_round": 2,
    "local_steps": 2,
    "hidden_size": 8,
    "max_rounds": 4,
    "val_every": 2,
    "seeds": 1,
}


def test_shakespeare(run, tmp_path):
    windows(0, 150).to_parquet(tmp_path / "train-0.parquet")
    test = windows(150, 250)
    test.to_parquet(tmp_path / "test-0.parquet")
    printed = run(
        "afl_shakespeare",
        dataset=tmp_path,
        **SHAKESPEARE,
        **{"local_optimizer": "LocalAdam", "local_optimizer.lr": 0.01, "aggregator.server_lr": 2},
        figure=tmp_path / "curves.png",
    )
    share = test["y"][:].count(" ") / len(test)
    assert (
        "AFACD(buffer_size=None, server_lr=2.0), LocalAdam(lr=0.01, betas=(0.9, 0.999)), 2/2"
        in printed
    )
    assert f"Always the most frequent character: {share:.4f}" in printed
    assert 0 <= rows(printed)["async-dynamic"] <= 1
    assert "paper" not in printed
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_shakespeare_holds_out_where_there_is_no_test_split(run, tmp_path):
    windows(0, 250).to_parquet(tmp_path / "train-0.parquet")
    data = recipe("afl_shakespeare").by_role(str(tmp_path), batch_size=10)
    assert data.partition.sizes.tolist() == [120, 120]
    train, test = ({"".join(row) for row in zip(d["x"], d["y"], strict=True)} for d in (
        data.train_dataset, data.val_dataset
    ))  # fmt: skip
    assert len(data.val_dataset) == 100
    assert {text[0:81] for text in test} == {TEXT[i : i + 81] for i in range(200, 250)}
    assert {text[0:81] for text in train} == {TEXT[i : i + 81] for i in range(120)}
    assert list(rows(run("afl_shakespeare", dataset=tmp_path, **SHAKESPEARE))) == ["async-dynamic"]


ALL = [
    "afl_mnist",
    "afl_cifar10",
    "afl_shakespeare",
    "arbitrary_communication",
    "fedasync",
    "fedfix",
]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("figure", "nowhere/at/all.png"),
        ("figure", "x.txt"),
        ("figure", "."),
        ("seeds", 0),
        ("seeds", 10**12),
        ("logger_dir", __file__),
        ("logger_dir", f"{__file__}/below"),
        ("logger_dir", ""),
    ],
)
def test_what_would_fail_at_the_end_fails_at_once(name, argument, value, run, capsys, monkeypatch):
    monkeypatch.setattr("fedlight.FedTrainer.fit", Mock(side_effect=AssertionError("it trains")))
    if name in ("afl_cifar10", "afl_shakespeare") and value == 10**12:
        pytest.skip("it needs their data; compare refuses it for all of them")
    with pytest.raises(SystemExit):
        run(name, dataset="mnist-mini", **{argument: value})
    assert argument in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("afl_mnist", {"p": "[2,11]"}, "num_classes_per_partition"),
        ("afl_mnist", {"p": "[]"}, r"p must hold one or more, each of them once, got \[\]"),
        ("afl_mnist", {"p": "[2,2]"}, "p must hold one or more, each of them once"),
        ("afl_mnist", {"settings": "[]"}, "settings must hold one or more"),
        ("afl_mnist", {"p": 2}, r"--p must be a list, such as '\[2\]', got '2'"),
        ("afl_mnist", {"experiment": "figure5", "probabilities": "[1]"}, "probabilities"),
        ("afl_mnist", {"per_round": 11}, "per_round=11 is more than the 10 clients"),
        ("arbitrary_communication", {"period": 1}, "must lie between 0 and 1, got 1.75"),
        ("arbitrary_communication", {"mixing_ratios": "[1, 2]"}, "a number from 0 to 1"),
        ("arbitrary_communication", {"num_clients": 10**12}, "give num_partitions <= 10000"),
        ("arbitrary_communication", {"mixing_ratios": "[nan]"}, "a number from 0 to 1"),
        ("fedfix", {"lrs": "[0.1, inf]"}, "each item of --lrs must be a finite number above 0"),
        ("fedfix", {"max_time": "inf"}, "--max_time must be a finite number above 0"),
        (
            "fedfix",
            {"experiment": "methods", "interval": -1},
            "--interval must be a finite number above 0",
        ),
        ("arbitrary_communication", {"max_time": 5}, "max_time must be at least period=10, got 5"),
        ("fedasync", {"alphas": "[1.5]"}, "--alphas must be a number from 0 to 1"),
        ("fedasync", {"max_staleness": "[-1]"}, "--max_staleness must be an integer of at least 0"),
        ("fedfix", {"max_time": 0.1}, "max_time must be at least .* for identical, got 0.1"),
        (
            "fedfix",
            {"experiment": "methods", "interval": 10, "max_time": 3},
            "max_time must be at least 20 for FedFix-10, got 3",
        ),
        ("fedfix", {"spreads": "[0.8,1]"}, "spread must be below 1, got 1"),
        ("fedfix", {"lrs": "[]"}, "lrs must hold one or more"),
    ],
)
def test_values_out_of_range_fail_before_any_training(
    name, arguments, words, run, monkeypatch, capsys
):
    monkeypatch.setattr("fedlight.FedTrainer.fit", Mock(side_effect=AssertionError("it trains")))
    with pytest.raises(SystemExit) as ended:
        run(name, dataset="mnist-mini", **arguments)
    assert ended.value.code == 2
    assert re.search(words, capsys.readouterr().err.splitlines()[-1])


@pytest.mark.parametrize("name", [*ALL, "bring_your_own_module"])
def test_help_describes_each_option(name, run, capsys):
    module = recipe(name)
    with pytest.raises(SystemExit) as ended:
        cli.run(module.main, ["--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for option in signature(module.main).parameters:
        described = (
            shown.partition(f" --{option} {option.upper()}")[2]
            or shown.partition(f" --{option}+ [ITEM,...]")[2]
        )
        if option in ("experiment",):
            described = shown.rpartition(f" --{option} ")[2].partition("}")[2]
        words, _, type_and_default = described.partition("(type: ")
        assert len(words) > 5, option
        assert "default: " in type_and_default[:400], option


def test_without_a_network_the_hub_is_one_line(run, capsys, monkeypatch):
    monkeypatch.setattr(
        datasets, "load_dataset", Mock(side_effect=ConnectionError("Couldn't reach the Hub"))
    )
    for name in ALL:
        with pytest.raises(SystemExit) as ended:
            run(name)
        assert ended.value.code == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert "the hub cannot be reached" in line
        assert "give a local folder" in line
