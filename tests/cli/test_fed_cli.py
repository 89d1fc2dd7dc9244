"""LightningCLI's form with a `FedTrainer`: subcommands, files of options, folders of runs."""

import sys

import pytest
import yaml
from lightning import LightningDataModule, seed_everything

from data_partitioners import IidPartitioner
from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import FedBuff
from fedlight.arrivals import UniformArrivals
from fedlight.cli import FedCLI
from fedlight.local_optimizers import LocalSGD
from fedlight.models import LogisticRegression

# Lightning calls functions that are deprecated in new releases of jsonargparse.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

OPTIONS = [
    *("--trainer.arrivals", "UniformArrivals", "--trainer.arrivals.per_round", "3"),
    *("--trainer.aggregator", "FedBuff", "--trainer.aggregator.buffer_size", "3"),
    *("--trainer.local_optimizer", "LocalSGD", "--trainer.local_optimizer.lr", "0.1"),
    *("--trainer.max_rounds", "2", "--trainer.accelerator", "cpu"),
    *("--trainer.enable_progress_bar", "false"),
    *("--model.in_features", "784", "--model.num_classes", "10"),
    *("--data.partitioner", "IidPartitioner", "--data.partitioner.num_partitions", "10"),
]


def small(partitioner: IidPartitioner, batch_size: int = 64) -> FederatedDataModule:
    return FederatedDataModule("mnist-mini", partitioner, batch_size=batch_size)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])


def cli(*args, **options):
    return FedCLI(LogisticRegression, small, args=[*args], **options)


def printed(capsys, *args):
    with pytest.raises(SystemExit) as ended:
        cli(*args, "--print_config")
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_a_printed_file_of_options_is_the_run_of_a_script(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(printed(capsys, "fit", *OPTIONS))
    made = cli("fit", "--config", "run.yaml")
    seed_everything(0, verbose=False)
    trainer = FedTrainer(
        arrivals=UniformArrivals(per_round=3),
        aggregator=FedBuff(buffer_size=3),
        local_optimizer=LocalSGD(lr=0.1),
        max_rounds=2,
        accelerator="cpu",
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(LogisticRegression(784, 10), small(IidPartitioner(10)))
    assert made.trainer.fingerprint() == trainer.fingerprint()
    (saved,) = tmp_path.glob("fedlight_logs/*/config.yaml")
    assert yaml.safe_load(saved.read_text())["trainer"]["aggregator"]["init_args"] == {
        "buffer_size": 3,
        "staleness": {
            "class_path": "fedlight.aggregators.staleness.Polynomial",
            "init_args": {"a": 0.5},
        },
        "server_lr": 1.0,
        "normalize": "buffer",
        "server_optimizer": None,
    }


def test_an_option_replaces_that_of_a_file(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(printed(capsys, "fit", *OPTIONS))
    one, other = (
        yaml.safe_load(printed(capsys, "fit", "--config", "run.yaml", *more))
        for more in ([], ["--trainer.seed=1"])
    )
    assert (one["trainer"].pop("seed"), other["trainer"].pop("seed")) == (0, 1)
    assert one == other


@pytest.mark.parametrize(
    "arrivals",
    ["ContinuousArrivals", "UniformArrivals", "BiasedArrivals", "SynchronousArrivals"],
)
def test_defaults_that_are_objects_can_be_written(arrivals, capsys):
    """A file with a default that could not be written could not be read."""
    needed = {
        "ContinuousArrivals": ["durations=ExponentialDurations", "durations.mean=1"],
        "BiasedArrivals": ["per_round=1", "probabilities=[0.5, 0.5]"],
    }.get(arrivals, ["per_round=1"])
    words = [f"--trainer.arrivals.{word}" for word in needed]
    text = printed(capsys, "fit", *OPTIONS, f"--trainer.arrivals={arrivals}", *words)
    assert "Unable to serialize" not in text
    made = yaml.safe_load(text)["trainer"]["arrivals"]["init_args"]["local_steps"]
    assert made == {"class_path": "fedlight.arrivals.LocalEpochs", "init_args": {"num_epochs": 1.0}}


def test_a_checkpoint_is_validated_tested_and_continued(capsys):
    cli("fit", *OPTIONS, "--trainer.enable_checkpointing=true")
    for command, metric in (("validate", "val_acc"), ("test", "test_acc")):
        made = cli(command, *OPTIONS, "--ckpt_path", "checkpoints/last.ckpt")
        assert 0.1 < made.trainer.callback_metrics[metric] < 1
        assert metric in capsys.readouterr().out
    kept = ["--trainer.enable_checkpointing=true", "--ckpt_path=last"]
    assert cli("test", *OPTIONS, *kept).trainer.callback_metrics[metric] == pytest.approx(
        made.trainer.callback_metrics[metric], abs=0
    )
    more = ["--trainer.max_rounds=3", *kept]
    made = cli("fit", *OPTIONS, *more)
    assert made.trainer.version == 3
    assert made.trainer.fingerprint() == cli("fit", *OPTIONS, more[0]).trainer.fingerprint()


def test_objects_without_a_run():
    made = cli(*OPTIONS, run=False, trainer_defaults={"max_updates": 6})
    assert isinstance(made.trainer, FedTrainer)
    assert isinstance(made.datamodule, FederatedDataModule)
    assert isinstance(made.model, LogisticRegression)
    assert (made.trainer.max_updates, made.trainer.version) == (6, 0)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["fit", "--trainer.max_rouns=3"], "unrecognized arguments: --trainer.max_rouns"),
        (["fit", "--trainer.aggregator=FedBuf"], "FedBuf"),
        (["fit", "--trainer.aggregator={"], "trainer.aggregator"),
        (["fit", "--config=broken.yaml"], "did not find expected"),
        (["tune"], "tune"),
    ],
)
def test_wrong_options(args, says, capsys, tmp_path):
    (tmp_path / "broken.yaml").write_text("trainer: {max_rounds: 1")
    with pytest.raises(SystemExit) as ended:
        cli(args[0], *(OPTIONS if args[0] == "fit" else []), *args[1:])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def refused(capsys, *args, **options):
    with pytest.raises(SystemExit) as ended:
        cli(*args, **options)
    assert ended.value.code == 2
    return [line.partition("error: ")[2] for line in capsys.readouterr().err.splitlines()]


LIGHTNINGS = [
    "FedTrainer does not take max_epochs=3: write max_rounds, the number of server updates",
    "FedTrainer does not take gradient_clip_val=1.0: write "
    "local_optimizer=ModuleOptimizer(max_grad_norm=1.0), which clips for the module's own "
    "optimizer; LocalSGD and LocalAdam take max_grad_norm, too",
]


def test_options_of_lightning_end_with_what_to_write(tmp_path, capsys):
    words = ["--trainer.max_epochs", "3", "--trainer.gradient_clip_val=1.0"]
    assert refused(capsys, "fit", *OPTIONS, *words) == LIGHTNINGS
    text = "trainer: {max_epochs: 3, gradient_clip_val: 1.0, strategy: auto}"
    (tmp_path / "old.yaml").write_text(text)
    found = refused(capsys, "fit", "--config", "old.yaml", *OPTIONS)
    assert found == [*LIGHTNINGS, "leave out strategy='auto'"]
    (tmp_path / "all.yaml").write_text("fit: {trainer: {max_epochs: 3, gradient_clip_val: 1.0}}")
    assert refused(capsys, "--config=all.yaml", "fit", *OPTIONS) == LIGHTNINGS
    (tmp_path / "old.yaml").write_text("optimizer: {class_path: torch.optim.SGD}")
    for words in (["--optimizer", "SGD"], ["--config=old.yaml"]):
        (line,) = refused(capsys, "fit", *OPTIONS, *words)
        assert line.startswith("FedCLI has no --optimizer: write --trainer.local_optimizer")


def test_options_without_a_value_of_a_file_of_lightning_are_named(tmp_path, capsys):
    text = "{trainer: {max_epochs: null}, optimizer: null, lr_scheduler: null, weights_only: null}"
    (tmp_path / "old.yaml").write_text(text)
    rest = [f"leave out {name}: null" for name in ("optimizer", "lr_scheduler", "weights_only")]
    found = refused(capsys, "fit", "--config", "old.yaml", *OPTIONS)
    assert found == ["leave out max_epochs=None", *rest]
    (tmp_path / "old.yaml").write_text("{optimizer: null, weights_only: null}")
    assert refused(capsys, "fit", "--config=old.yaml", *OPTIONS) == [rest[0], rest[2]]


def test_a_data_module_of_lightning_is_refused_with_the_function_to_write():
    with pytest.raises(TypeError, match=r"FederatedDataModule\.from_lightning\("):
        FedCLI(LogisticRegression, LightningDataModule, args=["fit"])
