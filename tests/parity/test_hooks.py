"""The hooks of a module and of callbacks: which are called, when, and with what effect."""

import warnings

import lightning
import pytest
import torch
from lightning import LightningModule
from lightning.pytorch import callbacks as theirs
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fedlight import Callback
from fedlight._fit.module_hooks import HOOKS, Fate
from fedlight.callbacks import EarlyStopping, EventLog, FedCheckpoint
from fedlight.checkpoint import read_checkpoint
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression
from tests.boring import Boring, Point, Recorder, classes, fitted, points, trainer
from tests.parity.conftest import examples

STILL = {"local_optimizer": LocalSGD(1e-9), "max_rounds": 1}
TWO = ([1.0], [2.0])


def test_one_client_with_all_data_gets_the_weights_of_lightning(both, executor):
    runs = both(Boring, steps=3, rounds=3, executor=executor)
    runs.same_weights()
    runs.same_metrics("val_loss")


# --- what hooks before the first batch do holds ---

OF_MODULE = ["prepare_data", "setup", "configure_model", "on_fit_start", "on_train_start"]
OF_CALLBACK = ["setup", "on_fit_start", "on_train_start"]


def hooked(base, hook, action):
    """A module class that does something in one hook, whatever its arguments are."""
    return type(
        f"{base.__name__}_{hook}", (base,), {hook: lambda self, *args, **named: action(self)}
    )


def calling(hook, action):
    callback = Callback()
    setattr(callback, hook, lambda trainer, module, *args: action(module))
    return callback


def sevens(module):
    with torch.no_grad():
        module.w.fill_(7.0)


@pytest.mark.parametrize("hook", OF_MODULE)
def test_weights_set_in_a_hook_of_the_module_are_version_0(hook, executor):
    module = hooked(Point, hook, sevens)()
    run = fitted(module, points(*TWO), executor=executor, **STILL)
    assert module.w.item() == run.state.params.item() == pytest.approx(7)


@pytest.mark.parametrize("hook", OF_CALLBACK)
def test_weights_set_in_a_hook_of_a_callback_are_version_0(hook, executor):
    run = fitted(Point(), points(*TWO), executor=executor, callbacks=calling(hook, sevens), **STILL)
    assert run.module.w.item() == pytest.approx(7)


@pytest.mark.parametrize("hook", ["on_sanity_check_start", "on_sanity_check_end"])
def test_weights_set_around_the_sanity_check_are_version_0(hook, executor):
    given = {**STILL, "num_sanity_val_steps": 1, "callbacks": calling(hook, sevens)}
    run = fitted(Point(), points(*TWO), executor=executor, **given)
    assert run.module.w.item() == pytest.approx(7)


class Two(Boring):
    def __init__(self):
        super().__init__(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))


def freeze(module):
    module.net[0].requires_grad_(False)


def thaw(module):
    module.net.requires_grad_(True)


@pytest.mark.parametrize("hook", ["setup", "on_fit_start", "on_train_start"])
def test_layers_frozen_in_a_hook_stay_to_the_bit(both, executor, hook):
    torch.manual_seed(0)
    start = Two().net[0].weight.detach()
    runs = both(hooked(Two, hook, freeze), executor=executor)
    # Lightning has made its optimizer before on_train_start, and passes over frozen layers.
    runs.same_weights()
    assert torch.equal(runs.fed_module.net[0].weight, start.double())


def test_layers_frozen_by_a_callback_stay_to_the_bit(executor):
    module = Two()
    start = module.net[0].weight.detach().clone()
    callback = calling("on_fit_start", freeze)
    run = fitted(module, classes(), executor=executor, callbacks=callback)
    assert torch.equal(module.net[0].weight, start)
    assert run.run.module_state.param_layout.names == ("net.2.weight", "net.2.bias")


def test_a_module_may_be_thawed_in_a_hook(executor):
    module = hooked(Two, "on_fit_start", thaw)()
    module.requires_grad_(False)
    start = module.net[0].weight.detach().clone()
    fitted(module, classes(), executor=executor)
    assert not torch.equal(module.net[0].weight, start)


class Weighted(Boring):
    """The weights of the classes are no buffer, but made when the training begins."""

    def on_fit_start(self):
        self.importance = torch.tensor([1.0, 2.0, 3.0], dtype=self.net.weight.dtype)

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self(batch[0]), batch[1], weight=self.importance)


def test_class_weights_made_in_a_hook_are_there_when_the_executor_tries_a_step(both):
    for executor in ("sequential", "vectorized", "auto"):
        runs = both(Weighted, executor=executor)
        runs.same_weights()
    assert "VectorizedExecutor" in repr(runs.fed.run.executor)


class Late(LightningModule):
    """Its layers are made in a hook."""

    where = "setup"

    def _make(self):
        if not hasattr(self, "net"):
            torch.manual_seed(3)
            self.net = nn.Linear(4, 3)

    def setup(self, stage):
        self.seen = self.device
        if self.where == "setup":
            self._make()

    def configure_model(self):
        if self.where == "configure_model":
            self._make()

    def training_step(self, batch, batch_idx):
        assert batch[0].dtype == self.net.weight.dtype
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    validation_step = test_step = training_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Later(Late):
    where = "configure_model"


@pytest.mark.covers(arguments=["precision"])
@pytest.mark.parametrize("factory", [Late, Later])
@pytest.mark.parametrize("precision", ["64-true", "32-true"])
def test_layers_made_in_a_hook_have_the_precision_of_the_run(both, factory, precision):
    for executor in ("sequential", "vectorized"):
        local = LocalSGD(0.1)
        runs = both(factory, executor=executor, local_optimizer=local, precision=precision)
        runs.same_weights(1e-12 if precision == "64-true" else 1e-6)
        dtype = torch.float64 if precision == "64-true" else torch.float32
        assert runs.fed_module.net.weight.dtype == dtype == runs.module.net.weight.dtype
        assert runs.fed_module.seen == runs.module.seen


def test_layers_made_in_a_hook_are_there_in_test_alone():
    (metrics,) = trainer(precision="64-true").test(Later(), classes())
    assert metrics == {}


def test_after_fit_the_module_is_where_it_was(both):
    module = Boring()
    run = trainer(max_rounds=1, precision="64-true")
    run.fit(module, classes())
    assert module.device == module.net.weight.device == torch.device("cpu")
    # as `lightning.Trainer` leaves it: rounding the weights would lose what was trained
    runs = both(Boring)
    assert runs.fed_module.dtype == runs.module.dtype == torch.float64


def test_a_module_is_brought_back_to_its_device():
    class Traveller(Boring):
        went = ()

        def to(self, *args, **kwargs):
            self.went = (*self.went, *args)
            return super().to(*args, **kwargs)

    module, run = Traveller(), trainer(max_rounds=1)
    run.fit(module, classes())
    assert module.went == (run.fabric.device, torch.device("cpu"))
    module.went = ()
    run.test()
    assert module.went == (run.fabric.device, torch.device("cpu"))


# --- checkpoints ---


class Keeps(LogisticRegression):
    """Reads a key of its own from each checkpoint."""

    extra = 0

    def on_save_checkpoint(self, checkpoint):
        checkpoint["extra"] = {"seen": self.extra + 5, "weights": torch.ones(2)}

    def on_load_checkpoint(self, checkpoint):
        self.extra = checkpoint["extra"]["seen"]


def test_a_module_finds_its_own_key_in_the_checkpoint(tmp_path):
    fitted(Keeps(4, 3), classes(), callbacks=FedCheckpoint(tmp_path), max_rounds=2)
    assert Keeps.load_from_checkpoint(tmp_path / "last.ckpt").extra == 5
    module = Keeps(4, 3)
    again = trainer(callbacks=FedCheckpoint(tmp_path), max_rounds=3)
    again.fit(module, classes(), ckpt_path="last")
    assert module.extra == 5
    assert read_checkpoint(tmp_path / "last.ckpt")["extra"]["seen"] == 10


def test_what_a_checkpoint_cannot_hold_is_refused_with_its_key(tmp_path):
    class Odd(Boring):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["odd"] = object()

    with pytest.raises(TypeError, match=r"checkpoint\['odd'\] is a object"):
        fitted(Odd(), classes(), callbacks=FedCheckpoint(tmp_path))


def test_a_checkpoint_is_put_over_what_hooks_set(tmp_path, executor):
    given = {"executor": executor, "callbacks": FedCheckpoint(tmp_path)}
    module = hooked(Point, "on_train_start", sevens)
    whole = fitted(module(), points(*TWO), executor=executor, max_rounds=6)
    fitted(module(), points(*TWO), max_rounds=3, **given)
    again = trainer(max_rounds=6, **given)
    again.fit(module(), points(*TWO), ckpt_path="last")
    assert again.fingerprint() == whole.fingerprint()


def test_layers_frozen_in_a_hook_come_back_frozen(tmp_path):
    module = hooked(Two, "on_fit_start", freeze)
    fitted(module(), classes(), callbacks=FedCheckpoint(tmp_path), max_rounds=2)
    again, other = trainer(callbacks=FedCheckpoint(tmp_path), max_rounds=4), module()
    frozen = read_checkpoint(tmp_path / "last.ckpt")["state_dict"]["net.0.weight"]
    again.fit(other, classes(), ckpt_path="last")
    assert again.version == 4
    assert torch.equal(other.net[0].weight, frozen)


def test_hooks_see_the_weights_and_the_place_of_the_checkpoint(tmp_path):
    class Looks(Callback):
        def on_fit_start(self, trainer, module):
            self.seen = trainer.version, trainer.num_updates, len(trainer.history), trainer.now
            self.weight = module.w.item(), trainer.state.params.item()

    first = fitted(Point(), points(*TWO), callbacks=FedCheckpoint(tmp_path), max_rounds=3)
    looks = Looks()
    again = trainer(callbacks=[looks, FedCheckpoint(tmp_path)], max_rounds=4)
    again.fit(Point(), points(*TWO), ckpt_path="last")
    assert looks.seen == (3, first.num_updates, 3, first.now)
    assert looks.weight == (first.module.w.item(),) * 2


# --- order ---


def test_the_hooks_of_a_validation_come_in_lightnings_order(both):
    class Calls(Boring):
        def __init__(self):
            super().__init__()
            self.calls = []

    for name in HOOKS:
        if name.startswith("on_validation") and "model" not in name:

            def noted(self, *args, _name=name):
                self.calls.append((_name, len(args)))

            setattr(Calls, name, noted)
    for mode in ("eval", "train"):

        def switched(self, _mode=mode):
            self.calls.append((f"model_{_mode}", 0))
            self.train(_mode == "train")

        setattr(Calls, f"on_validation_model_{mode}", switched)
    runs = both(Calls, rounds=2)
    assert runs.fed_module.calls == runs.module.calls
    assert len(runs.fed_module.calls) == 2 * (6 + 2 * 3)


def test_the_hooks_of_a_test_are_called():
    called = []
    names = [name for name in HOOKS if name.startswith("on_test") and "model" not in name]
    hooks = {
        name: lambda self, *args, _name=name: called.append((_name, len(args))) for name in names
    }
    module = type("Tested", (Boring,), hooks)()
    trainer().test(module, classes())
    batch = [("on_test_batch_start", 2), ("on_test_batch_end", 3)]
    ends = [("on_test_epoch_end", 0), ("on_test_end", 0)]
    assert called == [("on_test_start", 0), ("on_test_epoch_start", 0), *batch, *batch, *ends]


def test_a_module_decides_its_modes_in_the_validation():
    class Restless(Boring):
        def on_validation_model_eval(self):
            self.eval()
            self.net.train()

        def validation_step(self, batch, batch_idx):
            self.modes = self.training, self.net.training

        def on_validation_model_train(self):
            self.train()
            self.left = True

    module = Restless()
    fitted(module, classes(), max_rounds=1)
    assert module.modes == (False, True)
    assert module.left
    assert module.training


def test_the_start_and_the_end_come_in_lightnings_order(both):
    calls = []
    names = [*OF_MODULE, "on_train_end", "on_fit_end", "teardown"]

    def noting(owner, name):
        return lambda *args, **kwargs: calls.append((owner, name))

    def module():
        return type("Noted", (Boring,), {name: noting("module", name) for name in names})()

    def callback(base):
        of = [name for name in names if hasattr(base, name)]
        return type("Noting", (base,), {name: noting("callback", name) for name in of})()

    ours = [callback(Callback)]
    theirs = [callback(lightning.Callback)]
    for hook in ("prepare_data", "configure_model"):
        assert not hasattr(ours[0], hook)
    both(module, callbacks=ours, lightning_callbacks=theirs, val=None, rounds=1)
    half = len(calls) // 2
    judged = calls[:half]
    assert calls[half:] == judged
    assert judged[:3] == [("module", "prepare_data"), ("callback", "setup"), ("module", "setup")]


def test_callbacks_of_the_module_join_those_of_the_trainer():
    class Mine(Callback):
        def on_round_end(self, trainer, module):
            module.rounds += 1

    class Better(Mine):
        pass

    class Brings(Point):
        rounds = 0

        def configure_callbacks(self):
            return [Better()]

    run, module = trainer(callbacks=Mine(), max_rounds=3), Brings()
    run.fit(module, points(*TWO))
    assert [type(each) for each in run.callbacks] == [Better]
    assert module.rounds == 3
    run.fit(module, points(*TWO))
    assert module.rounds == 6

    class Wrong(Point):
        def configure_callbacks(self):
            return "early"

    with pytest.raises(TypeError, match="callbacks must be of type Callback, got 'early'"):
        run.fit(Wrong(), points(*TWO))


@pytest.mark.parametrize("hook", ["setup", "configure_model", "on_fit_start", "on_train_start"])
def test_an_error_in_a_hook_before_the_first_event_ends_the_fit_in_order(tmp_path, hook):
    def fails(module):
        raise ZeroDivisionError("in the hook")

    recorder, path = Recorder(), tmp_path / "events.parquet"
    path.write_text("of an earlier run")
    run = trainer(callbacks=[recorder, EventLog(path)])
    with pytest.raises(ZeroDivisionError, match="in the hook"):
        run.fit(hooked(Point, hook, fails)(), points(*TWO))
    assert recorder.names[0] == "setup"
    assert recorder.names[-2:] == ["on_exception", "teardown"]
    assert (run.version, run.history, run.num_failures) == (0, [], 0)
    begun = hook in ("on_fit_start", "on_train_start")
    assert (path.read_bytes() != b"of an earlier run") == begun
    run.fit(Point(), points(*TWO))
    assert run.version == 5


def test_a_checkpoint_wanted_before_the_first_event_is_one_of_version_0(tmp_path):
    class Saves(Callback):
        def on_fit_start(self, trainer, module):
            trainer.save_checkpoint(tmp_path / "start.ckpt")

    module = hooked(Point, "on_train_start", sevens)
    whole = fitted(module(), points(*TWO), callbacks=Saves())
    assert read_checkpoint(tmp_path / "start.ckpt")["state_dict"]["w"].item() == 7
    again, plain = trainer(), Point()
    again.fit(plain, points(*TWO), ckpt_path=tmp_path / "start.ckpt")
    assert again.fingerprint() == whole.fingerprint()


def test_gradients_are_let_go_before_a_validation():
    called = []
    module = hooked(Point, "on_validation_model_zero_grad", lambda module: called.append(1))()
    run = fitted(module, points(*TWO), check_val_every_n_rounds=2)
    assert called == [1, 1]
    run.validate()  # as in Lightning, only within a fit
    assert called == [1, 1]


# --- the table of all hooks ---

NAMED = [name for name, hook in HOOKS.items() if hook.fate is Fate.NAMED]


@pytest.mark.covers(hooks=NAMED)
@pytest.mark.parametrize("hook", NAMED)
def test_a_hook_that_is_never_called_is_named(hook):
    def never(self, *args):
        raise AssertionError("it was called")

    module = type("Hooked", (Point,), {hook: never})()
    with pytest.warns(UserWarning, match=rf"Hooked overrides hooks that .* {hook}: ") as seen:
        fitted(module, points(*TWO), max_rounds=2)
    assert len(seen) == 1


@pytest.mark.covers(hooks=["predict_dataloader"])
@pytest.mark.parametrize("fate", [Fate.WORKS, Fate.NO_MEANING])
def test_other_hooks_are_not_warned_of(fate):
    names = [name for name, hook in HOOKS.items() if hook.fate is fate]
    module = type("Hooked", (Point,), {})
    for name in names:
        original = getattr(Point, name)
        if not name.endswith(("model_eval", "model_train")):
            setattr(module, name, lambda self, *args, _do=original: _do(self, *args))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(module(), points(*TWO), max_rounds=1)


def test_a_data_module_with_hooks_of_batches_is_warned_of():
    data = points(*TWO)

    class Moves(type(data)):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            raise AssertionError("it was called")

    data.__class__ = Moves
    with pytest.warns(UserWarning, match="Moves overrides on_after_batch_transfer, which a fed"):
        fitted(Point(), data, max_rounds=1)


class Sub(theirs.LambdaCallback):
    """A subclass of one of Lightning's."""


@pytest.mark.parametrize(
    ("of_trainer", "of_module"),
    [
        ([theirs.Callback], [theirs.LambdaCallback]),
        ([theirs.LambdaCallback], [theirs.LambdaCallback]),
        ([theirs.LambdaCallback, theirs.Timer], [Sub]),
        ([Sub], [theirs.LambdaCallback]),
        ([stopping := lambda: theirs.EarlyStopping("train_loss")], [stopping]),
        ([keeping := lambda: theirs.ModelCheckpoint("here"), theirs.Timer], [keeping, stopping]),
        ([stopping, theirs.Timer], []),
        ([theirs.ModelSummary], [theirs.RichModelSummary]),
    ],
)
def test_a_callback_of_the_module_replaces_those_of_its_class(
    of_trainer, of_module, tmp_path, monkeypatch
):
    def kept(by):
        """Which of the callbacks given are called, in their order."""
        (tmp_path / by.__name__).mkdir()
        monkeypatch.chdir(tmp_path / by.__name__)
        given = [make() for make in of_trainer]
        own = [make() for make in of_module]
        found = []

        class Gives(Boring):
            def configure_callbacks(self):
                return own

            def on_train_start(self):
                found.extend(
                    number
                    for each in self.trainer.callbacks
                    for number, one in enumerate([*given, *own])
                    if each is one
                )

        by(Gives, given)
        return found

    def judge(factory, given):
        options = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        loader = DataLoader(examples(8), 4)
        keeps = any(isinstance(each, theirs.ModelCheckpoint) for each in given)
        lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            callbacks=given,
            enable_checkpointing=keeps,
            **options,
        ).fit(factory(), loader, loader)

    def ours(factory, given):
        fitted(factory(), classes(), callbacks=given, max_rounds=1)

    assert kept(ours) == kept(judge)


def test_what_is_replaced_is_written_to_no_more():
    class Gives(Boring):
        def configure_callbacks(self):
            return [EarlyStopping("train_loss", patience=2)]

    run = fitted(Gives(), classes(), callbacks=theirs.EarlyStopping("train_loss"), max_rounds=3)
    assert [type(each) for each in run.callbacks] == [EarlyStopping]
