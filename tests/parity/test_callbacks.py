"""Lightning's callbacks: what each of them does here, and that it is what Lightning does."""

import io
import warnings
from datetime import timedelta
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch import callbacks as theirs
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.loggers import CSVLogger
from rich.console import Console

from fedlight import Callback
from fedlight._fit import callback_adapters
from fedlight._fit.argument_checks import as_callbacks
from fedlight._fit.callback_adapters import HOOKS, Adapted, Mirror
from fedlight._fit.lightning_callbacks import CALLBACKS, adapt
from fedlight._module.rng import isolated_rng
from fedlight.callbacks import (
    EarlyStopping,
    FedCheckpoint,
    LearningRateMonitor,
    ProgressBar,
)
from fedlight.callbacks.progress import _TextLine
from tests.boring import Boring, Point, fitted, points, trainer
from tests.parity import conftest

HERE = Path()


# --- the table ---


def test_every_callback_of_lightning_is_classified():
    assert set(CALLBACKS) == set(theirs.__all__)
    assert {each.status for each in CALLBACKS.values()} == {"works", "differs", "refused"}
    for name, each in CALLBACKS.items():
        assert (each.make is None) == (each.status == "refused"), name
        assert each.text, name


MADE = {
    "BackboneFinetuning": theirs.BackboneFinetuning,
    "BaseFinetuning": type("Own", (theirs.BaseFinetuning,), {}),
    "BasePredictionWriter": type("Own", (theirs.BasePredictionWriter,), {}),
    "BatchSizeFinder": theirs.BatchSizeFinder,
    "EMAWeightAveraging": theirs.EMAWeightAveraging,
    "GradientAccumulationScheduler": lambda: theirs.GradientAccumulationScheduler({0: 2}),
    "LearningRateFinder": theirs.LearningRateFinder,
    "ModelPruning": lambda: theirs.ModelPruning("l1_unstructured"),
    "OnExceptionCheckpoint": lambda: theirs.OnExceptionCheckpoint("here"),
    "ProgressBar": type("Own", (theirs.ProgressBar,), {}),
    "SpikeDetection": theirs.SpikeDetection,
    "StochasticWeightAveraging": lambda: theirs.StochasticWeightAveraging(1e-2),
    "ThroughputMonitor": lambda: theirs.ThroughputMonitor(len),
    "WeightAveraging": theirs.WeightAveraging,
}


@pytest.mark.covers(callbacks=MADE)
@pytest.mark.parametrize("name", [name for name, each in CALLBACKS.items() if each.make is None])
def test_what_has_no_meaning_is_refused_with_what_to_write(name):
    with pytest.raises(TypeError) as caught:
        trainer(callbacks=MADE[name]())
    assert str(caught.value).endswith(CALLBACKS[name].text)
    assert name in str(caught.value)
    assert "no meaning in a federation" in str(caught.value)


RUNNING = {
    "Callback": (theirs.Callback, [Adapted]),
    "Checkpoint": (theirs.Checkpoint, [Adapted]),
    "DeviceStatsMonitor": (theirs.DeviceStatsMonitor, [callback_adapters.AdaptedDeviceStats]),
    "EarlyStopping": (lambda: theirs.EarlyStopping("x"), [EarlyStopping, Mirror]),
    "LambdaCallback": (theirs.LambdaCallback, [Adapted]),
    "LearningRateMonitor": (theirs.LearningRateMonitor, [LearningRateMonitor]),
    "ModelCheckpoint": (theirs.ModelCheckpoint, [FedCheckpoint, Mirror]),
    "ModelSummary": (theirs.ModelSummary, [callback_adapters.AdaptedSummary]),
    "RichModelSummary": (theirs.RichModelSummary, [callback_adapters.AdaptedSummary]),
    "RichProgressBar": (theirs.RichProgressBar, [ProgressBar]),
    "TQDMProgressBar": (theirs.TQDMProgressBar, [ProgressBar]),
    "Timer": (theirs.Timer, [callback_adapters.AdaptedTimer]),
}


@pytest.mark.covers(callbacks=["Callback", "Checkpoint"])
@pytest.mark.parametrize("name", [name for name, each in CALLBACKS.items() if each.make])
def test_what_has_a_meaning_is_taken(name):
    make, kinds = RUNNING[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = as_callbacks(make(), bar=False)
    assert len(made) == len(kinds)
    assert all(isinstance(one, kind) for one, kind in zip(made, kinds, strict=True))


def test_a_subclass_of_a_mapped_callback_is_refused():
    class Mine(theirs.EarlyStopping):
        pass

    message = r"Mine is a subclass of EarlyStopping.* from fedlight.callbacks.EarlyStopping$"
    with pytest.raises(TypeError, match=message):
        trainer(callbacks=[Mine("x")])

    class Saves(theirs.ModelCheckpoint):
        pass

    with pytest.raises(TypeError, match=r"derive it from fedlight.callbacks.FedCheckpoint$"):
        trainer(callbacks=[Saves()])


# --- hooks ---


class Noted(lightning.Callback):
    """Writes down the hooks called, those of training batches left out."""

    def __init__(self):
        self.calls = []

    def __getattribute__(self, name):
        if name in HOOKS and "state_dict" not in name:
            return lambda *args, **kwargs: self.calls.append(name)
        return super().__getattribute__(name)


@pytest.mark.covers(arguments=["callbacks"], callbacks=["Callback"])
@pytest.mark.parametrize("val", [True, False])
def test_the_hooks_come_in_lightnings_order(both, executor, val):
    class Unvalidated(Boring):
        validation_step = lightning.LightningModule.validation_step

    judge, ours = Noted(), Noted()
    both(
        Boring if val else Unvalidated,
        None if val else conftest.examples(),
        rounds=2,
        executor=executor,
        lightning_callbacks=[judge],
        callbacks=[ours],
    )
    assert ours.calls == judge.calls
    assert ("on_validation_end" in judge.calls) == val
    assert judge.calls.count("on_train_epoch_end") == 2


def test_hooks_of_sanity_and_of_the_other_verbs():
    noted = Noted()
    run = trainer(
        callbacks=noted, num_sanity_val_steps=1, max_rounds=1, check_val_every_n_rounds=None
    )
    run.fit(Point(), points([1.0], [2.0]))
    before = noted.calls[: noted.calls.index("on_train_start")]
    assert before == [
        "setup",
        "on_fit_start",
        "on_sanity_check_start",
        "on_validation_start",
        "on_validation_epoch_start",
        "on_validation_epoch_end",
        "on_validation_end",
        "on_sanity_check_end",
    ]
    for verb, stage in (("validate", "validation"), ("test", "test"), ("predict", "predict")):
        noted.calls.clear()
        module = Predicts()
        getattr(run, verb)(module, points([1.0], [2.0]))
        hooks = [f"on_{stage}_{when}" for when in ("start", "epoch_start", "epoch_end", "end")]
        assert noted.calls == ["setup", *hooks, "teardown"]


class Predicts(Point):
    def predict_step(self, batch, batch_idx):
        return batch[0]


@pytest.mark.covers(callback_hooks=["on_exception"])
def test_an_exception_reaches_the_callback_and_teardown_comes():
    noted = Noted()

    class Fails(theirs.Callback):
        def on_train_epoch_end(self, trainer, module):
            raise RuntimeError("in the callback")

    with pytest.raises(RuntimeError, match="in the callback"):
        fitted(Point(), points([1.0], [2.0]), callbacks=[noted, Fails()])
    assert noted.calls[-2:] == ["on_exception", "teardown"]


def test_hooks_without_a_meaning_are_named_once():
    class Counts(lightning.Callback):
        def on_train_batch_end(self, *args): ...

        def on_before_optimizer_step(self, *args): ...

        def on_train_epoch_end(self, *args): ...

    with pytest.warns(match="Counts has on_before_optimizer_step, on_train_batch_end, which a fed"):
        run = trainer(callbacks=Counts())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.fit(Point(), points([1.0], [2.0]))


@pytest.mark.covers(callbacks=["LambdaCallback"])
def test_lambda_callbacks_run_and_name_what_they_cannot():
    seen = []
    callback = theirs.LambdaCallback(
        on_train_epoch_end=lambda trainer, module: seen.append(trainer.version),
        on_fit_end=lambda trainer, module: seen.append(module),
    )
    module = Point()
    fitted(module, points([1.0], [2.0]), callbacks=callback, max_rounds=3)
    assert seen == [1, 2, 3, module]
    with pytest.warns(UserWarning, match="LambdaCallback has on_train_batch_start, which"):
        trainer(callbacks=theirs.LambdaCallback(on_train_batch_start=print))


def test_a_callback_may_stop_the_run():
    stops = theirs.LambdaCallback(
        on_train_epoch_end=lambda trainer, module: setattr(trainer, "should_stop", True)
    )
    assert fitted(Point(), points([1.0], [2.0]), callbacks=stops).version == 1


def test_the_state_goes_into_the_checkpoint_and_back(tmp_path):
    class Counter(lightning.Callback):
        def __init__(self):
            self.count = 0

        def on_train_epoch_end(self, trainer, module):
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    def options(rounds, counter):
        return {
            "max_rounds": rounds,
            "callbacks": [theirs.LambdaCallback(), counter, FedCheckpoint(tmp_path)],
        }

    fitted(Point(), points([1.0], [2.0]), **options(2, Counter()))
    again = Counter()
    run = trainer(**options(5, again))
    # Another callback in front of it, which the file does not know.
    run.callbacks.insert(0, *adapt(Silent(), HERE))
    run.fit(Point(), points([1.0], [2.0]), ckpt_path="last")
    assert again.count == 5


class Silent(lightning.Callback):
    def load_state_dict(self, state):
        pytest.fail("this callback has no state")


def test_ours_may_inherit_from_both():
    class Both(Callback, lightning.Callback):
        pass

    both = Both()
    with pytest.warns(UserWarning, match="Both has"):
        assert as_callbacks(both, bar=False) == [both]


# --- early stopping ---


class Scripted(Boring):
    """Logs values of a list as "score", one for each validation."""

    values = (5.0, 4.0, 4.5, 3.9999, 4.2, 4.1, 3.0, 9.0, 9.0, 9.0)

    def __init__(self):
        super().__init__()
        self.validations = 0

    def validation_step(self, batch, batch_idx):
        self.log("score", torch.tensor(self.values[self.validations]))

    def on_validation_epoch_end(self):
        self.validations += 1


@pytest.mark.covers(callbacks=["EarlyStopping"])
@pytest.mark.parametrize(
    "options",
    [
        {"patience": 1},
        {"patience": 2},
        {"patience": 0},
        {"patience": 3, "min_delta": 0.01},
        {"patience": 2, "mode": "max"},
        {"patience": 9, "stopping_threshold": 3.5},
        {"patience": 9, "divergence_threshold": 8.0},
    ],
    ids=str,
)
def test_early_stopping_stops_where_lightning_does(both, executor, options):
    judge, ours = (theirs.EarlyStopping("score", **options) for _ in range(2))
    found = both(
        Scripted,
        rounds=10,
        executor=executor,
        lightning_callbacks=[judge],
        callbacks=[ours],
    )
    assert found.fed.version == found.trainer.current_epoch < 10
    assert found.fed_module.validations == found.module.validations
    assert ours.stopped_epoch == judge.stopped_epoch
    if "stopping_threshold" not in options:  # a value that is better counts as the best one here
        assert ours.wait_count == judge.wait_count
        assert float(ours.best_score) == pytest.approx(float(judge.best_score), abs=1e-6)


def test_early_stopping_on_nan_and_without_its_metric(both, executor):
    class Nan(Scripted):
        values = (5.0, float("nan"), 1.0)

    judge, ours = theirs.EarlyStopping("score"), theirs.EarlyStopping("score")
    found = both(Nan, rounds=3, executor=executor, lightning_callbacks=[judge], callbacks=[ours])
    assert found.fed.version == found.trainer.current_epoch == 2
    with pytest.raises(ValueError, match="monitors 'nothing', which was not logged"):
        fitted(Point(), points([1.0], [2.0]), callbacks=theirs.EarlyStopping("nothing"))
    loose = theirs.EarlyStopping("nothing", strict=False)
    assert fitted(Point(), points([1.0], [2.0]), callbacks=loose, max_rounds=2).version == 2


# --- checkpoints ---


@pytest.mark.covers(callbacks=["ModelCheckpoint"])
@pytest.mark.parametrize(("mode", "best"), [("min", 7), ("max", 1)])
def test_model_checkpoint_keeps_what_lightning_keeps(both, executor, tmp_path, mode, best):
    class Rounds(Scripted):
        values = (9.0, 4.0, 4.5, 3.9999, 4.2, 4.1, 3.0, 8.0)

    def make(folder):
        return theirs.ModelCheckpoint(tmp_path / folder, monitor="score", mode=mode, save_top_k=3)

    judge, ours = make("judge"), make("ours")
    judging = lightning.Trainer(
        accelerator="cpu",
        max_epochs=8,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[judge],
    )
    loader = torch.utils.data.DataLoader(conftest.examples(4), 4)
    judging.fit(Rounds(), loader, loader)
    found = both(Rounds, rounds=8, executor=executor, callbacks=[ours])
    assert found.fed.version == 8
    assert ours.best_model_path == str(tmp_path / "ours" / f"round={best}.ckpt")
    assert Path(judge.best_model_path).name.startswith(f"epoch={best - 1}-")
    assert float(ours.best_model_score) == pytest.approx(float(judge.best_model_score), abs=1e-6)
    kept = sorted(map(float, ours.best_k_models.values()))
    judged = sorted(map(float, judge.best_k_models.values()))
    assert kept == pytest.approx(judged, abs=1e-6)
    assert sorted(p.name for p in (tmp_path / "ours").glob("*.ckpt")) == sorted(
        Path(path).name for path in ours.best_k_models
    )
    assert ours.last_model_path == judge.last_model_path == ""
    back = Rounds.load_from_checkpoint(ours.best_model_path, map_location="cpu")
    assert set(back.state_dict()) == set(found.fed_module.state_dict())


def test_two_model_checkpoints_share_a_folder(both, tmp_path, monkeypatch):
    """Each keeps what it keeps alone, and what Lightning's keep of the same scores."""
    monkeypatch.chdir(tmp_path)

    class Rounds(Scripted):
        values = (4.0, 9.0, 4.5, 1.0, 8.5, 4.1, 3.0, 8.0)

    def make():
        return [
            theirs.ModelCheckpoint(monitor="score", mode="min", save_top_k=2),
            theirs.ModelCheckpoint(monitor="score", mode="max", save_top_k=2, save_last=True),
            theirs.ModelCheckpoint(monitor="score", mode="min", save_top_k=1, every_n_epochs=2),
        ]

    judges, ours = make(), make()
    judging = lightning.Trainer(
        accelerator="cpu",
        max_epochs=8,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=judges,
        default_root_dir="judge",
    )
    loader = torch.utils.data.DataLoader(conftest.examples(4), 4)
    judging.fit(Rounds(), loader, loader)
    both(Rounds, rounds=8, callbacks=ours, options={"default_root_dir": "ours"})
    assert len({judge.dirpath for judge in judges}) == 1
    for one, judge in zip(ours, judges, strict=True):
        judged = sorted(map(float, judge.best_k_models.values()))
        assert sorted(map(float, one.best_k_models.values())) == pytest.approx(judged, abs=1e-6)
        assert all(Path(path).exists() for path in one.best_k_models)
    names = {Path(path).name for each in ours for path in each.best_k_models}
    assert {path.name for path in Path("ours/checkpoints").glob("*.ckpt")} == {*names, "last.ckpt"}
    assert names == {"round=2.ckpt", "round=4.ckpt", "round=5.ckpt", "round=7.ckpt"}


def test_model_checkpoint_options(tmp_path):
    callback = theirs.ModelCheckpoint(every_n_epochs=2, save_last=True, save_top_k=-1)
    run = trainer(callbacks=callback, default_root_dir=tmp_path, max_rounds=5)
    (keeper,) = [each for each in run.callbacks if isinstance(each, FedCheckpoint)]
    assert (keeper.dirpath, keeper.every_n_rounds) == (tmp_path / "checkpoints", 2)
    run.fit(Point(), points([1.0], [2.0]))
    names = sorted(path.name for path in (tmp_path / "checkpoints").glob("*.ckpt"))
    assert names == ["last.ckpt", "round=2.ckpt", "round=4.ckpt"]
    assert callback.last_model_path == str(tmp_path / "checkpoints" / "last.ckpt")
    assert callback.dirpath == str(tmp_path / "checkpoints")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filename": "best"}, r"filename='best'\).*named round=<N>.ckpt"),
        ({"every_n_train_steps": 5}, r"every_n_train_steps=5\).*every_n_updates="),
        ({"train_time_interval": timedelta(hours=1)}, r"train_time_interval=.*every_time="),
        ({"save_weights_only": True}, r"save_weights_only=True\).*torch.save"),
        ({"save_on_exception": True}, r"save_on_exception=True\).*save_last=True"),
    ],
)
def test_model_checkpoint_refuses_what_it_cannot(options, message):
    with pytest.raises(TypeError, match=f"ModelCheckpoint\\({message}"):
        trainer(callbacks=theirs.ModelCheckpoint("here", **options))


# --- the others ---


@pytest.mark.covers(callbacks=["LearningRateMonitor"])
def test_learning_rates_are_those_of_our_monitor():
    run = fitted(Point(), points([1.0], [2.0]), callbacks=theirs.LearningRateMonitor("epoch"))
    assert run.history[-1].metrics["lr/local"] == 0.1
    for options in ({"logging_interval": "step"}, {"log_momentum": True}):
        with pytest.raises(TypeError, match=r"LearningRateMonitor\(.*leave it out"):
            trainer(callbacks=theirs.LearningRateMonitor(**options))


@pytest.mark.covers(
    arguments=["enable_progress_bar"], callbacks=["TQDMProgressBar", "RichProgressBar"]
)
def test_progress_bars_are_replaced_once():
    for kind in (theirs.TQDMProgressBar, theirs.RichProgressBar):
        run = trainer(callbacks=kind(), enable_progress_bar=True)
        assert [type(each) for each in run.callbacks] == [ProgressBar]
        with pytest.raises(TypeError, match="enable_progress_bar=False"):
            trainer(callbacks=kind(refresh_rate=0))


@pytest.mark.covers(callbacks=["ModelSummary", "RichModelSummary"])
def test_a_summary_is_printed_before_the_first_event(caplog, capsys):
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        run = fitted(Boring(), boring_data(), callbacks=theirs.ModelSummary(), max_rounds=1)
    assert run.version == 1
    judge = lightning.pytorch.utilities.model_summary.summarize(Boring())
    assert str(judge).splitlines()[2] in caplog.text
    fitted(Boring(), boring_data(), callbacks=theirs.RichModelSummary(), max_rounds=1)
    assert "Trainable params" in capsys.readouterr().out


def test_a_summary_changes_no_bit(caplog):
    class Example(Boring):
        def __init__(self):
            super().__init__(torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3)))
            self.example_input_array = torch.zeros(2, 4)

    def bits(**options):
        with isolated_rng():
            torch.manual_seed(0)
            return fitted(Example(), boring_data(), max_rounds=2, **options).fingerprint()

    assert bits(callbacks=theirs.ModelSummary(max_depth=2)) == bits()


def boring_data():
    from tests.boring import classes

    return classes()


@pytest.mark.covers(callbacks=["Timer"])
def test_a_timer_ends_the_run_between_two_events(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("lightning.pytorch.callbacks.timer.time.monotonic", lambda: clock[0])

    class Ticks(Callback):
        def on_round_end(self, trainer, module):
            clock[0] += 10.0

    timer = theirs.Timer(timedelta(seconds=35))
    run = fitted(Point(), points([1.0], [2.0]), callbacks=[Ticks(), timer], max_rounds=100)
    assert run.version == 4
    assert run.should_stop
    assert timer.time_elapsed() == 40.0
    unlimited = theirs.Timer()
    run = fitted(Point(), points([1.0], [2.0]), callbacks=[Ticks(), unlimited], max_rounds=7)
    assert (run.version, unlimited.time_elapsed()) == (7, 70.0)


def test_a_timer_counts_the_time_before_a_checkpoint(monkeypatch, tmp_path):
    clock = [0.0]
    monkeypatch.setattr("lightning.pytorch.callbacks.timer.time.monotonic", lambda: clock[0])

    class Ticks(Callback):
        def on_round_end(self, trainer, module):
            clock[0] += 10.0

    def options(rounds):
        timer = theirs.Timer({"seconds": 35})
        keeper = FedCheckpoint(tmp_path)
        return {"callbacks": [Ticks(), timer, keeper], "max_rounds": rounds}

    fitted(Point(), points([1.0], [2.0]), **options(2))
    clock[0] += 1000.0  # the time in between does not count
    run = trainer(**options(100))
    run.fit(Point(), points([1.0], [2.0]), ckpt_path="last")
    assert run.version == 4


@pytest.mark.covers(callbacks=["DeviceStatsMonitor"])
def test_device_stats_go_to_the_loggers_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(CPUAccelerator, "get_device_stats", lambda self, device: {"heat": 3.0})
    logger = CSVLogger(tmp_path, name="", version="")
    run = fitted(
        Point(),
        points([1.0], [2.0]),
        callbacks=theirs.DeviceStatsMonitor(cpu_stats=True),
        logger=logger,
        max_rounds=2,
    )
    name = "DeviceStatsMonitor.on_train_batch_end/heat"
    assert (tmp_path / "metrics.csv").read_text().count("3.0") >= 2
    assert name in (tmp_path / "metrics.csv").read_text()
    assert name not in run.history[-1].metrics
    with pytest.raises(lightning.fabric.utilities.exceptions.MisconfigurationException):
        fitted(Point(), points([1.0], [2.0]), callbacks=theirs.DeviceStatsMonitor(cpu_stats=True))


def test_the_average_that_is_recommended_works():
    class Average(Callback):
        def on_fit_start(self, trainer, module):
            self.average = torch.optim.swa_utils.AveragedModel(module)
            self.seen = []

        def on_round_end(self, trainer, module):
            self.average.update_parameters(module)
            self.seen.append(float(module.w.detach()))

    average = Average()
    fitted(Point(), points([1.0], [2.0]), callbacks=average, max_rounds=4)
    (w,) = [float(p.detach()) for p in average.average.parameters()]
    assert w == pytest.approx(sum(average.seen) / 4, abs=1e-6)
    assert "AveragedModel(module) in on_fit_start" in CALLBACKS["StochasticWeightAveraging"].text


# --- notebooks ---


def notebook():
    return Console(file=io.StringIO(), force_jupyter=True)


def test_the_bar_is_plain_text_in_a_notebook_without_widgets(monkeypatch):
    monkeypatch.setattr("fedlight.callbacks.progress.find_spec", lambda name: None)
    console = notebook()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(Point(), points([1.0], [2.0]), callbacks=ProgressBar(console=console), max_rounds=3)
    text = console.file.getvalue()
    assert text.startswith("\rround 0/3")
    last = text.rstrip("\n").rpartition("\r")[2]
    assert last.startswith("round 3/3  ")
    assert "updates/s" in last
    assert text.endswith("\n")


def test_a_shorter_line_covers_a_longer_one(monkeypatch):
    file = io.StringIO()
    line = _TextLine(file, 1e9)
    task = line.add_task("", 1.0, 0.0, rounds="round 0/3", figures=["a long figure"])
    line.start()
    line.update(task, 1.0, 1 / 3, rounds="round 1/3", figures=[])
    line.stop()
    first, second = file.getvalue().split("\r")[1:3]
    assert first == "round 0/3  a long figure"
    assert second == f"{'round 1/3':<{len(first)}}"
