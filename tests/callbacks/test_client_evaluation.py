import datasets
import numpy as np
import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.loggers import CSVLogger

from data_partitioners import IidPartitioner, NaturalIdPartitioner
from fedlight import FederatedDataModule
from fedlight.arrivals import UniformArrivals
from fedlight.callbacks import ClientEvaluation
from fedlight.data.examples import ExampleTable
from tests.boring import Boring, Point, classes, points, replay, trainer


class Accurate(Point):
    """Says of each client how near w is, as a loss and as something to be made large."""

    def validation_step(self, batch, batch_idx):
        error = (self.w - batch[0]).abs().mean()
        self.log_dict({"val_loss": error, "val_acc": -error})


def test_mean_spread_and_worst_by_hand():
    # w stays 0: the only update comes from a client that holds zeros
    values = [[0.0], [1.0], [2.0, 4.0], *([[5.0]] * 8)]
    callback = ClientEvaluation()
    run = trainer(arrivals=replay((0, 0, 1.0, 1), round_ends=[1.0]), callbacks=callback)
    run.fit(Accurate(), points(*values))
    losses = np.array([0, 1, 3, *([5] * 8)], dtype=float)
    assert callback.last["val_loss"].tolist() == losses.tolist()
    metrics = run.history[0].metrics
    assert metrics["clients/val_loss_mean"] == pytest.approx(44 / 11)
    assert metrics["clients/val_loss_std"] == pytest.approx(losses.std())
    assert metrics["clients/val_loss_worst_tenth"] == 5.0  # two of eleven
    assert metrics["clients/val_acc_mean"] == pytest.approx(-44 / 11)
    assert metrics["clients/val_acc_worst_tenth"] == -5.0
    assert float(run.callback_metrics["clients/val_loss_mean"]) == pytest.approx(44 / 11)


def test_weights_by_examples_and_words_that_tell_what_is_worse():
    callback = ClientEvaluation(client_weights="examples", lower_is_better=["acc"])
    run = trainer(arrivals=replay((0, 0, 1.0, 1), round_ends=[1.0]), callbacks=callback)
    run.fit(Accurate(), points([0.0], [2.0, 4.0]))
    metrics = run.history[0].metrics
    assert metrics["clients/val_loss_mean"] == pytest.approx((0 + 2 * 3) / 3)
    assert metrics["clients/val_loss_std"] == pytest.approx(((4 + 2 * 1) / 3) ** 0.5)
    assert metrics["clients/val_loss_worst_tenth"] == 0.0
    assert metrics["clients/val_acc_worst_tenth"] == 0.0


def test_the_training_data_are_moved_to_the_device_once(monkeypatch):
    data, moved = points([0.0], [2.0]), []
    to = ExampleTable.to
    monkeypatch.setattr(
        ExampleTable, "to", lambda table, *args: moved.append(table) or to(table, *args)
    )
    trainer(callbacks=ClientEvaluation(every_n_rounds=1)).fit(Accurate(), data)
    assert [table is data.train_data for table in moved].count(True) == 1


def test_the_cost_is_bounded():
    callback = ClientEvaluation(max_clients=3, max_examples=2)
    run = trainer(callbacks=callback, seed=5)
    run.fit(Boring(), classes(sizes=[6] * 9))
    assert len(set(callback.clients.tolist())) == 3
    assert callback.last["val_loss"].shape == (3,)
    again = ClientEvaluation(max_clients=3)
    trainer(callbacks=again, seed=5).fit(Boring(), classes(sizes=[6] * 9))
    assert again.clients.tolist() == callback.clients.tolist()
    other = ClientEvaluation(max_clients=3)
    trainer(callbacks=other, seed=6).fit(Boring(), classes(sizes=[6] * 9))
    assert other.clients.tolist() != callback.clients.tolist()


def test_only_the_first_examples_are_looked_at():
    callback = ClientEvaluation(max_examples=1)
    run = trainer(arrivals=replay((0, 0, 1.0, 1), round_ends=[1.0]), callbacks=callback)
    run.fit(Accurate(), points([0.0, 9.0], [2.0, 9.0], batch_size=1))
    first = run.module.w.item()
    assert callback.last["val_loss"].tolist() == pytest.approx([abs(first), abs(first - 2)])


def test_after_the_first_round_and_every_so_many():
    run = trainer(callbacks=ClientEvaluation(every_n_rounds=3), max_rounds=7)
    run.fit(Boring(), classes())
    evaluated = [r.version for r in run.history if "clients/val_loss_mean" in r.metrics]
    assert evaluated == [1, 3, 6]


def test_all_loggers_get_one_row_a_round(tmp_path):
    run = trainer(
        callbacks=ClientEvaluation(every_n_rounds=2),
        logger=CSVLogger(tmp_path, name="logs", version="run"),
    )
    run.fit(Boring(), classes())
    lines = (tmp_path / "logs" / "run" / "metrics.csv").read_text().splitlines()
    assert "clients/val_loss_std" in lines[0].split(",")
    assert len(lines) == 1 + 5


def test_evaluating_changes_nothing_in_the_run():
    start = Boring()
    prints = []
    for callbacks in (None, ClientEvaluation(every_n_rounds=1)):
        module = Boring()
        module.load_state_dict(start.state_dict())
        run = trainer(callbacks=callbacks)
        run.fit(module, classes())
        prints.append(run.fingerprint())
    assert prints[0] == prints[1]


def table(writers, numbers):
    return datasets.Dataset.from_dict({"writer": writers, "x": [[float(x)] for x in numbers]})


class Numbers(LightningModule):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        return 0 * (self.w * batch[0]).mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_mean", batch[0].mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def natural(partitioner):
    return FederatedDataModule(
        table(["a", "b", "c"], [0, 0, 0]),
        partitioner,
        columns=("x", None),
        val_dataset=table(["c", "a", "a", "d"], [3, 1, 2, 100]),
    )


def test_natural_clients_are_evaluated_on_their_part_of_a_split():
    callback = ClientEvaluation(data="validation")
    run = trainer(arrivals=UniformArrivals(1, local_steps=1), callbacks=callback, max_rounds=1)
    run.fit(Numbers(), natural(NaturalIdPartitioner("writer")))
    assert callback.clients.tolist() == [0, 2]
    assert callback.last["val_mean"].tolist() == [1.5, 3.0]


def test_other_clients_have_no_part_of_a_split():
    run = trainer(callbacks=ClientEvaluation(data="validation"))
    with pytest.raises(
        ValueError, match=r"but IidPartitioner.*gives no client an id; data='train'"
    ):
        run.fit(Numbers(), natural(IidPartitioner(3)))


def test_a_module_without_validation_step_is_refused():
    class Silent(Boring):
        validation_step = LightningModule.validation_step

    with pytest.raises(ValueError, match=r"Silent.validation_step"):
        trainer(callbacks=ClientEvaluation()).fit(Silent(), classes())


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"every_n_rounds": 0}, "every_n_rounds must be at least 1"),
        ({"data": "all"}, "data must be one of"),
        ({"max_clients": 0}, "max_clients must be at least 1"),
        ({"client_weights": "even"}, "client_weights must be one of"),
    ],
)
def test_bad_arguments_are_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        ClientEvaluation(**arguments)
