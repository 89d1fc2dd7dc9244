import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.utils.data import TensorDataset

from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import FedAvg
from fedlight.arrivals import ReplayArrivals, ReplayEvent, SynchronousArrivals
from fedlight.callbacks import LearningRateMonitor
from fedlight.executors import ClientError
from fedlight.local_optimizers import LocalSGD, ModuleOptimizer


class Slope(LightningModule):
    """A loss whose gradient is 1 for each parameter: the steps made are the rates used."""

    def __init__(self, configure) -> None:
        super().__init__()
        self.x, self.y = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self._configure = configure

    def training_step(self, batch, batch_idx):
        return (self.x + self.y).sum()

    def configure_optimizers(self):
        return self._configure(self)


def fit(module, steps=4, visits=1, optimizer=None):
    events = [ReplayEvent(0, visit, 1.0 + visit, steps) for visit in range(visits)]
    trainer = FedTrainer(
        arrivals=ReplayArrivals(events),
        aggregator=FedAvg(1),
        local_optimizer=optimizer,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
    )
    data = [TensorDataset(torch.zeros(2, 1))]
    trainer.fit(module, FederatedDataModule.from_client_datasets(data, batch_size=1))
    return trainer


def sgd(module, **options):
    return torch.optim.SGD(module.parameters(), lr=1.0, **options)


def halves(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def scheduled(module, **more):
    optimizer = sgd(module)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": halves(optimizer), **more}}


def pair(module):
    optimizer = sgd(module)
    return [optimizer], [halves(optimizer)]


def pair_of_dicts(module):
    optimizer = sgd(module)
    return [optimizer], [{"scheduler": halves(optimizer), "interval": "step"}]


def bare(module):
    optimizer = sgd(module)
    return {"optimizer": optimizer, "lr_scheduler": halves(optimizer)}


PLAIN, HALVED = -4.0, -(1 + 0.5 + 0.25 + 0.125)


@pytest.mark.parametrize(
    ("configure", "after"),
    [
        (sgd, PLAIN),
        (lambda module: [sgd(module)], PLAIN),
        (lambda module: (sgd(module),), PLAIN),
        (lambda module: {"optimizer": sgd(module)}, PLAIN),
        (lambda module: ([sgd(module)], []), PLAIN),
        (lambda module: [{"optimizer": sgd(module)}], PLAIN),
        (lambda module: {"optimizer": sgd(module), "lr_scheduler": None}, PLAIN),
        (bare, HALVED),
        (pair, HALVED),
        (pair_of_dicts, HALVED),
        (scheduled, HALVED),
        (lambda module: [bare(module)], HALVED),
        (lambda module: scheduled(module, interval="step", monitor="x"), HALVED),
        (lambda module: scheduled(module, frequency=2), -(1 + 1 + 0.5 + 0.5)),
        (lambda module: sgd(module, momentum=0.5), -(1 + 1.5 + 1.75 + 1.875)),
        (lambda module: scheduled(module, strict=True, name="x", reduce_on_plateau=False), HALVED),
        (lambda module: scheduled(module) | {"monitor": "x"}, HALVED),
    ],
    ids=range(17),
)
def test_what_configure_optimizers_may_give(configure, after):
    trainer = fit(Slope(configure))
    assert trainer.state.params.tolist() == [after, after]


@pytest.mark.parametrize("configure", [bare, lambda module: sgd(module, momentum=0.5)])
def test_optimizer_and_schedulers_are_fresh_for_each_task(configure):
    once, twice = fit(Slope(configure)), fit(Slope(configure), visits=2)
    assert twice.state.params.tolist() == (2 * once.state.params).tolist()


def test_a_part_of_the_parameters_may_be_trained():
    module = Slope(lambda module: torch.optim.SGD([module.y], lr=1.0))
    trainer = fit(module)
    assert trainer.state.params.tolist() == [0.0, -4.0]
    assert [param.grad for param in module.parameters()] == [None, None]


def test_it_is_what_one_gets_without_asking():
    ours, default = (fit(Slope(pair), optimizer=o) for o in (ModuleOptimizer(), None))
    assert ours.fingerprint() == default.fingerprint()
    assert isinstance(default.local_optimizer, ModuleOptimizer)


@pytest.mark.parametrize(
    ("configure", "message"),
    [
        (lambda module: None, "returns 0 optimizers, but a local run needs exactly one"),
        (lambda module: [sgd(module), sgd(module)], "returns 2 optimizers, but a local run needs"),
        (lambda module: ([sgd(module), sgd(module)], []), "returns 2 optimizers, but a local run"),
        (lambda module: "adam", "returns str; return a torch.optim.Optimizer, or a dict"),
        (lambda module: {"lr_scheduler": 1}, "returns dict; return a torch.optim.Optimizer"),
        (lambda module: torch.optim.LBFGS(module.parameters()), "returns LBFGS, which evaluates"),
        (lambda module: scheduled(module, frequency=0), "frequency must be at least 1, got 0"),
        (
            lambda module: {
                "optimizer": (optimizer := sgd(module)),
                "lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
            },
            "returns a ReduceLROnPlateau, which waits for a metric .*StepLR, or .*lambda version",
        ),
        (
            lambda module: scheduled(module, interval="epoch"),
            "interval='epoch', but a local run has no epochs; .*lambda .*versions make an epoch",
        ),
        (lambda module: scheduled(module, interval="batch"), "interval='batch', but a local run"),
        (lambda module: scheduled(module, reduce_on_plateau=True), "returns a StepLR, which waits"),
        (
            lambda module: scheduled(module, freqency=2),
            "lr_scheduler with the unknown key 'freqency'; did you mean 'frequency'",
        ),
        (
            lambda module: scheduled(module) | {"frequency": 2},
            "a dictionary with the unknown key 'frequency'; known keys are optimizer, lr_scheduler",
        ),
        (
            lambda module: {"optimizer": sgd(module), "lr_scheduler": {"interval": "step"}},
            "an lr_scheduler without the key 'scheduler'",
        ),
    ],
    ids=range(14),
)
def test_refused(configure, message):
    with pytest.raises((ValueError, ClientError), match=message):
        fit(Slope(configure))


def test_what_is_no_scheduler_is_refused_at_the_start():
    configure = [
        lambda module: {"optimizer": sgd(module), "lr_scheduler": "cosine"},
        lambda module: {"optimizer": sgd(module), "lr_scheduler": {"scheduler": 0.5}},
    ]
    for each in configure:
        with pytest.raises(TypeError, match=r"the lr_scheduler .*, which has no step\(\)"):
            fit(Slope(each))


@pytest.mark.parametrize("options", [{"weight_decay": 0.5}, {"max_grad_norm": 0.5}], ids=str)
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_parameters_that_share_a_gradient_are_stepped_once(options, executor):
    """The gradients of x and y are one tensor: what is added to one must not reach the other."""
    x, y, params = 1.0, 3.0, torch.nn.Parameter(torch.tensor([1.0, 3.0]))
    reference = torch.optim.SGD([params], lr=0.1, weight_decay=options.get("weight_decay", 0.0))
    params.grad = torch.ones(2)
    if "max_grad_norm" in options:
        torch.nn.utils.clip_grad_norm_([params], options["max_grad_norm"])
    reference.step()
    module = Slope(sgd)
    with torch.no_grad():
        module.x.fill_(x)
        module.y.fill_(y)
    trainer = FedTrainer(
        arrivals=ReplayArrivals([ReplayEvent(0, 0, 1.0, 1)]),
        aggregator=FedAvg(1),
        local_optimizer=LocalSGD(0.1, **options),
        executor=executor,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
    )
    data = [TensorDataset(torch.zeros(2, 1))]
    trainer.fit(module, FederatedDataModule.from_client_datasets(data, batch_size=1))
    torch.testing.assert_close(trainer.state.params, params.detach())


# --- schedules over versions ---


def cosine(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)


BY_VERSION = {
    "StepLR": (lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5), {}, [1, 1, 0.5, 0.5, 0.25]),
    "epoch": (halves, {"interval": "epoch"}, [1, 0.5, 0.25, 0.125, 0.0625]),
    "frequency": (halves, {"frequency": 2}, [1, 1, 0.5, 0.5, 0.25]),
    # (1 + cos(pi v / 4)) / 2
    "cosine": (cosine, {}, [1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4, 0]),
}


def with_scheduler(make, options):
    def configure(module):
        optimizer = sgd(module)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), **options}}

    return configure


@pytest.mark.parametrize("name", BY_VERSION)
def test_a_schedule_stands_at_the_pulled_version(name):
    make, options, expected = BY_VERSION[name]
    module = Slope(with_scheduler(make, options))
    trainer = fit(module, steps=3, visits=5, optimizer=ModuleOptimizer(schedule="version"))
    assert trainer.state.params.tolist() == pytest.approx([-3 * sum(expected)] * 2)
    rates = [trainer.local_optimizer.rates(module, version) for version in (4, 1, 3, 0)]
    assert [each[0] for each in rates] == pytest.approx([expected[v] for v in (4, 1, 3, 0)])


def test_versions_may_be_pulled_in_any_order():
    events = [ReplayEvent(0, 0, 1.0, 1), ReplayEvent(1, 0, 2.0, 1)]
    events += [ReplayEvent(0, 2, 3.0, 1), ReplayEvent(1, 1, 4.0, 1)]
    module = Slope(with_scheduler(halves, {}))
    trainer = FedTrainer(
        arrivals=ReplayArrivals(events, pull="recorded"),
        aggregator=FedAvg(1),
        local_optimizer=ModuleOptimizer(schedule="version"),
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
    )
    data = [TensorDataset(torch.zeros(2, 1))] * 2
    trainer.fit(module, FederatedDataModule.from_client_datasets(data, batch_size=1))
    pulled = [used.pulled_version for each in trainer.history for used in each.updates]
    assert trainer.state.params[0].item() == -sum(0.5**version for version in pulled)
    assert pulled != sorted(pulled)


def test_a_scheduler_of_a_fixed_length_ends_with_the_run():
    def configure(module):
        optimizer = sgd(module)
        total = module.trainer.max_epochs
        made = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=total)
        return [optimizer], [made]

    def judge(rounds):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        made = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=rounds)
        for _ in range(rounds):
            yield optimizer.param_groups[0]["lr"]
            optimizer.step()
            made.step()

    trainer = FedTrainer(
        arrivals=SynchronousArrivals(local_steps=1),
        aggregator=FedAvg(),
        local_optimizer=ModuleOptimizer(schedule="version"),
        max_rounds=5,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
    )
    data = FederatedDataModule.from_client_datasets([TensorDataset(torch.zeros(2, 1))])
    trainer.fit(Slope(configure), data)
    assert trainer.state.params[0].item() == pytest.approx(-sum(judge(5)))


def test_a_resumed_run_has_the_rates_of_one_that_never_stopped(tmp_path):
    def run(rounds, path=None):
        trainer = FedTrainer(
            arrivals=SynchronousArrivals(local_steps=2),
            aggregator=FedAvg(),
            local_optimizer=ModuleOptimizer(schedule="version"),
            max_rounds=rounds,
            callbacks=LearningRateMonitor(),
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
        )
        data = FederatedDataModule.from_client_datasets([TensorDataset(torch.zeros(2, 1))])
        trainer.fit(Slope(with_scheduler(cosine, {})), data, ckpt_path=path)
        return trainer

    run(3).save_checkpoint(tmp_path / "a.ckpt")
    whole, resumed = run(5), run(5, tmp_path / "a.ckpt")
    assert whole.fingerprint() == resumed.fingerprint()
    shown = [record.metrics["lr/local"] for record in whole.history]
    assert shown == pytest.approx([*BY_VERSION["cosine"][2][1:], (2 - 2**0.5) / 4])


def test_a_scheduler_that_starts_anew_is_named_with_the_option(caplog):
    class Anew(Slope):
        pass

    with caplog.at_level("INFO"):
        fit(Anew(with_scheduler(cosine, {"interval": "step"})))
        fit(Anew(with_scheduler(cosine, {"interval": "step"})))
    said = [each.message for each in caplog.records if "starts anew" in each.message]
    assert len(said) == 1
    assert 'ModuleOptimizer(schedule="version")' in said[0]


# --- clipping, and the objects in a step ---


def test_gradients_are_clipped_as_by_lightning():
    # The gradient (1, 1) has the norm sqrt(2): clipped to 0.5 each part is 0.5 / sqrt(2).
    trainer = fit(Slope(sgd), steps=1, optimizer=ModuleOptimizer(max_grad_norm=0.5))
    clipped = 0.5 / (2**0.5 + 1e-6)
    assert trainer.state.params.tolist() == pytest.approx([-clipped] * 2, rel=1e-6)
    # Of an optimizer of y alone the norm is 1, as Lightning clips the optimizer's parameters.
    module = Slope(lambda module: torch.optim.SGD([module.y], lr=1.0))
    trainer = fit(module, steps=1, optimizer=ModuleOptimizer(max_grad_norm=0.5))
    assert trainer.state.params.tolist() == pytest.approx([0.0, -0.5], rel=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"schedule": "round"}, ValueError, "schedule must be one of 'task', 'version'"),
        ({"max_grad_norm": 0}, ValueError, "max_grad_norm must be larger than 0"),
        ({"max_grad_norm": "1"}, TypeError, "max_grad_norm must be a number"),
    ],
)
def test_bad_arguments(options, error, words):
    with pytest.raises(error, match=words):
        ModuleOptimizer(**options)


def test_a_step_sees_the_running_optimizer_and_scheduler():
    seen = []

    class Looks(Slope):
        def training_step(self, batch, batch_idx):
            scheduler = self.lr_schedulers()
            (own,) = self.trainer.optimizers
            assert self.optimizers(use_pl_optimizer=False) is own
            assert scheduler.optimizer is own
            seen.append((own.param_groups[0]["lr"], scheduler.get_last_lr()))
            return super().training_step(batch, batch_idx)

        def on_train_end(self):
            assert self.trainer.optimizers == []
            assert self.lr_schedulers() is None

    fit(Looks(pair), steps=3)
    assert seen == [(1.0, [1.0]), (0.5, [0.5]), (0.25, [0.25])]
    seen.clear()
    fit(Looks(pair), steps=1, visits=3, optimizer=ModuleOptimizer(schedule="version"))
    assert seen == [(1.0, [1.0]), (0.5, [0.5]), (0.25, [0.25])]


def test_an_index_error_in_a_step_is_no_matter_of_labels():
    class Looks(Slope):
        def training_step(self, batch, batch_idx):
            return self.trainer.optimizers[0]

    with pytest.raises(ClientError) as caught:
        fit(Looks(sgd), optimizer=LocalSGD(0.1))
    assert "integers are" not in str(caught.value)
