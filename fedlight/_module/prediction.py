"""The server's model on data without a loss: `FedTrainer.predict`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from lightning import LightningModule
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch.utils.data import DataLoader, default_collate

from fedlight._module.attributes import own_generators
from fedlight._module.batch_hooks import batch_hooks
from fedlight._module.evaluation_batches import EvaluationBatches
from fedlight._module.rng import isolated_rng, seed_all
from fedlight._module.steps import step_function
from fedlight._support.checks import described, shown
from fedlight.data._map_style import check_map_style
from fedlight.parameters import input_dtype

if TYPE_CHECKING:
    from lightning import Fabric

    from fedlight.data import FederatedDataModule

_BATCH_SIZE = 256


def are_loaders(data: object) -> bool:
    """Whether it is a `DataLoader`, or a list of nothing else."""
    several = data if isinstance(data, list | tuple) else [data]
    return bool(several) and all(isinstance(each, DataLoader) for each in several)


def batches_to_predict(
    module: LightningModule,
    fabric: Fabric,
    datamodule: FederatedDataModule | None,
    dataloaders: Any,
    dataset: Any,
    limit: int | float | None,
) -> list[Iterable[Any]]:
    """The batches that `predict` runs over: one iterable for each loader.

    Args:
        module: The module.
        fabric: Gives device and precision.
        datamodule: Its test data are taken if nothing else is given.
        dataloaders: An iterable of batches, or a list of loaders.
        dataset: A map-style data set.
        limit: At most so many batches (int) or this share of them (float) of each loader.

    Raises:
        TypeError: The data are of the wrong kind.
        ValueError: There are no data, or they are given twice.
    """
    if dataloaders is not None and dataset is not None:
        raise ValueError("predict takes dataloaders or dataset, got both; give one of them")
    size = _BATCH_SIZE if datamodule is None else datamodule.eval_batch_size
    if dataset is not None:
        check_map_style("dataset", dataset)
        dataloaders = DataLoader(dataset, size, collate_fn=_collated)
    if dataloaders is not None:
        no_batches = isinstance(dataloaders, str | bytes | dict) or not isinstance(
            dataloaders, Iterable
        )
        if no_batches or not getattr(dataloaders, "shape", (1,)):
            raise TypeError(
                "dataloaders must be a DataLoader or a list of them, got "
                f"{described(dataloaders)}; give a data set as dataset"
            )
        several = isinstance(dataloaders, list | tuple) and are_loaders(dataloaders)
        module.prepare_data()
        return [
            _moved(loader, fabric, limit) for loader in (dataloaders if several else [dataloaders])
        ]
    if datamodule is None:
        raise ValueError(
            "predict needs data: write trainer.predict(module, datamodule), whose test data are "
            "taken, or trainer.predict(module, dataloaders=…) or trainer.predict(module, dataset=…)"
        )
    datamodule.prepare_data()
    module.prepare_data()
    datamodule.setup("predict")
    sets = datamodule.evaluation_data("test")
    if not sets:
        raise ValueError(f"{datamodule!r} has no test data; give predict a dataset or dataloaders")
    return [_of_table(examples, module, fabric, size, limit) for examples in sets]


def _collated(examples: list[Any]) -> Any:
    """A batch of the examples of `dataset`.

    Raises:
        TypeError: They are of a kind of which no batch can be made.
    """
    try:
        return default_collate(examples)
    except TypeError as error:
        raise TypeError(
            f"dataset must hold examples of which a batch can be made, got {shown(examples[0])} "
            f"({error}); give batches as dataloaders"
        ) from error


def _of_table(
    examples: Any, module: LightningModule, fabric: Fabric, size: int, limit: int | float | None
) -> Iterator[Any]:
    """The batches of a table; not made before the module has the dtype of the run's precision."""
    place = fabric.device, input_dtype(module)
    for _, batch in EvaluationBatches(examples, size, limit, None, *place):
        yield batch


def _moved(loader: Any, fabric: Fabric, limit: int | float | None) -> Iterator[Any]:
    """The batches of a loader on the device, with the dtype of the run's precision."""
    if isinstance(limit, float):
        limit = max(1, int(limit * len(loader)))
    for batch in islice(loader, limit):
        yield fabric.strategy.precision.convert_input(fabric.to_device(batch))


def predict(
    module: LightningModule,
    fabric: Fabric,
    loaders: Sequence[Any],
    keep: bool,
    inference_mode: bool = False,
    seed: int = 0,
) -> list[Any] | None:
    """The outputs of ``predict_step``, on the CPU; for several loaders, a list for each of them.

    The module's hooks ``on_predict_…`` are called. The global random generators are left as they
    were.

    Args:
        module: Holds the weights.
        fabric: Gives the precision.
        loaders: The batches, one iterable for each loader.
        keep: Whether to return anything but None.
        inference_mode: Run under ``torch.inference_mode`` instead of ``torch.no_grad``.
        seed: Seed of the random numbers that the step draws.
    """
    step = _step(module, several=len(loaders) > 1)
    modes = {child: child.training for child in module.modules()}
    without_gradient = torch.inference_mode() if inference_mode else torch.no_grad()
    found: list[list[Any]] = [[] for _ in loaders]
    prepared = batch_hooks(module)
    generators = own_generators(module).values()
    try:
        with without_gradient, isolated_rng(generators), fabric.autocast():
            seed_all(seed, generators)
            # Lightning's own hook needs `self.trainer.model`, so its effect is repeated here.
            if is_overridden("on_predict_model_eval", module, LightningModule):
                module.on_predict_model_eval()
            else:
                module.eval()
            module.on_predict_start()
            module.on_predict_epoch_start()
            for number, batches in enumerate(loaders):
                for index, batch in enumerate(batches):
                    if prepared is not None:
                        batch = prepared(batch)
                    module.on_predict_batch_start(batch, index, number)
                    predicted = step(batch, index, number)
                    module.on_predict_batch_end(predicted, batch, index, number)
                    if keep:  # on the CPU, as all of them could fill the device
                        found[number].append(move_data_to_device(predicted, torch.device("cpu")))
            module.on_predict_epoch_end()
            module.on_predict_end()
    finally:
        for child, training in modes.items():
            child.training = training
    if not keep:
        return None
    return found if len(loaders) > 1 else found[0]


def _step(module: LightningModule, several: bool) -> Any:
    """``predict_step`` as a function of (batch, batch_idx, dataloader_idx)."""
    if not is_overridden("predict_step", module, LightningModule):
        return lambda batch, index, number: _forward(module, batch)
    if several and is_param_in_hook_signature(module.predict_step, "dataloader_idx"):
        return module.predict_step
    step = step_function(module, "predict_step")
    return lambda batch, index, number: step(batch, index)


def _forward(module: LightningModule, batch: Any) -> Any:
    try:
        return module(batch)
    except Exception as error:
        if isinstance(batch, list | tuple | dict):
            error.add_note(
                f"({type(module).__name__} has no predict_step, so forward got the whole batch, a "
                f"{type(batch).__name__} of {len(batch)}; define predict_step(self, batch, "
                "batch_idx) that picks the inputs)"
            )
        raise
