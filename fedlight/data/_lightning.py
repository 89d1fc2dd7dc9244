"""The data sets in the loaders of a LightningDataModule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning import LightningDataModule
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from fedlight._support.checks import described
from fedlight.data._map_style import check_map_style

_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


@dataclass(frozen=True)
class Loaded:
    """The parts of a loader that a federation uses.

    Args:
        dataset: The data set.
        batch_size: Examples per batch.
        collate_fn: As `DataLoader` has it; None for torch's own.
    """

    dataset: Any
    batch_size: int
    collate_fn: Callable[[list[Any]], Any] | None


@dataclass(frozen=True)
class Loaders:
    """The parts of all loaders of a data module."""

    train: Loaded
    val: list[Loaded]
    test: list[Loaded]


def read_loaders(datamodule: object) -> Loaders:
    """Prepare and set up a LightningDataModule as Lightning does, and read its loaders.

    Raises:
        TypeError: It is no LightningDataModule, or a loader is no `DataLoader` of a map-style set.
        ValueError: It has no training data, or a loader draws its batches in a way of its own.
    """
    if not isinstance(datamodule, LightningDataModule):
        kind = type(datamodule)
        got = f"{kind.__module__}.{kind.__qualname__}"
        if kind.__module__ == "builtins":
            got = described(datamodule)
        if isinstance(datamodule, type):
            got = f"the class {datamodule.__qualname__}; call it"
        raise TypeError(f"datamodule must be a lightning.LightningDataModule, got {got}")
    name = type(datamodule).__name__
    if not is_overridden("train_dataloader", datamodule, LightningDataModule):
        raise ValueError(f"{name} has no train_dataloader, whose data the clients would share")
    unused = [each for each in _HOOKS if is_overridden(each, datamodule, LightningDataModule)]
    if unused:
        rank_zero_warn(
            f"{name}.{unused[0]} is not called in a federation; define it in the LightningModule"
        )
    datamodule.prepare_data()
    datamodule.setup("fit")
    train = _loaders(datamodule, "train_dataloader")
    if len(train) != 1:
        raise ValueError(
            f"{name}.train_dataloader() returned {len(train)} loaders, but clients share the "
            "examples of one; put the data sets together with torch.utils.data.ConcatDataset"
        )
    val = _loaders(datamodule, "val_dataloader")
    test = []
    if is_overridden("test_dataloader", datamodule, LightningDataModule):
        datamodule.setup("test")
        test = _loaders(datamodule, "test_dataloader")
    return Loaders(train[0], val, test)


def _loaders(datamodule: LightningDataModule, hook: str) -> list[Loaded]:
    if not is_overridden(hook, datamodule, LightningDataModule):
        return []
    returned: Any = getattr(datamodule, hook)()
    if isinstance(returned, CombinedLoader):
        returned = returned.flattened
    if isinstance(returned, Mapping):
        returned = list(returned.values())
    several = returned if isinstance(returned, list | tuple) else [returned]
    where = f"{type(datamodule).__name__}.{hook}()"
    return [_loaded(where, loader) for loader in several if loader is not None]


def _loaded(where: str, loader: object) -> Loaded:
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"{where} returned {type(loader).__name__}, of which the examples cannot be divided; "
            "return a torch.utils.data.DataLoader, or give one data set per client to "
            "FederatedDataModule.from_client_datasets"
        )
    check_map_style(f"the data set of {where}", loader.dataset)
    sampler, dataset = loader.sampler, loader.dataset
    if loader.batch_size is None:
        own = "batch_size=None" if loader.batch_sampler is None else "a batch_sampler"
        raise ValueError(
            f"the loader of {where} has {own}, but a federation makes the batches of each client "
            "itself; write DataLoader(dataset, batch_size=…)"
        )
    if type(sampler) is SubsetRandomSampler:
        dataset = Subset(dataset, list(sampler.indices))
    elif isinstance(sampler, WeightedRandomSampler):
        raise ValueError(
            f"the loader of {where} has a WeightedRandomSampler, but a client goes through all of "
            "its examples in turn, so their weights would be lost; leave the sampler out, and "
            "weight the loss in training_step"
        )
    elif type(sampler) is not SequentialSampler and not (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(dataset)  # type: ignore[arg-type]
    ):
        raise ValueError(
            f"the loader of {where} has a {type(sampler).__name__} that chooses examples in a way "
            "of its own, but a client goes through all of its examples in turn; leave the sampler "
            "out, and choose examples with torch.utils.data.Subset"
        )
    if not isinstance(dataset, Dataset):  # of the hub, or a list
        dataset = Subset(dataset, range(len(dataset)))
    collate_fn = None if loader.collate_fn is default_collate else loader.collate_fn
    return Loaded(dataset, loader.batch_size, collate_fn)
