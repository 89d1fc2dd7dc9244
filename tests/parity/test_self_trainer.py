"""What a module may ask of ``self.trainer``, under both trainers."""

import copy

import lightning
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from torch import nn

from fedlight._fit.module_trainer import ModuleTrainer
from fedlight._fit.trainer_attributes import ATTRIBUTES
from fedlight.aggregators import FedAvg
from fedlight.arrivals import PerClientSteps, SynchronousArrivals, UniformArrivals
from fedlight.callbacks import EarlyStopping, FedCheckpoint, ProgressBar
from fedlight.local_optimizers import ModuleOptimizer
from tests.boring import Boring, Point, classes, fitted, points, trainer
from tests.parity.conftest import run_both


def asked(module, names, **kwargs):
    """What a fit of one round answers in each place, by place and name."""
    found = {}

    class Asks(module):
        def ask(self, place):
            found.setdefault(place, {name: getattr(self.trainer, name) for name in names})

        def on_train_start(self):
            self.ask("start")

        def training_step(self, batch, batch_idx):
            self.ask("training")
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.ask("validation")
            return super().validation_step(batch, batch_idx)

        def test_step(self, batch, batch_idx):
            self.ask("test")
            return super().test_step(batch, batch_idx)

    given = {
        "arrivals": SynchronousArrivals(local_steps=2),
        "aggregator": FedAvg(),
        "max_rounds": 1,
        "executor": "sequential",
    }
    run = trainer(**(given | kwargs))
    run.fit(Asks(), points([1.0], [2.0]))
    run.validate()
    run.test()
    return found


SAME = (
    "sanity_checking", "predicting", "world_size", "global_rank", "local_rank", "node_rank",
    "is_global_zero", "num_nodes", "num_devices", "precision", "barebones", "min_epochs",
    "min_steps", "limit_train_batches", "limit_val_batches", "limit_test_batches",
    "limit_predict_batches", "num_sanity_val_steps", "check_val_every_n_epoch",
    "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "fast_dev_run",
    "training", "validating", "testing", "evaluating", "logger", "loggers", "interrupted",
    "received_sigterm", "should_stop", "checkpoint_callback", "checkpoint_callbacks",
    "early_stopping_callback", "early_stopping_callbacks", "progress_bar_callback",
    "current_epoch", "max_epochs", "default_root_dir", "log_dir", "device_ids",
)  # fmt: skip


@pytest.mark.covers(attributes=SAME)
def test_as_lightning_answers(executor):
    """In training, in a validation within the fit, in a hook: the same answers."""
    found = []

    class Asks(Boring):
        def __init__(self):
            super().__init__()
            self.found = {}
            found.append(self.found)

        def ask(self, place):
            self.found.setdefault(place, {name: getattr(self.trainer, name) for name in SAME})

        def on_train_start(self):
            self.ask("start")

        def training_step(self, batch, batch_idx):
            self.ask("training")
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            if self.trainer.current_epoch == 1:
                return
            super().validation_step(batch, batch_idx)

        def on_validation_epoch_end(self):
            self.found["validation"] = {
                name: getattr(self.trainer, name) for name in SAME if name != "current_epoch"
            }

    run_both(Asks, executor=executor, rounds=1)
    theirs, ours = found
    assert ours.keys() == {"start", "training", "validation"}
    for place, answers in theirs.items():
        assert ours[place] == answers, place
    assert ours["validation"]["validating"]
    assert not ours["validation"]["training"]


@pytest.mark.covers(attributes=["training", "validating", "testing", "evaluating", "state"])
def test_the_stage():
    names = ("training", "validating", "testing", "evaluating", "state")
    found = asked(Point, names, check_val_every_n_rounds=None)
    states = {place: each.pop("state") for place, each in found.items()}
    no = dict.fromkeys(names[:4], False)
    assert found["start"] == found["training"] == no | {"training": True}
    assert found["validation"] == no | {"validating": True, "evaluating": True}
    assert found["test"] == no | {"testing": True, "evaluating": True}
    assert (states["test"].fn, states["test"].stage) == (TrainerFn.TESTING, RunningStage.TESTING)
    assert states["start"].fn == TrainerFn.FITTING


class Epochs(Point):
    def training_step(self, batch, batch_idx):
        self.log("epoch", float(self.current_epoch), reduce_fx="max", on_epoch=True, on_step=False)
        self.log("step", float(self.trainer.global_step))
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("val_epoch", float(self.current_epoch))


@pytest.mark.covers(attributes=["current_epoch", "global_step"])
def test_a_local_run_knows_the_version_that_it_has_pulled(executor):
    run = fitted(
        Epochs(),
        points(*[[float(k)] for k in range(6)]),
        arrivals=UniformArrivals(per_round=3, max_staleness=2),
        aggregator=FedAvg(),
        max_rounds=6,
        executor=executor,
    )
    for record in run.history:
        pulled = [update.pulled_version for update in record.updates]
        assert record.metrics["epoch"] == max(pulled)
        assert record.metrics["step"] == pytest.approx(sum(pulled) / len(pulled))
        assert record.metrics["val_epoch"] == record.version
    assert any(len({u.pulled_version for u in record.updates}) > 1 for record in run.history)
    assert run.current_epoch == run.global_step == 6


def test_a_step_that_asks_for_the_time_is_not_stacked_by_itself():
    run = fitted(Epochs(), points([1.0], [2.0]), arrivals=UniformArrivals(per_round=2))
    assert run.run.executor_reason == (
        "training_step reads self.trainer.current_epoch, self.trainer.global_step, which stacked "
        "clients would share"
    )


def test_a_step_that_asks_what_never_changes_is_stacked():
    class Asks(Boring):
        def training_step(self, batch, batch_idx):
            if self.trainer.is_global_zero and self.trainer.training:
                return super().training_step(batch, batch_idx)
            raise AssertionError

    run = fitted(Asks(), classes((8, 8)), executor="auto")
    assert run.run.executor_reason == "the module can be stacked"


def test_a_traced_step_does_not_keep_the_time():
    class Logs(Boring):
        def training_step(self, batch, batch_idx):
            self.log("epoch", float(self.trainer.current_epoch))
            return super().training_step(batch, batch_idx)

    run = fitted(
        Logs(),
        classes((8, 8)),
        executor="vectorized",
        arrivals=SynchronousArrivals(local_steps=40),
        max_rounds=4,
    )
    assert [record.metrics["epoch"] for record in run.history] == [0.0, 1.0, 2.0, 3.0]


def test_a_schedule_as_long_as_the_local_run():
    class Cycle(Point):
        rates = ()

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            total = self.trainer.estimated_stepping_batches
            Cycle.rates += (total,)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total)
            return [optimizer], [{"scheduler": schedule, "interval": "step", "frequency": 2}]

    fitted(
        Cycle(),
        points([1.0], [2.0]),
        arrivals=SynchronousArrivals(local_steps=PerClientSteps([3, 5])),
        aggregator=FedAvg(),
        local_optimizer=ModuleOptimizer(),
        max_rounds=2,
    )
    assert sorted(Cycle.rates[2:]) == [3, 3, 5, 5]


@pytest.mark.covers(
    attributes=["max_epochs", "max_steps", "num_training_batches", "estimated_stepping_batches"]
)
def test_limits_of_the_run():
    names = ("max_epochs", "max_steps", "num_training_batches", "estimated_stepping_batches")
    found = asked(Point, names, max_rounds=3)
    assert found["start"] == dict(zip(names, (3, 3, float("inf"), 3), strict=True))
    assert found["training"] == dict(zip(names, (3, 3, 2, 2), strict=True))
    found = asked(Point, names, max_rounds=None, max_updates=3)
    assert found["start"] == dict(zip(names, (-1, -1, float("inf"), float("inf")), strict=True))


@pytest.mark.covers(attributes=["callback_metrics", "logged_metrics", "progress_bar_metrics"])
def test_metrics_of_the_rounds_before():
    class Asks(Point):
        seen = ()

        def on_validation_epoch_start(self):
            self.seen += (set(self.trainer.callback_metrics),)
            self.seen += (self.trainer.logged_metrics, self.trainer.progress_bar_metrics)

    module = Asks()
    fitted(module, points([1.0]), arrivals=SynchronousArrivals(), max_rounds=2)
    assert "val_error" not in module.seen[0]
    assert "val_error" in module.seen[3]


@pytest.mark.covers(arguments=["logger"])
@pytest.mark.parametrize("options", [{"logger": False}, {"logger": True, "fast_dev_run": True}])
def test_no_logger(options, tmp_path, executor):
    class Asks(Point):
        seen = None

        def training_step(self, batch, batch_idx):
            self.seen = self.logger, self.loggers, self.trainer.logger, self.trainer.loggers
            return super().training_step(batch, batch_idx)

    module = Asks()
    fitted(
        module,
        points([1.0]),
        arrivals=SynchronousArrivals(),
        max_rounds=1,
        executor=executor,
        default_root_dir=tmp_path,
        **options,
    )
    assert module.seen == (None, [], None, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.covers(arguments=["logger", "default_root_dir"])
def test_loggers_and_their_folder(tmp_path):
    logger = CSVLogger(tmp_path, name="here", version=3)
    names = ("logger", "loggers", "log_dir", "default_root_dir")
    found = asked(Point, names, logger=logger, default_root_dir=tmp_path)
    for each in found.values():
        assert each == dict(
            zip(
                names,
                (logger, [logger], str(tmp_path / "here/version_3"), str(tmp_path)),
                strict=True,
            )
        )


@pytest.mark.covers(
    attributes=[
        "callbacks",
        "checkpoint_callback",
        "early_stopping_callback",
        "progress_bar_callback",
    ]
)
def test_callbacks(tmp_path):
    checkpoint, stop, bar = FedCheckpoint(tmp_path), EarlyStopping("val_error"), ProgressBar()
    names = ("checkpoint_callback", "early_stopping_callback", "progress_bar_callback", "callbacks")
    found = asked(Point, names, callbacks=[checkpoint, stop, bar])
    assert found["training"] == dict(
        zip(names, (checkpoint, stop, bar, [stop, bar, checkpoint]), strict=True)
    )


@pytest.mark.covers(attributes=["should_stop"])
def test_should_stop_can_be_set():
    class Stops(Point):
        def on_validation_epoch_end(self):
            self.trainer.should_stop = self.current_epoch == 2

    assert fitted(Stops(), points([1.0]), arrivals=SynchronousArrivals(), max_rounds=5).version == 2


@pytest.mark.covers(attributes=["print"])
@pytest.mark.parametrize("bar", [True, False])
def test_print(capsys, bar):
    class Prints(Point):
        def on_train_start(self):
            self.print("one", 2, sep="-")

        def validation_step(self, batch, batch_idx):
            self.trainer.print("three")

    fitted(
        Prints(),
        points([1.0]),
        arrivals=SynchronousArrivals(),
        max_rounds=1,
        enable_progress_bar=bar,
    )
    assert capsys.readouterr().out == "one-2\nthree\n"


@pytest.mark.covers(attributes=["strategy"])
def test_one_process_gathers_and_reduces():
    class Gathers(Point):
        def validation_step(self, batch, batch_idx):
            gathered = self.all_gather(batch[0])
            assert gathered is batch[0]
            strategy = self.trainer.strategy
            strategy.barrier()
            assert strategy.broadcast("a") == strategy.reduce("a") == "a"
            assert strategy.root_device == self.device
            self.log("gathered", gathered.sum())

    run = fitted(Gathers(), points([1.0], val=(2.0, 3.0)), arrivals=SynchronousArrivals())
    assert run.callback_metrics["gathered"] == 5.0


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m: m.trainer.nonsense, "has no 'nonsense'"),
        (lambda m: m.trainer.train_dataloader, "the clients' data are in self.trainer.datamodule"),
        (lambda m: m.trainer.fit_loop, "self.trainer.current_epoch counts rounds"),
        (lambda m: m.optimizers(), "an optimizer exists only during one local run"),
        (lambda m: m.trainer._data_connector, "has no '_data_connector'"),
    ],
)
def test_what_it_does_not_know(ask, message):
    class Asks(Point):
        said = None

        def on_train_start(self):
            with pytest.raises(AttributeError) as caught:
                ask(self)
            self.said = str(caught.value)

    module = Asks()
    fitted(module, points([1.0]), arrivals=SynchronousArrivals(), max_rounds=1)
    assert message in module.said
    assert "FedTrainer" in module.said
    assert "Fabric" not in module.said


def test_what_fed_trainer_knows_is_passed_on():
    names = ("arrivals", "max_time", "seed", "num_updates")
    found = asked(Point, names, seed=7)
    assert found["training"]["seed"] == 7
    assert found["validation"]["num_updates"] == 2


def test_it_is_there_in_fit_validate_and_test_alone():
    module, other = Point(), Point()
    run = trainer(arrivals=SynchronousArrivals(), aggregator=FedAvg(), max_rounds=1)
    run.fit(module, points([1.0]))
    for each in (module, other):
        with pytest.raises(RuntimeError, match="not attached"):
            _ = each.trainer
        assert "log" not in vars(each)
    run.test(other)
    with pytest.raises(RuntimeError, match="not attached"):
        _ = other.trainer


def test_a_copy_made_in_a_hook_is_no_copy_of_the_run():
    copies = []

    class Copies(Boring):
        def on_train_start(self):
            copies.append(copy.deepcopy(self))

    module = Copies()
    fitted(module, classes((8, 8)))
    (taken,) = copies
    assert taken._trainer is None
    assert not torch.equal(taken.net.weight, module.net.weight)


def test_inner_modules_see_it_too():
    class Inner(lightning.LightningModule):
        def forward(self, x):
            return x * self.trainer.world_size

    class Outer(Boring):
        def __init__(self):
            super().__init__(nn.Sequential(nn.Linear(4, 3)))
            self.inner = Inner()

        def forward(self, x):
            return self.net(self.inner(x))

    assert fitted(Outer(), classes((8, 8))).version == 5


def test_each_answer_has_a_meaning():
    assert set(SAME) <= ATTRIBUTES.keys()
    assert all(each.meaning.endswith(".") for each in ATTRIBUTES.values())
    public = {name for name in dir(ModuleTrainer) if not name.startswith("_")}
    assert (
        public - {"answer", "change", "ask", "common", "for_actor", "let_go"} == ATTRIBUTES.keys()
    )


def test_names_of_lightning_on_the_trainer_itself(tmp_path):
    class Logs(Point):
        def validation_step(self, batch, batch_idx):
            self.log("a", 1.0, prog_bar=True, logger=False)
            self.log("b", 2.0)

    module = Logs()
    run = trainer(
        arrivals=SynchronousArrivals(),
        aggregator=FedAvg(),
        max_rounds=2,
        default_root_dir=tmp_path,
    )
    assert (run.current_epoch, run.global_step, run.log_dir) == (0, 0, str(tmp_path))
    assert run.logged_metrics == run.progress_bar_metrics == {}
    run.fit(module, points([1.0]))
    assert run.model is run.module is module
    assert (run.current_epoch, run.global_step) == (2, 2)
    assert run.progress_bar_metrics == {"a": 1.0}
    assert run.logged_metrics["b"] == 2.0
    assert "a" not in run.logged_metrics
    assert "a" in run.callback_metrics
