"""Every hook that the tables call working is called as often as by `lightning.Trainer`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from fedlight._fit import callback_adapters as of_callbacks
from fedlight._fit.module_hooks import HOOKS, Fate
from fedlight.aggregators import FedAvg
from fedlight.arrivals import SynchronousArrivals
from fedlight.callbacks import FedCheckpoint
from tests.boring import Boring, trainer
from tests.parity.conftest import FederatedDataModule, examples

WORKS = [name for name, hook in HOOKS.items() if hook.fate is Fate.WORKS]
# Every run of these tests succeeds; on_exception has a test in test_callbacks.
OF_CALLBACKS = [name for name in of_callbacks.HOOKS if name != "on_exception"]
PHASES = ("fit", "resume", "validate", "test", "predict")

# (hook, phase): calls by Lightning and by us.
DIFFERENT = {
    ("configure_optimizers", "fit"): (
        1,
        4,
    ),  # to look, to describe it in checkpoints, for each local run
    ("configure_optimizers", "resume"): (1, 4),
    ("on_save_checkpoint", "fit"): (1, 3),  # for each round and at the end
    ("on_save_checkpoint", "resume"): (1, 3),
    ("state_dict", "fit"): (1, 4),  # and once before the first round, to see that it can be saved
    ("state_dict", "resume"): (1, 3),
}

Calls = dict[str, Counter[str]]


class Predicts(Boring):
    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0])


class Stateful(lightning.Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"kept": 1}


def noting(base: type, names: list[str], calls: Counter[str]) -> Any:
    """An object of a subclass that counts the calls of its hooks and does as the base does."""

    def hook(name: str) -> Callable[..., Any]:
        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return getattr(super(kind, self), name)(*args, **kwargs)

        return noted

    kind: Any = type("Noting", (base,), {name: hook(name) for name in names})
    return kind()


def theirs(phase: str, epochs: int, callbacks: list[Any], root: Path) -> Any:
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=int(phase == "fit"),
        callbacks=[*callbacks, ModelCheckpoint(root, save_top_k=0, save_last=True)],
    )


def ours(phase: str, rounds: int, callbacks: list[Any], root: Path) -> Any:
    return trainer(
        arrivals=SynchronousArrivals(local_steps=3),
        aggregator=FedAvg(),
        local_optimizer=None,
        executor="sequential",
        max_rounds=rounds,
        num_sanity_val_steps=int(phase == "fit"),
        callbacks=[*callbacks, FedCheckpoint(root, save_top_k=0, save_last=True)],
    )


def played(make: Callable[..., Any], base: type, names: list[str], root: Path) -> Calls:
    """Count the calls of hooks: in a fit of two epochs, in one that goes on to four, and so on.

    Args:
        make: `theirs` or `ours`.
        base: The class whose hooks are counted: a module's or a callback's.
        names: The hooks.
        root: Where the checkpoints go.
    """
    phases: Calls = {phase: Counter() for phase in PHASES}
    train, val = examples(12), examples(10, seed=1)
    fed = FederatedDataModule.from_client_datasets(
        [train], batch_size=4, val_dataset=val, test_dataset=val, eval_batch_size=5
    )
    fit_on: list[Any] = [fed] if make is ours else [DataLoader(train, 4), DataLoader(val, 5)]
    for phase, calls in phases.items():
        noted = noting(base, names, calls)
        of_module = isinstance(noted, lightning.LightningModule)
        module = noted if of_module else Predicts()
        run = make(phase, 4 if phase == "resume" else 2, [] if of_module else [noted], root)
        if phase == "fit":
            run.fit(module, *fit_on)
        elif phase == "resume":
            run.fit(module, *fit_on, ckpt_path=root / "last.ckpt")
        else:
            getattr(run, phase)(module, fit_on[-1])
    return phases


@pytest.fixture(scope="module")
def of_modules(tmp_path_factory: pytest.TempPathFactory) -> list[Calls]:
    root = tmp_path_factory.mktemp("modules")
    return [played(make, Predicts, WORKS, root / make.__name__) for make in (theirs, ours)]


@pytest.fixture(scope="module")
def of_lightning_callbacks(tmp_path_factory: pytest.TempPathFactory) -> list[Calls]:
    root = tmp_path_factory.mktemp("callbacks")
    return [played(make, Stateful, OF_CALLBACKS, root / make.__name__) for make in (theirs, ours)]


def compare(name: str, both: list[Calls]) -> None:
    judged, found = ({phase: calls[name] for phase, calls in each.items()} for each in both)
    different = {phase: counts for (hook, phase), counts in DIFFERENT.items() if hook == name}
    for phase, (by_lightning, by_us) in different.items():
        if judged[phase]:  # a callback's hook of the same name need not differ
            assert (judged.pop(phase), found.pop(phase)) == (by_lightning, by_us), phase
    assert found == judged
    assert any(calls[name] for calls in both[0].values()), "no run calls it"


@pytest.mark.covers(hooks=WORKS)
@pytest.mark.parametrize("name", WORKS)
def test_a_hook_of_the_module_is_called_as_often_as_by_lightning(name, of_modules):
    compare(name, of_modules)


@pytest.mark.covers(callback_hooks=OF_CALLBACKS)
@pytest.mark.parametrize("name", OF_CALLBACKS)
def test_a_hook_of_a_callback_is_called_as_often_as_by_lightning(name, of_lightning_callbacks):
    compare(name, of_lightning_callbacks)
