"""Data in each form that Lightning takes: the same weights and the same logged values."""

import warnings

import datasets
import lightning
import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, StackDataset, TensorDataset
from torchmetrics import MeanMetric

from data_partitioners import IidPartitioner, Partition
from fedlight import FederatedDataModule
from fedlight.aggregators import FedAvg
from fedlight.arrivals import SynchronousArrivals
from fedlight.callbacks import ClientEvaluation
from fedlight.local_optimizers import LocalSGD
from tests.boring import Boring, fitted, trainer
from tests.parity.conftest import Batches, examples


class Named(LightningModule):
    """Takes batches as dicts."""

    def __init__(self, key="x"):
        super().__init__()
        self.key = key
        self.net = nn.Linear(4, 3)

    def training_step(self, batch, batch_idx):
        loss = functional.cross_entropy(self.net(batch[self.key]), batch["labels"])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        loss = functional.cross_entropy(self.net(batch[self.key]), batch["labels"])
        self.log("val_loss", loss, batch_size=len(batch["labels"]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Padded(Named):
    """A mean of embeddings over texts that are padded to the longest of their batch."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)

    def training_step(self, batch, batch_idx):
        mask = batch["attention_mask"].unsqueeze(-1)
        words = self.words(batch["input_ids"]) * mask
        scores = self.net(words.sum(1) / mask.sum(1))
        loss = functional.cross_entropy(scores, batch["labels"])
        self.log("width", float(batch["input_ids"].shape[1]))
        return loss


def hf_table(number=24):
    x, y = examples(number).tensors
    return datasets.Dataset.from_dict({"x": x.tolist(), "y": y.tolist()})


def judged(factory, table, columns=None, collate_fn=None, val=None, steps=3, rounds=2):
    """`lightning.Trainer` on the rows of a `datasets.Dataset` in a `DataLoader` of torch's."""
    torch.manual_seed(0)
    module = factory()
    judge = lightning.Trainer(
        accelerator="cpu", max_epochs=rounds, logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, num_sanity_val_steps=0,
        precision="64-true",
    )  # fmt: skip
    batches = Batches(len(table), steps, 4, 0)
    loaders = None if val is None else DataLoader(val, 5, collate_fn=collate_fn)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You defined a `validation_step` but have no")
        judge.fit(module, DataLoader(table, batch_sampler=batches, collate_fn=collate_fn), loaders)
    return judge, module


class Whole(IidPartitioner):
    """All rows belong to one client, in their order."""

    def __init__(self):
        super().__init__(1)

    def partition(self, dataset, seed=0):
        rows = torch.arange(len(dataset)).numpy()
        return Partition(rows, rows[[0, -1]] + [0, 1])


def ours(factory, table, executor, steps=3, rounds=2, **kwargs):
    torch.manual_seed(0)
    module = factory()
    data = FederatedDataModule(table, Whole(), batch_size=4, eval_batch_size=5, **kwargs)
    run = fitted(
        module, data, arrivals=SynchronousArrivals(local_steps=steps), aggregator=FedAvg(),
        local_optimizer=LocalSGD(0.1), executor=executor, max_rounds=rounds, precision="64-true",
    )  # fmt: skip
    return run, module


def same(one, other):
    theirs, own = one.state_dict(), other.state_dict()
    assert list(theirs) == list(own)
    for name, value in theirs.items():
        torch.testing.assert_close(own[name], value, rtol=0, atol=1e-12)


# --- batches as dicts ---


def test_dicts_of_named_tensors(both, executor):
    x, y = examples().tensors
    val = StackDataset(x=x[:11], labels=y[:11])
    result = both(Named, StackDataset(x=x, labels=y), val=val, executor=executor)
    result.same_weights()
    result.same_metrics("train_loss", "val_loss")


def test_dicts_from_a_collate_function(both):
    def named(rows):
        return {"x": torch.stack([x for x, _ in rows]), "labels": torch.stack([y for _, y in rows])}

    result = both(Named, examples(), val=examples(11, seed=1), collate_fn=named)
    result.same_weights()
    result.same_metrics("train_loss", "val_loss")


def test_dicts_of_columns(executor):
    table = hf_table().rename_column("y", "labels").with_format("torch")
    val = table.select(range(11))
    judge, module = judged(Named, table, val=val)
    run, own = ours(Named, table, executor, columns={"x": "x", "labels": "labels"}, val_dataset=val)
    for name in ("train_loss", "val_loss"):
        assert float(run.callback_metrics[name]) == pytest.approx(
            float(judge.callback_metrics[name]), abs=1e-6
        )
    same(module, own)


def test_dicts_from_the_transform_argument(executor):
    def named(batch):
        return {"x": batch[0], "labels": batch[1]}

    torch.manual_seed(0)
    _, plain = ours(Boring, hf_table(), executor)
    _, own = ours(Named, hf_table(), executor, transform=named)
    same(plain, own)


def test_dicts_run_stacked_as_one_by_one():
    table = hf_table(40)
    found = []
    for executor in ("sequential", "vectorized"):
        torch.manual_seed(0)
        module = Named("inputs").double()
        data = FederatedDataModule(
            table, IidPartitioner(5), batch_size=4, columns={"inputs": "x", "labels": "y"}
        )
        run = fitted(module, data, executor=executor, max_rounds=40)
        found.append((module, [dict(record.metrics) for record in run.history]))
    same(found[0][0], found[1][0])
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_auto_stacks_dicts_of_tensors_and_says_why_not():
    data = FederatedDataModule(
        hf_table(), IidPartitioner(5), batch_size=4, columns={"x": "x", "labels": "y"}
    )
    assert fitted(Named(), data).run.executor_reason == "the module can be stacked"

    def by_hand(rows):
        return {
            "x": torch.tensor([row["x"] for row in rows]),
            "labels": torch.tensor([row["y"] for row in rows]),
        }

    data = FederatedDataModule(hf_table(), IidPartitioner(5), batch_size=4, collate_fn=by_hand)
    assert fitted(Named(), data).run.executor_reason == (
        "the clients' data are no tensors of one shape: by_hand makes each batch of a list of rows"
    )


# --- tokenised text, a transform of the data set's own ---


def padded(rows):
    longest = max(len(row["tokens"]) for row in rows)

    def filled(values):
        return torch.tensor([list(each) + [0] * (longest - len(each)) for each in values])

    return {
        "input_ids": filled([row["tokens"] for row in rows]),
        "attention_mask": filled([[1] * len(row["tokens"]) for row in rows]),
        "labels": torch.tensor([row["y"] for row in rows]),
    }


def test_texts_are_padded_batch_by_batch():
    tokens = [[(i * j) % 10 for j in range(1, 2 + i % 5)] for i in range(24)]
    table = datasets.Dataset.from_dict({"tokens": tokens, "y": [i % 3 for i in range(24)]})
    _, module = judged(Padded, table, collate_fn=padded)
    run, own = ours(Padded, table, "sequential", collate_fn=padded)
    same(module, own)
    assert any(record.metrics["width"] % 1 for record in run.history)  # widths of batches differ


def test_a_transform_of_the_data_set_reaches_the_model():
    def scaled(batch):
        return {**batch, "x": [torch.tensor(x) / 39 for x in batch["x"]]}

    table = hf_table().rename_column("y", "labels").with_transform(scaled)
    _, module = judged(Named, table)
    _, own = ours(Named, table, "sequential", columns={"x": "x", "labels": "labels"})
    same(module, own)
    _, raw = ours(
        Named, table.with_format(None), "sequential", columns={"x": "x", "labels": "labels"}
    )
    assert not torch.allclose(raw.net.weight, own.net.weight)


def test_the_model_sees_transformed_numbers_only():
    seen = []

    class Sees(LightningModule):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def training_step(self, batch, batch_idx):
            seen.append(float(batch[0].max()))
            return (self.w * batch[0]).mean()

        def validation_step(self, batch, batch_idx):
            seen.append(float(batch[0].max()))

    table = datasets.Dataset.from_dict({"x": [float(i) for i in range(40)], "y": [0] * 40})
    table = table.with_transform(lambda batch: {**batch, "x": [x / 39 for x in batch["x"]]})
    data = FederatedDataModule(table, IidPartitioner(4), val_dataset=table, test_dataset=table)
    run = fitted(Sees(), data, executor="auto", max_rounds=2)
    assert max(seen) == pytest.approx(1)
    assert "read one at a time" not in run.run.executor_reason
    assert "ChosenColumns makes each batch" in run.run.executor_reason


def test_a_random_transform_gives_the_same_run_twice():
    def noisy(batch):
        return {**batch, "x": [torch.tensor(x) + torch.randn(4) for x in batch["x"]]}

    def run():
        torch.manual_seed(3)
        module = Boring()
        data = FederatedDataModule(
            hf_table().with_transform(noisy), IidPartitioner(4), batch_size=4
        )
        return fitted(module, data).run.fingerprint()

    first = run()
    torch.rand(7)
    assert run() == first


# --- several data sets for validation and test ---


class Several(Boring):
    def __init__(self):
        super().__init__()
        self.mean = MeanMetric()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        x, y = batch
        self.mean.update(x.mean())
        self.log("loss", functional.cross_entropy(self(x), y))
        self.log("mean", self.mean)
        self.log(f"own_{dataloader_idx}", x.sum(), add_dataloader_idx=False)
        self.log_dict({"batch": float(batch_idx)})

    def on_validation_epoch_end(self):
        self.log("end", 3.0)

    test_step = validation_step


class WithoutDefault(Several):
    def validation_step(self, batch, batch_idx, dataloader_idx):
        super().validation_step(batch, batch_idx, dataloader_idx)

    test_step = validation_step


def sets():
    return [examples(11, seed=1), examples(6, seed=2)]


def of(val, **kwargs):
    return FederatedDataModule.from_client_datasets(
        [examples(), examples(9, seed=3)],
        batch_size=4,
        val_dataset=val,
        eval_batch_size=4,
        **kwargs,
    )


@pytest.mark.parametrize("kind", [Several, WithoutDefault])
@pytest.mark.parametrize("verb", ["validate", "test"])
@pytest.mark.parametrize("number", [1, 2])
def test_several_sets_have_lightnings_names(kind, verb, number):
    if kind is WithoutDefault and number == 1:
        kind = Several
    torch.manual_seed(0)
    module = kind()
    given = sets()[:number]
    judge = lightning.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, inference_mode=False,
    )  # fmt: skip
    loaders = [DataLoader(each, 4) for each in given]
    if verb == "test":  # Lightning has no other hook for these logs
        module.on_test_epoch_end = module.on_validation_epoch_end
    expected = getattr(judge, verb)(module, loaders, verbose=False)
    found = getattr(trainer(), verb)(module, of(given, test_dataset=given))
    assert len(found) == number
    for k, (theirs, own) in enumerate(zip(expected, found, strict=True)):
        # Names without the number of a data set are in all of our dicts.
        extra = {f"own_{i}" for i in range(number) if i != k}
        assert own.keys() - theirs.keys() == extra
        shared = {name: value for name, value in own.items() if name not in extra}
        assert shared == pytest.approx(theirs, abs=1e-5)


def test_a_mapping_of_sets_is_numbered_too():
    module = Several()
    by_list = trainer().validate(module, of(sets()))
    by_name = trainer().validate(module, of(dict(zip("ab", sets(), strict=True))))
    assert by_list == by_name
    assert "loss/dataloader_idx_1" in by_list[1]


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_several_sets_while_fitting(executor):
    run = fitted(WithoutDefault(), of(sets()), executor=executor, max_rounds=2)
    for record in run.history:
        assert record.metrics["end"] == 3.0
        names = {name for name in record.metrics if "dataloader_idx" in name}
        logged = ("loss", "mean", "batch")
        assert names == {f"{name}/dataloader_idx_{k}" for name in logged for k in range(2)}


def test_a_step_that_does_not_fit_the_sets_fails_before_training():
    class Trains(Boring):
        def training_step(self, batch, batch_idx):
            raise AssertionError("trained")

    class Needs(Trains):
        def validation_step(self, batch, batch_idx, dataloader_idx):
            raise AssertionError("validated")

    with pytest.raises(ValueError, match=r"2 validation data sets, but Trains.validation_step"):
        fitted(Trains(), of(sets()), executor="sequential")
    with pytest.raises(ValueError, match=r"one validation data set, but Needs.validation_step"):
        fitted(Needs(), of(sets()[:1]), executor="sequential")
    with pytest.raises(ValueError, match=r"2 test data sets, but Trains.test_step"):
        trainer().test(Trains(), of(None, test_dataset=sets()))
    # As in Lightning, what is not run is not checked.
    with pytest.raises(Exception, match="trained"):
        fitted(Trains(), of(sets()), executor="sequential", check_val_every_n_rounds=None)


# --- steps that change their batch in place ---


@pytest.mark.parametrize("way", ["itself", "a view", "a layer", "a dict", "its data", "numpy"])
def test_a_validation_step_may_change_its_batch(way):
    class Halves(LightningModule):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def training_step(self, batch, batch_idx):
            return self.w.sum()

        def validation_step(self, batch, batch_idx):
            x = batch["x"] if way == "a dict" else batch[0]
            if way == "a layer":
                x = nn.ReLU(inplace=True)(x.sub_(0.5))
            elif way == "numpy":
                x.numpy()[:] *= 0.5
            else:
                {"a view": x.view(-1), "its data": x.data}.get(way, x).mul_(0.5)
            self.log("mean", x.mean())

    ones = torch.ones(9, 4)
    val = StackDataset(x=ones) if way == "a dict" else TensorDataset(ones)
    run = fitted(Halves(), of(val), executor="sequential", max_rounds=4, check_val_every_n_rounds=1)
    assert [record.metrics["mean"] for record in run.history] == [0.5] * 4
    assert ones.unique().tolist() == [1.0]


class InPlace(Boring):
    def training_step(self, batch, batch_idx):
        batch[0].mul_(0.5)
        return super().training_step(batch, batch_idx)


def test_a_training_step_may_change_its_batch(both, executor):
    # `DataLoader` makes a new batch each time, and so must we.
    both(InPlace, executor=executor).same_weights()


def test_client_evaluation_asks_for_one_set():
    callback = ClientEvaluation(data="validation")
    with pytest.raises(ValueError, match=r"needs one validation data set, got 2"):
        fitted(Several(), of(sets()), callbacks=[callback])
