"""The recipes of the Anarchic Federated Learning paper run, shortened, from their command lines."""

import importlib.util
import re
from dataclasses import replace
from inspect import signature
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import datasets
import numpy as np
import pytest
from PIL import Image

from fedlight import FedTrainer, Study
from fedlight.aggregators import AFACD, AFACS
from fedlight.local_optimizers import FedProx, LocalSGD
from fedlight.studies import StudyRun
from fedlight.types import RoundRecord

pytest.importorskip("jsonargparse")

from fedlight import cli

RECIPES = Path(__file__).parents[2] / "recipes"
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


def test_figure_1_of_mnist(run, tmp_path):
    options = MNIST | {"p": "[2,10]", "seeds": 2, "experiment": "figure1"}
    printed = run("afl_images", **options, path=tmp_path / "study")
    found = rows(printed)
    lines = ["FedAvg, sync-constant", "AFACD", "AFACS"]
    assert list(found) == [f"{p} | {line}" for p in (2, 10) for line in lines]
    assert 0.05 < found["2 | AFACD"] < found["10 | AFACD"] < 0.9
    assert "[" not in printed.partition("\n\n")[2], "these are neither its images nor its rounds"
    (folder,) = (tmp_path / "study").iterdir()
    assert len(list(folder.glob("logs/*/seed=*/events.*"))) == 12
    with Image.open(folder / "curves.png") as image:
        assert image.width > image.height


def test_table_2_has_all_settings_and_sizes(run):
    printed = run("afl_images", **MNIST | {"max_rounds": 1})
    settings = ["sync-constant", "sync-dynamic", "async-constant", "async-dynamic"]
    assert list(rows(printed)) == [f"2 | {setting}" for setting in settings]
    titles = [line for line in printed.splitlines() if "clients" in line]
    sizes = ["5/10 clients, 5 local", "5/10 clients, 10 local", "20/100 clients, 5 local"]
    assert [size in title for size, title in zip(sizes, titles, strict=True)] == [True] * 3
    assert all(title.endswith(", 1 rounds: val_acc, 1 seed") for title in titles)
    words = [line for line in printed.splitlines() if line and not line.startswith("|")]
    assert words == titles, "a heading for each table"
    assert "| best | last | rounds |" in printed  # not the mean of ten


def test_table_3_has_the_other_local_optimizers(run):
    printed = run("afl_images", **MNIST | {"max_rounds": 1}, experiment="table3")
    assert list(rows(printed)) == ["2 | sync-constant", "2 | async-dynamic"]
    titles = [line for line in printed.splitlines() if "clients" in line]
    assert ["Scaffold" in title for title in titles] == [False, False, True, True]
    assert ["FedProx" in title for title in titles] == [True, True, False, False]


def test_a_study_that_is_asked_for_again_trains_only_what_is_new(run, tmp_path, monkeypatch):
    options = MNIST | {"max_rounds": 1, "experiment": "figure1", "path": tmp_path / "study"}
    first = rows(run("afl_images", **options))
    fits = []
    steps = FedTrainer.steps_of_fit

    def remember(self, *args, **kwargs):
        fits.append(self.aggregator)
        return steps(self, *args, **kwargs)

    monkeypatch.setattr(FedTrainer, "steps_of_fit", remember)
    assert rows(run("afl_images", **options)) == first
    assert fits == []
    more = rows(run("afl_images", **options | {"p": "[2,5]"}))
    assert {line: more[line] for line in first} == first
    assert len(more) == 2 * len(first)


@pytest.fixture
def made_up(monkeypatch):
    """With the accuracies made up: the real cells take 150 rounds of 60,000 images."""

    def sweep(over, *, seeds, **options):
        history = [RoundRecord(1, 1.0, {"val_acc": 0.9}, updates=[])]
        cells = product(*(list(names) for names in over.values()))
        return Study(
            [
                StudyRun(dict(zip(over, cell, strict=True)), seed, history, "")
                for cell in cells
                for seed in seeds
            ]
        )

    afl_images, afl_paper = recipe("afl_images"), importlib.import_module("parts.afl")
    monkeypatch.setattr(afl_images, "sweep", sweep)
    monkeypatch.setitem(globals(), "recipe", lambda name: afl_images)
    load = afl_paper.load

    def as_of_mnist(dataset):
        task, data = load(dataset)
        return replace(task, numbers=afl_paper.MNIST), data

    monkeypatch.setattr(afl_paper, "load", as_of_mnist)
    return lambda: monkeypatch.setattr(afl_paper, "load", load)


def test_a_cell_of_the_paper_stands_beside_its_number(run, made_up):
    table_2 = run("afl_images", dataset="mnist-mini", p="[1]")
    assert "| 1 | async-constant | 0.9000 ± 0.0000 [0.8888] | 0.9000 ± 0.0000 |" in table_2
    assert [line[-20:] for line in table_2.splitlines() if "sync-constant" in line] != []
    assert table_2.count("[0.") == 12
    table_3 = run("afl_images", dataset="mnist-mini", experiment="table3")
    assert "| 10 | async-dynamic | 0.9000 ± 0.0000 [0.9038] |" in table_3
    assert table_3.count("[0.") == 32
    for other in (
        {"local_optimizer": "LocalSGD", "local_optimizer.lr": 0.2},
        {"aggregator": "AFACS"},
        {"aggregator.server_lr": 2},
        {"max_rounds": 151},
        {"experiment": "figure5"},
    ):
        assert "[0." not in run("afl_images", dataset="mnist-mini", p="[1]", **other)
    made_up()  # without the paper's images, no numbers either
    assert "[0." not in run("afl_images", dataset="mnist-mini", p="[1]")


def test_strategies_are_swapped_by_their_class(run):
    sgd = {"local_optimizer": "LocalSGD", "local_optimizer.lr": 0.1}
    small = MNIST | {"max_rounds": 1, "experiment": "table3"}
    plain = run("afl_images", **small, **sgd)
    printed = run(
        "afl_images",
        **small,
        **{"local_optimizer": "FedProx", "local_optimizer.lr": 0.1, "local_optimizer.mu": 0.5},
        **{"aggregator": "FedAvg", "aggregator.client_weights": "uniform"},
    )
    assert printed.lstrip().startswith(
        "FedAvg(buffer_size=None, client_weights='uniform'), FedProx(mu=0.5, "
    )
    assert rows(printed).keys() == rows(plain).keys()
    assert rows(printed) != rows(plain)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"aggregator": "AFAXY"}, "AFAXY"),
        ({"aggregator.buffer": 3}, "AFACD has no buffer; --aggregator.help AFACD lists"),
        (
            {
                "local_optimizer": "Scaffold",
                "local_optimizer.lr": 0.1,
                "local_optimizer.mu": 1,
            },
            "Scaffold has no mu",
        ),
        ({"experiment": "table4"}, "table4"),
    ],
)
def test_wrong_names_are_refused(run, capsys, arguments, message):
    with pytest.raises(SystemExit):
        run("afl_images", **MNIST, **arguments)
    assert message in capsys.readouterr().err


def test_wrong_values_are_refused(run, capsys):
    with pytest.raises(SystemExit):
        run("afl_images", **MNIST, **{"aggregator.server_lr": -1})
    assert "server_lr must be larger than 0, got -1" in capsys.readouterr().err


@pytest.mark.parametrize(("experiment", "own"), [("figure1", 1), ("figure5", 2)])
def test_no_line_is_lost_where_the_aggregator_is_afacs(run, experiment, own):
    mine = {"aggregator": "AFACS", "aggregator.server_lr": 0.5}
    found = rows(run("afl_images", **MNIST, experiment=experiment, **mine))
    assert len(found) == 3
    assert sum(repr(AFACS(server_lr=0.5)) in name for name in found) == own


def test_figure_1_has_the_columns_of_table_2(run):
    # With as many examples for each client, FedAvg at rate 1/c is AFA-CD with constant steps.
    found = rows(run("afl_images", **MNIST, experiment="figure1"))
    sgd = {"local_optimizer": "LocalSGD", "local_optimizer.lr": 0.1}
    printed = run("afl_images", **MNIST, experiment="table3", **sgd)
    column = rows(printed.partition("10 local steps")[0])
    assert found["2 | FedAvg, sync-constant"] == pytest.approx(column["2 | sync-constant"])
    assert found["2 | AFACD"] == pytest.approx(column["2 | async-dynamic"])


def test_figure_5_has_biased_arrivals(run):
    found = rows(run("afl_images", **MNIST, experiment="figure5"))
    assert list(found) == ["2 | AFACD, even", "2 | AFACD, biased", "2 | AFACS, biased"]
    assert len(set(found.values())) == 3


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


def test_cifar10(run, cifar10, tmp_path):
    sgd = {"local_optimizer": "LocalSGD", "local_optimizer.lr": 0.01}
    small = {"dataset": cifar10, "p": "[5]", "max_rounds": 1, "seeds": 1, **sgd}
    printed = run("afl_images", **small, experiment="table3", path=tmp_path / "study")
    found = rows(printed)
    assert list(found) == ["5 | sync-constant", "5 | async-dynamic"]
    assert all(0 <= best <= 1 for best in found.values())
    assert printed.count("clients") == 1, "one size"
    assert "[0." not in printed
    (folder,) = (tmp_path / "study").iterdir()
    assert (folder / "curves.png").stat().st_size > 1000


def test_the_paper_s_images_are_known_by_their_number(cifar10):
    load = importlib.import_module("parts.afl").load
    assert load("mnist-mini")[0].numbers == {}
    task, data = load(str(cifar10))
    assert (task.numbers, task.max_rounds, data.batch_size) == ({}, 10_000, 500)


def windows(first, last):
    """Windows of 80 characters and the one that follows, of five roles."""
    starts = range(first, last)
    return datasets.Dataset.from_dict(
        {
            "character_id": [role for role in ROLES for _ in starts],
            "x": [TEXT[i : i + 80] for i in starts] * len(ROLES),
            "y": [TEXT[i + 80] for i in starts] * len(ROLES),
        }
    )


SHAKESPEARE = {"experiment": "small", "max_rounds": 2, "seeds": 1}
ROLES = [f"HAMLET_{role}" for role in ("HAMLET", "OPHELIA", "HORATIO", "GERTRUDE", "YORICK")]


def test_shakespeare(run, tmp_path):
    windows(0, 150).to_parquet(tmp_path / "train-0.parquet")
    test = windows(150, 250)
    test.to_parquet(tmp_path / "test-0.parquet")
    printed = run(
        "afl_shakespeare",
        dataset=tmp_path,
        **SHAKESPEARE,
        **{"aggregator": "AFACD", "aggregator.server_lr": 2},
        path=tmp_path / "study",
    )
    share = test["y"][:].count(" ") / len(test)
    assert (
        "AFACD(buffer_size=None, server_lr=2.0), LocalAdam(lr=0.005, betas=(0.9, 0.999)), 5/5"
        in printed
    )
    assert f"Always the most frequent character: {share:.4f}" in printed
    assert "2 rounds: val_acc, 1 seed" in printed
    assert "\nval_acc" not in printed
    assert 0 <= rows(printed)["async-dynamic"] <= 1
    assert "[0." not in printed
    assert (tmp_path / "study" / "LocalAdam" / "curves.png").stat().st_size > 1000


def test_shakespeare_holds_out_where_there_is_no_test_split(run, tmp_path):
    windows(0, 250).to_parquet(tmp_path / "train-0.parquet")
    data = importlib.import_module("parts.afl").by_role(str(tmp_path), batch_size=10)
    assert data.partition.sizes.tolist() == [120] * 5
    train, test = ({"".join(row) for row in zip(d["x"], d["y"], strict=True)} for d in (
        data.train_dataset, data.val_dataset
    ))  # fmt: skip
    assert len(data.val_dataset) == 250
    assert {text[0:81] for text in test} == {TEXT[i : i + 81] for i in range(200, 250)}
    assert {text[0:81] for text in train} == {TEXT[i : i + 81] for i in range(120)}
    assert list(rows(run("afl_shakespeare", dataset=tmp_path, **SHAKESPEARE))) == ["async-dynamic"]


def test_the_plays_of_the_paper_stand_beside_its_numbers():
    paper = importlib.import_module("parts.afl")
    for rule, optimizer, number in (
        (AFACD(server_lr=50), LocalSGD(lr=0.8), 0.4687),
        (AFACD(server_lr=50), FedProx(lr=0.8, mu=0.1), 0.4550),
    ):
        title = paper.title(rule, optimizer, 72, 143, 50, 300)
        assert paper.SHAKESPEARE[title]["async-dynamic",] == number
    assert paper.title(AFACD(), LocalSGD(lr=0.8), 72, 143, 50, 300) not in paper.SHAKESPEARE


ALL = [
    "afl_images",
    "afl_shakespeare",
    "arbitrary_communication",
    "fedasync",
    "fedfix",
]


@pytest.fixture
def no_training(monkeypatch):
    """Whatever trains is a failure of the test."""
    for method in ("fit", "steps_of_fit"):
        trains = Mock(side_effect=AssertionError("it trains"))
        monkeypatch.setattr(f"fedlight.FedTrainer.{method}", trains)


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        *((name, "seeds", 0) for name in ALL),
        *((name, "path", __file__) for name in ALL),
        ("afl_images", "seeds", 10**12),
        ("fedasync", "path", f"{__file__}/below"),
        ("fedfix", "path", ""),
    ],
)
def test_what_would_fail_at_the_end_fails_at_once(name, argument, value, run, capsys, no_training):
    with pytest.raises(SystemExit):
        run(name, dataset="mnist-mini", **{argument: value})
    assert argument in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("afl_images", {"p": "[2,11]"}, "num_classes_per_partition"),
        ("afl_images", {"p": "[]"}, r"p must hold one or more, each of them once, got \[\]"),
        ("afl_images", {"p": "[2,2]"}, "p must hold one or more, each of them once"),
        ("afl_images", {"p": 2}, r"--p must be a list, such as '\[2\]', got '2'"),
        ("arbitrary_communication", {"mixing_ratios": "[1, 2]"}, "a number from 0 to 1"),
        ("arbitrary_communication", {"mixing_ratios": "[nan]"}, "a number from 0 to 1"),
        ("arbitrary_communication", {"mixing_ratios": "[1, 1]"}, "each of them once"),
        ("fedfix", {"lrs": "[0.1, inf]"}, "each item of --lrs must be a finite number above 0"),
        ("fedfix", {"max_time": "inf"}, "--max_time must be a finite number above 0"),
        ("fedasync", {"alphas": "[1.5]"}, "--alphas must be a number from 0 to 1"),
        ("fedasync", {"max_staleness": "[-1]"}, "--max_staleness must be an integer of at least 0"),
        ("fedfix", {"max_time": 0.1}, "max_time must be at least .* for identical, got 0.1"),
        (
            "fedfix",
            {
                "experiment": "methods",
                "aggregator": "FedFix",
                "aggregator.interval": 10,
                "max_time": 3,
            },
            r"max_time must be at least 20 for FedFix\(interval=10.0.*\), got 3",
        ),
        ("fedfix", {"spreads": "[0.8,1]"}, "spread must be below 1, got 1"),
        ("fedfix", {"lrs": "[]"}, "lrs must hold one or more"),
    ],
)
def test_values_out_of_range_fail_before_any_training(
    name, arguments, words, run, no_training, capsys
):
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
        if option in ("experiment", "size"):
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
