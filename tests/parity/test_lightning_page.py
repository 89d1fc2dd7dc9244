"""The page docs/lightning.md has a row for everything of Lightning, and a test for every row."""

from __future__ import annotations

import inspect
import re

import lightning
import pytest
import torch

from fedlight import FedTrainer
from fedlight._fit.trainer_attributes import ATTRIBUTES
from fedlight.arrivals import SynchronousArrivals
from fedlight.callbacks import FedCheckpoint
from fedlight.executors.base import ClientError
from tests.boring import Boring, Point, fitted, points, trainer
from tests.parity.conftest import run_both
from tests.parity.lightning_page import (
    ABSENT,
    DATA_HOOKS,
    DIFFERS,
    METHODS,
    REFUSED,
    WORKS,
    covered,
    in_lightning,
    page,
    tables,
)

TABLES = tables()
TWO = ([1.0], [2.0])


# --- the page ---


@pytest.mark.parametrize("table", TABLES)
def test_every_name_of_the_installed_lightning_has_a_row(table):
    assert set(TABLES[table]) == in_lightning()[table]
    assert {row.status for row in TABLES[table].values()} <= {WORKS, DIFFERS, REFUSED, "no meaning"}
    assert [name for name, row in TABLES[table].items() if not row.text] == []


@pytest.mark.parametrize("table", TABLES)
def test_every_row_has_a_test(table):
    claims = covered()[table]
    assert [name for name in TABLES[table] if name not in claims] == []
    assert [name for name in claims if name not in TABLES[table]] == []  # they claim nothing else


def test_no_test_claims_a_table_that_is_not_there():
    assert covered().keys() == TABLES.keys()


def test_the_page_has_every_row():
    rows = [line.split(" | ") for line in page().splitlines() if line.startswith("| `")]
    found = [(name.strip("`| "), row[1]) for row in rows for name in row[0].split(", ")]
    wanted = [(name, row.status) for table in TABLES.values() for name, row in table.items()]
    assert sorted(found) == sorted(wanted)
    assert all(len(row) == 3 for row in rows)


# --- rows that no other file tests ---


@pytest.mark.covers(arguments=["accelerator"], attributes=["accelerator"])
@pytest.mark.parametrize("accelerator", ["cpu", "auto"])
def test_the_accelerator_is_lightnings(accelerator):
    found = []

    class Asks(Point):
        def on_train_start(self):
            found.append(self.trainer.accelerator)

    run = fitted(Asks(), points(*TWO), accelerator=accelerator, max_rounds=1)
    judge = lightning.Trainer(accelerator=accelerator, devices=1, logger=False)
    assert run.fabric.device.type == judge.strategy.root_device.type
    assert type(found[0]).__name__ == type(judge.accelerator).__name__


@pytest.mark.covers(
    attributes=[
        *("lightning_module", "model", "datamodule", "optimizers", "lr_scheduler_configs"),
        *("log_every_n_steps", "profiler", "val_check_interval", "save_checkpoint"),
    ]
)
def test_other_attributes(tmp_path):
    names = (
        *("lightning_module", "model", "datamodule", "optimizers", "lr_scheduler_configs"),
        *("log_every_n_steps", "profiler", "val_check_interval"),
    )
    found = {}

    class Asks(Point):
        def on_train_start(self):
            found.update({name: getattr(self.trainer, name) for name in names})
            self.trainer.save_checkpoint(tmp_path / "a.ckpt")

    module, data = Asks(), points(*TWO)
    run = fitted(module, data, log_every_n_steps=3, max_rounds=1)
    assert found.pop("profiler") is run.profiler
    assert found == {
        "lightning_module": module,
        "model": module,
        "datamodule": data,
        "optimizers": [],
        "lr_scheduler_configs": [],
        "log_every_n_steps": 3,
        "val_check_interval": lightning.Trainer(logger=False).val_check_interval,
    }
    assert Point.load_from_checkpoint(tmp_path / "a.ckpt").w.item() == 0


@pytest.mark.covers(attributes=ABSENT)
def test_what_self_trainer_does_not_have():
    said = {}

    class Asks(Point):
        def on_train_start(self):
            for name in ABSENT:
                with pytest.raises(AttributeError, match="is a FedTrainer here") as caught:
                    getattr(self.trainer, name)
                said[name] = str(caught.value)

    fitted(Asks(), points(*TWO), max_rounds=1)
    assert all(f"has no {name!r}" in text for name, text in said.items())
    assert said.keys() == ABSENT.keys()
    assert not ATTRIBUTES.keys() & ABSENT.keys()


@pytest.mark.covers(attributes=["fit", "validate", "test", "predict"])
def test_methods_of_the_trainer_within_a_fit():
    found = {}

    class Asks(Point):
        def on_train_end(self):
            with pytest.raises(RuntimeError, match="make another FedTrainer"):
                self.trainer.fit(self, points(*TWO))
            found["validate"] = self.trainer.validate()
            found["test"] = self.trainer.test()
            found["predict"] = self.trainer.predict()

        def predict_step(self, batch):
            return self.w + batch[0]

    module = Asks()
    fitted(module, points(*TWO, val=(3.0,), test=(4.0,)), max_rounds=1)
    w = module.w.item()
    assert found["validate"] == [{"val_error": pytest.approx(3 - w)}]
    assert found["test"] == [{"test_error": pytest.approx(4 - w)}]
    torch.testing.assert_close(found["predict"], [torch.tensor([[w + 4]])])


IN_OURS = {
    f"{verb}({name})"
    for verb in ("fit", "validate", "test", "predict")
    for name in inspect.signature(getattr(FedTrainer, verb)).parameters
}


@pytest.mark.covers(methods=[name for name, row in METHODS.items() if row.status == REFUSED])
@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if row.status == REFUSED])
def test_a_refused_argument_of_a_method_raises(name):
    verb, argument = name.rstrip(")").split("(")
    text = re.escape(METHODS[name].text)
    with pytest.raises(TypeError, match=f"^{verb} takes no {argument}: {text}$"):
        getattr(trainer(), verb)(Point(), points(*TWO), **{argument: 1})
    with pytest.raises(TypeError, match=f"{verb}.. got an unexpected keyword argument 'daten'"):
        getattr(trainer(), verb)(Point(), points(*TWO), daten=1)


@pytest.mark.covers(methods=[name for name, row in METHODS.items() if row.status != REFUSED])
def test_accepted_arguments_of_methods_are_there():
    for name, row in METHODS.items():
        assert (name in IN_OURS) == (row.status != REFUSED), name
    run = trainer(max_rounds=1)
    run.fit(model=Point(), datamodule=points(*TWO))
    for verb in ("validate", "test"):
        getattr(run, verb)(model=Point(), datamodule=points(*TWO), verbose=True)
    run.predict(model=Boring(), dataloaders=[torch.ones(2, 4)], weights_only=None)


@pytest.mark.covers(data_hooks=DATA_HOOKS)
@pytest.mark.filterwarnings("ignore:fedlight. Hooked overrides")
def test_hooks_of_a_data_module(tmp_path):
    called = []

    def hook(name):
        def noted(self, *args, **kwargs):
            called.append(name)
            return getattr(super(data.__class__, self), name)(*args, **kwargs)

        return noted

    data = points(*TWO)
    names = [name for name in DATA_HOOKS if name not in ("from_datasets", "load_from_checkpoint")]
    hooks = {name: hook(name) for name in names}
    data.__class__ = type("Hooked", (type(data),), hooks)
    fitted(Point(), data, callbacks=FedCheckpoint(tmp_path), max_rounds=1)
    run = trainer(callbacks=FedCheckpoint(tmp_path), max_rounds=2)
    run.fit(Point(), data, ckpt_path="last")
    run.validate()
    run.test()

    class Fails(Point):
        def training_step(self, batch, batch_idx):
            raise KeyError("lost")

    with pytest.raises(ClientError, match="lost"):
        fitted(Fails(), data, max_rounds=1)
    assert called[-2:] == ["on_exception", "teardown"]
    assert set(called) == {name for name, row in DATA_HOOKS.items() if row.status == WORKS}
    assert called[:2] == ["prepare_data", "setup"]


NEVER = [name for name, row in TABLES["callback_hooks"].items() if "never called" in row.text]


@pytest.mark.covers(callback_hooks=NEVER)
@pytest.mark.parametrize("name", NEVER)
def test_a_hook_of_a_callback_that_is_never_called_is_named(name):
    def never(self, *args):
        raise AssertionError("it was called")

    callback = type("Hooked", (lightning.Callback,), {name: never})()
    with pytest.warns(UserWarning, match=f"Hooked has {name}, which a federation never calls"):
        run = trainer(callbacks=callback, max_rounds=1, arrivals=SynchronousArrivals())
    run.fit(Point(), points(*TWO))
    run.validate()
    run.test()


@pytest.mark.covers(callback_hooks=["state_key"])
def test_two_callbacks_of_a_class_keep_their_states_apart(tmp_path):
    class Keeps(lightning.Callback):
        state_key = "the same for all"

        def __init__(self, number):
            self.number = number

        def state_dict(self):
            return {"number": self.number}

        def load_state_dict(self, state):
            self.number = state["number"]

    def fit(rounds, *callbacks):
        keeper = FedCheckpoint(tmp_path)
        run = trainer(callbacks=[*callbacks, keeper], max_rounds=rounds)
        run.fit(Point(), points(*TWO), ckpt_path="last")
        return [each.number for each in callbacks]

    fit(1, Keeps(1), Keeps(2))
    assert fit(2, Keeps(8), Keeps(9)) == [1, 2]


def test_lightning_itself_trains_on_the_same_batches():
    """What most rows lean on: the judge and the judged see the same numbers."""
    run_both(Boring).same_weights()
