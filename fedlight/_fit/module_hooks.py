"""Every hook of a LightningModule, and how it is treated in a federation."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import NamedTuple

from lightning import LightningDataModule, LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden


class Fate(Enum):
    """How a hook that a module overrides is treated."""

    WORKS = "works"
    """It is called as `lightning.Trainer` calls it."""

    NAMED = "never called"
    """A warning at the start of ``fit`` names it and says what to write instead."""

    NO_MEANING = "no meaning"
    """It belongs to something that `FedTrainer` does not do."""


class Hook(NamedTuple):
    """A hook in a federation.

    Attributes:
        fate: How it is treated.
        note: When it is called, or what to write instead.
    """

    fate: Fate
    note: str


def _hooks(fate: Fate, note: str, *names: str) -> dict[str, Hook]:
    return dict.fromkeys(names, Hook(fate, note))


_works, _named = partial(_hooks, Fate.WORKS), partial(_hooks, Fate.NAMED)

_LOCAL = (
    "a local run is training_step, its gradient and the local optimizer's step; put code that "
    "changes the step into the local optimizer and other code into a fedlight callback (on_update, "
    "on_round_end)"
)
_DATA = "all data come from the FederatedDataModule (also its val_dataset and test_dataset)"
_PREDICT = "give the data to FedTrainer.predict(module, dataloaders=…)"

# In the order in which fit reaches them.
HOOKS: dict[str, Hook] = {
    **_works("at the start of fit; its callbacks join the trainer's", "configure_callbacks"),
    **_works("before the data and the module are set up", "prepare_data"),
    **_works("before the module is moved to its device, in fit, validate and test", "setup"),
    **_works("after setup, in fit, validate and test", "configure_model"),
    **_works("in a resumed run, before on_fit_start", "on_load_checkpoint"),
    **_works("before the module's weights become version 0", "on_fit_start", "on_train_start"),
    **_works("computes the loss of a batch of one client", "forward", "training_step"),
    **_works(
        "for each task, if no other local_optimizer is given to FedTrainer", "configure_optimizers"
    ),
    **_works(
        "for each batch of a client or an evaluation; the batch is already on the device",
        "on_before_batch_transfer",
        "transfer_batch_to_device",
        "on_after_batch_transfer",
    ),
    **_named(_LOCAL, "on_train_epoch_start", "on_train_batch_start", "on_train_batch_end"),
    **_named(_LOCAL, "on_train_epoch_end", "on_before_zero_grad", "optimizer_zero_grad"),
    **_named(_LOCAL, "on_before_backward", "backward", "on_after_backward"),
    **_named(_LOCAL, "on_before_optimizer_step", "optimizer_step", "lr_scheduler_step"),
    **_named(
        "give the local optimizer a max_grad_norm, for example ModuleOptimizer(max_grad_norm=1.0)",
        "configure_gradient_clipping",
    ),
    **_named("write configure_model", "configure_sharded_model"),
    **_named(_DATA, "train_dataloader", "val_dataloader", "test_dataloader"),
    **_works("before a validation within fit", "on_validation_model_zero_grad"),
    **_works(
        "around the evaluation of the server's model",
        "on_validation_model_eval",
        "on_validation_start",
        "on_validation_epoch_start",
        "on_validation_batch_start",
        "validation_step",
        "on_validation_batch_end",
        "on_validation_epoch_end",
        "on_validation_end",
        "on_validation_model_train",
        "on_test_model_eval",
        "on_test_start",
        "on_test_epoch_start",
        "on_test_batch_start",
        "test_step",
        "on_test_batch_end",
        "on_test_epoch_end",
        "on_test_end",
        "on_test_model_train",
    ),
    **_works(
        "whenever a checkpoint is written; it may add tensors and plain data", "on_save_checkpoint"
    ),
    **_works("after the last event", "on_train_end", "on_fit_end"),
    **_works("at the very end, even after an error", "teardown"),
    **_works(
        "around FedTrainer.predict",
        "on_predict_model_eval",
        "on_predict_start",
        "on_predict_epoch_start",
        "on_predict_batch_start",
        "predict_step",
        "on_predict_batch_end",
        "on_predict_epoch_end",
        "on_predict_end",
    ),
    **_hooks(Fate.NO_MEANING, _PREDICT, "predict_dataloader"),
}
"""All hooks of Lightning 2.6 by name."""

_OF_DATA = (
    (
        ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"),
        "calls only on the module; define them there",
    ),
    (
        ("state_dict", "load_state_dict"),
        "never calls: the clients' data do not change in a run; keep other state in a callback",
    ),
)
"""Hooks of a data module that are not called, and what to write instead."""


def warn_of_hooks(module: LightningModule, datamodule: LightningDataModule) -> None:
    """Warn about the hooks that a module or its data overrides and that are never called."""
    by_note: dict[str, list[str]] = {}
    for name, hook in HOOKS.items():
        if hook.fate is Fate.NAMED and is_overridden(name, module, LightningModule):
            by_note.setdefault(hook.note, []).append(name)
    if by_note:
        parts = [f"{', '.join(names)}: {note}" for note, names in by_note.items()]
        rank_zero_warn(
            f"fedlight: {type(module).__name__} overrides hooks that a federation never calls. "
            + ". ".join(parts)
        )
    for names, note in _OF_DATA:
        defined = [each for each in names if is_overridden(each, datamodule, LightningDataModule)]
        if defined:
            rank_zero_warn(
                f"fedlight: {type(datamodule).__name__} overrides {', '.join(defined)}, which a "
                f"federation {note}"
            )
