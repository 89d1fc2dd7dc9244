"""What a Lightning callback may ask of the trainer that it is given, under both trainers."""

import ast
from pathlib import Path

import lightning
import pytest
from lightning.pytorch import callbacks as theirs
from torch.utils.data import DataLoader

from fedlight import Callback, FederatedDataModule
from fedlight._fit.callback_adapters import Adapted, Mirror
from fedlight._fit.trainer_attributes import ATTRIBUTES
from fedlight.arrivals import SynchronousArrivals
from fedlight.callbacks import EarlyStopping, FedCheckpoint
from tests.boring import Boring, Point, fitted, points, trainer
from tests.parity.conftest import examples, run_both
from tests.parity.test_self_trainer import SAME

# Those that count a run's batches, or name the trainer's own callbacks.
DIFFERENT = {"current_epoch", "default_root_dir", "log_dir", "progress_bar_callback"}


class Asks(lightning.Callback):
    """Asks everything in each hook that both trainers call."""

    def __init__(self):
        self.found = {}

    def ask(self, hook, trainer, module):
        assert trainer is module.trainer
        names = [name for name in SAME if name not in DIFFERENT]
        answers = {name: getattr(trainer, name) for name in names}
        answers |= {"fn": trainer.state.fn, "stage": trainer.state.stage}
        answers |= {"is module": trainer.lightning_module is module}
        answers |= {"mine": self in trainer.callbacks}
        if HOOKS.index(hook) >= HOOKS.index("on_train_start") and not trainer.sanity_checking:
            answers["num_val_batches"] = trainer.num_val_batches  # Lightning has none before
        self.found.setdefault(hook, []).append(answers)


HOOKS = (
    "on_fit_start", "on_sanity_check_start", "on_sanity_check_end", "on_train_start",
    "on_train_epoch_start", "on_validation_start", "on_validation_epoch_start",
    "on_validation_epoch_end", "on_validation_end", "on_train_epoch_end", "on_train_end",
    "on_fit_end",
)  # fmt: skip
for name in HOOKS:
    setattr(Asks, name, lambda self, trainer, module, hook=name: self.ask(hook, trainer, module))


def test_each_hook_gets_lightnings_answers(executor):
    judge, ours = Asks(), Asks()
    options = {"num_sanity_val_steps": 1, "limit_val_batches": 2}
    theirs_ = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[judge],
        **options,
    )
    loader = DataLoader(examples(11), 5)
    theirs_.fit(Boring(), loader, loader)
    run_both(Boring, rounds=2, executor=executor, callbacks=[ours], options=options)
    for found in (judge.found, ours.found):
        for answers in found.values():
            for each in answers:
                each.pop("precision"), each.pop("callbacks", None)
    assert ours.found.keys() == judge.found.keys() == set(HOOKS)
    for hook in HOOKS:
        for one, other in zip(ours.found[hook], judge.found[hook], strict=True):
            assert {k: (v, other[k]) for k, v in one.items() if v != other[k]} == {}, hook
    assert ours.found["on_validation_start"][0]["sanity_checking"]
    assert ours.found["on_validation_start"][1]["validating"]


def test_metrics_of_the_sanity_check_are_seen_by_hooks_and_not_kept():
    class Looks(lightning.Callback):
        def __init__(self):
            self.found = []

        def on_validation_end(self, trainer, module):
            self.found.append((trainer.sanity_checking, sorted(trainer.callback_metrics)))

        def on_sanity_check_end(self, trainer, module):
            self.found.append("end")

        def on_train_start(self, trainer, module):
            self.found.append(("start", sorted(trainer.callback_metrics)))

    class Validates(Boring):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * 1.0

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.log("checking", float(self.trainer.sanity_checking), prog_bar=True)

    judge, ours = Looks(), Looks()
    loader = DataLoader(examples(11), 5)
    lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[judge],
    ).fit(Validates(), loader, loader)
    fed = run_both(Validates, rounds=1, callbacks=[ours], options={"num_sanity_val_steps": 2}).fed
    assert judge.found[:3] == [
        (True, ["checking", "val_loss"]),
        "end",
        ("start", []),
    ]
    assert ours.found[:3] == judge.found[:3]
    assert fed.callback_metrics["checking"] == 0.0
    assert [record.metrics["checking"] for record in fed.history] == [0.0]


def test_what_a_hook_logs_in_the_sanity_check_is_not_kept():
    class Logs(lightning.Callback):
        def on_validation_epoch_end(self, trainer, module):
            if trainer.sanity_checking:
                module.log("sane", 1.0)

    run = fitted(
        Point(), points([1.0], [2.0]), callbacks=Logs(), num_sanity_val_steps=1, max_rounds=1
    )
    assert "sane" not in run.history[0].metrics
    assert "sane" not in run.callback_metrics


# --- the values of arguments ---


VALUES = (
    "limit_val_batches", "limit_test_batches", "limit_predict_batches", "num_sanity_val_steps",
    "log_every_n_steps", "fast_dev_run", "num_val_batches", "num_sanity_val_batches",
    "enable_validation", "enable_autolog_hparams", "overfit_batches",
    "reload_dataloaders_every_n_epochs", "ckpt_path",
)  # fmt: skip


@pytest.mark.covers(attributes=VALUES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"limit_val_batches": 2, "num_sanity_val_steps": 1},
        {"limit_val_batches": 1, "num_sanity_val_steps": 5, "enable_autolog_hparams": False},
        {"limit_val_batches": 0.5, "num_sanity_val_steps": -1, "log_every_n_steps": 7},
        {"limit_val_batches": 0, "limit_test_batches": 3, "limit_predict_batches": 0.25},
    ],
    ids=str,
)
def test_arguments_answer_with_their_values(options):
    found = []

    class Reads(Boring):
        def on_train_start(self):
            found.append({name: getattr(self.trainer, name) for name in VALUES})

    given = {"num_sanity_val_steps": 0, "log_every_n_steps": 50} | options
    loader = DataLoader(examples(11), 5)
    lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        **given,
    ).fit(Reads(), loader, loader)
    data = FederatedDataModule.from_client_datasets(
        [examples(8)], batch_size=4, val_dataset=examples(11), eval_batch_size=5
    )
    fitted(Reads(), data, arrivals=SynchronousArrivals(), max_rounds=1, **given)
    judge, ours = found
    assert ours == judge


@pytest.mark.covers(attributes=["num_test_batches"])
@pytest.mark.parametrize("limit", [1, 2, 0.5, 1.0])
def test_the_number_of_test_batches(limit):
    found = []

    class Reads(Boring):
        def test_step(self, batch, batch_idx):
            found.append(self.trainer.num_test_batches)

    lightning.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, limit_test_batches=limit
    ).test(Reads(), DataLoader(examples(11), 5))
    data = FederatedDataModule.from_client_datasets(
        [examples(8)], batch_size=4, test_dataset=examples(11), eval_batch_size=5
    )
    judge, found = found, []
    fitted(
        Reads(), data, arrivals=SynchronousArrivals(), max_rounds=1, limit_test_batches=limit
    ).test()
    assert found == judge
    assert len(found) == found[0][0]


@pytest.mark.parametrize("trial", [True, 2])
def test_a_trial_run_says_of_how_many_rounds(trial):
    found = []

    class Reads(Point):
        def on_train_start(self):
            found.append((self.trainer.fast_dev_run, self.trainer.limit_test_batches))

    fitted(Reads(), points([1.0], [2.0]), fast_dev_run=trial)
    assert found == [(trial, int(trial))]


def test_the_checkpoint_that_was_given(tmp_path):
    found = []

    class Reads(Point):
        def setup(self, stage):
            found.append((stage, self.trainer.ckpt_path))

    def begun(rounds):
        return trainer(callbacks=FedCheckpoint(tmp_path), max_rounds=rounds)

    begun(1).fit(Reads(), points([1.0], [2.0]))
    run = begun(2)
    run.fit(Reads(), points([1.0], [2.0]), ckpt_path="last")
    run.test(ckpt_path=tmp_path / "last.ckpt")
    assert found == [("fit", None), ("fit", "last"), ("test", tmp_path / "last.ckpt")]


# --- every name ---


def test_every_name_of_lightnings_trainer_answers_or_says_what_to_write():
    judge = lightning.Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False)
    names = {name for name in {*dir(judge), *vars(judge)} if not name.startswith("_")}
    asked = {}

    class All(lightning.Callback):
        def on_train_epoch_end(self, trainer, module):
            for name in names:
                try:
                    getattr(trainer, name)
                except AttributeError as error:
                    asked[name] = str(error)

    fitted(Point(), points([1.0], [2.0]), callbacks=All(), max_rounds=1)
    verbs = {"fit", "validate", "test", "predict"}
    assert names - asked.keys() - verbs <= ATTRIBUTES.keys()
    for name, said in asked.items():
        assert f"FedTrainer here, which has no {name!r}: " in said, name


def names_asked_by(path):
    """What a file of Lightning's asks of ``trainer``, with the next name behind ``strategy``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            words = ast.unparse(node).removeprefix("self.").split(".")
            if words[0] == "trainer" and words[1:2] != ["strategy"]:
                yield words[1].partition("[")[0]
            elif words[:2] == ["trainer", "strategy"] and len(words) > 2:
                yield ".".join(words[1:3])


def test_what_lightnings_own_callbacks_ask_answers_or_is_refused():
    """Those that run or are mapped here; those that are refused are never asked."""
    asked = {name for path in FILES for name in names_asked_by(path)}
    assert {"current_epoch", "strategy.reduce_boolean_decision", "num_val_batches"} <= asked
    refused = {}

    class All(lightning.Callback):
        def on_train_epoch_end(self, trainer, module):
            for name in asked:
                first, _, rest = name.partition(".")
                try:
                    found = getattr(trainer, first)
                    getattr(found, rest) if rest else found
                except AttributeError as error:
                    refused[name] = str(error)

    fitted(Point(), points([1.0], [2.0]), callbacks=All(), max_rounds=1)
    assert all("is a FedTrainer here, which has no " in said for said in refused.values())
    public = {name for name in refused if not name.startswith("_")}
    assert public <= {
        "Trainer", "states", "connectors",  # of imports
        "fit_loop", "validate_loop", "test_loop", "predict_loop", "num_predict_batches",
        "strategy.remove_checkpoint", "strategy.zero_stage_3",
    }  # fmt: skip


FILES = [
    Path(theirs.__file__).parent / f"{name}.py"
    for name in (
        "early_stopping", "model_checkpoint", "lr_monitor", "timer", "model_summary",
        "device_stats_monitor", "callback", "lambda_function", "checkpoint",
    )
]  # fmt: skip


def test_callbacks_are_found_by_the_classes_that_were_given():
    class Mine(lightning.Callback):
        pass

    class Ours(Callback):
        pass

    given = [Mine(), theirs.EarlyStopping("train_loss"), theirs.ModelCheckpoint("here"), Ours()]
    seen = []

    class Looks(lightning.Callback):
        def on_fit_start(self, trainer, module):
            seen.extend(trainer.callbacks)

    fitted(
        Point(), points([1.0], [2.0]), callbacks=[*given, Looks()], max_rounds=1, fast_dev_run=True
    )
    assert all(each in seen for each in given)
    assert sum(isinstance(each, EarlyStopping | FedCheckpoint) for each in seen) == 2
    assert not any(isinstance(each, Adapted | Mirror) for each in seen)


def test_a_callback_may_stop_the_run_and_reads_what_only_we_have():
    class Stops(lightning.Callback):
        def on_train_epoch_end(self, trainer, module):
            assert trainer.history[-1].version == trainer.version
            trainer.should_stop = trainer.current_epoch == 2

    assert fitted(Point(), points([1.0], [2.0]), callbacks=Stops(), max_rounds=9).version == 2
