"""The features of several branches at once: logging, data sets, sanity check, predict."""

import pytest
import torch
from lightning.pytorch import callbacks as theirs
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from fedlight import Callback, FedTrainer
from fedlight.aggregators import AFACD
from fedlight.arrivals import UniformArrivals
from fedlight.callbacks import EarlyStopping
from tests.boring import Point, fitted, points, trainer


def _trainer(**options):
    return FedTrainer(
        arrivals=UniformArrivals(per_round=1),
        aggregator=AFACD(),
        max_rounds=2,
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        **options,
    )


class Seen(Point):
    def __init__(self):
        super().__init__()
        self.seen = []
        self.metric = MeanMetric()

    def validation_step(self, batch, batch_idx):
        trainer = self.trainer
        self.seen.append((trainer.sanity_checking, trainer.validating, trainer.evaluating))
        self.metric(batch[0].float().mean())
        self.log("val_metric", self.metric, on_step=True, on_epoch=True)

    def on_predict_start(self):
        self.seen.append(self.trainer.predicting)

    def predict_step(self, batch, batch_idx):
        return batch[0].sum(1)


def test_the_sanity_check_is_a_stage_of_its_own():
    module = Seen()
    trainer = _trainer(num_sanity_val_steps=1)
    trainer.fit(module, points([1.0], [2.0], val=[1.5, 2.5]))
    assert module.seen[0] == (True, False, True)
    assert set(module.seen[1:]) == {(False, True, True)}
    assert {"val_metric_step", "val_metric_epoch"} <= trainer.logged_metrics.keys()


def test_predict_lends_the_trainer_to_the_module():
    module = Seen()
    found = _trainer(limit_predict_batches=1).predict(
        module, dataset=TensorDataset(torch.ones(3, 4))
    )
    assert torch.equal(found[0], torch.full((3,), 4.0))
    assert module.seen == [True]


def test_a_fit_goes_on_after_a_validation_in_inference_mode():
    module, data = Seen(), points([1.0], [2.0], val=[1.5, 2.5])
    trainer = _trainer()
    trainer.validate(module, data)
    trainer.fit(module, data)
    (found,) = trainer.validate(module, data)
    assert found["val_metric_epoch"] == 2.0


def test_what_is_logged_after_the_last_round_is_named():
    class Logs(Point):
        def on_train_end(self):
            self.log("late", 1.0)

    with pytest.warns(UserWarning, match="self.log of late comes after the last round"):
        run = fitted(Logs(), points([1.0], [2.0]), max_rounds=1)
    assert "late" not in run.callback_metrics


def test_early_stopping_without_anything_to_look_at_says_so():
    data = points([1.0], [2.0])
    with pytest.warns(UserWarning, match="EarlyStopping monitors 'val_error', which no round had"):
        fitted(
            Point(), data, max_rounds=2, limit_val_batches=0, callbacks=EarlyStopping("val_error")
        )


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"limit_val_batches": -1}, ValueError, "limit_val_batches must be 0 or larger, got -1"),
        ({"resume_from_checkpoint": "a"}, TypeError, "write trainer.fit.*ckpt_path="),
        ({"gpus": 1}, TypeError, 'write accelerator="gpu"'),
    ],
)
def test_arguments_that_are_out_of_range_or_of_lightning_1(given, error, text):
    with pytest.raises(error, match=text):
        trainer(**given)


def test_callbacks_of_the_module_and_its_data_at_every_verb(tmp_path):
    called = []

    class Notes(Callback):
        def on_validation_start(self, trainer, module):
            called.append("callback")

    class Own(Point):
        def configure_callbacks(self):
            return [Notes()]

        def prepare_data(self):
            called.append("prepare_data")

        def forward(self, x):
            return x

    run = trainer(max_rounds=1)
    run.validate(Own(), points([1.0], [2.0]))
    assert called == ["prepare_data", "callback"]
    called.clear()
    run.predict(Own(), dataloaders=[torch.ones(1)])
    assert called == ["prepare_data"]


def test_the_trainer_itself_answers_what_self_trainer_does(tmp_path):
    run = trainer(max_rounds=2, callbacks=theirs.ModelCheckpoint(tmp_path, monitor="val_error"))
    with pytest.raises(AttributeError, match="no 'lightning_module' before it has a module"):
        run.lightning_module  # noqa: B018
    module = Point()
    run.fit(module, points([1.0], [2.0]))
    assert run.lightning_module is module
    assert run.checkpoint_callback.best_model_path.endswith(".ckpt")
    assert run.max_epochs == 2
    assert run.is_global_zero
    assert not run.training
    assert not hasattr(run, "daten")
    with pytest.raises(AttributeError, match="no attribute 'fit_loop': a federation has no epochs"):
        run.fit_loop  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute '_private'"):
        run._private  # noqa: B018


def test_loaders_may_be_the_second_argument_of_predict_as_in_lightning():
    class Doubles(Point):
        def forward(self, x):
            return 2 * x

    loader = DataLoader(torch.arange(4.0), 2)
    run = trainer()
    assert torch.cat(run.predict(Doubles(), loader)).tolist() == [0, 2, 4, 6]
    assert len(run.predict(Doubles(), [loader, loader])) == 2


def test_the_time_of_a_scheduler_is_mentioned(caplog):
    class Schedules(Point):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    with caplog.at_level("INFO"):
        fitted(Schedules(), points([1.0], [2.0]), local_optimizer=None, max_rounds=1)
    assert (
        "the scheduler of Schedules starts anew in each task and counts its local steps"
        in caplog.text
    )
