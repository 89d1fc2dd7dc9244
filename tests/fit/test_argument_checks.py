"""What `FedTrainer` and `fit` refuse, each with a sentence that says what to write instead."""

import datasets
import lightning
import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import ModelPruning
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn

from data_partitioners import IidPartitioner
from fedlight import Callback, FederatedDataModule, FedTrainer
from fedlight._fit.argument_checks import as_callbacks, as_loggers
from fedlight.aggregators import AFACD, FedAvg
from fedlight.arrivals import BiasedArrivals, ReplayArrivals, ReplayEvent, UniformArrivals
from fedlight.callbacks import FedCheckpoint, ProgressBar
from fedlight.executors import SequentialExecutor, VectorizedExecutor
from fedlight.local_optimizers import LocalOptimizer, LocalSGD
from tests.boring import Boring, Point, classes, fitted, points, trainer

ROUNDS = UniformArrivals(per_round=1)


# --- the trainer's arguments ---


@pytest.mark.parametrize(
    ("argument", "value", "error", "message"),
    [
        ("arrivals", UniformArrivals, TypeError, "arrivals must be an object, got the class"),
        ("arrivals", 5, TypeError, r"must be of type ArrivalProcess, got 5 \(int\); for example"),
        ("arrivals", None, TypeError, r"for example UniformArrivals\(per_round=5\)"),
        ("aggregator", FedAvg, TypeError, "aggregator must be an object, got the class FedAvg"),
        ("aggregator", "fedavg", TypeError, r"of type Aggregator, got 'fedavg' .*AFACD\(\)"),
        ("local_optimizer", LocalSGD, TypeError, "got the class LocalSGD; call it"),
        (
            "local_optimizer",
            torch.optim.Adam,
            TypeError,
            r"got the class Adam of torch; for example LocalSGD\(lr=0.1\), or return "
            r"Adam\(self.parameters\(\), …\) from the module's configure_optimizers",
        ),
        ("local_optimizer", 0.1, TypeError, r"of type LocalOptimizer, got 0.1 .*LocalSGD\(lr=0.1"),
        ("executor", "ray", ValueError, "'auto', 'sequential', 'vectorized'.*got 'ray'"),
        ("executor", 3, TypeError, r"one of 'auto'.* or an Executor, got 3 \(int\)"),
        ("executor", SequentialExecutor, TypeError, "executor must be"),
        ("max_rounds", 0, ValueError, "max_rounds must be at least 1, got 0"),
        ("max_rounds", -1, ValueError, "max_rounds must be at least 1, got -1"),
        ("max_rounds", 2.5, TypeError, r"max_rounds must be an integer, got 2.5 \(float\)"),
        ("max_rounds", True, TypeError, "max_rounds must be an integer, got True"),
        ("max_updates", 0, ValueError, "max_updates must be at least 1, got 0"),
        ("max_updates", "3", TypeError, "max_updates must be an integer, got '3'"),
        ("max_time", 0, ValueError, "max_time must be larger than 0, got 0"),
        ("max_time", -2.0, ValueError, "max_time must be larger than 0, got -2.0"),
        ("max_time", float("inf"), ValueError, "max_time must be finite, got inf"),
        ("max_time", "1", TypeError, "max_time must be a number, got '1'"),
        ("callbacks", ProgressBar, TypeError, "callbacks must be an object, got the class"),
        ("callbacks", ModelPruning("l1_unstructured"), TypeError, "no meaning .*prune the module"),
        ("callbacks", [Callback(), 7], TypeError, r"callbacks must be of type Callback, got 7"),
        ("callbacks", "bar", TypeError, "callbacks must be of type Callback, got 'bar'"),
        ("callbacks", 7, TypeError, "callbacks must be of type Callback, got 7"),
        ("logger", "tensorboard", TypeError, "logger must be of type Logger, got 'tensorboard'"),
        ("logger", 3, TypeError, r"logger must be of type Logger, got 3.*TensorBoardLogger\("),
        ("logger", CSVLogger, TypeError, "logger must be an object, got the class CSVLogger"),
        ("logger", [None], TypeError, "logger must be of type Logger, got None"),
        ("accelerator", "abacus", ValueError, "abacus"),
        ("devices", 2, ValueError, r"devices must be 1, got 2: .* write executor=RayExecutor\("),
        ("devices", "all", TypeError, "devices must be an integer, got 'all'"),
        ("devices", [0, 1], ValueError, r"devices must be 1, got \[0, 1\]: all clients share"),
        ("devices", 0, ValueError, "devices must be at least 1"),
        ("precision", "12-bit", ValueError, "12-bit"),
        ("seed", 1.5, TypeError, "seed must be an integer, got 1.5"),
        ("seed", None, TypeError, "seed must be an integer, got None"),
        ("check_val_every_n_rounds", 0, ValueError, "check_val_every_n_rounds must be at least 1"),
        ("check_val_every_n_rounds", 0.5, TypeError, "check_val_every_n_rounds must be an integer"),
        ("limit_val_batches", 1.5, ValueError, r"a share in \[0, 1\] or a number .* got 1.5"),
        ("limit_val_batches", -0.5, ValueError, r"a share in \[0, 1\] or a number .* got -0.5"),
        ("limit_val_batches", -1, ValueError, "limit_val_batches must be 0 or larger, got -1"),
        ("limit_val_batches", "all", TypeError, "limit_val_batches must be an integer, got 'all'"),
        ("limit_val_batches", True, TypeError, "limit_val_batches must be an integer, got True"),
        ("on_client_failure", "ignore", ValueError, "on_client_failure must be one of 'raise'"),
        ("default_root_dir", 5, TypeError, r"default_root_dir must be a path, got 5 \(int\)"),
        ("fast_dev_run", -1, ValueError, "fast_dev_run must be 0 or larger, got -1"),
        ("fast_dev_run", 2.0, TypeError, "fast_dev_run must be an integer, got 2.0"),
        ("fast_dev_run", "yes", TypeError, "fast_dev_run must be an integer, got 'yes'"),
        ("on_interrupt", "stop", ValueError, "on_interrupt must be one of 'raise', 'return'"),
    ],
)
def test_arguments_are_refused(argument, value, error, message):
    given = {"arrivals": ROUNDS, "aggregator": FedAvg(), "max_rounds": 1, "logger": False}
    with pytest.raises(error, match=f"(?s){message}"):
        FedTrainer(**{**given, argument: value})


def test_arguments_are_by_name():
    with pytest.raises(TypeError, match="positional"):
        FedTrainer(ROUNDS, FedAvg())


def test_a_run_that_nothing_stops():
    with pytest.raises(ValueError, match="give max_rounds, max_updates or max_time"):
        FedTrainer(arrivals=ROUNDS, aggregator=FedAvg())
    FedTrainer(arrivals=ROUNDS, aggregator=FedAvg(), fast_dev_run=True)
    finite = ReplayArrivals([ReplayEvent(0, 0, 1.0, 1)])
    FedTrainer(arrivals=finite, aggregator=FedAvg(buffer_size=1))


def test_an_aggregator_that_waits_for_rounds_needs_some():
    clock = ReplayArrivals([ReplayEvent(0, 0, 1.0, 1)])
    with pytest.raises(ValueError, match=r"AFACD\(.*give the aggregator a buffer_size"):
        FedTrainer(arrivals=clock, aggregator=AFACD())
    rounds = ReplayArrivals([ReplayEvent(0, 0, 1.0, 1)], round_ends=[1.0])
    FedTrainer(arrivals=rounds, aggregator=AFACD())


# --- what the strategies refuse ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalSGD(lr=-0.1), "lr must be larger than 0, got -0.1"),
        (lambda: AFACD(server_lr=-1), "server_lr must be larger than 0, got -1"),
        (lambda: FedAvg(buffer_size=0), "buffer_size must be at least 1, got 0"),
        (lambda: UniformArrivals(per_round=0), "per_round must be at least 1, got 0"),
        (lambda: BiasedArrivals(1, [0.5, 0.6]), "probabilities must sum to 1, got a sum of 1.1"),
        (lambda: BiasedArrivals(1, [1.5, -0.5]), r"probabilities\[1\] must be 0 or larger"),
        (lambda: BiasedArrivals(2, [1.0, 0.0]), "only 1 clients that can be drawn"),
    ],
)
def test_strategies_refuse_at_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- what fit refuses before the first event ---


class Untrained(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)


class Manual(Point):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Optimizers(Point):
    """`configure_optimizers` gives what it was told to."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def configure_optimizers(self):
        return self.make(self)


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


def refused(module, data, error, message, **kwargs):
    run = trainer(**{"arrivals": ROUNDS, "max_rounds": 1, **kwargs})
    with pytest.raises(error, match=f"(?s){message}"):
        run.fit(module, data)
    assert run.history == []


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (nn.Linear(1, 1), TypeError, "module must be a LightningModule, got Linear; pass"),
        (Point, TypeError, "module must be an object, got the class Point; call it"),
        (Untrained(), ValueError, r"Untrained has no training_step; define training_step\(self"),
        (Manual(), ValueError, "Manual uses manual optimization.*return the loss"),
        (Point().requires_grad_(False), ValueError, "Point has no parameter with requires_grad"),
    ],
)
def test_modules_are_refused(module, error, message):
    refused(module, points([1.0], [2.0]), error, message)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: [sgd(m), sgd(m)], r"returns 2 optimizers, .*exactly one.*LocalSGD\(lr=…\)"),
        (lambda m: None, "returns 0 optimizers"),
        (lambda m: torch.optim.LBFGS(m.parameters()), "returns LBFGS, which evaluates the loss"),
        (lambda m: 0.1, "returns float; return a torch.optim.Optimizer"),
        (
            lambda m: {
                "optimizer": (o := sgd(m)),
                "lr_scheduler": {
                    "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(o),
                    "monitor": "val_loss",
                },
            },
            "returns a ReduceLROnPlateau",
        ),
    ],
)
@pytest.mark.parametrize("executor", ["auto", "sequential"])
def test_optimizers_are_refused_before_the_first_event(make, message, executor):
    refused(
        Optimizers(make),
        points([1.0], [2.0]),
        ValueError,
        message,
        local_optimizer=None,
        executor=executor,
        callbacks=NothingHappens(),
    )


class NothingHappens(Callback):
    def on_dispatch(self, trainer, module, task):
        pytest.fail("a client was dispatched")


def table():
    return datasets.DatasetDict(train=datasets.Dataset.from_dict({"x": [0.0, 1.0], "y": [0, 1]}))


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([1, 2], TypeError, "must be a FederatedDataModule, got .1, 2.; wrap your data"),
        (None, TypeError, "must be a FederatedDataModule, got None"),
        (
            FederatedDataModule(table(), IidPartitioner(2), columns=("pixels", "y")),
            ValueError,
            "'pixels'.*'x'",
        ),
        (
            FederatedDataModule(table(), IidPartitioner(2), columns=("x", "target")),
            ValueError,
            "'target'.*'y'",
        ),
        (
            FederatedDataModule(table(), IidPartitioner(2), columns=("x", "y"), train_split="all"),
            ValueError,
            "train_split='all'",
        ),
        (FederatedDataModule(table(), IidPartitioner(5), columns=("x", "y")), ValueError, "5"),
    ],
)
def test_data_are_refused(data, error, message):
    refused(Point(), data, error, message)


def test_a_lightning_data_module_is_no_federation():
    message = "must be a FederatedDataModule, got LightningDataModule"
    refused(Point(), lightning.LightningDataModule(), TypeError, message)


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        (UniformArrivals(per_round=3), "per_round=3 is more than the 2 clients; .*per_round=2"),
        (BiasedArrivals(1, [0.5, 0.3, 0.2]), "has 3 numbers, but there are 2 clients"),
        (
            ReplayArrivals([ReplayEvent(2, 0, 1.0, 1)], round_ends=[1]),
            r"events\[0\] names client 2",
        ),
    ],
)
def test_arrivals_that_do_not_fit(arrivals, message):
    refused(Point(), points([1.0], [2.0]), ValueError, message, arrivals=arrivals)


def test_a_record_that_can_never_happen():
    arrivals = ReplayArrivals([ReplayEvent(0, 1, 1.0, 1)])
    run = trainer(arrivals=arrivals, aggregator=FedAvg(buffer_size=1))
    with pytest.raises(ValueError, match=r"can never happen: .* at which version 1 exists"):
        run.fit(Point(), points([1.0], [2.0]))


class Items(Boring):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("seen", loss.item())
        return loss


@pytest.mark.parametrize("executor", ["vectorized", VectorizedExecutor(max_batch=3)])
def test_an_executor_that_cannot(executor):
    refused(Items(), classes(), ValueError, "Items cannot be vectorised", executor=executor)
    text = FederatedDataModule.from_client_datasets([["a", "b"]], batch_size=1)
    refused(Point(), text, ValueError, "no tensors of one shape", executor=executor)
    refused(
        Point(),
        points([1.0], [2.0]),
        ValueError,
        r"ModuleOptimizer\(\) works on one client at a time",
        executor=executor,
        local_optimizer=None,
    )


# --- what stands in where nothing was given ---


def test_loggers(tmp_path):
    one, two = CSVLogger(tmp_path), CSVLogger(tmp_path)
    (default,) = as_loggers(True, tmp_path)
    assert isinstance(default, TensorBoardLogger)
    assert default.root_dir == str(tmp_path / "fedlight_logs")
    assert (
        as_loggers(False, tmp_path) == as_loggers(None, tmp_path) == as_loggers([], tmp_path) == []
    )
    assert as_loggers(one, tmp_path) == [one]
    assert as_loggers((one, two), tmp_path) == [one, two]
    assert list(tmp_path.iterdir()) == []


def test_callbacks():
    one, bar = Callback(), ProgressBar()
    assert as_callbacks(None, False) == []
    assert as_callbacks(one, False) == [one]
    assert as_callbacks(iter([one, bar]), True) == [one, bar]
    (made,) = as_callbacks(None, True)
    assert isinstance(made, ProgressBar)
    assert [type(each) for each in as_callbacks([one], True)] == [Callback, ProgressBar]


def test_limits_are_shown():
    run = trainer(max_rounds=3, max_time=2, max_updates=4)
    assert (run.max_rounds, run.max_time, run.max_updates) == (3, 2, 4)


def test_hooks_that_are_never_called_are_named() -> None:
    class Clips(Point):
        def configure_gradient_clipping(self, *args, **kwargs): ...

        def on_train_batch_end(self, *args): ...

    with pytest.warns(UserWarning, match=r"on_train_batch_end: .*configure_gradient_clipping: "):
        fitted(Clips(), points([1.0], [2.0]), max_rounds=1)

    class Counts(Callback):
        def on_train_batch_end(self, *args): ...

    with pytest.warns(UserWarning, match=r"Counts has on_train_batch_end.*on_round_end"):
        as_callbacks(Counts(), bar=False)


def test_what_a_local_step_returns_is_refused() -> None:
    class Functional(LocalOptimizer):
        lr = 0.1

        def step(self, run, grads):
            return [param - grad for param, grad in zip(run.params, grads, strict=True)]

    with pytest.raises(TypeError, match=r"Functional.step must change run.params in place"):
        fitted(Point(), points([1.0], [2.0]), local_optimizer=Functional(), max_rounds=1)


def test_a_local_optimizer_that_fails_for_several_clients_is_named():
    class Normalized(LocalOptimizer):
        lr = 0.1

        def step(self, run, grads):
            run.descend([grad / grad.flatten(1).norm(dim=1) for grad in grads])

    with pytest.raises(ValueError, match=r"Normalized.step fails for two clients .*leading client"):
        trainer(local_optimizer=Normalized()).fit(Boring(), classes())


class Overwrites(Callback):
    """Logs a number under a name."""

    def __init__(self, name, value=1.0) -> None:
        self.name, self.value = name, value

    def on_round_end(self, trainer, module) -> None:
        trainer.log_metrics({self.name: self.value})


def test_a_callback_may_not_overwrite_the_trainers_metrics() -> None:
    with pytest.raises(ValueError, match=r"log_metrics\({'fed/gradients': …}\): names that begin"):
        fitted(Point(), points([1.0], [2.0]), max_rounds=1, callbacks=Overwrites("fed/gradients"))
    with pytest.raises(
        TypeError, match=r"log_metrics\({'a': …}\) takes numbers in metrics, got 1j"
    ):
        fitted(Point(), points([1.0], [2.0]), max_rounds=1, callbacks=Overwrites("a", 1j))
    run = fitted(Point(), points([1.0], [2.0]), max_rounds=1, callbacks=Overwrites("fedora"))
    assert run.history[-1].metrics["fedora"] == 1


def test_a_file_for_a_folder_is_noticed_before_the_first_round(tmp_path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        run = trainer(max_rounds=1, callbacks=FedCheckpoint(place))
        with pytest.raises(NotADirectoryError, match=r"needs a folder, but '.*file' is a file"):
            run.fit(Point(), points([1.0], [2.0]))
        assert run.history == []


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("path must name a file", lambda run: run.save_checkpoint(None)),
        ("path must name a file", lambda run: run.save_checkpoint("")),
        ("copies must name a file", lambda run: run.save_checkpoint("a.ckpt", 3)),
        ("metrics must be a mapping", lambda run: run.log_metrics([1.0])),
        ("metrics must be a mapping", lambda run: run.log_metrics({1: 1.0})),
        ("verbose must be True or False", lambda run: run.validate(verbose=torch.ones(2))),
        ("verbose must be True or False", lambda run: run.test(verbose="no")),
    ],
    ids=["none", "empty", "copies", "list", "names", "validate", "test"],
)
def test_methods_name_a_wrong_argument(name, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = fitted(Point(), points([1.0], [2.0]), max_rounds=1)
    with pytest.raises((TypeError, ValueError), match=f"^{name}"):
        call(run)
    assert not list(tmp_path.glob("*.ckpt"))
