"""One module under `lightning.Trainer` and under `FedTrainer`: `both` runs it, `Both` compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import lightning
import pytest
import torch
from lightning import LightningModule
from torch.utils.data import DataLoader, Dataset, TensorDataset

from data_partitioners import Partition
from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import FedAvg
from fedlight.arrivals import SynchronousArrivals
from fedlight.executors._stack.batches import batch_rows
from fedlight.local_optimizers import LocalOptimizer, LocalSGD
from fedlight.types import Task
from tests.boring import classes

EXECUTORS = ("sequential", "vectorized")


class Both(NamedTuple):
    """What `both` gives.

    Attributes:
        trainer: The `lightning.Trainer`, after its fit.
        module: The module that it trained.
        fed: The `FedTrainer`, after its fit.
        fed_module: The module that it trained.
    """

    trainer: lightning.Trainer
    module: LightningModule
    fed: FedTrainer
    fed_module: LightningModule

    def same_weights(self, atol: float = 1e-12) -> None:
        """Fail unless both modules hold the same names and, within `atol`, the same numbers."""
        judged, ours = self.module.state_dict(), self.fed_module.state_dict()
        assert list(ours) == list(judged)
        for name, value in judged.items():
            torch.testing.assert_close(
                ours[name], value, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
            )

    def same_metrics(self, *names: str, abs: float = 1e-6) -> None:
        """Fail unless both trainers have these metrics with the same newest values."""
        for name in names:
            theirs = float(self.trainer.callback_metrics[name])
            assert float(self.fed.callback_metrics[name]) == pytest.approx(theirs, abs=abs), name


class Batches:
    """The rows of the batches that the one client of `FedTrainer` takes, an epoch for each round.

    A batch sampler for `DataLoader`; one pass over it is one epoch.
    """

    def __init__(self, num_examples: int, steps: int, batch_size: int, seed: int) -> None:
        self.num_examples, self.steps = num_examples, steps
        self.batch_size, self.seed = batch_size, seed
        self.visit = 0

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        rows = torch.arange(self.num_examples).numpy()
        partition = Partition(rows=rows, offsets=rows[[0, -1]] + [0, 1])
        task = Task(0, 0, 0.0, 1.0, num_steps=self.steps, serial=0, visit=self.visit)
        self.visit += 1
        yield from batch_rows(partition, [task], self.batch_size, self.seed)[:, 0].tolist()


def stackable(module: LightningModule) -> LocalOptimizer:
    """`LocalSGD` with the numbers of the plain SGD that the module configures."""
    optimizer = module.configure_optimizers()
    assert type(optimizer) is torch.optim.SGD, "give local_optimizer= for any other optimizer"
    (group,) = optimizer.param_groups
    return LocalSGD(
        group["lr"], group["momentum"], group["weight_decay"], nesterov=group["nesterov"]
    )


def run_both(
    module_factory: Callable[[], LightningModule],
    data: Dataset[Any] | None = None,
    *,
    steps: int = 3,
    rounds: int = 2,
    executor: Any = "sequential",
    local_optimizer: LocalOptimizer | None = None,
    batch_size: int = 4,
    val: Dataset[Any] | None = None,
    eval_batch_size: int = 5,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    seed: int = 0,
    precision: str = "64-true",
    callbacks: Sequence[Any] = (),
    lightning_callbacks: Sequence[Any] = (),
    lightning_options: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Both:
    """Fit two modules of one factory, each under one trainer, on the same batches in their order.

    One client holds all data and makes `steps` local steps a round; the server replaces its model
    by the client's. One round is one epoch of Lightning. The optimizer of the client starts anew
    each round, so an optimizer with memory (momentum, Adam) is compared with ``rounds=1``.

    Args:
        module_factory: Makes a module; called twice, each time behind the same ``manual_seed``.
        data: The examples of the client; None for 24 examples of `tests.boring.classes`.
        steps: Local steps a round, batches an epoch.
        rounds: Rounds, epochs.
        executor: The executor of `FedTrainer`.
        local_optimizer: None for the module's own under "sequential", and for `LocalSGD` with the
            module's numbers under any other executor.
        batch_size: Examples a batch.
        val: Data for validation, if any.
        eval_batch_size: Examples a batch of validation.
        collate_fn: Makes a batch of a list of examples; None for the default.
        seed: The seed of `FedTrainer`, and of the modules' first weights.
        precision: Of both trainers; at "64-true" the weights agree to 1e-12.
        callbacks: Callbacks of `FedTrainer`.
        lightning_callbacks: Callbacks of `lightning.Trainer`.
        lightning_options: More arguments of `lightning.Trainer`.
        options: More arguments of `FedTrainer`.
    """
    if data is None:
        data, val = examples(), examples(11, seed=1) if val is None else val
    size = len(data)  # type: ignore[arg-type]

    torch.manual_seed(seed)
    module = module_factory()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=rounds,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        precision=precision,
        callbacks=list(lightning_callbacks),
        **(lightning_options or {}),
    )
    sampler: Any = Batches(size, steps, min(batch_size, size), seed)
    trainer.fit(
        module,
        DataLoader(data, batch_sampler=sampler, collate_fn=collate_fn),
        None if val is None else DataLoader(val, eval_batch_size, collate_fn=collate_fn),
    )

    torch.manual_seed(seed)
    fed_module = module_factory()
    if local_optimizer is None and executor != "sequential":
        local_optimizer = stackable(fed_module)
    fed = FedTrainer(
        arrivals=SynchronousArrivals(local_steps=steps),
        aggregator=FedAvg(),
        local_optimizer=local_optimizer,
        executor=executor,
        max_rounds=rounds,
        callbacks=list(callbacks),
        accelerator="cpu",
        precision=precision,
        logger=False,
        enable_progress_bar=False,
        seed=seed,
        **(options or {}),
    )
    fed.fit(
        fed_module,
        FederatedDataModule.from_client_datasets(
            [data],
            batch_size=batch_size,
            val_dataset=val,
            eval_batch_size=eval_batch_size,
            collate_fn=collate_fn,
        ),
    )
    return Both(trainer, module, fed, fed_module)


def examples(number: int = 24, seed: int = 0) -> TensorDataset:
    """Four numbers and one of three classes each, for `tests.boring.Boring`."""
    data = classes((number,), seed=seed)
    data.setup()
    table: Any = data.train_data
    return TensorDataset(*table.gather(torch.arange(number)))


@pytest.fixture
def both() -> Callable[..., Both]:
    """`run_both`."""
    return run_both


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    """Each executor that every module should train on."""
    return request.param
