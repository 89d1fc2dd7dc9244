"""What hooks do to the module during a fit holds, and what they read is the newest."""

import lightning
import pytest
import torch
from lightning.pytorch import callbacks as theirs
from torch.utils.data import TensorDataset

from fedlight.callbacks import FedCheckpoint
from tests.boring import Boring, Point, classes, fitted, points
from tests.parity.conftest import run_both

VALIDATION = TensorDataset(torch.randn(11, 4, generator=torch.manual_seed(3)), torch.arange(11) % 3)

MOMENTS = (
    "on_train_epoch_end",
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_epoch_end",
    "on_validation_end",
    "on_train_end",
)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("whose", ["callback", "module"])
def test_weights_changed_in_a_hook_are_trained_on(moment, whose, executor):
    if whose == "module" and moment == "on_train_epoch_end":
        pytest.skip("a module has no such hook in a federation")

    def clamp(module):
        with torch.no_grad():
            module.net.weight.clamp_(-0.1, 0.1)

    def callbacks():
        hook = {moment: lambda self, trainer, module: clamp(module)}
        return [type("Clamps", (lightning.Callback,), hook)()] if whose == "callback" else []

    hook = {moment: clamp} if whose == "module" else {}
    run_both(
        type("Module", (Boring,), hook),
        rounds=3,
        val=VALIDATION,
        callbacks=callbacks(),
        lightning_callbacks=callbacks(),
        executor=executor,
    ).same_weights()


def test_weights_changed_while_updates_arrive_are_lost_with_a_warning():
    class Clamps(lightning.Callback):
        def on_train_epoch_start(self, trainer, module):
            with torch.no_grad():
                module.w.fill_(5.0)

    plain = fitted(Point(), points([1.0], [2.0]), max_rounds=2)
    with pytest.warns(UserWarning, match="the weights of Point while updates were arriving"):
        run = fitted(Point(), points([1.0], [2.0]), max_rounds=2, callbacks=Clamps())
    assert run.fingerprint() == plain.fingerprint()


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_buffers_changed_in_a_validation_hold(executor):
    class Counts(Boring):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def validation_step(self, batch, batch_idx):
            self.seen += len(batch[0])
            super().validation_step(batch, batch_idx)

    both = run_both(Counts, rounds=3, val=VALIDATION, executor=executor)
    assert both.fed_module.seen.item() == both.module.seen.item() == 33


def test_a_changed_version_is_what_is_saved_and_told(tmp_path):
    class Sets(lightning.Callback):
        def on_train_epoch_end(self, trainer, module):
            with torch.no_grad():
                module.w.fill_(5.0)

    run = fitted(
        Point(), points([1.0], [2.0]), max_rounds=2, callbacks=[Sets(), FedCheckpoint(tmp_path)]
    )
    assert run.state.params.tolist() == [5.0]
    assert Point.load_from_checkpoint(tmp_path / "last.ckpt").w.item() == 5.0
    assert run.version == 2


def test_the_modules_hooks_at_the_end_read_what_its_steps_have_logged():
    found = {"judge": [], "ours": []}

    class Reads(Boring):
        def note(self):
            ours = type(self.trainer) is not lightning.Trainer
            if not self.trainer.sanity_checking:
                value = self.trainer.callback_metrics["val_loss"].item()
                found["ours" if ours else "judge"].append(value)

        def on_validation_epoch_end(self):
            self.note()

        def on_validation_end(self):
            self.note()

    run_both(Reads, rounds=2, val=VALIDATION)
    assert len(found["ours"]) == 4
    assert found["ours"] == pytest.approx(found["judge"])


def test_in_validate_and_test_too():
    found = []

    class Reads(Point):
        def on_validation_epoch_end(self):
            found.append(self.trainer.callback_metrics["val_error"].item())

        def on_test_epoch_end(self):
            found.append(self.trainer.callback_metrics["test_error"].item())

    run = fitted(Reads(), points([1.0], [2.0]), max_rounds=1)
    validated, tested = run.validate()[0]["val_error"], run.test()[0]["test_error"]
    assert found == pytest.approx([validated, validated, tested])


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("min_delta", [0.1, 0.0, -0.1])
def test_early_stopping_with_a_tolerance_stops_where_lightning_does(min_delta, mode):
    values = [1.0, 1.05, 1.08, 1.2, 1.0, 0.9, 0.95, 1.3, 1.3, 1.3, 1.3]

    class Logs(Boring):
        epochs = -1

        def on_validation_epoch_end(self):
            self.epochs += not self.trainer.sanity_checking
            self.log("m", values[max(self.epochs, 0)])

    def callbacks():
        return [theirs.EarlyStopping("m", min_delta=min_delta, patience=2, mode=mode)]

    both = run_both(
        Logs,
        rounds=len(values),
        val=VALIDATION,
        callbacks=callbacks(),
        lightning_callbacks=callbacks(),
    )
    assert both.fed.version == both.trainer.current_epoch


def test_a_layer_that_thaws_between_rounds_is_named_with_the_modules_own_optimizer():
    class Thaws(Boring):
        def __init__(self):
            super().__init__()
            self.net.weight.requires_grad_(False)

        def on_validation_epoch_end(self):
            self.net.weight.requires_grad_(True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    with pytest.raises(Exception, match=r"requires_grad.*net.weight|net.weight.*requires_grad"):
        fitted(Thaws(), classes((8, 8)), executor="sequential", local_optimizer=None, max_rounds=3)
