"""The arguments of `lightning.Trainer`, `predict`, and modules in unusual wrappers."""

import copy
import inspect
import os
import sys
import types
from datetime import timedelta

import lightning
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, SimpleProfiler
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from fedlight import Callback, FedTrainer
from fedlight._fit import callback_adapters
from fedlight._fit.device import one_device
from fedlight._fit.lightning_arguments import ARGUMENTS, LightningArguments
from fedlight.aggregators import FedAsync, FedAvg, FedBuff
from fedlight.arrivals import SynchronousArrivals
from fedlight.callbacks import EarlyStopping, FedCheckpoint
from fedlight.studies.comparison import compare
from tests.boring import Boring, Measured, Point, classes, fitted, points, replay, trainer
from tests.parity import conftest

OWN = inspect.signature(FedTrainer).parameters
LIGHTNING = inspect.signature(lightning.Trainer).parameters


# --- the table ---


def test_every_argument_of_lightning_is_classified():
    assert sorted(ARGUMENTS) == sorted(LIGHTNING)
    taken = OWN.keys() | LightningArguments.__annotations__.keys()
    for name, argument in ARGUMENTS.items():
        assert argument.status in ("works", "differs", "refused")
        assert (name in taken) == (argument.status != "refused"), name
        assert argument.text
    assert LightningArguments.__annotations__.keys() - ARGUMENTS.keys() == {"max_wall_time"}


def test_each_argument_that_is_taken_is_described():
    for name in LightningArguments.__annotations__:
        assert f"        {name}: " in LightningArguments.__doc__


REFUSED = {
    "strategy": ("ddp", "executor=RayExecutor"),
    "num_nodes": (2, "executor=RayExecutor"),
    "max_epochs": (10, "write max_rounds"),
    "min_epochs": (1, "patience"),
    "max_steps": (100, "write max_updates"),
    "min_steps": (1, "patience"),
    "limit_train_batches": (0.5, "write local_steps of the arrival process"),
    "overfit_batches": (1, "few examples"),
    "val_check_interval": (0.25, "write check_val_every_n_rounds or check_val_every_n_updates"),
    "check_val_every_n_epoch": (2, "write check_val_every_n_rounds or check_val_every_n_updates"),
    "accumulate_grad_batches": (4, "larger batch_size"),
    "gradient_clip_val": (0.5, r"local_optimizer=ModuleOptimizer\(max_grad_norm=0.5\)"),
    "gradient_clip_algorithm": ("value", "max_grad_norm=…"),
    "use_distributed_sampler": (None, "no distributed sampler"),
    "detect_anomaly": (True, r"with torch.autograd.detect_anomaly\(\)"),
    "barebones": (True, "logger=False"),
    "plugins": (["slurm"], "write precision="),
    "sync_batchnorm": (True, "averages the buffers"),
    "reload_dataloaders_every_n_epochs": (1, "same examples"),
    "model_registry": ("hub", "after fit"),
}


@pytest.mark.covers(arguments=REFUSED)
@pytest.mark.parametrize("name", [n for n, each in ARGUMENTS.items() if each.status == "refused"])
def test_what_has_no_meaning_is_refused_with_what_to_write(name):
    value, words = REFUSED[name]
    with pytest.raises(TypeError, match=f"^FedTrainer does not take {name}=.*: .*{words}"):
        trainer(**{name: value})
    with pytest.raises(TypeError) as caught:
        trainer(**{name: value})
    assert f"{name}={value!r}: " in str(caught.value)


def test_all_refused_arguments_are_in_one_error():
    with pytest.raises(TypeError) as caught:
        trainer(max_epochs=3, gradient_clip_val=0.5, logger=False, gpus=1, agregator=None)
    first, *lines = str(caught.value).splitlines()
    assert first == "4 arguments are refused:"
    said = ["max_epochs=3: ", "gradient_clip_val=0.5: ", "gpus=1 is", "'agregator'; did you mean"]
    assert [words in line for words, line in zip(said, lines, strict=True)] == [True] * 4
    with pytest.raises(TypeError, match=r"(?s)2 arguments .*train_dataloaders.*val_dataloaders"):
        trainer().fit(Point(), train_dataloaders=[], val_dataloaders=[])


def test_what_asks_for_nothing_is_accepted():
    for name, argument in ARGUMENTS.items():
        if argument.status == "refused" and name != "check_val_every_n_epoch":
            default = LIGHTNING[name].default
            assert default in argument.neutral, name
            trainer(**{name: default})
    with pytest.raises(TypeError, match="num_nodes=True"):
        trainer(num_nodes=True)


@pytest.mark.parametrize(
    ("name", "near"),
    [("max_round", "'max_rounds'"), ("agregator", "'aggregator'"), ("profilers", "'profiler'")],
)
def test_unknown_names_keep_pythons_error(name, near):
    message = f"got an unexpected keyword argument '{name}'; did you mean {near}"
    with pytest.raises(TypeError, match=message):
        trainer(**{name: 1})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'qwxyz'$"):
        trainer(qwxyz=1)


def test_no_argument_is_suggested_that_is_then_refused():
    with pytest.raises(TypeError) as caught:
        trainer(max_epoch=3)
    assert "did you mean" not in str(caught.value)
    assert "'max_epoch'; Lightning's max_epochs is not taken: write max_rounds" in str(caught.value)
    with pytest.raises(TypeError, match="auto_lr_find=True is an argument of Lightning 1: compare"):
        trainer(auto_lr_find=True)
    with pytest.raises(TypeError, match=r"max_steps=100: .* an update is local_steps batches"):
        trainer(max_steps=100)


@pytest.mark.covers(arguments=["max_time"])
def test_a_time_on_the_clock_is_no_virtual_time():
    for value in ("00:00:01:00", timedelta(minutes=1), {"minutes": 1}):
        with pytest.raises(TypeError, match=r"max_time must be a number.*write max_wall_time="):
            trainer(max_time=value)


# --- limits of batches ---


class Counts(Boring):
    """Counts its batches by stage."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def validation_step(self, batch, batch_idx):
        self.seen.append("val")
        return super().validation_step(batch, batch_idx)

    def test_step(self, batch, batch_idx):
        self.seen.append("test")
        return super().test_step(batch, batch_idx)

    def predict_step(self, batch, batch_idx):
        self.seen.append("predict")
        return self(batch[0])


@pytest.mark.covers(arguments=["limit_val_batches"])
@pytest.mark.parametrize("limit", [0, 0.0, 1, 2, 1.0, 0.4, None], ids=repr)
def test_limit_val_batches_is_lightnings(both, executor, limit):
    found = both(
        Counts,
        executor=executor,
        lightning_options={"limit_val_batches": limit},
        options={"limit_val_batches": limit},
    )
    assert found.fed_module.seen == found.module.seen
    if limit in (0, 0.0):
        assert "val_loss" not in found.fed.callback_metrics
        assert found.fed.validate() == []
    else:
        found.same_metrics("val_loss")


@pytest.mark.covers(arguments=["limit_test_batches", "limit_predict_batches"])
@pytest.mark.parametrize(
    ("limit", "number"), [(0, 0), (0.0, 0), (1, 1), (0.8, 1), (1.0, 2), (None, 2), (7, 2)], ids=repr
)
def test_other_limits(limit, number):
    run = trainer(limit_test_batches=limit, limit_predict_batches=limit)
    module = Counts()
    tested = run.test(module, classes())  # 9 examples in batches of 5
    predicted = run.predict(module)
    assert module.seen == ["test"] * number + ["predict"] * number
    assert len(predicted) == number
    assert bool(tested) == bool(number)


@pytest.mark.parametrize("name", ["limit_test_batches", "limit_predict_batches"])
def test_limits_out_of_range(name):
    with pytest.raises(ValueError, match=rf"{name} must be a share in \[0, 1\]"):
        trainer(**{name: 1.5})
    with pytest.raises(TypeError, match=f"{name} must be an integer, got 'all'"):
        trainer(**{name: "all"})
    with pytest.raises(TypeError, match=f"{name} must be an integer, got False"):
        trainer(**{name: False})


@pytest.mark.covers(arguments=["fast_dev_run"])
def test_a_trial_run_limits_them_all():
    run = trainer(fast_dev_run=True, num_sanity_val_steps=2, max_wall_time={"seconds": 0})
    module = Counts()
    run.fit(module, classes())
    run.test()
    run.predict()
    assert module.seen == ["val", "test", "predict"]


# --- when to validate, when to log ---


def validated(run):
    return [record.version for record in run.history if "val_error" in record.metrics]


def test_check_val_every_n_updates():
    buffered = {
        "arrivals": SynchronousArrivals(local_steps=1),
        "aggregator": FedBuff(buffer_size=2),
        "max_rounds": 9,
    }
    data = points([1.0], [2.0], [3.0], [4.0])
    for every, rounds in ((2, list(range(1, 10))), (4, [2, 4, 6, 8]), (5, [3, 5, 8]), (99, [])):
        run = fitted(Point(), data, check_val_every_n_updates=every, **buffered)
        assert validated(run) == rounds
        used = [sum(len(r.updates) for r in run.history[:version]) for version in rounds]
        assert all(number // every > (number - 2) // every for number in used)


def test_check_val_every_n_updates_counts_dropped_ones_and_goes_on(tmp_path):
    drops = replay(
        *((0, 0, 1.0, 1), (1, 0, 2.0, 1), (0, 1, 3.0, 1), (1, 0, 4.0, 1)),
        *((0, 2, 5.0, 1), (0, 3, 6.0, 1)),
    )

    def make(folder="parts", **options):
        return trainer(
            arrivals=drops,
            aggregator=FedAsync(0.5, max_staleness=0),
            check_val_every_n_updates=2,
            callbacks=FedCheckpoint(tmp_path / folder, every_n_updates=1),
            **options,
        )

    whole = make("whole")
    whole.fit(Point(), points([1.0], [2.0]))
    assert [len(record.dropped) for record in whole.history] == [0, 1, 1, 0]
    assert validated(whole) == [2, 3, 4]  # of 1, 3, 5 and 6 updates
    make(max_updates=4).fit(Point(), points([1.0], [2.0]))
    again = make()
    again.fit(Point(), points([1.0], [2.0]), ckpt_path="last")
    assert [record.metrics for record in again.history] == [
        record.metrics for record in whole.history
    ]


def test_early_stopping_waits_for_the_first_validation():
    stopping = EarlyStopping("val_error", patience=1)
    run = fitted(
        Point(), points([1.0], [2.0]), check_val_every_n_updates=6, callbacks=stopping, max_rounds=9
    )
    assert validated(run)[0] == 3


def test_the_number_of_updates_is_checked():
    with pytest.raises(ValueError, match="check_val_every_n_updates must be at least 1, got 0"):
        trainer(check_val_every_n_updates=0)
    with pytest.raises(ValueError, match=r"check_val_every_n_rounds=3.*give one of the two"):
        trainer(check_val_every_n_updates=2, check_val_every_n_rounds=3)


def logged_rounds(folder):
    lines = (folder / "metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("step")
    return [int(line.split(",")[column]) for line in lines[1:]]


@pytest.mark.covers(arguments=["log_every_n_steps"])
@pytest.mark.parametrize(
    ("every", "val", "rounds"),
    [
        (1, None, [1, 2, 3, 4, 5, 6]),
        (3, None, [3, 6]),
        (3, 4, [3, 4, 6]),
        (0, 4, [4]),
        (None, None, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_log_every_n_steps_counts_rounds(tmp_path, every, val, rounds):
    run = fitted(
        Point(),
        points([1.0], [2.0]),
        logger=CSVLogger(tmp_path, name="", version=""),
        log_every_n_steps=every,
        check_val_every_n_rounds=val,
        max_rounds=6,
    )
    assert logged_rounds(tmp_path) == rounds
    assert len(run.history) == 6
    assert all("train_loss" in record.metrics for record in run.history)


# --- how it is computed ---


def modes():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )


class Modes(Boring):
    """Notes PyTorch's settings in each stage."""

    def __init__(self):
        super().__init__()
        self.noted = {}

    def on_train_start(self):
        self.noted["fit"] = modes()

    def validation_step(self, batch, batch_idx):
        self.noted["val"] = modes()
        return super().validation_step(batch, batch_idx)

    def predict_step(self, batch, batch_idx):
        self.noted["predict"] = modes()


@pytest.fixture
def settings_kept():
    mode, benchmark = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
    yield
    torch.set_deterministic_debug_mode(mode)
    torch.backends.cudnn.benchmark = benchmark


@pytest.mark.covers(arguments=["deterministic", "benchmark"])
@pytest.mark.usefixtures("settings_kept")
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize(
    ("options", "within"),
    [
        ({"deterministic": True}, (True, False, False)),
        ({"deterministic": "warn"}, (True, True, False)),
        ({"deterministic": False}, (False, False, True)),
        ({"deterministic": True, "benchmark": True}, (True, False, True)),
        ({"benchmark": False}, (None, None, False)),
    ],
    ids=str,
)
def test_deterministic_and_benchmark_hold_within(before, options, within):
    torch.set_deterministic_debug_mode(before)
    torch.backends.cudnn.benchmark = True
    outside = modes()
    within = tuple(
        now if wanted is None else wanted for wanted, now in zip(within, outside, strict=True)
    )
    run, module = trainer(**options), Modes()
    run.fit(module, classes())
    run.predict()
    assert module.noted == {"fit": within, "val": within, "predict": within}
    assert modes() == outside


@pytest.mark.usefixtures("settings_kept")
def test_deterministic_ends_with_an_error_too(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    seen = []

    class Fails(Boring):
        def on_train_start(self):
            seen.append(os.environ["CUBLAS_WORKSPACE_CONFIG"])
            raise RuntimeError("no")

    before = modes()
    with pytest.raises(RuntimeError, match="no"):
        trainer(deterministic=True).fit(Fails(), classes())
    assert modes() == before
    assert seen == [":4096:8"]
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_deterministic_is_checked():
    with pytest.raises(ValueError, match='deterministic must be True, False, "warn" or None'):
        trainer(deterministic="yes")
    for name in ("benchmark", "inference_mode", "enable_checkpointing", "enable_model_summary"):
        with pytest.raises(TypeError, match=f"{name} must be True or False, got 'yes'"):
            trainer(**{name: "yes"})


@pytest.mark.covers(arguments=["inference_mode"])
@pytest.mark.parametrize("inference_mode", [True, False])
def test_inference_mode(both, executor, inference_mode):
    class Looks(Measured):
        def validation_step(self, batch, batch_idx):
            self.looked = torch.is_inference_mode_enabled()
            assert not torch.is_grad_enabled()
            return super().validation_step(batch, batch_idx)

    options = {"inference_mode": inference_mode}
    found = both(Looks, executor=executor, lightning_options=options, options=options)
    assert found.fed_module.looked is found.module.looked is False
    found.same_weights()
    found.same_metrics("val_acc")
    data = found.fed.datamodule
    (judged,) = found.trainer.validate(found.module, data.val_dataloader(), verbose=False)
    (ours,) = found.fed.validate()
    assert found.fed_module.looked is found.module.looked is inference_mode
    assert ours == pytest.approx(judged)


def test_a_fit_after_a_validation_in_inference_mode(executor):
    """Tensors made in inference mode cannot be changed outside of it."""

    class Counter(Measured):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.val_mean = MeanMetric()  # changes its states in place

        def validation_step(self, batch, batch_idx):
            self.count += 1
            self.val_mean.update(1.0)
            self.log("val_mean", self.val_mean)
            return super().validation_step(batch, batch_idx)

    def bits(between):
        torch.manual_seed(0)
        run, module = trainer(executor=executor, max_rounds=2), Counter()
        run.fit(module, classes())
        if between:
            run.validate()
            module.count -= 4  # 17 examples in batches of 5
        run.fit(module, classes())
        return run.fingerprint()

    assert bits(True) == bits(False)


@pytest.mark.parametrize(
    "limit", ["00:00:00:35", timedelta(seconds=35), {"seconds": 35}, {"minutes": 0, "seconds": 35}]
)
def test_max_wall_time(monkeypatch, limit):
    clock = [0.0]
    monkeypatch.setattr("lightning.pytorch.callbacks.timer.time.monotonic", lambda: clock[0])

    class Ticks(Callback):
        def on_round_end(self, trainer, module):
            clock[0] += 10.0

    run = fitted(
        Point(), points([1.0], [2.0]), callbacks=Ticks(), max_wall_time=limit, max_rounds=99
    )
    assert run.version == 4


@pytest.mark.parametrize("limit", ["35", {"second": 3}, "00:00:35"])
def test_max_wall_time_that_cannot_be_read(limit):
    with pytest.raises(ValueError, match=r"max_wall_time must be .DD:HH:MM:SS"):
        trainer(max_wall_time=limit)
    with pytest.raises(TypeError, match=r"max_wall_time must be .*a timedelta or a dict"):
        trainer(max_wall_time=35)


@pytest.mark.covers(arguments=["profiler"])
def test_profilers():
    def bits(**options):
        torch.manual_seed(0)
        return fitted(Boring(), classes(), max_rounds=3, **options)

    profiler = SimpleProfiler()
    run = bits(profiler=profiler)
    assert run.profiler is profiler
    seen = {name: len(times) for name, times in profiler.recorded_durations.items()}
    assert seen.keys() == {"fit", "validation", "local_runs", "events"}
    assert (seen["fit"], seen["validation"]) == (1, 3)
    assert seen["events"] > seen["local_runs"] >= 1
    plain = bits()
    assert isinstance(plain.profiler, PassThroughProfiler)
    assert plain.fingerprint() == run.fingerprint()
    run.validate()
    assert len(profiler.recorded_durations["validate"]) == 1
    assert isinstance(trainer(profiler="simple").profiler, SimpleProfiler)
    assert isinstance(trainer(profiler="advanced").profiler, AdvancedProfiler)
    with pytest.raises(TypeError, match='profiler must be "simple", "advanced" or a profiler'):
        trainer(profiler="quick")


def test_a_profiler_reports_to_its_file(tmp_path):
    profiler = SimpleProfiler(dirpath=tmp_path, filename="times")
    fitted(Boring(), classes(), max_rounds=1, profiler=profiler)
    (report,) = tmp_path.iterdir()
    assert "local_runs" in report.read_text()


# --- before round 1 ---


@pytest.mark.covers(arguments=["num_sanity_val_steps"])
@pytest.mark.parametrize(("steps", "number"), [(0, 0), (1, 1), (2, 2), (-1, 3), (None, 0)])
def test_sanity_steps(executor, steps, number):
    class Sane(Boring):
        def __init__(self):
            super().__init__()
            self.at = []

        def validation_step(self, batch, batch_idx):
            self.at.append((run.sanity_checking, run.version))
            return super().validation_step(batch, batch_idx)

    torch.manual_seed(0)
    module = Sane()
    before = copy.deepcopy(module)
    run = trainer(num_sanity_val_steps=steps, max_rounds=2, executor=executor)
    run.fit(module, eleven())
    # Eleven examples in batches of five.
    assert module.at == [(True, 0)] * number + [(False, 1)] * 3 + [(False, 2)] * 3
    assert not run.sanity_checking
    plain = trainer(max_rounds=2, executor=executor)
    plain.fit(before, eleven())
    assert plain.fingerprint() == run.fingerprint()
    assert run.history == plain.history


def eleven():
    return conftest.FederatedDataModule.from_client_datasets(
        [conftest.examples(6), conftest.examples(10, seed=1), conftest.examples(3, seed=2)],
        batch_size=4,
        val_dataset=conftest.examples(11, seed=3),
        eval_batch_size=5,
    )


def test_sanity_steps_are_as_many_as_lightnings(both):
    seen = []

    class Notes(Counts):
        def on_train_start(self):
            seen.append(len(self.seen))

    options = {"num_sanity_val_steps": 2}
    module = Notes()
    loader = DataLoader(conftest.examples(11), 5)
    lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        **options,
    ).fit(module, loader, loader)
    both(Notes, rounds=1, options=options)
    assert seen == [2, 0, 2]


def test_no_sanity_check_in_a_resumed_run_or_without_validation(tmp_path):
    def options(rounds):
        keeper = FedCheckpoint(tmp_path)
        return {"num_sanity_val_steps": 1, "callbacks": keeper, "max_rounds": rounds}

    fitted(Counts(), eleven(), **options(1))
    module = Counts()
    run = trainer(**options(2))
    run.fit(module, eleven(), ckpt_path="last")
    assert len(module.seen) == (1 + 3) + 3  # the module goes on with what it has counted before
    module = Counts()
    fitted(module, eleven(), num_sanity_val_steps=1, limit_val_batches=0)
    assert module.seen == []
    fitted(Boring(), points_without_validation(), num_sanity_val_steps=1)


def points_without_validation():
    return conftest.FederatedDataModule.from_client_datasets(
        [conftest.examples(6), conftest.examples(10, seed=1)], batch_size=4
    )


def test_an_error_in_validation_shows_before_round_1():
    class Fails(Boring):
        def validation_step(self, batch, batch_idx):
            raise RuntimeError("bad validation")

    run = trainer(num_sanity_val_steps=1)
    with pytest.raises(RuntimeError, match="bad validation"):
        run.fit(Fails(), classes())
    assert run.history == []
    assert not run.sanity_checking


@pytest.mark.covers(arguments=["enable_checkpointing", "enable_model_summary"])
def test_checkpointing_and_summary(tmp_path, caplog):
    def kinds(**options):
        return [
            type(each).__name__ for each in trainer(default_root_dir=tmp_path, **options).callbacks
        ]

    assert kinds() == kinds(enable_checkpointing=None) == kinds(enable_checkpointing=False) == []
    assert kinds(enable_checkpointing=True) == ["FedCheckpoint"]
    keeper = FedCheckpoint(tmp_path / "own")
    assert kinds(enable_checkpointing=True, callbacks=keeper) == ["FedCheckpoint"]
    with pytest.raises(
        ValueError, match="enable_checkpointing=False, but there is a FedCheckpoint"
    ):
        kinds(enable_checkpointing=False, callbacks=keeper)
    run = fitted(
        Boring(),
        classes(),
        default_root_dir=tmp_path,
        enable_checkpointing=True,
        max_rounds=1,
    )
    assert (tmp_path / "checkpoints" / "last.ckpt").is_file()
    assert run.version == 1
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        fitted(Boring(), classes(), enable_model_summary=True, max_rounds=1)
    assert caplog.text.count("Trainable params") == 1
    given = lightning.pytorch.callbacks.RichModelSummary()
    run = trainer(enable_model_summary=True, callbacks=given)
    (summary,) = run.callbacks
    assert isinstance(summary, callback_adapters.AdaptedSummary)
    assert summary.callback is given


@pytest.mark.covers(arguments=["enable_autolog_hparams"])
def test_hyper_parameters_may_be_left_out(tmp_path):
    class Hyper(Point):
        def __init__(self, lr=0.25):
            super().__init__()
            self.save_hyperparameters()

    for log in (True, False):
        logger = CSVLogger(tmp_path, name="", version=str(log))
        options = {"logger": logger, "enable_autolog_hparams": log, "max_rounds": 1}
        fitted(Hyper(), points([1.0], [2.0]), **options)
        file = tmp_path / str(log) / "hparams.yaml"
        assert (file.is_file() and "lr: 0.25" in file.read_text()) == log


@pytest.mark.covers(arguments=["devices"])
@pytest.mark.parametrize(
    ("devices", "given"),
    [(1, 1), ("auto", 1), ("1", 1), ([3], [3]), ("2,", [2]), ((0,), [0])],
    ids=repr,
)
def test_one_device(devices, given):
    assert one_device(devices) == given


@pytest.mark.parametrize(
    "devices", [2, "2", [0, 1], "0,1", [], -1, "-1", 0, None, 1.0, True], ids=repr
)
def test_other_numbers_of_devices_are_refused(devices):
    with pytest.raises((TypeError, ValueError), match="devices must be"):
        trainer(devices=devices)


def test_devices_reach_fabric():
    assert trainer(devices="auto").fabric.world_size == 1
    with pytest.raises(ValueError, match=r"devices=\[0\] do not fit"):
        trainer(devices=[0])


# --- predict ---


class Predicting(Boring):
    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        assert not self.training
        return self(batch[0]).argmax(-1) + 10 * dataloader_idx


def judge(**options):
    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, list):
            same(one, other)
        else:
            torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_predictions_are_lightnings():
    torch.manual_seed(0)
    module, data = Predicting(), classes()
    data.setup()
    loader, other = data.test_dataloader(), DataLoader(conftest.examples(7), 3)
    run = trainer()
    same(run.predict(module, data), judge().predict(module, loader))
    same(run.predict(module, dataloaders=other), judge().predict(module, other))
    same(run.predict(module, dataloaders=[loader, other]), judge().predict(module, [loader, other]))
    same(
        run.predict(module, data, dataset=conftest.examples(7)),  # in batches of eval_batch_size
        judge().predict(module, DataLoader(conftest.examples(7), 5)),
    )
    assert len(run.predict(module, data, dataset=conftest.examples(7))) == 2
    assert run.predict(module, data, return_predictions=False) is None
    assert module.training


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_predict_calls_forward_by_default():
    torch.manual_seed(0)
    module = Boring()
    loader = DataLoader(torch.randn(7, 4), 3)
    same(trainer().predict(module, dataloaders=loader), judge().predict(module, loader))
    with pytest.raises(TypeError) as caught:
        trainer().predict(module, classes())
    assert (
        "Boring has no predict_step, so forward got the whole batch, a" in caught.value.__notes__[0]
    )


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_the_hooks_of_predict_are_lightnings():
    class Hooks(Predicting):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __getattribute__(self, name):
            if name in ("setup", "teardown") or (
                name.startswith("on_predict_") and "model" not in name
            ):
                return lambda *args, **kwargs: self.calls.append(name)
            return super().__getattribute__(name)

    data = classes()
    data.setup()
    ours, theirs = Hooks(), Hooks()
    trainer().predict(ours, data)
    judge().predict(theirs, data.test_dataloader())
    assert ours.calls == theirs.calls
    assert ours.calls.count("on_predict_batch_end") == 2


def test_predict_after_fit_uses_its_module_and_precision():
    run = fitted(Predicting(), classes(), precision="64-true", max_rounds=1)
    assert [len(part) for part in run.predict()] == [5, 4]

    class Raw(Boring):
        def predict_step(self, batch):
            return batch[0]

    assert run.predict(Raw(), dataset=conftest.examples(3))[0].dtype == torch.float64
    assert run.predict(Raw())[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "predict needs data: write trainer.predict"),
        ({"dataset": 5}, TypeError, "dataset must be a map-style data set.*got 5"),
        ({"dataloaders": 5}, TypeError, "dataloaders must be a DataLoader or a list.*got 5"),
        ({"dataloaders": {"a": 1}}, TypeError, r"dataloaders must be .*got \{'a': 1\}"),
        ({"dataloaders": [1], "dataset": [1]}, ValueError, "got both; give one of them"),
        ({"datamodule": [1]}, TypeError, "datamodule must be a FederatedDataModule"),
        ({"datamodule": points([1.0], test=None)}, ValueError, "has no test data; give predict"),
    ],
)
def test_predict_refuses(options, error, message):
    with pytest.raises(error, match=message):
        trainer().predict(Predicting(), **options)


# --- other names ---


def test_the_module_has_two_names():
    module, data = Point(), points([1.0], [2.0])
    run = trainer(max_rounds=1)
    run.fit(model=module, datamodule=data)
    assert run.version == 1
    assert run.model is run.module is module
    with pytest.raises(TypeError, match="module and model are two names of one argument"):
        run.fit(module, data, model=module)
    with pytest.raises(TypeError, match="module must be a LightningModule, got None"):
        run.fit(datamodule=data)
    with pytest.raises(TypeError, match="datamodule must be a FederatedDataModule, got None"):
        run.fit(module)


def test_metrics_are_printed_if_asked(capsys):
    run = fitted(Point(), points([1.0], [2.0]), max_rounds=1)
    capsys.readouterr()
    (metrics,) = run.validate(verbose=True)
    printed = capsys.readouterr().out
    assert "val_error" in printed
    assert f"{metrics['val_error']:.6g}" in printed
    run.test(verbose=True)
    assert "test_error" in capsys.readouterr().out
    run.validate()
    assert capsys.readouterr().out == ""


def test_reprs():
    run = trainer(max_rounds=3, seed=7)
    text = repr(run)
    assert text.startswith("FedTrainer(arrivals=UniformArrivals(")
    for part in ("aggregator=FedAvg(", "local_optimizer=LocalSGD(lr=0.1", "max_rounds=3", "seed=7"):
        assert part in text
    assert "max_time" not in text
    result = compare(
        {"a": FedAvg(), "b": FedAvg(server_lr=0.5)},
        arrivals=SynchronousArrivals(local_steps=1),
        module=Point(),
        datamodule=points([1.0], [2.0]),
        local_optimizer=run.local_optimizer,
        seeds=[3, 5],
        max_rounds=1,
        metric="val_error",
        accelerator="cpu",
        enable_progress_bar=False,
    )
    assert repr(result) == "<Comparison of a, b; seeds=[3, 5], metric='val_error', mode='min'>"


# --- modules in unusual wrappers ---


@pytest.fixture
def other_package(monkeypatch):
    """A stand-in for the package `pytorch_lightning`, with a LightningModule of its own."""
    package = types.ModuleType("pytorch_lightning")
    package.LightningModule = type(
        "LightningModule", (torch.nn.Module,), {"__module__": "pytorch_lightning.core.module"}
    )
    monkeypatch.setitem(sys.modules, "pytorch_lightning", package)
    return package


@pytest.mark.parametrize(("argument", "kind"), [("callbacks", "Timer"), ("logger", "CSVLogger")])
def test_callbacks_and_loggers_of_the_other_package_are_named(argument, kind):
    found = type(kind, (), {"__module__": f"pytorch_lightning.{argument}"})
    message = f"{argument} must be .*got {kind} of pytorch_lightning, .*from lightning.pytorch"
    with pytest.raises(TypeError, match=message):
        trainer(**{argument: found()})


@pytest.mark.parametrize("verb", ["fit", "validate", "predict"])
def test_modules_of_the_other_package_are_named(other_package, verb):
    class Old(other_package.LightningModule):
        pass

    class Older(Old):
        pass

    message = "got Older of pytorch_lightning, which is another package .*lightning.pytorch import"
    with pytest.raises(TypeError, match=message):
        getattr(trainer(), verb)(Older(), points([1.0], [2.0]))


def test_a_compiled_module_is_taken_out_of_its_wrapper(executor, caplog):
    torch.manual_seed(0)
    module = Boring()
    plain = copy.deepcopy(module)
    compiled = torch.compile(module, backend="eager")
    with caplog.at_level("INFO"):
        run = fitted(compiled, classes(), executor=executor, max_rounds=2)
    assert "without torch.compile" in caplog.text
    assert run.module is module
    assert (
        run.fingerprint() == fitted(plain, classes(), executor=executor, max_rounds=2).fingerprint()
    )
    torch.testing.assert_close(compiled(torch.ones(1, 4)), plain(torch.ones(1, 4)))
    assert run.validate(compiled) == run.validate(module)


def test_a_module_within_another_one_is_named():
    for wrapped in (torch.nn.Sequential(Boring()), torch.nn.DataParallel(Boring())):
        message = f"got {type(wrapped).__name__}; pass the Boring in it"
        with pytest.raises(TypeError, match=message):
            trainer().fit(wrapped, classes())


def test_a_compiled_layer_trains_one_by_one():
    class Inner(Boring):
        def __init__(self):
            super().__init__()
            self.net = torch.compile(self.net, backend="eager")

    torch.manual_seed(0)
    module = Inner()
    torch.manual_seed(0)
    plain = Boring()
    fitted(module, classes(), executor="sequential", max_rounds=2)
    fitted(plain, classes(), executor="sequential", max_rounds=2)
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)
