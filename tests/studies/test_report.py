"""The report of a study, and the record of how it was made."""

import re
import sys
from html.parser import HTMLParser
from shlex import join

import numpy as np
import pytest
import torch

import fedlight
from fedlight import Study, cite, compare
from fedlight.aggregators import FedAsync, FedBuff
from fedlight.local_optimizers import LocalSGD
from fedlight.studies import StudyRun
from fedlight.studies._origin import Origin
from fedlight.studies.grid import cells_of
from tests.boring import Boring, classes
from tests.studies.grid_of_boring import CLOCK, RULES, swept
from tests.studies.test_parts import diverged, history

pytest.importorskip("matplotlib").use("agg")


class Page(HTMLParser):
    """What a page holds: its text, the addresses of its parts, and whether each tag is closed."""

    _ALONE = ("meta", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.text, self.sources, self.open, self.columns = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in self._ALONE:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href"):
                self.sources.append(value)
            if name == "data-column":
                self.columns.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    def __str__(self):
        return " ".join(" ".join(self.text).split())


def rate(lr):
    return {"local_optimizer": LocalSGD(lr), "module": lambda: Boring(bias(lr))}


def bias(lr):
    return torch.nn.Linear(4, 3, bias=lr > 0)


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A study of two axes, its folder, and its report."""
    folder = tmp_path_factory.mktemp("study")
    study = swept(
        over={"lr": {0.1: rate(0.1), 0.05: rate(0.05)}, "<rule>": RULES},
        path=folder,
        max_updates=None,
        max_rounds=4,
    )
    study.report(folder / "report.html")
    return study, folder, (folder / "report.html").read_text()


def test_a_report_is_one_file_that_loads_nothing(reported) -> None:
    page = Page(reported[2])
    assert len(page.sources) == 4  # two axes, of two learning rates
    assert all(each.startswith("data:image/svg+xml;base64,") for each in page.sources)
    assert not re.search(r"<(script|link|iframe)|@import|url\(", reported[2])


def test_a_report_tells_how_the_study_was_made(reported) -> None:
    study, _, text = reported
    page = str(Page(text))
    assert "By fedlight.sweep" in page.replace(" .", ".")
    assert join(sys.orig_argv)[:60] in page
    for name in ("fedlight", "torch", "lightning", "numpy", "Python"):
        assert f"{name} {study.origin.versions[name]}" in page
    assert study.origin.versions["torch"] == torch.__version__
    assert study.origin.versions["fedlight"] == fedlight.__version__
    shared, differing = study.origin.shared, study.origin.differing
    assert "seeds 0, 1" in page
    assert f"arrivals {CLOCK!r}" in page
    assert shared["max_rounds"] == "4"
    assert "max_updates" not in shared
    assert differing["lr"]["0.05"]["local_optimizer"] == "LocalSGD(lr=0.05)"
    assert differing["lr"]["0.05"]["module"].endswith("# lr=0.05")
    assert differing["<rule>"]["FedBuff"] == {"aggregator": repr(FedBuff(2))}
    assert not shared.keys() & {"local_optimizer", "aggregator"}


def test_a_report_has_the_table_and_what_its_signs_mean(reported) -> None:
    study, _, text = reported
    page, table = Page(text), study.table()
    for row in table.lines()[1]:
        assert " ".join(row) in str(page)
    assert table.legend in str(page)
    assert set(table.lines()[0]) <= set(page.columns)  # a narrow screen names them in each line
    assert "&lt;rule&gt;" in text
    assert "<rule>" not in text


def test_the_report_of_a_loaded_study_is_the_same(reported) -> None:
    study, folder, text = reported
    loaded = Study.load(folder)
    assert loaded.origin == study.origin
    loaded.report(folder / "again.html")
    assert (folder / "again.html").read_text() == text
    assert loaded.only(lr=0.1).best("<rule>").origin == study.origin


def test_a_report_may_have_a_title_another_metric_and_a_reference(reported, tmp_path) -> None:
    reported[0].report(tmp_path / "r.html", "A & B", "train_loss", reference="FedAsync")
    text = (tmp_path / "r.html").read_text()
    assert "<h1>A &amp; B</h1>" in text
    assert "train_loss over virtual time" in text
    assert "best - FedAsync" in text
    with pytest.raises(ValueError, match="'val_los' is in no round"):
        reported[0].report(tmp_path / "r.html", metric="val_los")


def test_a_comparison_knows_how_it_was_made(tmp_path) -> None:
    result = compare(
        RULES,
        arrivals=CLOCK,
        module=Boring,
        datamodule=classes(),
        seeds=[3],
        max_updates=6,
        metric="val_loss",
        enable_progress_bar=False,
    )
    result.study.report(tmp_path / "r.html")
    assert result.study.origin.function == "compare"
    assert result.study.origin.seeds == [3]
    assert result.study.origin.shared["module"] == "Boring"


@pytest.mark.parametrize(
    "study",
    [
        diverged(),
        Study([StudyRun({}, 0, history(0.5), "f")]),
        Study([StudyRun({"p": p}, 0, [], "", "ValueError: <no>") for p in (1, 2)]),
        Study(
            [
                StudyRun({"p": p, "q": q}, 0, history(0.5) if p == 1 else [], "f")
                for p in (1, 2)
                for q in range(3)
            ]
        ),
    ],
    ids=["infinite", "one", "failed", "partly"],
)
def test_any_study_has_a_report(study, tmp_path) -> None:
    study.report(tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text())
    assert "The settings of this study were not recorded." in str(page)
    measured = any(run.history for run in study.runs)
    assert bool(page.sources) is measured
    if not measured:
        assert "1: ValueError: <no>" in str(page)
        assert "no run has a value of val_acc" in str(page)


def test_settings_that_all_values_of_an_axis_give_are_shared() -> None:
    rules = {"x": FedAsync(0.5), "y": FedAsync(0.25), "z": FedAsync(0.1)}
    axis = {
        name: {"aggregator": rule, "local_optimizer": LocalSGD(0.1), "module": lambda: 3}
        for name, rule in rules.items()
    }
    origin = Origin.of("sweep", cells_of({"rule": axis}, {}), [1], {})
    assert origin.shared == {"local_optimizer": "LocalSGD(lr=0.1)"}
    assert origin.differing["rule"]["y"].keys() == {"aggregator", "module"}


def test_a_report_has_the_references(reported) -> None:
    assert " ".join(cite(reported[0]).split()) in str(Page(reported[2]))


def test_settings_are_words_of_their_own() -> None:
    cells = cells_of(
        {"a": {"x": {"aggregator": FedAsync(0.5)}, "y": {"aggregator": FedAsync(0.25)}}},
        {"module": eval("lambda: 3"), "max_rounds": np.int64(2), "limit_val_batches": None},
    )
    origin = Origin.of("sweep", cells, [1], {"callbacks": None, "note": "x" * 2000})
    assert origin.shared["module"] == "<lambda>"
    assert origin.shared.keys() == {"module", "max_rounds", "note"}
    assert len(origin.shared["note"]) < 1000
    assert list(origin.differing["a"]) == ["x", "y"]
