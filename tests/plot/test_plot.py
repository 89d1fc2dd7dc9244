import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is the extra 'plot'")
matplotlib.use("Agg")

import torch  # noqa: E402
from matplotlib import pyplot  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from data_partitioners import Partition  # noqa: E402
from fedlight import FederatedDataModule, plot  # noqa: E402
from fedlight.aggregators import FedAsync  # noqa: E402
from fedlight.arrivals import DropOut, UniformArrivals  # noqa: E402
from fedlight.callbacks import EventLog  # noqa: E402
from fedlight.studies import bootstrap  # noqa: E402
from fedlight.types import RoundRecord  # noqa: E402
from tests.boring import Boring, Point, classes, points, replay, trainer  # noqa: E402


def history(values, every=1, gradients=10):
    return [
        RoundRecord(
            version,
            version / 2,
            {
                "fed/time": version / 2,
                "fed/gradients": gradients * version,
                "fed/models": 4.0 * version,
                "fed/bytes": 80.0 * version,
                "fed/examples": 3.0 * version,
                "fed/tokens": 192.0 * version,
                **({"val_acc": value} if version % every == 0 else {}),
            },
            [],
        )
        for version, value in enumerate(values, 1)
    ]


@pytest.mark.parametrize(
    ("x", "where", "label"),
    [
        ("round", [2, 4], "server updates (rounds)"),
        ("virtual_time", [1, 2], "virtual time"),
        ("gradients", [20, 40], "gradients computed (local steps)"),
        ("models", [8, 16], "models communicated"),
        ("bytes", [160, 320], "bytes communicated"),
        ("examples", [6, 12], "examples trained on"),
        ("tokens", [384, 768], "tokens trained on"),
    ],
)
def test_a_curve_lies_on_its_axis(x, where, label):
    run = SimpleNamespace(history=history([0.1, 0.2, 0.3, 0.4], every=2))
    ax = plot.curves(run, x=x)
    assert np.array_equal(
        plot.curves(run.history, x=x).lines[0].get_xydata(), ax.lines[0].get_xydata()
    )
    (line,) = ax.lines
    assert line.get_xdata().tolist() == where
    assert line.get_ydata().tolist() == [0.2, 0.4]
    assert ax.get_xlabel() == label
    assert ax.get_ylabel() == "val_acc"
    assert ax.get_legend() is None


def test_an_axis_that_no_round_has_is_an_error_and_rounds_without_it_are_left_out():
    found = history([0.1, 0.2, 0.3])
    del found[0].metrics["fed/tokens"]
    places, values = plot.curve(found, "val_acc", "tokens")
    assert (places.tolist(), values.tolist()) == ([384, 576], [0.2, 0.3])
    for record in found[1:]:
        del record.metrics["fed/tokens"]
    with pytest.raises(ValueError, match=r'set data.tokens_per_example before fit.*"examples"'):
        plot.curves(found, x="tokens")
    for record in found:
        del record.metrics["fed/examples"]
    with pytest.raises(ValueError, match="no round has 'fed/examples'"):
        plot.curves(found, x="examples")
    assert len(plot.curve(found, "missing", "tokens")[0]) == 0


def test_several_seeds_are_a_mean_and_a_band():
    runs = {"a": [history([0.1, 0.5]), history([0.3, 0.5])], "b": history([0.0, 0.0])}
    ax = plot.curves(runs, band="std")
    assert [line.get_label() for line in ax.lines] == ["a", "b"]
    assert ax.lines[0].get_ydata().tolist() == pytest.approx([0.2, 0.5])
    (band,) = ax.collections
    edges = band.get_paths()[0].vertices
    spread = np.std([0.1, 0.3], ddof=1)
    at_first = sorted({round(y, 9) for x, y in edges if x == 1})
    assert at_first == [round(0.2 - spread, 9), round(0.2 + spread, 9)]
    assert ax.lines[0].get_linestyle() != ax.lines[1].get_linestyle()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]


def edges_of(band, x):
    return sorted({round(y, 9) for place, y in band.get_paths()[0].vertices if place == x})


def test_a_band_is_the_interval_that_tables_have():
    seeds = [(0.1, 0.5), (0.3, 0.5), (0.9, 0.6), (0.2, 0.4)]
    runs = {"a": [history(values) for values in seeds], "b": history([0.0, 0.0])}
    for confidence in (0.95, 0.5):
        ax = plot.curves(runs, confidence=confidence)
        (band,) = ax.collections
        for x, values in enumerate(zip(*seeds, strict=True), start=1):
            told = bootstrap(values, confidence)
            assert edges_of(band, x) == pytest.approx([told.low, told.high])
        title = ax.get_legend().get_title().get_text()
        assert title == f"mean, {100 * confidence:g} % interval over 4 runs"
    bare = plot.curves(runs, band=None)
    assert not bare.collections
    assert bare.get_legend().get_title().get_text() == ""
    for wrong in ({"band": "sem"}, {"confidence": 95}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            plot.curves(runs, **wrong)


@pytest.mark.parametrize("x", ["round", "gradients"])
def test_what_is_not_finite_leaves_a_mean_of_the_others(x):
    runs = {
        "a": [history([0.1, 0.2, 0.3]), history([0.3, np.inf, np.nan])],
        "b": [history([np.nan, np.inf, 0.5], gradients=20), history([np.nan, -np.inf, 0.5])],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ax = plot.curves(runs, x=x)
    first, second = (line.get_ydata() for line in ax.lines)
    assert first.tolist() == pytest.approx([0.2, 0.2, 0.3])
    assert second[-1] == 0.5
    assert np.isnan(second[0])
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["a (1 of 2 not finite)", "b (2 of 2 not finite)"]
    assert np.isfinite(ax.get_ylim()).all()


def test_seeds_with_other_points_meet_between_them():
    runs = {"a": [history([0.0, 1.0], gradients=10), history([0.0, 1.0], gradients=20)]}
    (line,) = plot.curves(runs, x="gradients").lines
    x, y = line.get_xdata(), line.get_ydata()
    assert (x[0], x[-1]) == (20, 20)  # what both have
    assert y[0] == pytest.approx(0.5)


def test_smoothing_is_a_mean_of_the_last_ones():
    (line,) = plot.curves(history([8.0, 1.0, 2.0, 6.0]), smooth=2).lines
    assert line.get_ydata().tolist() == [8.0, 4.5, 1.5, 4.0]


def test_it_draws_where_it_is_told():
    _, ax = pyplot.subplots()
    assert plot.curves(history([0.1]), ax=ax) is ax


@pytest.mark.parametrize(
    ("runs", "error", "message"),
    [
        ({}, ValueError, "runs must hold one or more"),
        ([], ValueError, "the history has none; draw it after fit"),
        ({"a": []}, ValueError, "the history of 'a' has none"),
        ({"a": [history([0.1]), []]}, ValueError, "the history of 'a' has none"),
        (None, TypeError, "got None"),
        ("run.csv", TypeError, "got 'run.csv'"),
        ({"a": 3}, TypeError, r"got 3 \(int\) of 'a'"),
    ],
)
def test_runs_that_are_none_are_named(runs, error, message):
    with pytest.raises(error, match=message):
        plot.curves(runs)
    assert not pyplot.get_fignums(), "no empty figure is left behind"


def test_trainers_by_name_are_drawn():
    ax = plot.curves({"a": SimpleNamespace(history=history([0.1, 0.2]))})
    assert ax.lines[0].get_ydata().tolist() == [0.1, 0.2]


def test_the_events_and_the_data_are_of_their_kinds(tmp_path):
    text = tmp_path / "events.txt"
    text.write_text("none")
    with pytest.raises(ValueError, match=r"parquet file of an EventLog, got '.*events.txt'"):
        plot.timeline(text)
    for wrong in (None, 3, pyarrow.table({"time": [1.0]})):
        with pytest.raises(TypeError, match="events must be the file or the table of an EventLog"):
            plot.timeline(wrong)
    with pytest.raises(ValueError, match="events must hold a task between"):
        plot.timeline([])
    with pytest.raises(TypeError, match="data must be a FederatedDataModule or a Partition, got 3"):
        plot.partition(3)
    assert not pyplot.get_fignums()


def test_axes_are_axes():
    with pytest.raises(TypeError, match="ax must be axes of matplotlib"):
        plot.curves(history([0.1]), ax=pyplot.subplots())


def test_what_cannot_be_drawn_is_named():
    with pytest.raises(ValueError, match=r"no round of 'a' has the metric 'val_los'.*'val_acc'"):
        plot.curves({"a": history([0.1])}, "val_los")
    with pytest.raises(ValueError, match="x must be one of 'round'"):
        plot.curves(history([0.1]), x="time")
    with pytest.raises(FileNotFoundError, match=r"no.parquet"):
        plot.timeline("no.parquet")
    with pytest.raises(ValueError, match="a task between start=5"):
        plot.timeline(history([0.1]), start=5.0)
    with pytest.raises(ValueError, match="labels must hold"):
        plot.partition(Partition(np.arange(2), np.array([0, 2])))


def bars(ax):
    """Start, length, row and colour of each bar."""
    found = []
    for collection in ax.collections:
        for path, colour in zip(collection.get_paths(), collection.get_facecolor(), strict=False):
            (left, bottom), (right, top) = path.vertices.min(0), path.vertices.max(0)
            place = round((bottom + top) / 2, 6)
            found.append((left, right - left, place, tuple(colour[:3])))
    return found


def test_a_timeline_shows_each_task(tmp_path):
    log = EventLog(tmp_path / "events.parquet")
    run = trainer(
        arrivals=replay((0, 0, 1.0, 2), (1, 0, 2.0, 7), (0, 1, 3.0, 3), (1, 2, 4.0, 1)),
        aggregator=FedAsync(alpha=0.5, max_staleness=0),
        callbacks=log,
        max_updates=3,
    )
    run.fit(Point(), points([1.0], [3.0]))
    expected = [(0, 1, 0), (0, 2, 1), (1, 2, 0), (3, 1, 1)]
    white = to_rgb("white")
    for source in (log.path, log.table()):
        ax = plot.timeline(source, end=4.0)
        found = bars(ax)
        assert [bar[:3] for bar in found] == expected
        assert [bar[3] == white for bar in found] == [False, True, False, True]
        (lines,) = [c for c in ax.collections if hasattr(c, "get_segments")]
        assert [segment[0][0] for segment in lines.get_segments()] == [1.0, 3.0]
    from_history = plot.timeline(run.history)
    assert [bar[:3] for bar in bars(from_history)] == [(0, 1, 0), (1, 2, 0), (0, 2, 1)]
    assert from_history.get_xlabel() == "virtual time"
    assert from_history.get_ylabel() == "client"
    legend = [text.get_text() for text in from_history.get_legend().get_texts()]
    assert legend == ["staleness 0", "not used (dropped, under way)", "server update"]


def test_lost_tasks_are_crosses_and_clients_are_bounded(tmp_path):
    log = EventLog(tmp_path / "events.parquet")
    run = trainer(arrivals=DropOut(UniformArrivals(3, 1, 1), 0.5), callbacks=log, max_rounds=8)
    run.fit(Boring(), classes())
    ax = plot.timeline(log.path, max_clients=2)
    assert len(ax.get_yticks()) == 2
    table = log.table().to_pylist()
    clients = sorted({row["client"] for row in table if row["arrives_at"] is not None})[:2]
    lost = [
        row["time"]
        for row in table
        if row["event"] == "dispatch" and row["arrives_at"] is None and row["client"] in clients
    ]
    last = max(row["time"] for row in table)
    crosses = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "x"]
    assert sorted(crosses) == sorted(time for time in lost if time <= last)


def test_a_partition_shows_each_count():
    clients = [TensorDataset(torch.zeros(n, 2), torch.arange(n) % 2) for n in (1, 4)]
    data = FederatedDataModule.from_client_datasets(clients)
    ax = plot.partition(data, names=["cat", "dog"])
    assert np.ma.filled(ax.images[0].get_array(), 0).tolist() == [[1, 0], [2, 2]]
    assert [text.get_text() for text in ax.texts] == ["1", "2", "2"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["cat", "dog"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("class", "client")
    with pytest.raises(ValueError, match="names must hold 2 names of classes, got 1"):
        plot.partition(data, names=["cat"])


def test_a_partition_and_its_labels():
    partition = Partition(np.array([0, 1, 2]), np.array([0, 1, 3]))
    ax = plot.partition(partition, ["b", "a", "a"], max_clients=1)
    assert np.ma.filled(ax.images[0].get_array(), 0).tolist() == [[0, 1]]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["a", "b"]
    assert ax.get_ylabel() == "client (first 1 of 2)"
    numbers = FederatedDataModule.from_client_datasets([TensorDataset(torch.zeros(3, 2))])
    with pytest.raises(ValueError, match="no column of labels"):
        plot.partition(numbers)


def test_figures_can_be_written(tmp_path):
    for name in ("curve.png", "curve.pdf"):
        plot.curves(history([0.1, 0.2])).figure.savefig(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib"):
        plot.curves(history([0.1]))
