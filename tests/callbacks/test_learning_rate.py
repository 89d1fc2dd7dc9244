import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from fedlight.aggregators import FedAsync, FedAvg
from fedlight.arrivals import ContinuousArrivals, FixedDurations
from fedlight.callbacks import LearningRateMonitor
from fedlight.local_optimizers import FedProx, LocalSGD, ModuleOptimizer
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
