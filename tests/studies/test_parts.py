"""The parts of a study: keys, files, tables."""

import csv
import importlib
import io
import json
import math
import re
import warnings
from functools import partial

import numpy as np
import pytest
import rich
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator as Events
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

import fedlight.studies
from fedlight import Study
from fedlight.aggregators import FedAsync, FedBuff
from fedlight.callbacks import ClientEvaluation, TensorBoardMetrics
from fedlight.callbacks._tensorboard_pages import summary_of
from fedlight.studies import Entry, Interval, StudyRun, StudyTable, bootstrap
from fedlight.studies._cell_key import cell_key
from fedlight.studies.comparison import ComparedRun, Comparison
from fedlight.studies.grid import cells_of
from fedlight.studies.keys import RunKey
from fedlight.studies.runs import Planned
from fedlight.studies.store import Store
from fedlight.types import Metrics, RoundRecord
from tests.boring import Boring, classes
from tests.studies.grid_of_boring import prints, swept

pytestmark = pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")


def hparams(folder):
    """The columns of the only run in a folder, on TensorBoard's page HParams."""
    (file,) = folder.rglob("events.out*")
    reader = EventAccumulator(str(file))
    reader.Reload()
    content = reader.PluginTagToContent("hparams")[metadata.SESSION_START_INFO_TAG]
    values = metadata.parse_session_start_info_plugin_data(content).hparams
    return {name: getattr(values[name], values[name].WhichOneof("kind")) for name in values}


def plain(kind=Boring):
    return kind()


def test_a_damaged_folder_loses_no_finished_run(tmp_path) -> None:
    whole = prints(swept(path=tmp_path))
    (tmp_path / "study.json").write_text('{"format": 1, "ru')
    (tmp_path / "settings.json").unlink()
    assert sorted(prints(Study.load(tmp_path))) == sorted(whole)
    swept(path=tmp_path, seeds=[0])
    assert len(Study.load(tmp_path).runs) == 4
    file = next((tmp_path / "runs").glob("*.json"))
    for damaged in ("{}", '{"format": 1, "run": null}', '{"format": 99}'):
        file.write_text(damaged)
        assert prints(swept(path=tmp_path)) == whole


def test_a_folder_may_hold_two_grids(tmp_path) -> None:
    swept(path=tmp_path, seeds=[0])
    swept(
        path=tmp_path,
        seeds=[0],
        over={"max_rounds": [2]},
        aggregator=FedAsync(alpha=0.5),
        check_val_every_n_rounds=1,
    )
    loaded = Study.load(tmp_path)
    assert loaded.axes == {"aggregator": ["FedAsync", "FedBuff", "-"], "max_rounds": [2, "-"]}
    assert len(loaded.table().rows) == 3
    assert len(loaded.only(aggregator="FedBuff").runs) == 1


def test_an_axis_is_bounded_and_has_a_name_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"may have 100,000 values, got range"):
        swept(over={"max_rounds": range(10**9)})
    with pytest.raises(ValueError, match="cannot have the axis 'round'"):
        swept(over={"round": {"a": {"max_rounds": 2}}})


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"aggregator": [FedAsync(0.5), FedAsync(0.5)]}, r"two values called FedAsync.*a dict"),
        ({"max_rounds": [1, True]}, "two values called True"),
        ({"max_rounds": [2, 3, 2]}, "two values called 2"),
        ({"module": [Boring, lambda: Boring()]}, r"lists <function <lambda>.*a dict of names"),
        ({"module": [partial(plain, Boring)]}, "no name of its own"),
        ({"x": [{"datamodule": lambda seed: classes()}]}, "no name of its own"),
    ],
)
def test_values_in_a_list_must_have_names_that_differ(over, words) -> None:
    with pytest.raises(ValueError, match=words):
        swept(aggregator=FedAsync(0.5), over=over)


def test_a_class_or_function_in_a_list_is_called_by_its_name() -> None:
    given = {"aggregator": FedAsync(0.5), "seeds": [0]}
    assert swept(over={"module": [Boring, plain]}, **given).axes == {"module": ["Boring", "plain"]}


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"module": lambda seed: Boring()}, TypeError, "module must be a function of no arg"),
        ({"datamodule": lambda: classes()}, TypeError, "datamodule must be a function of the seed"),
        ({"callbacks": lambda run: []}, TypeError, "callbacks must be a function of no arguments"),
        ({"logger_dir": __file__}, OSError, "logger_dir=.* must be a folder"),
    ],
)
def test_what_no_run_could_use_is_refused_before_the_first(given, error, words) -> None:
    with pytest.raises(error, match=words):
        swept(**given)


def test_a_key_depends_on_names_and_version(monkeypatch) -> None:
    key = cell_key({"a": "1", "b": "2"})
    assert key == cell_key({"b": "2", "a": "1"})
    assert key != cell_key({"a": "12", "b": ""})
    monkeypatch.setattr("fedlight.studies._cell_key.__version__", "next")
    assert key != cell_key({"a": "1", "b": "2"})


def test_another_seed_or_cell_adds_only_itself(tmp_path, monkeypatch) -> None:
    begun = []
    monkeypatch.setattr(
        "fedlight.studies.workers.go_through",
        lambda run, tick, go=fedlight.studies.workers.go_through: begun.append(run) or go(run),
    )
    first = swept(path=tmp_path)
    assert len(begun) == 4
    again = swept(path=tmp_path)
    assert len(begun) == 4
    assert prints(again) == prints(first)
    assert again.runs[0].history == first.runs[0].history
    more = swept(path=tmp_path, seeds=(0, 1, 2))
    assert [run.planned.seed for run in begun[4:]] == [2, 2]
    assert prints(Study.load(tmp_path)) == prints(more)
    names = {"renamed": FedAsync(alpha=0.5), "new": FedAsync(alpha=0.75)}
    swept(path=tmp_path, over={"aggregator": names})
    assert [run.planned.cell.names["aggregator"] for run in begun[6:]] == ["new", "new"]
    swept(path=tmp_path, datamodule=classes(seed=3), seeds=[0])
    assert len(begun) == 10
    loaded = Study.load(tmp_path)
    assert loaded.axes == {"aggregator": ["FedAsync", "FedBuff", "renamed", "new"]}
    assert loaded.metric == "val_loss"
    with pytest.raises(FileNotFoundError):
        Study.load(tmp_path / "none")


@pytest.mark.parametrize("workers", [1, "together", 2])
def test_two_cells_of_the_same_run_share_it(tmp_path, workers) -> None:
    given = {"seeds": [0], "checkpoint_seconds": 0.001, "workers": workers}
    study = swept(
        path=tmp_path, over={"rule": {"one": FedAsync(0.5), "same": FedAsync(0.5)}}, **given
    )
    assert [run.error for run in study.runs] == [None, None]
    assert len(set(prints(study))) == 1
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert not any((tmp_path / "checkpoints").iterdir())
    assert [run.cell["rule"] for run in Study.load(tmp_path).runs] == ["one", "same"]


def test_finished_runs_that_are_computed_again_are_counted(tmp_path, monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("fedlight.studies.sweeping.rank_zero_info", said.append)
    swept(path=tmp_path, seeds=[0])
    swept(path=tmp_path, seeds=[0, 1])
    assert said == []
    swept(path=tmp_path, seeds=[0, 1], max_updates=21)
    (line,) = said
    assert "4 of 4 runs were finished, and are computed again" in line


def test_a_study_of_another_format_is_refused_and_kept(tmp_path) -> None:
    swept(path=tmp_path, seeds=[0], over=None, aggregator=FedAsync(0.5))
    file = tmp_path / "study.json"
    file.write_text(newer := file.read_text().replace('"format":1', '"format":2'))
    for again in (lambda: Study.load(tmp_path), lambda: swept(path=tmp_path)):
        with pytest.raises(ValueError, match="holds a study of format 2, and this version"):
            again()
    assert file.read_text() == newer


def test_a_damaged_list_or_run_is_made_anew(tmp_path) -> None:
    given = {"path": tmp_path, "seeds": [0], "over": None, "aggregator": FedAsync(0.5)}
    first = prints(swept(**given))
    for damaged in ('{"runs":[{"cell":3}]}', "[]", "", '{"format":1,"runs":[1]}'):
        (tmp_path / "study.json").write_text(damaged)
        assert prints(Study.load(tmp_path)) == first
    (file,) = (tmp_path / "runs").glob("*.json")
    whole = file.read_text()
    file.write_text(whole.replace('"history":[', '"history":[[],'))
    assert prints(swept(**given)) == first
    assert len(file.read_text()) > 0.9 * len(whole)


@pytest.mark.parametrize("words", ['"train_loss":', '"history":[', '"run":'])
def test_a_run_whose_file_was_changed_is_computed_again(tmp_path, words, caplog) -> None:
    given = {"path": tmp_path, "seeds": [0], "over": None, "aggregator": FedAsync(0.5)}
    first = prints(swept(**given))
    (file,) = (tmp_path / "runs").glob("*.json")
    whole = file.read_text()
    place = next(n for n in range(whole.index(words), len(whole)) if whole[n] in "12345678")
    file.write_text(whole[:place] + str(int(whole[place]) + 1) + whole[place + 1 :])
    with caplog.at_level("INFO"):
        assert prints(swept(**given)) == first
    assert caplog.text.count("was damaged or changed since it was written") == 1
    assert json.loads(file.read_text()).keys() == {"hash", "format", "run"}


def test_a_run_of_a_file_without_a_hash_is_read(tmp_path) -> None:
    """Those of 0.2 have none."""
    given = {"path": tmp_path, "seeds": [0], "over": None, "aggregator": FedAsync(0.5)}
    first = prints(swept(**given))
    (file,) = (tmp_path / "runs").glob("*.json")
    content = json.loads(file.read_text())
    del content["hash"]
    file.write_text(older := json.dumps(content))
    assert prints(swept(**given)) == first
    assert file.read_text() == older


@pytest.mark.parametrize("name", ["path", "logger_dir"])
def test_what_is_no_folder_is_refused(name) -> None:
    with pytest.raises(ValueError, match=f"{name} must name a folder, got ''"):
        swept(**{name: ""})
    with pytest.raises(TypeError, match=f"{name} must be a folder, such as .*, got 3"):
        swept(**{name: 3})


def test_names_may_be_long_or_have_several_lines(tmp_path) -> None:
    names = ["a\nb" + letter * 300 for letter in "xy"]
    study = swept(
        over={"rule": {names[0]: FedAsync(0.5), names[1]: FedBuff(2)}},
        seeds=[0],
        logger_dir=tmp_path,
    )
    assert [run.error for run in study.runs] == [None, None]
    assert len(list(tmp_path.iterdir())) == 2
    assert len(study.table().to_markdown().splitlines()) == 6
    with pytest.raises(ValueError, match="digits must be"):
        study.table(digits=-1)


def test_a_torn_file_is_no_run(tmp_path) -> None:
    first = swept(path=tmp_path, seeds=[0])
    for path in (tmp_path / "runs").glob("*.json"):
        path.write_text(path.read_text()[:-20])
    assert prints(swept(path=tmp_path, seeds=[0])) == prints(first)


def test_a_lock_is_held_once(tmp_path) -> None:
    one, other = Store(tmp_path), Store(tmp_path)
    assert one.lock("k")
    assert one.lock("k")
    assert not other.lock("k")
    one.unlock("k")
    assert other.lock("k")
    other.unlock_all()


def test_a_failure_is_kept_and_tried_again(tmp_path) -> None:
    store = Store(tmp_path)
    (cell,) = cells_of(None, {})
    planned = Planned(cell, 0, RunKey("k"))
    store.note([planned])
    store.keep(planned, planned.failed(ValueError("no")))
    assert store.find(planned) is None
    (run,), missing = store.load()
    assert (run.error, missing) == ("ValueError: no", 0)
    store.keep(planned, StudyRun({}, 0, [], "f"))
    assert store.find(planned).fingerprint == "f"
    assert not list(tmp_path.glob("runs/*.failed.json"))


def history(*values, name="val_acc"):
    """A round at each whole time, two gradients apart."""
    return [
        RoundRecord(k, float(k), Metrics({name: v, "fed/time": k, "fed/gradients": 2.0 * k}), [])
        for k, v in enumerate(values, start=1)
    ]


def made(error=None):
    runs = []
    for p in (1, 2):
        for rule, shift in (("a", 0.0), ("b", 0.1)):
            for seed in (0, 1):
                values = [0.2, 0.1 * p + shift + 0.2 * seed, 0.3]
                runs.append(StudyRun({"p": p, "rule": rule}, seed, history(*values), "f"))
    if error:
        runs[0] = StudyRun(runs[0].cell, 0, [], "", error)
    return Study(runs)


def test_tables_are_means_over_seeds() -> None:
    study = made()
    table = study.table(rows="p", columns="rule", value="last")
    assert table.rows == [(1,), (2,)]
    assert table.columns == ["a", "b"]
    entry = study.table(rows="p", columns="rule").entries[(2,), "b"]
    # the best of (0.2, 0.3, 0.3) and of (0.2, 0.5, 0.3)
    assert entry.values == pytest.approx({0: 0.3, 1: 0.5})
    assert (entry.mean, entry.std) == pytest.approx((0.4, 0.1 * math.sqrt(2)))
    assert table.entries[(1,), "a"].words(2) == "0.30 ± 0.00"
    both = study.table()
    assert both.columns == ["best", "last", "rounds"]
    assert len(both.rows) == 4
    with pytest.raises(ValueError, match=r"neither rows=\['p'\] nor columns"):
        study.table(rows="p")
    with pytest.raises(ValueError, match="axis of the study"):
        study.table(rows="q")
    with pytest.raises(ValueError, match="is in no round"):
        study.table(metric="val_los")
    assert study.only(p=2).table(rows="rule").rows == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda s: s.table(last="a"), "last must be a number, got 'a'"),
        (
            lambda s: s.table("p", "rule", reference={(1, "a"): "b"}),
            r"reference\[.*must be a number",
        ),
        (
            lambda s: s.table(["p", "rule"], "rule"),
            "'rule' must be in rows or columns, not in both",
        ),
        (lambda s: s.time_to("a"), "target must be a number, got 'a'"),
        (lambda s: s.at(3), "places must be a list, got 3"),
        (lambda s: s.at([]), r"places must be several numbers, such as \[250, 500\], got \[\]"),
        (lambda s: s.at([math.nan]), r"places\[0\] must be finite"),
        (lambda s: s.at([3], confidence=5), "confidence must be between 0 and 1, got 5"),
        (lambda s: s.plot([]), r"must name one or more, got x=\[\]"),
        (lambda s: s.plot(metric=[]), r"must name one or more, got .*metric=\[\]"),
        (lambda s: s.plot("rule"), "x='rule' must be an axis whose names are numbers, got 'a'"),
    ],
)
def test_what_cannot_be_shown_is_an_error_that_names_the_argument(wrong, words) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        wrong(made())


def test_differences_are_paired() -> None:
    table = made().table(rows="p", columns="rule", reference="a")
    difference = table.entries[(2,), "b - a"].difference
    # seed 0: 0.3 - 0.3, seed 1: 0.5 - 0.4
    assert difference.mean == pytest.approx(0.05)
    assert (difference.low, difference.high) == pytest.approx((0.0, 0.1))
    rows = made().table(rows=["rule", "p"], reference="a")
    assert rows.entries[("b", 2), "best - a"].difference == difference
    with pytest.raises(ValueError, match="name of a value of one axis"):
        made().table(rows="p", columns="rule", reference="c")


def test_an_entry_and_a_difference_of_fewer_seeds_than_the_study_has_say_so() -> None:
    last = {"a": (0.1, 0.2, 0.3), "b": (0.2, 0.4)}
    runs = [
        StudyRun({"rule": rule}, seed, history(value), "f")
        for rule, values in last.items()
        for seed, value in enumerate(values)
    ]
    table = Study(runs).table(reference="a")
    assert table.entries[("a",), "best"].words(2) == "0.20 ± 0.10"
    assert table.entries[("b",), "best"].words(2) == "0.30 ± 0.14 (2 of 3 seeds)"
    # 0.2 - 0.1 and 0.4 - 0.2
    assert table.entries[("b",), "best - a"].words(2) == "+0.15 [+0.10, +0.20] (2 of 3 pairs)"
    other_way = Study(runs).table(reference="b").entries[("a",), "best - b"]
    assert other_way.words(2) == "-0.15 [-0.20, -0.10] (2 of 3 pairs)"


def test_the_best_of_each_cell_are_compared_though_they_differ() -> None:
    last = {("a", 0.1): (0.5, 0.7), ("a", 0.2): (0.1, 0.1), ("b", 0.1): (0.2, 0.2)}
    last["b", 0.2] = (0.6, 0.6)
    runs = [
        StudyRun({"rule": rule, "lr": lr}, seed, history(value), "f")
        for (rule, lr), values in last.items()
        for seed, value in enumerate(values)
    ]
    best = Study(runs).best("lr")
    assert best.table(reference="a").rows == [("a", 0.1), ("b", 0.2)]
    apart = best.table(reference="a").entries[("b", 0.2), "best - a"].difference
    # 0.6 - 0.5 and 0.6 - 0.7
    assert (apart.mean, apart.low, apart.high) == pytest.approx((0.0, -0.1, 0.1))
    short = best.table(rows="rule", reference="a")
    assert short.entries[("b",), "best - a"].difference == apart
    part = best.only(rule="b")
    assert part.table(rows="rule").rows == [("b",)]
    with pytest.raises(ValueError, match="'lr' is in neither"):
        Study(runs).table(rows="rule")
    assert Study(runs).table(reference="a").entries.keys() >= {(("b", 0.1), "best - a")}
    columns = best.table(rows="lr", columns="rule", reference="a")
    assert columns.entries[(0.2,), "b - a"].difference == apart


def test_the_best_on_two_axes_is_one_cell() -> None:
    last = {(0.1, 1): 0.9, (0.1, 2): 0.5, (0.01, 1): 0.6, (0.01, 2): 0.7}
    runs = [
        StudyRun({"rule": rule, "lr": lr, "mu": mu}, 0, history(value - shift), "f")
        for rule, shift in (("a", 0.0), ("b", 0.1))
        for (lr, mu), value in last.items()
    ]
    for best in (Study(runs).best("lr").best("mu"), Study(runs).best("mu").best("lr")):
        assert best.axes == {"rule": ["a", "b"], "lr": [0.1], "mu": [1]}
        table = best.table(rows="rule", reference="a")
        assert [table.entries[(rule,), "best"].mean for rule in "ab"] == pytest.approx([0.9, 0.8])
        assert table.entries[("b",), "best - a"].difference.mean == pytest.approx(-0.1)


def test_a_part_knows_the_seeds_of_the_study() -> None:
    runs = [
        StudyRun({"lr": lr}, seed, history(value), "f")
        for lr, value, seeds in ((0.1, 0.9, [0]), (0.01, 0.8, [0, 1]))
        for seed in seeds
    ]
    for part in (Study(runs).best("lr"), Study(runs).only(lr=0.1)):
        table = part.table()
        assert table.title.startswith("val_acc, 2 seeds")
        assert table.entries[(0.1,), "best"].words(1) == "0.9 (1 of 2 seeds)"


def test_pairs_are_counted_among_all_seeds() -> None:
    seeds = {"a": [0, 1], "b": [1, 2], "c": [0, 1, 2]}
    runs = [
        StudyRun({"rule": rule}, seed, history(0.5 + 0.1 * seed), "f")
        if (rule, seed) != ("c", 0)
        else StudyRun({"rule": rule}, seed, [], "", "ValueError: no")
        for rule, present in seeds.items()
        for seed in present
    ]
    table = Study(runs).table(reference="a")
    assert table.entries[("b",), "best - a"].words(1) == "+0.0 (1 of 3 pairs)"
    assert table.entries[("c",), "best - a"].words(1) == "+0.0 (1 of 3 pairs)"


def test_the_value_that_chooses_the_best_may_be_the_best_of_a_run() -> None:
    runs = [
        StudyRun({"lr": lr}, 0, history(*values), "f")
        for lr, values in {0.1: (0.9, 0.1), 0.2: (0.5, 0.5)}.items()
    ]
    assert Study(runs).best("lr").axes == {"lr": [0.2]}
    assert Study(runs).best("lr", value="best").axes == {"lr": [0.1]}
    with pytest.raises(ValueError, match="value must be"):
        Study(runs).best("lr", value="first")


UNMEASURED = {"no round": [], "no validation": [RoundRecord(1, 1.0, {"fed/time": 1.0}, [])]}


@pytest.mark.parametrize("short", UNMEASURED.values(), ids=UNMEASURED)
def test_a_run_that_ended_too_early_is_a_cell_without_a_value(short) -> None:
    pytest.importorskip("matplotlib").use("agg")
    cells = {
        1: [history(0.2, 0.3), history(0.4, 0.5)],
        2: [short, history(0.1, 0.7)],
        3: [short] * 2,
    }
    runs = [
        StudyRun({"p": p}, seed, found, "f")
        for p, seeds in cells.items()
        for seed, found in enumerate(seeds)
    ]
    study, part = Study(runs), Study(runs).only(p=2)
    table = study.table()
    lines = {row: [table.entries[row, c].words(1) for c in ("best", "last")] for row in table.rows}
    assert lines == {
        (1,): ["0.4 ± 0.1", "0.4 ± 0.1"],
        (2,): ["0.7 (1 of 2 have one)"] * 2,
        (3,): ["no value"] * 2,
    }
    assert table.entries[(3,), "rounds"].values == dict.fromkeys((0, 1), len(short))
    assert str(table).splitlines()[-1].split("  ")[1].strip() == "no value"
    assert math.isnan(table.to_pandas()["mean"].iloc[-2])
    assert part.table(last=0.4).entries[(2,), "mean of the last 40%"].reached == [0.7]
    apart = study.table(reference=1)
    assert apart.entries[(2,), "best - 1"].words(1) == "+0.2 (1 of 2 pairs)"  # 0.7 - 0.5
    assert apart.entries[(3,), "best - 1"].words(1) == "no value"
    assert "(0 of 2 reach it)" in str(study.time_to(0.2))
    assert study.at([1.5]).entries[(3,), "virtual_time 1.5"].reached == []
    assert study.best("p").axes == {"p": [2]}
    assert len(study.to_pandas()) == 6 + len(short) * 3
    texts = [[text.get_text() for text in ax.texts] for ax in study.plot(panels="p").axes]
    assert texts == [[], [], ["no run has a value"]]
    assert list(study.plot("p").axes[0].lines[0].get_xdata()) == [1, 2]
    assert study.plot(zoom=0.1).axes[0].get_legend_handles_labels()[1] == ["p=1", "p=2"]


def test_a_study_without_a_round_has_no_value_in_any_cell() -> None:
    pytest.importorskip("matplotlib").use("agg")
    study = Study([StudyRun({"p": p}, 0, [], "f") for p in (1, 2)])
    assert [entry.words(1) for entry in study.table(columns="p").entries.values()] == [
        "no value"
    ] * 2
    assert str(study.time_to(0.5)).count("(0 of 1 reach it)") == 2
    assert [text.get_text() for text in study.plot(zoom=0.5).axes[0].texts] == [
        "no run has a value"
    ]
    assert list(study.to_pandas().columns) == ["p", "seed", "round"]


def test_published_numbers_stand_beside() -> None:
    table = made().table(rows="p", columns="rule", reference={(1, "b"): 0.25}, digits=2)
    assert table.entries[(1,), "b"].words(2).endswith("[0.25]")
    with pytest.raises(ValueError, match="no rows or cells"):
        made().table(rows="p", columns="rule", reference={(3, "b"): 0.25})


def test_time_to_a_target_is_the_first_place_that_reaches_it() -> None:
    study = made()
    table = study.time_to(0.35, axis="gradients", rows="p", columns="rule")
    assert table.entries[(2,), "b"].values[1] == 4.0
    assert math.isnan(table.entries[(1,), "a"].values[0])
    assert table.entries[(2,), "b"].words(1) == "4.0 (1 of 2 reach it)"
    assert study.time_to(0.15, rows="p", columns="rule", mode="min").entries[
        (1,), "a"
    ].values == pytest.approx({0: 2.0, 1: math.nan}, nan_ok=True)


def test_times_to_a_target_are_compared_seed_by_seed() -> None:
    # The first rounds with 0.5: 3 and 2 of "a", 1 and 2 of "b", and 4 and none of "c".
    curves = {
        "a": [(0.1, 0.2, 0.5, 0.5), (0.1, 0.6, 0.6, 0.6)],
        "b": [(0.5, 0.5, 0.5, 0.5), (0.1, 0.5, 0.5, 0.5)],
        "c": [(0.1, 0.1, 0.1, 0.5), (0.1, 0.1, 0.1, 0.1)],
    }
    runs = [
        StudyRun({"rule": rule, "p": 1}, seed, history(*values), "f")
        for rule, seeds in curves.items()
        for seed, values in enumerate(seeds)
    ]
    table = Study(runs).time_to(0.5, axis="gradients", reference="a")
    found = table.entries[("b", 1), "gradients - a"]
    assert found.values == {0: -4.0, 1: 0.0}
    assert (found.difference.mean, found.difference.low, found.difference.high) == (-2, -4, 0)
    assert table.entries[("c", 1), "gradients - a"].words(1) == "+2.0 (1 of 2 pairs)"
    none = Study(runs).time_to(0.6, rows="p", columns="rule", reference="b")
    assert none.entries[(1,), "a - b"].words(1) == "(0 of 2 reach it)"
    beside = Study(runs).time_to(0.5, rows="rule", reference={"b": 2.0}, digits=0)
    assert beside.entries[("b",), "virtual_time"].words(0) == "2 ± 1 [2]"


def test_failures_are_shown() -> None:
    table = made(error="ValueError: no").table(rows="p", columns="rule")
    assert table.entries[(1,), "a"].words(2) == "0.30 (1 of 2 failed: ValueError)"
    assert "1, a: ValueError: no" in table.failures
    assert str(table).splitlines()[-1] == table.failures[-1]
    assert table.__rich__().caption == "\n".join(table.failures)


def test_tables_are_written_in_each_form() -> None:
    table = made().table(rows="p", columns="rule", value="last", digits=1)
    assert table.to_markdown().splitlines() == [
        "last val_acc, 2 seeds",
        "",
        "| p | rule=a | rule=b |",
        "| --- | ---: | ---: |",
        "| 1 | 0.3 ± 0.0 | 0.3 ± 0.0 |",
        "| 2 | 0.3 ± 0.0 | 0.3 ± 0.0 |",
    ]
    assert r"1 & 0.3 $\pm$ 0.0 & 0.3 $\pm$ 0.0 \\" in table.to_latex()
    means = r"entries are means $\pm$ the sample standard deviation over the seeds."
    means = rf"last val\_acc, 2 seeds; {means}"
    assert rf"\caption{{{means}}}" in table.to_latex()
    assert table.to_latex().endswith("\\end{table}\n")
    named = table.to_latex(label="tab:rules", caption="The rules & their ends.").splitlines()
    assert named[2:4] == [rf"\caption{{The rules \& their ends. {means}}}", r"\label{tab:rules}"]
    failed = made(error="ValueError: no 5% of ~{x}$").table(rows="p", columns="rule")
    assert failed.to_markdown().splitlines()[-1] == "1, a: ValueError: no 5% of ~{x}$"
    assert r"1, a: ValueError: no 5\% of \textasciitilde{}\{x\}\$}" in failed.to_latex()
    frame = table.to_pandas()
    assert list(frame["mean"]) == pytest.approx([0.3] * 4)
    assert list(made().to_pandas()["round"])[:4] == [1, 2, 3, 1]


def test_a_caption_explains_what_its_table_has() -> None:
    apart = made().table("p", "rule", reference="a", confidence=0.9)
    brackets = (
        "brackets after a difference hold the 90 % bootstrap interval of the mean difference over "
        "the seeds."
    )
    assert brackets.replace("%", r"\%") in apart.to_latex(caption="Rules")
    assert r"\caption{Rules. best val\_acc, 2 seeds; " in apart.to_latex(caption="Rules.")
    assert apart.legend.endswith("B" + brackets[1:])
    published = made().only(p=1).table("p", "rule", reference={(1, "a"): 0.5}).to_latex()
    assert "; single numbers in brackets are published ones." in published
    assert "difference" not in published
    alone = Study([StudyRun({"p": 1}, 0, history(0.5), "f")]).table().to_latex()
    assert r"\pm" not in alone


def test_negative_numbers_have_a_minus_sign_in_latex() -> None:
    interval = Interval(-0.02, -0.03, 0.01, 2)
    entries = {
        (("a-1",), "loss"): Entry({0: -0.5, 1: -1.5}),
        (("a-1",), "loss - b"): Entry({0: -0.01, 1: -0.03}, difference=interval),
    }
    lines = StudyTable("losses", ["rule"], None, entries, digits=2).to_latex().splitlines()
    assert r"a-1 & $-1.00$ $\pm$ 0.71 & $-0.02$ [$-0.03$, +0.01] \\" in lines
    assert r"rule & loss & loss - b \\" in lines


def test_tables_and_rounds_are_written_as_csv(tmp_path) -> None:
    table, study = made().table(rows="p", columns="rule"), made()
    for each in (table, study):
        each.to_csv(tmp_path / "written.csv")
        assert (tmp_path / "written.csv").read_text() == each.to_csv()
    lines = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [(line["p"], line["rule"], line["runs"]) for line in lines][:2] == [
        ("1", "a", "2"),
        ("1", "b", "2"),
    ]
    assert [float(line["mean"]) for line in lines] == pytest.approx(
        [entry.mean for entry in table.entries.values()]
    )
    rounds = list(csv.DictReader(io.StringIO(study.to_csv())))
    assert len(rounds) == 24
    assert rounds[0].keys() >= {"p", "rule", "seed", "round", "val_acc"}


def diverged() -> Study:
    """Of each cell two seeds: numbers, one infinite, both infinite, and of opposite signs."""
    ends = {"fine": (2.0, 4.0), "one": (math.inf, 1.0), "all": (math.inf, math.inf)}
    ends["both"] = (math.inf, -math.inf)
    return Study(
        [
            StudyRun({"rule": rule, "lr": lr}, seed, history(end, end, name="val_loss"), "f")
            for lr in (0.1, 0.2)
            for rule, values in ends.items()
            for seed, end in enumerate(values)
        ],
        "val_loss",
    )


def test_an_infinite_value_is_that_of_its_cell_alone() -> None:
    pytest.importorskip("matplotlib").use("agg")
    study = diverged()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = study.table(reference="fine", digits=1)
        words = {row[0]: table.entries[row, "last"].words(1) for row in table.rows}
        assert words == {"fine": "3.0 ± 1.4", "one": "inf", "all": "inf", "both": "nan"}
        apart = {row[0]: table.entries[row, "best - fine"] for row in table.rows[1:4]}
        assert {rule: each.words(1) for rule, each in apart.items()} == {
            "one": "+inf",  # inf - 2 and 1 - 4
            "all": "+inf",
            "both": "+nan",
        }
        for text in (str(table), table.to_markdown(), table.to_latex(), table.to_csv()):
            assert "inf" in text
        rich.print(table)
        print(study)
        assert list(study.table().to_pandas()["mean"])[3] == math.inf
        assert study.best("rule").axes["rule"] == ["fine"]
        for options in ({}, {"zoom": 0.5}, {"x": "lr"}, {"panels": "rule"}, {"log": True}):
            figure = study.plot(**options)
            figure.savefig(io.BytesIO())
        importlib.import_module("matplotlib.pyplot").close("all")


def test_a_comparison_shows_infinite_values_too() -> None:
    runs = [
        ComparedRun(run.cell["rule"], run.seed, run.history, run.fingerprint)
        for run in diverged().only(lr=0.1).runs
    ]
    result = Comparison(runs, {}, "val_loss", None)
    rich.print(result)
    assert str(result).splitlines()[1:3] == [
        "fine: 3.0000 ± 1.4142, 3.0000 ± 1.4142",
        "one: inf, inf",
    ]
    assert result.summary()[1].best_mean == math.inf


def test_large_numbers_of_a_diverged_run_stay_narrow() -> None:
    study = Study([StudyRun({"a": 1}, 0, history(3.25e30), "f")])
    assert study.table(digits=2).entries[(1,), "best"].words(2) == "3.2e+30"
    assert Entry({0: 12e9, 1: 12e9}).words(1) == "12,000,000,000 ± 0.0"


@pytest.mark.parametrize(
    ("values", "best", "last"),
    [
        ((math.nan, 2.0, 2.5), 2.0, 2.5),
        ((2.0, math.nan), 2.0, math.nan),
        ((2.0, math.inf), 2.0, math.inf),
        ((math.nan, math.nan), math.nan, math.nan),
    ],
)
def test_the_best_of_a_run_is_the_best_of_its_numbers(values, best, last) -> None:
    run = history(*values, name="val_loss")
    table = Study([StudyRun({"a": 1}, 0, run, "f")], "val_loss").table()
    found = [table.entries[(1,), end].values[0] for end in ("best", "last")]
    assert found == pytest.approx([best, last], nan_ok=True)
    figures = summary_of(run, "val_loss", "min", 1.0)
    assert [figures["val_loss/best"], figures["val_loss/last"]] == pytest.approx(
        [best, last], nan_ok=True
    )


@pytest.mark.parametrize(
    ("axis", "names"),
    [
        (np.arange(1, 3), [1, 2]),
        (np.array([0.1, 0.2], dtype=np.float32), [0.1, 0.2]),
        (np.array([0.1, 0.25]), [0.1, 0.25]),
        (np.array([True, False]), [True, False]),
        (np.array(["a", "b"]), ["a", "b"]),
        ({np.int64(3): 1, np.float32(0.1): 2}, [3, 0.1]),
        (np.array(["2026-01-01"], dtype="datetime64[D]"), ["2026-01-01"]),
    ],
)
def test_scalars_of_numpy_are_called_by_their_numbers(axis, names) -> None:
    found = [cell.names["max_rounds"] for cell in cells_of({"max_rounds": axis}, {})]
    assert found == names
    assert list(map(type, found)) == list(map(type, names))


def test_an_axis_called_like_a_column_is_a_column_of_its_own() -> None:
    runs = [
        StudyRun({"val_acc": "low", "mean": n, "value": "v"}, 0, history(0.5 * n), "f")
        for n in (1, 2)
    ]
    rows = Study(runs).to_pandas()
    assert list(rows["axis/val_acc"]) == ["low", "low"]
    assert list(rows["val_acc"]) == [0.5, 1.0]
    assert list(rows["mean"]) == [1, 2]
    best = Study(runs).table(["val_acc", "value"], "mean").to_pandas()
    assert list(best["axis/mean"]) == ["1", "2"]
    assert list(best["mean"]) == [0.5, 1.0]
    assert list(best["value"]) == ["v", "v"]
    measures = Study(runs).table().to_pandas()
    assert list(measures["axis/value"]) == ["v"] * 6
    assert list(measures["value"]) == ["best", "last", "rounds"] * 2


def test_bootstrap_covers_what_it_says() -> None:
    draw = np.random.default_rng(1)
    held = [
        each.low <= 0 <= each.high
        for each in (bootstrap(draw.normal(size=20), 0.9) for _ in range(200))
    ]
    assert 0.8 < np.mean(held) < 0.95
    assert math.isnan(bootstrap([1.0]).low)
    assert bootstrap([2.0, 2.0]).high == 2.0
    # Means of two of 0 and 1 are 0, 1/2 and 1 with chances 1/4, 1/2 and 1/4.
    wide, narrow = bootstrap([0.0, 1.0], 0.6), bootstrap([0.0, 1.0], 0.4)
    assert (wide.low, wide.high) == (0.0, 1.0)
    assert (narrow.low, narrow.high) == (0.5, 0.5)
    with pytest.raises(ValueError, match="confidence"):
        bootstrap([1.0], 1.0)
    with pytest.raises(TypeError, match=r"confidence must be a number, got '0\.9'"):
        bootstrap([1.0], "0.9")


def test_a_figure_has_a_panel_for_each_value() -> None:
    pytest.importorskip("matplotlib").use("agg")
    figure = made(error="no").plot(x="virtual_time", panels="p")
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["p = 1", "p = 2"]
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["a", "b"]
    assert figure.axes[0].get_xlabel() == "virtual time"
    with pytest.raises(ValueError, match="panels"):
        made().plot(panels="q")


@pytest.mark.parametrize("options", [{}, {"zoom": 0.5}, {"x": "p"}], ids=["plain", "zoom", "ends"])
@pytest.mark.parametrize("lost", [1, 2])
def test_a_panel_in_which_all_runs_failed_says_so(options, lost) -> None:
    pytest.importorskip("matplotlib").use("agg")
    runs = [
        StudyRun({"q": q, "p": p}, 0, history(20, 30.0 + p), "f")
        if q != lost
        else StudyRun({"q": q, "p": p}, 0, [], "", "ValueError: no")
        for q in (1, 2, 3)
        for p in (1, 2)
    ]
    figure = Study(runs).plot(panels="q", **options)
    axes = figure.axes
    words = [[text.get_text() for text in ax.texts] for ax in axes[:3]]
    assert words == [["all runs failed"] if q == lost else [] for q in (1, 2, 3)]
    drawn = [ax for q, ax in enumerate(axes[:3], start=1) if q != lost]
    assert all(ax.get_ylim()[0] > 10 for ax in drawn)
    if "x" not in options:
        assert [ax.get_legend() for ax in drawn] == [None, None]
        (legend,) = figure.legends  # once, for both
        assert [text.get_text() for text in legend.get_texts()] == ["p=1", "p=2"]
    with pytest.raises(ValueError, match=r"every run has failed.*ValueError: no"):
        Study(runs).only(q=lost).plot(**options)


@pytest.mark.parametrize("x", ["virtual_time", "p"])
def test_the_legend_of_several_panels_lies_below_them(x: str) -> None:
    pytest.importorskip("matplotlib").use("agg")
    runs = [
        StudyRun({"q": q, "p": p, "rule": rule}, seed, history(0.1 * p, 0.2), "f")
        for q in (1, 2)
        for p in (1, 2)
        for rule in "abcdefg"
        for seed in (0, 1)
    ]
    study = Study(runs) if x == "p" else Study(runs).only(p=1)
    figure = study.plot(x, panels="q")
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 7
    assert legend.get_title().get_text() == "mean, 95 % interval over 2 runs"
    figure.canvas.draw()
    panels = [ax.get_tightbbox() for ax in figure.axes]
    assert legend.get_window_extent().y1 <= min(box.y0 for box in panels)
    assert legend.get_window_extent().y0 >= 0
    assert min(box.height for box in panels) > 200  # the panels are as high as before


def test_panels_with_other_lines_keep_their_legends() -> None:
    pytest.importorskip("matplotlib").use("agg")
    cells = [(1, "a"), (1, "b"), (2, "b")]
    study = Study([StudyRun({"q": q, "rule": r}, 0, history(0.1, 0.2), "f") for q, r in cells])
    figure = study.plot(panels="q")
    assert figure.legends == []
    labels = [[text.get_text() for text in ax.get_legend().get_texts()] for ax in figure.axes]
    assert labels == [["a", "b"], ["b"]]


def test_a_figure_has_a_column_for_each_metric_or_axis() -> None:
    pytest.importorskip("matplotlib").use("agg")
    figure = made().plot(x=["virtual_time", "gradients"], panels="p")
    places = [(ax.get_title(), ax.get_xlabel().split(" ")[0]) for ax in figure.axes]
    assert places == [(f"p = {p}", x) for p in (1, 2) for x in ("virtual", "gradients")], (
        "a row for each panel"
    )
    metrics = made().plot(metric=["val_acc", "fed/gradients"]).axes
    assert [ax.get_ylabel() for ax in metrics] == ["val_acc", "fed/gradients"]
    assert metrics[0].get_ylim() != metrics[1].get_ylim()


def test_last_values_are_drawn_over_an_axis_of_numbers() -> None:
    pytest.importorskip("matplotlib").use("agg")
    runs = [
        StudyRun({"lr": lr, "rule": rule}, seed, history(0.9, shift + lr + 0.2 * seed), "f")
        for lr in (0.2, 0.1)
        for rule, shift in (("a", 0.0), ("b", 0.5))
        for seed in (0, 1)
    ]
    (ax,) = Study(runs).plot("lr").axes
    means = {bars.get_label(): bars.lines[0].get_xydata().tolist() for bars in ax.containers}
    assert means == {
        "a": [[0.1, pytest.approx(0.2)], [0.2, pytest.approx(0.3)]],
        "b": [[0.1, pytest.approx(0.7)], [0.2, pytest.approx(0.8)]],
    }
    assert ax.get_legend().get_title().get_text() == "mean, 95 % interval over 2 runs"
    for band, width in (("interval", 0.2), ("std", 2 * 0.2 / 2**0.5), (None, 0.0)):
        (ax,) = Study(runs).plot("lr", band=band).axes
        (low, high), *_ = ax.containers[0].lines[2][0].get_segments()
        assert high[1] - low[1] == pytest.approx(width)
    with pytest.raises(ValueError, match="must be an axis whose names are numbers"):
        Study(runs).plot("rule")


def test_values_at_a_place_lie_on_lines_between_the_points() -> None:
    study = Study([StudyRun({"a": 1}, 0, history(0.0, 0.4, 0.6), "f")])
    table = study.at([3, 4, 6], axis="gradients")  # points at 2, 4 and 6
    found = {column: entry.mean for (_, column), entry in table.entries.items()}
    assert found == {
        "gradients 3": pytest.approx(0.2),
        "gradients 4": pytest.approx(0.4),
        "gradients 6": pytest.approx(0.6),
    }


def test_a_run_has_no_value_outside_its_own_part_of_the_axis() -> None:
    """One run ends at 6 gradients, the other at 10, with its last point at 4."""
    ends_late = history(0.1, 0.5) + history(*[0.0] * 5, name="train_loss")[2:]
    study = Study(
        [
            StudyRun({"a": 1}, 0, history(0.0, 0.4, 0.6), "f"),
            StudyRun({"a": 1}, 1, ends_late, "f"),
            StudyRun({"a": 2}, 0, history(0.2, 0.4, 0.8), "f"),
        ]
    )
    table = study.at([1, 5, 8, 11], axis="gradients", reference=2)
    words = [table.entries[(1,), f"gradients {place}"].words(2) for place in (1, 5, 8, 11)]
    assert words == ["no value", "0.50 ± 0.00", "0.50 (1 of 2 have one)", "no value"]
    assert table.entries[(1,), "gradients 5 - 2"].words(2) == "-0.10 (1 of 2 pairs)"  # 0.5 - 0.6
    assert table.entries[(1,), "gradients 8 - 2"].words(2) == "no value (1 of 2 seeds)"
    assert study.at([3], axis="round").entries[(1,), "round 3"].mean == pytest.approx(0.55)


def test_places_that_differ_little_have_columns_of_their_own() -> None:
    study = Study([StudyRun({"a": 1}, 0, history(0.0, 0.4, 0.6), "f")])
    table = study.at([3, 3.0000001, 3], axis="gradients")
    assert list(table.columns) == ["gradients 3", "gradients 3.0000001"]


def test_zoom_leaves_out_the_first_rounds() -> None:
    pytest.importorskip("matplotlib").use("agg")
    study = Study([StudyRun({"a": 1}, 0, history(9.0, 2.0, 1.0, 2.0, 1.0), "f")])
    (whole,), (part,), (log,) = (
        study.plot(**options).axes for options in ({}, {"zoom": 0.5}, {"zoom": 0.5, "log": True})
    )
    assert whole.get_ylim()[1] > 9
    assert part.get_ylim() == pytest.approx((1 - 0.08, 2 + 0.08))
    assert log.get_ylim() == pytest.approx((2**-0.08, 2 * 2**0.08))
    assert (part.get_yscale(), log.get_yscale()) == ("linear", "log")
    with pytest.raises(ValueError, match=r"zoom must be smaller than 1, got 1"):
        study.plot(zoom=1)


def test_the_last_value_may_be_that_of_a_share_of_the_time() -> None:
    study = Study([StudyRun({"a": 1}, 0, history(0.0, 0.0, 0.5, 0.7), "f")])
    table = study.table(last=0.25, value="last")  # from time 3 of 4 on
    assert table.entries[(1,), "mean of the last 25%"].mean == pytest.approx(0.6)
    assert study.table(last=3).entries[(1,), "mean of the last 3"].mean == pytest.approx(0.4)
    with pytest.raises(TypeError, match="last"):
        study.table(last=1.5)


@pytest.mark.parametrize(
    ("metric", "chosen"), [("val_acc", {"a": 2, "b": 1}), ("val_loss", {"a": 1, "b": 2})]
)
def test_the_best_value_of_an_axis_is_chosen_for_each_cell_of_the_others(metric, chosen) -> None:
    ends = {(1, "a"): 0.1, (2, "a"): 0.3, (1, "b"): 0.5, (2, "b"): 0.4}
    runs = [
        StudyRun({"lr": lr, "rule": rule}, seed, history(0.9, end + 0.01 * seed, name=metric), "f")
        for (lr, rule), end in ends.items()
        for seed in (0, 1)
    ]
    runs.append(StudyRun({"lr": 3, "rule": "a"}, 0, [], "", "no: it failed"))
    best = Study(runs, metric).best("lr")
    assert {run.cell["rule"]: run.cell["lr"] for run in best.runs} == chosen
    assert len(best.runs) == 4


def test_a_cell_may_have_callbacks_of_its_own() -> None:
    def evaluated(every):
        return {"callbacks": lambda: [ClientEvaluation(every, max_clients=None)]}

    study = swept(
        over={"every": {1: evaluated(1), 2: evaluated(2)}}, aggregator=FedAsync(0.5), seeds=[0]
    )
    found = [
        sum(any(name.startswith("clients/") for name in r.metrics) for r in run.history)
        for run in study.runs
    ]
    assert found == [12, 7]  # every second one, and the first


def test_each_run_has_a_folder_in_tensorboard(tmp_path) -> None:
    swept(logger_dir=tmp_path, seeds=[0])
    folders = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("events.out*")}
    assert folders == {"aggregator=FedAsync/seed=0", "aggregator=FedBuff/seed=0"}
    for _ in range(2):
        swept(logger_dir=tmp_path, seeds=[0])
    found = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*tfevents*")}
    assert found == folders
    assert len(list((tmp_path / "aggregator=FedAsync").rglob("events.out.superseded*"))) == 2


def images(folder, tag="clients/labels"):
    """The runs in a folder that have a picture."""
    found = set()
    for file in folder.rglob("events.out*"):
        events = Events(str(file)).Reload()
        if tag in events.Tags()["images"]:
            found.add(str(file.parent.relative_to(folder)))
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_a_partition_has_one_picture_in_a_study(tmp_path, workers) -> None:
    swept(logger_dir=tmp_path / "one", workers=workers)
    assert images(tmp_path / "one") == {"aggregator=FedAsync/seed=0"}
    assert len(images(tmp_path / "one", "clients/participation")) == 4
    own = [{"callbacks": lambda: [TensorBoardMetrics()]}, {"datamodule": lambda s: classes(seed=s)}]
    for place, options in enumerate(own):
        swept(logger_dir=tmp_path / f"{place}", workers=workers, **options)
    assert images(tmp_path / "0") == {"aggregator=FedAsync/seed=0"}
    assert images(tmp_path / "1") == {f"aggregator=FedAsync/seed={seed}" for seed in (0, 1)}


def test_names_that_differ_in_slashes_alone_are_no_two_folders(tmp_path) -> None:
    rules = {"a/b": FedAsync(0.5), "a-b": FedAsync(0.25)}
    with pytest.raises(ValueError, match=r"differ in more than slashes.*'aggregator=a-b'"):
        swept(over={"aggregator": rules}, logger_dir=tmp_path)
    swept(over={"aggregator": rules}, seeds=[0])


def test_an_axis_of_several_arguments_is_a_column_of_hparams(tmp_path) -> None:
    settings = {
        "slow": {"aggregator": FedAsync(0.5), "max_updates": 10},
        "fast": {"aggregator": FedBuff(2), "max_updates": 20},
    }
    swept(over={"setting": settings}, seeds=[0], logger_dir=tmp_path)
    assert {
        name: {key: hparams(tmp_path / f"setting={name}")[key] for key in ("setting", "aggregator")}
        for name in settings
    } == {
        "slow": {"setting": "slow", "aggregator": "FedAsync"},
        "fast": {"setting": "fast", "aggregator": "FedBuff"},
    }
    # An axis that is called like an argument is the column of the argument.
    swept(over={"aggregator": {"mine": FedBuff(2)}}, seeds=[0], logger_dir=tmp_path)
    assert hparams(tmp_path / "aggregator=mine")["aggregator"] == "FedBuff"


WRONG_IN_METHODS = {
    "axis": lambda study: study.best({"axis": 1}),
    "rows": lambda study: study.table(rows=3),
    "reference": lambda study: study.table(reference=np.array([1, 2])),
    "x": lambda study: study.plot(x=1.5),
    "panels": lambda study: study.plot(panels=["rule"]),
    "zoom": lambda study: study.plot(zoom="0.5"),
    "log": lambda study: study.plot(log="no"),
    "metric": lambda study: study.plot(metric=3),
    "metric[0]": lambda study: study.plot(metric=[None]),
    "metric must": lambda study: study.best("p", metric=np.array([1, 2])),
    "axes": lambda study: study.histories_by(None),
    "axes must be an axis": lambda study: study.histories_by(["other"]),
    "word": lambda study: study.histories_by([], word=3),
}


@pytest.mark.parametrize(("name", "call"), WRONG_IN_METHODS.items())
def test_methods_of_a_study_name_a_wrong_argument(name, call) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(name)}"):
        call(made())
