"""How fedlight treats each part of Lightning: the tables of fedlight, of Lightning, of the tests.

``python -m tests.parity.lightning_page`` writes ``docs/lightning.md``. Its rows come from the
tables that fedlight itself uses. `in_lightning` lists what the installed Lightning has, and
`covered` which tests claim which rows, with ``@pytest.mark.covers(hooks=[…], arguments=[…])``.
"""

from __future__ import annotations

import importlib
import inspect
from collections import defaultdict
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import lightning
from lightning import LightningDataModule, LightningModule
from lightning.pytorch import callbacks as their_callbacks
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks

from fedlight._fit.callback_adapters import HOOKS as CALLBACK_HOOKS
from fedlight._fit.lightning_arguments import ARGUMENTS
from fedlight._fit.lightning_arguments import METHODS as REFUSALS
from fedlight._fit.lightning_callbacks import CALLBACKS
from fedlight._fit.module_hooks import HOOKS, Fate
from fedlight._fit.trainer_attributes import ATTRIBUTES
from fedlight._fit.trainer_strategy import INSTEAD

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "lightning.md"
COMMAND = "python -m tests.parity.lightning_page"

WORKS, DIFFERS, REFUSED, NONE = "works", "differs", "refused", "no meaning"


class Row(NamedTuple):
    """How a part of Lightning is treated: `WORKS`, `DIFFERS`, `REFUSED` or `NONE`, and a remark.

    Attributes:
        status: One of the four.
        text: Its meaning here, or what to write instead.
    """

    status: str
    text: str


Table = dict[str, Row]

# ---------------------------------------------------------------- what has no table in fedlight

NO_HOOKS = {
    # methods that a module calls itself
    *("all_gather", "clip_gradients", "freeze", "load_from_checkpoint", "log", "log_dict"),
    *("lr_schedulers", "manual_backward", "optimizers", "print", "to_onnx", "to_tensorrt"),
    *("to_torchscript", "toggle_optimizer", "toggled_optimizer", "unfreeze", "untoggle_optimizer"),
}

DATA_HOOKS: Table = {
    "prepare_data": Row(WORKS, "before setup"),
    "setup": Row(WORKS, "before the setup of callbacks and module"),
    "train_dataloader": Row(NONE, "never called: local runs read the clients' examples"),
    "val_dataloader": Row(NONE, "never called: give val_dataset"),
    "test_dataloader": Row(NONE, "never called: give test_dataset"),
    "predict_dataloader": Row(NONE, "never called: write predict(module, dataloaders=…)"),
    **dict.fromkeys(
        ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"),
        Row(NONE, "never called, with a warning: define them in the module"),
    ),
    "teardown": Row(WORKS, "before the teardown of callbacks and module"),
    "on_exception": Row(WORKS, "after on_exception of the callbacks, in fit"),
    "state_dict": Row(NONE, "never called, with a warning: the data are not in a checkpoint"),
    "load_state_dict": Row(NONE, "never called, with a warning: the data are not in a checkpoint"),
    "load_from_checkpoint": Row(NONE, "the data are not part of a checkpoint"),
    "from_datasets": Row(
        DIFFERS, "FederatedDataModule(dataset, partitioner) or .from_client_datasets(datasets)"
    ),
}

_OF_ALL = {
    "datamodule": Row(
        DIFFERS,
        "a FederatedDataModule, the second argument; "
        "FederatedDataModule.from_lightning(datamodule, partitioner) makes one of Lightning's",
    ),
}
_MODULE = Row(WORKS, "the first argument, also called module; None for the module of fit")
_PATH = Row(WORKS, 'loads the weights; a path, "last" or "best"')

METHODS: Table = {
    "fit(model)": Row(WORKS, "the first argument, also called module"),
    **{f"{verb}({name})": Row(REFUSED, text) for (verb, name), text in REFUSALS.items()},
    **{f"fit({name})": row for name, row in _OF_ALL.items()},
    "fit(ckpt_path)": Row(
        WORKS, 'resumes the run with bit-identical results; a path, "last" or "best"'
    ),
    **{
        f"{verb}({name})": row
        for verb in ("validate", "test")
        for name, row in {
            "model": _MODULE,
            **_OF_ALL,
            "ckpt_path": _PATH,
            "verbose": Row(DIFFERS, "prints the metrics; False by default"),
        }.items()
    },
    "predict(model)": _MODULE,
    "predict(dataloaders)": Row(WORKS, "as in Lightning; dataset= takes a data set"),
    "predict(datamodule)": Row(DIFFERS, "a FederatedDataModule; its test data are used"),
    "predict(return_predictions)": Row(WORKS, "True by default"),
    "predict(ckpt_path)": _PATH,
}

ABSENT: Table = {name: Row(REFUSED, text) for name, text in INSTEAD.items() if "." not in name}
"""Public names of `lightning.Trainer` for which ``self.trainer`` raises an AttributeError."""

_NEVER_OF_CALLBACKS = {
    "a local run calls no callbacks": "on_train_batch_start on_before_zero_grad "
    "on_before_backward on_after_backward on_before_optimizer_step on_train_batch_end",
    "define the hook in the module": "on_validation_batch_start on_validation_batch_end "
    "on_test_batch_start on_test_batch_end on_predict_batch_start on_predict_batch_end",
    "define state_dict and load_state_dict": "on_save_checkpoint on_load_checkpoint",
}

PASSED_ON: Table = {
    "fit": Row(REFUSED, "a run is already in progress; make another FedTrainer"),
    "validate": Row(WORKS, "FedTrainer.validate, with the current weights"),
    "test": Row(WORKS, "FedTrainer.test, with the current weights"),
    "predict": Row(WORKS, "FedTrainer.predict, with the current weights"),
}
"""Methods of `FedTrainer` that Lightning's trainer has too."""

_ROUNDS = ("current_epoch", "global_step", "max_epochs", "max_steps")

# ---------------------------------------------------------------- the tables


def tables() -> dict[str, Table]:
    """The rows of the page, by table and name."""
    fates = {Fate.WORKS: WORKS, Fate.NAMED: NONE, Fate.NO_MEANING: NONE}
    return {
        "hooks": {
            name: Row(fates[hook.fate], hook.note + _warning(hook)) for name, hook in HOOKS.items()
        },
        "callback_hooks": {
            **{name: Row(WORKS, text) for name, text in CALLBACK_HOOKS.items()},
            **{
                name: Row(NONE, f"never called, with a warning: {text}")
                for text, names in _NEVER_OF_CALLBACKS.items()
                for name in names.split()
            },
            "state_key": Row(
                NONE, "checkpoints identify a callback by its class and its index within the class"
            ),
        },
        "data_hooks": DATA_HOOKS,
        "arguments": {name: Row(each.status, each.text) for name, each in ARGUMENTS.items()},
        "methods": METHODS,
        "callbacks": {name: Row(each.status, each.text) for name, each in CALLBACKS.items()},
        "attributes": {
            name: Row(DIFFERS if name in _ROUNDS else WORKS, each.meaning)
            for name, each in ATTRIBUTES.items()
            if name in in_lightning()["attributes"]
        }
        | PASSED_ON
        | ABSENT,
    }


def _warning(hook: Any) -> str:
    return "; fit warns about it" if hook.fate is Fate.NAMED else ""


@cache
def in_lightning() -> dict[str, set[str]]:
    """What the installed Lightning has, by table."""
    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    of_object = {"load_from_checkpoint"}  # a class method in disguise
    owners = (ModelHooks, DataHooks, CheckpointHooks, LightningModule)
    data = (DataHooks, LightningDataModule)
    return {
        "hooks": {name for owner in owners for name in _functions(owner) | of_object} - NO_HOOKS,
        "callback_hooks": _public(their_callbacks.Callback),
        "data_hooks": {name for owner in data for name in _functions(owner)} | of_object,
        "arguments": set(inspect.signature(lightning.Trainer).parameters),
        "methods": {
            f"{verb}({name})"
            for verb in ("fit", "validate", "test", "predict")
            for name in inspect.signature(getattr(trainer, verb)).parameters
        },
        "callbacks": set(their_callbacks.__all__),
        "attributes": _public(trainer),
    }


def _public(owner: object) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


def _functions(owner: type) -> set[str]:
    """The public methods that a class defines itself."""
    found = {
        name: value.__func__ if isinstance(value, classmethod) else value
        for name, value in vars(owner).items()
    }
    return {n for n, value in found.items() if inspect.isfunction(value) and not n.startswith("_")}


def covered() -> dict[str, dict[str, list[str]]]:
    """The files and names of the tests that show a row to be true, by table and row."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.parity.{path.stem}")
        for name, value in vars(module).items():
            for mark in getattr(value, "pytestmark", []) if name.startswith("test_") else []:
                if mark.name == "covers":
                    for table, rows in mark.kwargs.items():
                        for row in rows:
                            found[table][row].append(f"{path.stem}::{name}")
    return found


# ---------------------------------------------------------------- the page

HEAD = f"""# What works of Lightning

These tables list every hook, every argument of the trainer, every callback and every attribute of
`self.trainer` in Lightning {{version}}, and how fedlight treats each of them.

| | |
|---|---|
| **{WORKS}** | As with `lightning.Trainer`. The remark says when, or what it means here. |
| **{DIFFERS}** | It is accepted, and the remark says what differs. |
| **{REFUSED}** | It raises an error. The remark says what to write instead. |
| **{NONE}** | It is never called. The remark says what to write instead. |

A round (one server update) takes the place of an epoch.

This page is generated, mostly from the tables that `FedTrainer` itself uses. The tests in
`tests/parity` fail if Lightning has a name that is not listed here or if a row has no test.
`{COMMAND}` regenerates the page.
"""

TITLES = {
    "arguments": ("Arguments of the trainer", "`FedTrainer(…)`", "argument"),
    "methods": ("Arguments of its methods", "`fit`, `validate`, `test` and `predict`.", "argument"),
    "callbacks": ("Callbacks", "`FedTrainer(callbacks=…)`", "callback"),
    "callback_hooks": (
        "Hooks of a callback",
        "These are the hooks of a `lightning.Callback`. A `fedlight.Callback` has\n"
        "[others](extending.md#a-callback).",
        "hook",
    ),
    "hooks": ("Hooks of a module", "In the order in which `fit` reaches them.", "hook"),
    "data_hooks": (
        "Hooks of a data module",
        "These are the hooks of a subclass of `FederatedDataModule`.",
        "hook",
    ),
    "attributes": (
        "Attributes of `self.trainer`",
        "In a local run, time is the version that the client has pulled. The other attributes of\n"
        "[FedTrainer](api/trainer.md) can be read too.",
        "attribute",
    ),
}


def page() -> str:
    """The page."""
    version = ".".join(lightning.__version__.split(".")[:2])
    parts = [HEAD.format(version=version)]
    found = tables()
    for key, (title, text, column) in TITLES.items():
        parts.append(f"\n## {title}\n\n{text}\n\n| {column} | | remark |\n|---|---|---|\n")
        for row, names in groupby(found[key], key=found[key].__getitem__):
            shown = ", ".join(f"`{name}`" for name in names)
            parts.append(f"| {shown} | {row.status} | {_cell(row.text)} |\n")
    return "".join(parts)


def _cell(text: str) -> str:
    """A remark as a cell: code stays code, and nothing else is read as markup."""
    text = text.replace("{value!r}", "…").replace("``", "`").replace("|", "\\|")
    return text.rstrip(".").replace("*", "\\*").replace("<", "\\<")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
