import itertools
import math
import os
import signal
from copy import deepcopy
from pathlib import Path

import pytest
import rich
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fedlight
import fedlight.studies.comparison
from fedlight import Callback, FedTrainer, compare
from fedlight._runs.content import content
from fedlight.aggregators import (
    AFACD,
    AFACS,
    BufferedAggregator,
    FedAsync,
    FedAvg,
    FedBuff,
    FedFix,
)
from fedlight.arrivals import (
    ContinuousArrivals,
    ExponentialDurations,
    FixedDurations,
    UniformArrivals,
    UniformSteps,
)
from fedlight.callbacks import TensorBoardMetrics
from fedlight.local_optimizers import LocalSGD
from fedlight.studies.comparison import ComparedRun, Comparison
from fedlight.studies.study import Study
from fedlight.types import RoundRecord
from tests.boring import Boring, Recorder, classes

pytestmark = pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")

START = Boring()
ROUNDS = UniformArrivals(per_round=2, max_staleness=2, local_steps=UniformSteps(1, 4))
CLOCK = ContinuousArrivals(ExponentialDurations(1.0), resume="on_arrival", local_steps=2)
WAITING = ContinuousArrivals(FixedDurations([1.0, 0.7, 0.45, 0.3]), local_steps=2)


def compared(aggregators, **kwargs):
    given = {
        "arrivals": ROUNDS,
        "datamodule": classes(),
        "local_optimizer": LocalSGD(lr=0.1),
        "seeds": (0, 1),
        "max_rounds": 4,
        "metric": "val_loss",
        "enable_progress_bar": False,
        "accelerator": "cpu",
    }
    kwargs.setdefault("module", START)
    return compare(aggregators, **{**given, **kwargs})


def alone(arrivals, aggregator, start, seed=0, **limits):
    """The fingerprint of a run without `compare`."""
    module = Boring()
    module.load_state_dict(start.state_dict())
    run = FedTrainer(
        arrivals=arrivals,
        aggregator=aggregator,
        local_optimizer=LocalSGD(lr=0.1),
        seed=seed,
        logger=False,
        enable_progress_bar=False,
        accelerator="cpu",
        **limits,
    )
    run.fit(module, classes())
    return run.fingerprint()


def work(history):
    """Who arrived when, from when, after how many steps, whatever was made of it."""
    return sorted(
        (u.client_id, u.dispatched_at, u.arrived_at, u.num_steps)
        for record in history
        for u in [*record.updates, *record.dropped]
    )


class EveryOther(BufferedAggregator):
    """It drops by a rule of its own."""

    def start(self, federation, state):
        self.asked = 0

    def accepts(self, update, version):
        self.asked += 1
        return self.asked % 2 == 0

    def weights(self, updates, version):
        return [1 / len(updates)] * len(updates)


@pytest.mark.parametrize(
    ("arrivals", "aggregators"),
    [
        (ROUNDS, {"a": AFACD(), "b": AFACS(), "c": FedAvg(server_lr=0.5)}),
        (CLOCK, {"a": FedBuff(3), "b": FedAvg(buffer_size=3)}),
        (WAITING, {"a": FedFix(interval=0.5), "b": FedFix(interval=0.5, server_lr=0.5)}),
        (WAITING, {"a": FedAsync(0.5), "b": FedAsync(0.9)}),
        (ROUNDS, {"a": FedAsync(0.5, max_staleness=1), "b": FedAsync(0.9, max_staleness=1)}),
        (ROUNDS, {"a": FedAvg(), "b": EveryOther()}),
    ],
    ids=["rounds", "clock", "deadlines", "one by one", "both drop", "ends of rounds"],
)
def test_on_the_same_occasions_each_run_is_what_it_would_be_alone(arrivals, aggregators):
    start = Boring()
    result = compared(aggregators, arrivals=arrivals, module=start)
    assert [(run.name, run.seed) for run in result.runs] == [
        (name, seed) for seed in (0, 1) for name in aggregators
    ]
    for run in result.runs:
        expected = alone(arrivals, aggregators[run.name], start, run.seed, max_rounds=4)
        assert run.fingerprint == expected, (run.name, run.seed)
    assert len({run.fingerprint for run in result.runs}) == len(result.runs)
    assert set(result.schedules) == {0, 1}


@pytest.mark.parametrize(
    ("arrivals", "aggregators"),
    [
        (ROUNDS, {"a": FedAvg(), "b": FedAsync(0.5)}),
        (CLOCK, {"a": FedBuff(4), "b": FedAsync(0.5), "c": FedBuff(2)}),
        (WAITING, {"a": FedBuff(2), "b": FedFix(interval=0.5)}),
        (CLOCK, {"a": FedBuff(2), "b": EveryOther(2)}),
        (CLOCK, {"a": EveryOther(2), "b": FedBuff(2), "c": EveryOther(2)}),
        (CLOCK, {"a": FedAsync(0.5), "b": FedAsync(0.5, max_staleness=1)}),
    ],
    ids=["rounds", "clock", "waiting", "one drops", "the first drops", "by staleness"],
)
def test_on_other_occasions_the_arrivals_are_the_same(arrivals, aggregators):
    result = compared(aggregators, arrivals=arrivals, seeds=[3])
    first, *others = result.runs
    assert first.fingerprint
    for run in others:
        assert work(run.history) == work(first.history), run.name
    # pulled versions are the other's own: never ahead of it, and newest at the time of the pull
    for run in others:
        times = [0.0, *(record.now for record in run.history)]
        for record in run.history:
            for update in record.updates:
                newest = max(v for v, t in enumerate(times) if t <= update.dispatched_at)
                assert update.pulled_version == newest


def test_where_the_clock_does_not_listen_other_occasions_change_nothing_else():
    start = Boring()
    result = compared(
        {"a": FedBuff(4), "b": FedAsync(0.5)}, arrivals=CLOCK, module=start, seeds=[0]
    )
    arrived = len(result.schedules[0])
    assert arrived == 16
    expected = alone(CLOCK, FedAsync(0.5), start, max_updates=arrived)
    assert result.runs[1].fingerprint == expected


def test_live_each_aggregator_meets_the_process_itself():
    start = Boring()
    aggregators = {"a": FedBuff(2), "b": FedFix(interval=0.5)}
    result = compared(
        aggregators, arrivals=WAITING, module=start, schedule="live", max_rounds=None, max_time=3
    )
    assert result.schedules == {}
    for run in result.runs:
        expected = alone(WAITING, aggregators[run.name], start, run.seed, max_time=3)
        assert run.fingerprint == expected


def test_the_module_given_stays_as_it_is():
    start = Boring()
    before = [param.clone() for param in start.parameters()]
    compared({"a": AFACD()}, module=start, seeds=[0])
    assert all(map(torch.equal, before, start.parameters()))


@pytest.mark.parametrize("schedule", ["recorded", "live"])
def test_the_strategies_given_stay_unused(schedule):
    given = {"arrivals": deepcopy(CLOCK), "local_optimizer": LocalSGD(lr=0.1)}
    rules = {"a": FedBuff(2), "b": FedAsync(0.5)}
    before = [content(vars(each)) for each in (*given.values(), *rules.values())]
    compared(rules, seeds=[0], schedule=schedule, **given)
    assert [content(vars(each)) for each in (*given.values(), *rules.values())] == before


def test_all_runs_of_a_seed_come_before_those_of_the_next():
    begun = []

    class Noted(Callback):
        def on_fit_start(self, trainer, module):
            begun.append((trainer.seed, type(trainer.aggregator)))

    compared({"a": AFACD(), "b": AFACS()}, seeds=[5, 6], callbacks=lambda: [Noted()])
    assert begun == [(5, AFACD), (5, AFACS), (6, AFACD), (6, AFACS)]


def test_the_first_error_ends_the_comparison_as_it_was_raised():
    class Wrong(Callback):
        def on_round_end(self, trainer, module):
            raise LookupError("nothing there")

    made = []
    with pytest.raises(LookupError, match="nothing there"):
        compared({"a": AFACD(), "b": AFACS()}, callbacks=lambda: made.append(1) or [Wrong()])
    assert made == [1]


def test_a_function_makes_another_start_for_each_seed():
    made = []

    def module():
        made.append(Boring())
        return made[-1]

    state = torch.get_rng_state()
    compared({"a": AFACD(), "b": AFACS()}, module=module, seeds=[5, 6])
    assert torch.equal(torch.get_rng_state(), state)
    assert len(made) == 2
    torch.manual_seed(5)
    assert torch.equal(made[0].net.weight, Boring().net.weight)
    assert not torch.equal(made[0].net.weight, made[1].net.weight)
    compared({"a": AFACD()}, module=Boring, seeds=[5])


def test_data_can_depend_on_the_seed():
    asked = []

    def data(seed):
        asked.append(seed)
        return classes(seed=seed)

    compared({"a": AFACD(), "b": AFACS()}, datamodule=data, seeds=[5, 6])
    assert asked == [5, 6]


def test_a_wrong_metric_is_told_after_the_first_run():
    asked = []

    def data(seed):
        asked.append(seed)
        return classes()

    with pytest.raises(
        ValueError, match=r"metric='accuracy' is in no round; the metrics are .*'val_loss'"
    ):
        compared({"a": AFACD()}, datamodule=data, seeds=[5, 6], metric="accuracy")
    assert asked == [5]


@pytest.mark.parametrize(
    ("number", "error", "words"),
    [
        (signal.SIGINT, KeyboardInterrupt, "run of 'a' with seed 5"),
        (signal.SIGTERM, SystemExit, "143"),
    ],
)
def test_an_interrupt_ends_the_comparison(number, error, words):
    class Impatient(Callback):
        def on_round_end(self, trainer, module):
            begun.append(trainer)
            os.kill(os.getpid(), number)

    begun = []
    with pytest.raises(error, match=words):
        compared({"a": AFACD(), "b": AFACS()}, seeds=[5, 6], callbacks=lambda: [Impatient()])
    assert len(begun) == 1


def record(version, **metrics):
    return RoundRecord(version, float(version), {"fed/time": float(version), **metrics}, [])


def written(metric="val_acc", mode=None):
    curves = {
        ("a", 0): (0.1, 0.5, 0.3),
        ("a", 1): (0.2, 0.4, 0.7),
        ("b", 0): (0.9,),
        ("b", 1): (0.9,),
    }
    runs = [
        ComparedRun(name, seed, [record(k, val_acc=v) for k, v in enumerate(values, 1)], "f")
        for (name, seed), values in curves.items()
    ]
    return Comparison(runs, {}, metric, mode)


def test_the_summary_by_hand():
    first, second = written().summary()
    assert (first.name, second.name) == ("a", "b")
    assert first.best_mean == pytest.approx((0.5 + 0.7) / 2)
    assert first.best_std == pytest.approx(0.2 / 2**0.5)
    assert first.last_mean == pytest.approx((0.3 + 0.7) / 2)
    assert first.last_std == pytest.approx(0.4 / 2**0.5)
    assert first.rounds == 3
    assert (second.best_std, second.rounds) == (0, 1)
    least = written().summary(mode="min", last=2)[0]
    assert least.best_mean == pytest.approx((0.1 + 0.2) / 2)
    assert least.last_mean == pytest.approx((0.4 + 0.55) / 2)
    with pytest.raises(ValueError, match=r"metric='val_los' is in no round.*'val_acc'"):
        written().summary("val_los")
    with pytest.raises(TypeError, match="metric must be the name of one, such as 'val_acc', got 3"):
        written().summary(3)


@pytest.mark.parametrize(
    ("metric", "mode", "expected"),
    [("val_loss", None, "min"), ("val_acc", None, "max"), ("val_loss", "max", "max")],
)
def test_what_is_best_goes_by_the_name(metric, mode, expected):
    assert written(metric, mode).mode == expected


def test_it_prints_a_table():
    console = Console(width=100)
    with console.capture() as capture:
        console.print(written())
    text = capture.get()
    assert "val_acc, 2 seeds" in text
    assert "0.6000 ± 0.1414" in text
    assert "0.5000 ± 0.2828" in text
    assert str(written()).splitlines()[2] == "b: 0.9000 ± 0.0000, 0.9000 ± 0.0000"
    rich.print(written().table(last=2))
    one = Comparison(written().runs[:1], {}, "val_acc", None)
    assert str(one).splitlines()[1] == "a: 0.5000, 0.3000"


def test_it_is_a_view_of_a_study():
    result = written()
    assert isinstance(result.study, Study)
    assert result.study.axes == {"aggregator": ["a", "b"]}
    assert result.table().to_markdown() == result.study.table().to_markdown()
    assert "| a | 0.6000 ± 0.1414 | 0.5000 ± 0.2828 | 3 ± 0 |" in result.table().to_markdown()
    for each in result.summary():
        best = result.table().entries[(each.name,), "best"]
        assert (each.best_mean, each.best_std) == (best.mean, best.std)


def test_a_run_whose_metric_is_no_number_is_left_out_and_the_table_says_so():
    runs = [
        ComparedRun("a", seed, [record(1, val_loss=value)], "f")
        for seed, value in enumerate((0.5, float("nan")))
    ]
    result = Comparison(runs, {}, "val_loss", None)
    (only,) = result.summary()
    assert (only.best_mean, only.rounds) == (0.5, 1.0)
    assert math.isnan(only.best_std)
    assert str(result).splitlines()[1] == "a: 0.5000 (1 of 2 have one), 0.5000 (1 of 2 have one)"


def test_curves_and_frames():
    result = written()
    x, y = result.curve("a", 1, x="virtual_time")
    assert (x.tolist(), y.tolist()) == ([1, 2, 3], [0.2, 0.4, 0.7])
    with pytest.raises(ValueError, match="no run of name='c' and seed=0"):
        result.curve("c", 0)
    pytest.importorskip("pandas")
    frame = result.to_pandas()
    assert list(frame.columns) == ["name", "seed", "round", "fed/time", "val_acc"]
    assert frame.groupby("name")["val_acc"].max().to_dict() == {"a": 0.7, "b": 0.9}


def test_tensorboard_has_a_run_for_each_name_and_seed(tmp_path):
    for _ in range(2):
        result = compared({"AFA/CD": AFACD(), "FedAvg": FedAvg()}, logger_dir=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["version_0", "version_1"]
    for run in result.runs:
        folder = tmp_path / "version_1" / run.name.replace("/", "-") / f"seed={run.seed}"
        events = EventAccumulator(str(folder))
        events.Reload()
        values = [event.value for event in events.Scalars("val_loss/by_virtual_time")]
        assert values == pytest.approx([r.metrics["val_loss"] for r in run.history], rel=1e-6)


def test_nothing_is_written_unless_asked_for(tmp_path):
    compared({"a": AFACD()}, seeds=[0])
    assert list(tmp_path.iterdir()) == []


def test_callbacks_are_fresh_for_each_run(tmp_path):
    made = []

    def callbacks():
        made.append([Recorder(), TensorBoardMetrics(axes=["models"])])
        return made[-1]

    compared({"a": AFACD(), "b": AFACS()}, callbacks=callbacks, seeds=[0], logger_dir=tmp_path)
    assert len(made) == 2
    assert all(recorder.names.count("on_round_end") == 4 for recorder, _ in made)
    events = EventAccumulator(str(tmp_path / "version_0" / "a" / "seed=0"))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert "val_loss/by_models" in tags
    assert "val_loss/by_bytes" not in tags


def test_the_progress_can_be_shown(capsys):
    compared({"a": AFACD()}, seeds=[0], enable_progress_bar=True)
    assert "runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"aggregators": {}}, ValueError, "aggregators must name one or more"),
        ({"aggregators": [AFACD()]}, ValueError, "aggregators must name one or more"),
        ({"aggregators": {"a": AFACD}}, TypeError, r"aggregators\['a'\] must be an object"),
        ({"seeds": []}, ValueError, "seeds must be one or more"),
        ({"seeds": [1, 1]}, ValueError, "one or more different"),
        ({"seeds": range(10**12)}, ValueError, "seeds must be at most 10,000"),
        ({"seeds": itertools.count()}, ValueError, "seeds must be at most 10,000"),
        ({"aggregators": {"": AFACD()}}, TypeError, "each name of aggregators must be a word"),
        ({"aggregators": {1: AFACD()}}, TypeError, "must be a word, got 1"),
        (
            {"aggregators": {"a/b": AFACD(), "a-b": AFACD()}, "logger_dir": "logs"},
            ValueError,
            r"must differ in more than slashes.*\['a/b', 'a-b'\]",
        ),
        ({"logger_dir": __file__}, OSError, "logger_dir='.*' must be a folder that can be"),
        ({"metric": 3}, TypeError, "metric must be the name of one, such as 'val_acc', got 3"),
        ({"schedule": "replayed"}, ValueError, "schedule must be one of"),
        ({"callbacks": [Recorder()]}, TypeError, "callbacks must be a function"),
        ({"logger": True}, TypeError, "its own logger"),
        ({"arrivals": 3}, TypeError, "arrivals must be of type"),
        ({"module": 3}, TypeError, "module must be a LightningModule"),
        ({"datamodule": 3}, TypeError, "datamodule must be a FederatedDataModule"),
        ({"arrivals": CLOCK}, ValueError, "give the aggregator a buffer_size"),
        ({"max_rounds": None}, ValueError, "nothing would stop"),
        ({"mode": "best"}, ValueError, "mode must be one of"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments, error, match):
    trained = []
    given = {
        "aggregators": {"a": AFACD()},
        "callbacks": lambda: trained.append(1) or [],
        **arguments,
    }
    with pytest.raises(error, match=match):
        compared(given.pop("aggregators"), **given)
    assert trained == []
    assert not Path("logs").exists()


def test_a_curve_of_a_metric_that_no_round_has_is_refused():
    record = RoundRecord(1, 1.0, {"val_acc": 0.5, "fed/time": 1.0}, [])
    result = Comparison([ComparedRun("a", 0, [record], "")], {}, "val_acc", None)
    assert result.curve("a", 0)[1].tolist() == [0.5]
    with pytest.raises(ValueError, match=r"'a' has no metric 'val_ac'; .*'val_acc'"):
        result.curve("a", 0, "val_ac")
    with pytest.raises(ValueError, match=r"no run of name='b' .*\('a', 0\)"):
        result.curve("b", 0)


def test_a_comparison_has_runs():
    with pytest.raises(ValueError, match="runs must hold one or more"):
        Comparison([], {}, "val_acc", None)


def test_the_name_is_the_function_whatever_was_imported():
    assert fedlight.compare is fedlight.studies.comparison.compare
    from fedlight import compare as again

    assert callable(again)
