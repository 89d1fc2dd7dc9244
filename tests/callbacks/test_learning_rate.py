import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from fedlight.aggregators import FedAsync, FedAvg, FedFix
from fedlight.arrivals import ContinuousArrivals, FixedDurations
from fedlight.callbacks import FedCheckpoint, LearningRateMonitor
from fedlight.local_optimizers import ByStep, FedProx, LocalSGD, ModuleOptimizer
from tests.boring import Boring, classes, trainer


def rates(name, **kwargs):
    run = trainer(callbacks=LearningRateMonitor(), max_rounds=3, **kwargs)
    run.fit(kwargs.pop("module", Boring()), classes())
    return [record.metrics.get(name) for record in run.history]


def test_local_rates_are_those_of_the_version_just_made():
    assert rates("lr/local", local_optimizer=LocalSGD(lambda v: 1 / (v + 1))) == [
        1 / 2,
        1 / 3,
        1 / 4,
    ]
    assert rates("lr/local", local_optimizer=FedProx(lr=0.2, mu=0.1)) == [0.2] * 3


def by_step(**options):
    """Two clients with speeds of 1 and 0.4, two steps a task; each arrival makes a version."""
    clock = ContinuousArrivals(FixedDurations([1.0, 0.4]), local_steps=2)
    return {
        "arrivals": clock,
        "aggregator": FedAvg(1),
        "local_optimizer": LocalSGD(ByStep(lambda step: 0.1 / (1 + step))),
        "callbacks": LearningRateMonitor(),
        **options,
    }


def test_rates_by_steps_are_those_of_the_last_step_of_the_newest_update(tmp_path):
    """By hand: client 1 arrives at 0.4 and 0.8, client 0 at 1.0, client 1 at 1.2."""
    steps = [1, 3, 1, 5]
    expected = [0.1 / (1 + step) for step in steps]
    ends = []
    for folder, stops in (("whole", [4]), ("resumed", [2, 4])):
        for stop in stops:
            saved = FedCheckpoint(tmp_path / folder, every_n_updates=1)
            options = by_step(callbacks=[LearningRateMonitor(), saved])
            run = trainer(**options, max_rounds=stop)
            run.fit(Boring(), classes((4, 4)), ckpt_path="last")
        ends.append([record.metrics["lr/local"] for record in run.history])
    assert ends == [expected, expected]


@pytest.mark.filterwarnings("ignore:fedlight. the run ended before the server made its first")
def test_the_step_of_an_update_that_came_before_the_checkpoint_counts(tmp_path):
    """Client 1 arrives at 0.4 and 0.8, then comes the checkpoint, and the version at 0.9."""
    clock = ContinuousArrivals(FixedDurations([2.0, 0.4]), local_steps=2, resume="on_arrival")
    for limit in ({"max_updates": 2}, {"max_rounds": 1}):
        saved = FedCheckpoint(tmp_path, every_n_updates=1)
        options = by_step(arrivals=clock, aggregator=FedFix(0.9))
        run = trainer(**options | {"callbacks": [LearningRateMonitor(), saved]}, **limit)
        run.fit(Boring(), classes((4, 4)), ckpt_path="last")
    assert [record.metrics["lr/local"] for record in run.history] == [0.1 / (1 + 3)]


def test_server_rates_are_those_of_the_step_that_made_the_version():
    aggregator = FedAvg(server_lr=lambda version: 1.0 / (version + 1))
    assert rates("lr/server", aggregator=aggregator) == [1, 1 / 2, 1 / 3]
    assert rates("lr/alpha", aggregator=aggregator) == [None] * 3


def test_alpha_is_that_of_the_step():
    options = {
        "arrivals": ContinuousArrivals(FixedDurations([1.0] * 4), local_steps=1),
        "aggregator": FedAsync(alpha=lambda version: 0.5**version),
    }
    assert rates("lr/alpha", **options) == [1, 0.5, 0.25]
    assert rates("lr/server", **options) == [None] * 3


def test_a_server_optimizer_is_asked():
    aggregator = FedAvg(server_optimizer=lambda params: torch.optim.Adam(params, 0.03))
    assert rates("lr/server", aggregator=aggregator) == [0.03] * 3


class Groups(Boring):
    def configure_optimizers(self):
        weight, bias = self.net.parameters()
        groups = [{"params": [weight]}, {"params": [bias], "lr": 0.5}]
        return torch.optim.SGD(groups, lr=0.25)


@pytest.mark.parametrize("optimizer", [None, ModuleOptimizer()], ids=["None", "given"])
def test_the_modules_own_rates(optimizer, tmp_path):
    logger = CSVLogger(tmp_path, name="logs", version="run")
    run = trainer(
        callbacks=LearningRateMonitor(), local_optimizer=optimizer, max_rounds=2, logger=logger
    )
    run.fit(Groups(), classes())
    for record in run.history:
        assert record.metrics["lr/local"] == 0.25
        assert record.metrics["lr/local_1"] == 0.5
    assert float(run.callback_metrics["lr/local_1"]) == 0.5
    lines = (tmp_path / "logs" / "run" / "metrics.csv").read_text().splitlines()
    assert len(lines) == 3
    assert "lr/local_1" in lines[0].split(",")
