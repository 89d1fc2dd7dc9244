"""What a module logs, under `lightning.Trainer` and under `FedTrainer`."""

import warnings

import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics import MaxMetric, MeanMetric, MeanSquaredError, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from fedlight import Callback
from fedlight.aggregators import FedAvg
from fedlight.arrivals import PerClientSteps, SynchronousArrivals
from fedlight.local_optimizers import LocalSGD
from tests.boring import Boring, Point, classes, fitted, points, trainer
from tests.parity.conftest import run_both

NUMBERS = TensorDataset(torch.arange(12.0, dtype=torch.float64).reshape(-1, 1))
SEVEN = TensorDataset(torch.arange(7.0, dtype=torch.float64).reshape(-1, 1))


class Weight(LightningModule):
    """One number; what is logged follows from the data alone."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def training_step(self, batch, batch_idx):
        return ((self.w - batch[0]) ** 2).mean()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def judged(module, executor, names, **kwargs):
    """Both trainers hold the same newest values of the names."""
    both = run_both(module, NUMBERS, executor=executor, val=SEVEN, eval_batch_size=3, **kwargs)
    both.same_metrics(*names, abs=1e-6)
    return both


REDUCTIONS = ["mean", "sum", "max", "min", "AVG", torch.mean, torch.sum, torch.max, torch.min, max]


def _told(reduce_fx):  # the words of a function of torch hold its address
    if isinstance(reduce_fx, str):
        return reduce_fx
    return f"{reduce_fx.__name__} of {type(reduce_fx.__self__).__name__}"


@pytest.mark.parametrize("reduce_fx", REDUCTIONS, ids=_told)
def test_reduce_fx_of_a_validation(executor, reduce_fx):
    class Logs(Weight):
        def validation_step(self, batch, batch_idx):
            self.log("size", float(len(batch[0])), reduce_fx=reduce_fx)
            self.log("sum", batch[0].sum(), reduce_fx=reduce_fx)
            self.log("first", batch[0][0], reduce_fx=reduce_fx, batch_size=1)

    judged(Logs, executor, ["size", "sum", "first"])


def test_the_right_values_of_a_validation(executor):
    class Logs(Weight):
        def validation_step(self, batch, batch_idx):
            self.log("sum", float(len(batch[0])), reduce_fx="sum")
            self.log("max", batch[0].max(), reduce_fx="max")
            self.log("min", batch[0].min(), reduce_fx="min")

    fed = judged(Logs, executor, ["sum", "max", "min"]).fed
    assert {name: float(fed.callback_metrics[name]) for name in ("sum", "max", "min")} == {
        "sum": 7.0,
        "max": 6.0,
        "min": 0.0,
    }


@pytest.mark.parametrize("reduce_fx", ["mean", "sum", "max", "min"])
@pytest.mark.parametrize("on_step", [False, True, None])
def test_reduce_fx_of_the_training(executor, reduce_fx, on_step):
    class Logs(Weight):
        def training_step(self, batch, batch_idx):
            x = batch[0].mean()
            self.log("x", x, reduce_fx=reduce_fx, on_epoch=True, on_step=on_step)
            self.log("own", x, reduce_fx=reduce_fx, on_epoch=True, on_step=on_step, batch_size=7)
            return super().training_step(batch, batch_idx)

    names = ["x", "own"]
    if on_step is not False:  # Lightning's default in training_step is True
        names += ["x_step", "x_epoch", "own_step", "own_epoch"]
    judged(Logs, executor, names)


@pytest.mark.parametrize("on_epoch", [False, None])
def test_the_value_of_the_last_step(executor, on_epoch):
    class Logs(Weight):
        def training_step(self, batch, batch_idx):
            self.log("x", batch[0].mean(), on_step=True, on_epoch=on_epoch)
            return super().training_step(batch, batch_idx)

    both = judged(Logs, executor, ["x"])
    assert "x_step" not in both.fed.callback_metrics


def test_one_thing_differs_the_default_of_training_step_is_the_mean(executor):
    class Logs(Weight):
        def training_step(self, batch, batch_idx):
            self.log("x", batch[0].mean())
            self.log("mean", batch[0].mean(), on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

    fed = judged(Logs, executor, ["mean"]).fed
    assert fed.history[-1].metrics["x"] == fed.history[-1].metrics["mean"]


def test_on_step_in_a_validation(executor):
    class Logs(Weight):
        def validation_step(self, batch, batch_idx):
            self.log("both", batch[0].mean(), on_step=True)
            self.log("step", batch[0].mean(), on_step=True, on_epoch=False)

    both = judged(Logs, executor, ["both", "both_epoch"])
    for name in ("both_step", "both_epoch", "step"):
        theirs = float(both.trainer.logged_metrics[name])
        assert float(both.fed.logged_metrics[name]) == pytest.approx(theirs, abs=1e-6)
    assert "both" not in both.fed.logged_metrics


def test_names_of_loggers_progress_bar_and_callbacks(executor):
    class Logs(Weight):
        def training_step(self, batch, batch_idx):
            self.log("a", batch[0].mean(), on_step=True, on_epoch=True, prog_bar=True)
            self.log("b", batch[0].mean(), on_step=False, on_epoch=True, logger=False)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.log("v", batch[0].mean(), prog_bar=True, logger=False)
            self.log_dict({"d": 1.0, "e": torch.tensor(2.0)}, prog_bar=True)

    both = judged(Logs, executor, ["a", "a_step", "a_epoch", "b", "v", "d", "e"])
    theirs, ours = both.trainer, both.fed
    assert ours.progress_bar_metrics == pytest.approx(theirs.progress_bar_metrics)
    for kind in ("logged_metrics", "callback_metrics"):
        known = {name for name in getattr(ours, kind) if not name.startswith("fed/")}
        assert known == set(getattr(theirs, kind))


def test_logger_false_stays_out_of_all_files(tmp_path, executor):
    class Logs(Point):
        def training_step(self, batch, batch_idx):
            self.log("hidden", 1.0, logger=False)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.log("val_hidden", 1.0, logger=False)
            self.log("val_shown", 1.0)

    run = fitted(
        Logs(),
        points([1.0], [2.0]),
        arrivals=SynchronousArrivals(),
        aggregator=FedAvg(),
        max_rounds=2,
        executor=executor,
        logger=CSVLogger(tmp_path, name="", version=0),
    )
    header = (tmp_path / "version_0" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"train_loss", "val_shown"} <= set(header)
    assert not {"hidden", "val_hidden"} & set(header)
    assert run.callback_metrics["hidden"] == run.callback_metrics["val_hidden"] == 1.0
    assert run.history[-1].metrics["hidden"] == 1.0


def test_how_a_name_is_shown_survives_a_checkpoint(tmp_path):
    class Logs(Point):
        def training_step(self, batch, batch_idx):
            self.log("hidden", 1.0, logger=False, prog_bar=True)
            self.log("most", batch[0].max(), reduce_fx="max")
            return super().training_step(batch, batch_idx)

    def run(rounds, path=None):
        made = trainer(
            arrivals=SynchronousArrivals(),
            aggregator=FedAvg(),
            max_rounds=rounds,
            logger=CSVLogger(tmp_path, name="", version=0),
        )
        made.fit(Logs(), points([1.0, 5.0], [2.0]), ckpt_path=path)
        return made

    run(2).save_checkpoint(tmp_path / "two.ckpt")
    again = run(3, tmp_path / "two.ckpt")
    assert again.progress_bar_metrics == {"hidden": 1.0}
    assert again.history[0].metrics.unlogged == {"hidden"}
    assert [record.metrics["most"] for record in again.history] == [5.0] * 3
    assert "hidden" not in (tmp_path / "version_0" / "metrics.csv").read_text()


def test_sums_and_extremes_over_several_clients(executor):
    class Logs(Point):
        def training_step(self, batch, batch_idx):
            x = batch[0].mean()
            for reduce_fx in ("mean", "sum", "max", "min"):
                self.log(reduce_fx, x, reduce_fx=reduce_fx, prog_bar=True)
            self.log("last", x * (batch_idx + 1), on_step=True)
            return super().training_step(batch, batch_idx)

    run = fitted(
        Logs(),
        points([1.0], [4.0, 4.0, 4.0]),
        arrivals=SynchronousArrivals(local_steps=2),
        aggregator=FedAvg(),
        max_rounds=1,
        executor=executor,
    )
    metrics = run.history[0].metrics
    assert metrics["mean"] == pytest.approx((1 + 3 * 4) / 4)  # weighted by examples
    assert metrics["sum"] == 2 * 1 + 2 * 4  # over all local steps
    assert (metrics["max"], metrics["min"]) == (4.0, 1.0)
    assert metrics["last"] == pytest.approx((2 * 1 + 3 * 8) / 4)


def test_clients_with_different_numbers_of_steps_agree():
    class Logs(Boring):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            for reduce_fx in ("mean", "sum", "max", "min"):
                self.log(f"{reduce_fx}", loss, reduce_fx=reduce_fx, on_step=True, on_epoch=True)
            self.log("lr", 0.1)
            return loss

    found = []
    for executor in ("sequential", "vectorized"):
        run = trainer(
            arrivals=SynchronousArrivals(local_steps=PerClientSteps([3, 1, 2])),
            aggregator=FedAvg(),
            local_optimizer=LocalSGD(0.1),
            executor=executor,
            precision="64-true",
            max_rounds=2,
        )
        torch.manual_seed(0)
        run.fit(Logs(), classes((9, 5, 8), batch_size=4))
        found.append([dict(record.metrics) for record in run.history])
    for one, other in zip(*found, strict=True):
        assert one.keys() == other.keys()
        assert other == pytest.approx(one, rel=1e-12, abs=1e-12)


# --- what is refused, by name ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reduce_fx": "median"}, r"reduce_fx must be 'mean', 'sum', 'max' or 'min'"),
        ({"reduce_fx": torch.median}, r"reduce_fx must be 'mean', 'sum', 'max' or 'min'"),
        ({"on_step": False, "on_epoch": False}, r"on_step=False, on_epoch=False\) logs nothing"),
        ({"name": "fed/time"}, r"names that begin with 'fed/' belong to FedTrainer"),
        ({"value": torch.ones(3)}, r"tensor of shape \(3,\); log value.mean\(\)"),
        ({"value": {"b": 1.0}}, "use self.log_dict"),
        ({"name": 5}, "the name must be a string, got int"),
        ({"batch_size": "4"}, r"batch_size='4'\): the number of examples must be a number"),
        ({"value": MeanMetric()}, r"MeanMetric\(\), which is no attribute .* assign it to self in"),
    ],
)
@pytest.mark.parametrize("where", ["training_step", "validation_step"])
def test_refused(executor, where, arguments, message):
    given = {"name": "a", "value": 1.0} | arguments

    class Logs(Point):
        def training_step(self, batch, batch_idx):
            if where == "training_step":
                self.log(**given)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.log(**given)

    with pytest.raises((ValueError, TypeError, RuntimeError), match=message) as caught:
        fitted(
            Logs(),
            points([1.0]),
            arrivals=SynchronousArrivals(),
            aggregator=FedAvg(),
            max_rounds=1,
            executor=executor,
        )
    assert f"self.log({given['name']!r}" in str(caught.value)


def test_a_name_that_is_logged_in_two_ways(executor):
    class Logs(Point):
        def training_step(self, batch, batch_idx):
            self.log("a", 1.0)
            self.log("a", 1.0, reduce_fx="max")
            return super().training_step(batch, batch_idx)

    with pytest.raises((ValueError, RuntimeError), match=r"self.log\('a', …\) is called with"):
        fitted(
            Logs(),
            points([1.0]),
            arrivals=SynchronousArrivals(),
            aggregator=FedAvg(),
            max_rounds=1,
            executor=executor,
        )


def test_enable_graph_is_said_to_do_nothing():
    class Logs(Point):
        def validation_step(self, batch, batch_idx):
            self.log("with graph", 1.0, enable_graph=True)

    with pytest.warns(UserWarning, match="enable_graph has no effect"):
        fitted(
            Logs(),
            points([1.0]),
            arrivals=SynchronousArrivals(),
            aggregator=FedAvg(),
            max_rounds=1,
        )


def test_arguments_for_several_processes_do_nothing_as_on_one_device(executor):
    class Logs(Weight):
        def training_step(self, batch, batch_idx):
            self.log("x", batch[0].mean(), on_step=False, on_epoch=True, sync_dist=True)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.log("v", batch[0].mean(), sync_dist=True, rank_zero_only=True)

    judged(Logs, executor, ["x", "v"])


# --- metric objects ---


class Objects(Boring):
    def __init__(self) -> None:
        super().__init__()
        self.acc = MulticlassAccuracy(3, average="micro")
        self.listed = nn.ModuleList([MeanSquaredError()])
        self.both = MetricCollection({"acc": MulticlassAccuracy(3), "max": MaxMetric()})
        self.val = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        self.acc(scores, y)
        self.listed[0].update(scores.max(-1).values, y.to(scores.dtype))
        self.log("acc", self.acc, on_step=True, on_epoch=True, prog_bar=True)
        self.log("listed", self.listed[0], on_step=False, on_epoch=True, logger=False)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.val(self(x), y)
        self.log("val", self.val, on_step=True, on_epoch=True)


def test_metric_objects(executor):
    both = run_both(Objects, executor=executor)
    both.same_weights()
    both.same_metrics("acc", "acc_step", "acc_epoch", "listed", "val", "val_epoch", abs=1e-6)
    assert both.fed.progress_bar_metrics == pytest.approx(both.trainer.progress_bar_metrics)
    assert "listed" not in both.fed.logged_metrics


LOOSE = {}


@pytest.mark.parametrize("where", ["list", "dict", "global", "local"])
def test_a_metric_that_is_no_part_of_the_module(executor, where):
    """In Lightning it is refused, too: it would not move with the module."""

    class Loose(Boring):
        def __init__(self) -> None:
            super().__init__()
            self.listed, self.named = [MeanMetric()], {"a": MeanMetric()}
            LOOSE["a"] = MeanMetric()

        def training_step(self, batch, batch_idx):
            metric = {
                "list": self.listed[0],
                "dict": self.named["a"],
                "global": LOOSE["a"],
                "local": MeanMetric(),
            }[where]
            metric.update(batch[0].sum() * self(batch[0]).mean())
            self.log("loose", metric)
            return super().training_step(batch, batch_idx)

    with pytest.raises(
        (RuntimeError, ValueError),
        match=r"MeanMetric\(\), which is no attribute of Loose: assign it to self in __init__",
    ):
        run_both_fed(Loose, executor)


def test_a_metric_of_several_values(executor):
    class Each(Boring):
        def __init__(self) -> None:
            super().__init__()
            self.acc = MulticlassAccuracy(3, average=None)

        def training_step(self, batch, batch_idx):
            self.acc.update(self(batch[0]), batch[1])
            self.log("each", self.acc)
            return super().training_step(batch, batch_idx)

    with pytest.raises(
        (RuntimeError, ValueError), match=r"self.log\('each', …\) takes one number, got a tensor"
    ):
        run_both_fed(Each, executor)


def test_a_metric_that_gives_a_dictionary(executor):
    class Named(MeanMetric):
        def compute(self):
            value = super().compute()
            return {"one": value, "two": 2 * value}

    class Logs(Boring):
        def __init__(self) -> None:
            super().__init__()
            self.named = Named()

        def training_step(self, batch, batch_idx):
            self.named.update(batch[0])
            self.log("named", self.named)
            return super().training_step(batch, batch_idx)

    metrics = run_both_fed(Logs, executor).history[-1].metrics
    assert metrics["two"] == pytest.approx(2 * metrics["one"])
    assert "named" not in metrics


def run_both_fed(module, executor):
    """The `FedTrainer` alone, on what `run_both` gives it."""
    run = trainer(
        arrivals=SynchronousArrivals(local_steps=2),
        aggregator=FedAvg(),
        local_optimizer=LocalSGD(0.1),
        executor=executor,
        max_rounds=1,
    )
    run.fit(module(), classes((8, 8), batch_size=4))
    return run


# --- other places ---


def test_hooks_outside_of_steps(executor):
    class Logs(Point):
        def on_train_start(self):
            self.log("at_start", 3.0, prog_bar=True)

        def on_validation_epoch_end(self):
            self.log("at_end", 4.0, logger=False)

    class Asks(Callback):
        def on_round_end(self, trainer, module):
            module.log("by_callback", float(trainer.version))

    run = fitted(
        Logs(),
        points([1.0]),
        arrivals=SynchronousArrivals(),
        aggregator=FedAvg(),
        max_rounds=2,
        executor=executor,
        callbacks=[Asks()],
    )
    first, second = (record.metrics for record in run.history)
    assert (first["at_start"], first["at_end"], first["by_callback"]) == (3.0, 4.0, 1.0)
    assert "at_start" not in second
    assert second["by_callback"] == 2.0
    assert run.progress_bar_metrics == {"at_start": 3.0}
    assert "at_end" not in run.logged_metrics


def test_a_later_hook_replaces_what_a_step_has_logged(executor):
    class Logs(Weight):
        def validation_step(self, batch, batch_idx):
            self.log("v", batch[0].mean())

        def on_validation_epoch_end(self):
            self.log("v", 100.0, prog_bar=True)

    assert judged(Logs, executor, ["v"]).fed.callback_metrics["v"] == 100.0


def test_a_name_of_training_and_validation_is_said_once():
    class Logs(Point):
        def training_step(self, batch, batch_idx):
            self.log("shared name", 1.0)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            self.log("shared name", 2.0)

    def run():
        return fitted(
            Logs(),
            points([1.0]),
            arrivals=SynchronousArrivals(),
            aggregator=FedAvg(),
            max_rounds=4,
            check_val_every_n_rounds=2,
        )

    with pytest.warns(UserWarning, match=r"self.log\('shared name', …\) is called in training and"):
        values = [record.metrics["shared name"] for record in run().history]
    assert values == [1.0, 2.0, 1.0, 2.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run()


@pytest.mark.parametrize(
    "value", [0.1, 1, torch.tensor(0.1), torch.tensor(2), torch.tensor([0.5]), torch.tensor(True)]
)
def test_plain_numbers_are_stacked(value):
    class Logs(Boring):
        def training_step(self, batch, batch_idx):
            self.log("value", value)
            return super().training_step(batch, batch_idx)

    run = run_both_fed(Logs, "auto")
    assert run.run.executor_reason == "the module can be stacked"
    assert run.history[-1].metrics["value"] == pytest.approx(float(value))


def test_validate_and_test_give_what_loggers_get():
    class Logs(Point):
        def validation_step(self, batch, batch_idx):
            self.log("shown", 1.0)
            self.log("hidden", 1.0, logger=False)

    run = fitted(
        Logs(),
        points([1.0]),
        arrivals=SynchronousArrivals(),
        aggregator=FedAvg(),
        max_rounds=1,
    )
    assert run.validate() == [{"shown": 1.0}]
    assert run.callback_metrics["hidden"] == 1.0
