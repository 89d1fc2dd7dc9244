"""`FederatedDataModule`: a data set and its partition over clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from data_partitioners import Partition, Partitioner
from fedlight._checks import integer, positive_int
from fedlight.data.examples import ExampleList, ExampleTable, Transform, examples_of
from fedlight.data.layouts import Layout, checked_columns, checked_statistics, layout_of
from fedlight.data.sources import checked_source, load_splits


@dataclass(frozen=True)
class _Loaded:
    partition: Partition
    train: ExampleTable | ExampleList
    val: ExampleTable | ExampleList | None
    test: ExampleTable | ExampleList | None


class FederatedDataModule(LightningDataModule):
    """A data set divided among clients, as a `LightningDataModule` that also trains centrally.

    The data are loaded once, in `setup`, as compact tensors: images stay uint8. Batches are
    gathered from them, converted and normalised on the device. The data sets of the papers are
    recognised by their columns; see `fedlight.data.layouts`.

    A batch is a tuple: the input columns, then the target.

    Args:
        dataset: A hub id (`"ylecun/mnist"`), a folder with the same files, `"mnist-mini"` (10,000
            training and 2,000 test images of MNIST that come with the package), a
            `datasets.Dataset` or a `datasets.DatasetDict`.
        partitioner: Divides the rows of the training split among the clients.
        batch_size: Examples per local step; a client with fewer examples uses all of them.
        columns: Input column(s) and target column, such as `("image", "label")`,
            `(("age", "income"), "y")` or `("x", None)`; None for those known for the data set.
        normalize: `(mean, std)`, two numbers or one number per channel each, of images scaled to
            0 … 1 or of a column of numbers. None for those known for the data set; `(0.0, 1.0)`
            for no normalisation.
        transform: A function that maps a gathered batch (a tuple of tensors) to another one. It is
            applied to every split, on the device, to batches of any size, often of several
            clients at once: it must treat each example separately and draw no random numbers.
        train_split: Split that is divided among the clients.
        val_split: Split for validation, or None. A data set that has only the training split is
            not validated.
        test_split: Split for `test`, or None, likewise.
        val_dataset: A `datasets.Dataset` for validation instead of a split.
        test_dataset: A `datasets.Dataset` for `test` instead of a split.
        partition_seed: Seed that the partitioner gets.
        eval_batch_size: Examples per step of validation and test.
        name: Configuration of the hub data set.
        revision: Revision of the hub data set.

    Attributes:
        batch_size: As given.
        eval_batch_size: As given.
        train_dataset: The training split as it was loaded, a `datasets.Dataset` with all its
            columns; None before `setup` and after `from_client_datasets`.
        val_dataset: The validation split, likewise. In a natural partition, each client's rows of
            it are `partitioner.partition(val_dataset, client_ids=partition.client_ids)`.
        test_dataset: The test split, likewise.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A number is out of range.
        FileNotFoundError: `dataset` looks like a folder that does not exist.

    Example:
        >>> import datasets
        >>> from data_partitioners import IidPartitioner
        >>> table = datasets.Dataset.from_dict(
        ...     {"x": [[0.0], [0.5], [1.0], [1.5]], "y": [0, 0, 1, 1]}
        ... )
        >>> data = FederatedDataModule(table, IidPartitioner(2), batch_size=2)
        >>> data.setup()
        >>> data.num_clients
        2
        >>> import torch
        >>> data.train_data.gather(torch.tensor([3, 0]))
        (tensor([[1.5000],
                [0.0000]]), tensor([1, 0]))
    """

    def __init__(
        self,
        dataset: str | Path | datasets.Dataset | datasets.DatasetDict,
        partitioner: Partitioner,
        batch_size: int = 64,
        *,
        columns: tuple[str | Sequence[str], str | None] | None = None,
        normalize: tuple[float | Sequence[float], float | Sequence[float]] | None = None,
        transform: Transform | None = None,
        train_split: str = "train",
        val_split: str | None = "test",
        test_split: str | None = "test",
        val_dataset: datasets.Dataset | None = None,
        test_dataset: datasets.Dataset | None = None,
        partition_seed: int = 0,
        eval_batch_size: int = 1000,
        name: str | None = None,
        revision: str | None = None,
    ) -> None:
        """Checks the arguments; nothing is loaded before `setup`."""
        super().__init__()
        checked_partitioner(partitioner)
        if transform is not None and not callable(transform):
            raise TypeError(
                f"transform must be a function of a batch that returns a batch, got {transform!r}"
            )
        for argument, value in (("val_dataset", val_dataset), ("test_dataset", test_dataset)):
            if not isinstance(value, datasets.Dataset | None):
                raise TypeError(f"{argument} must be a datasets.Dataset, got {value!r}")
        self.partitioner = partitioner
        self.batch_size = positive_int("batch_size", batch_size)
        self.eval_batch_size = positive_int("eval_batch_size", eval_batch_size)
        self.train_dataset: datasets.Dataset | None = None
        self.val_dataset = val_dataset
        self.test_dataset = test_dataset
        self._source = checked_source(dataset)
        self._columns = checked_columns(columns)
        self._statistics = checked_statistics(normalize)
        self._transform = transform
        self._split_names = (train_split, val_split, test_split)
        self._partition_seed = integer("partition_seed", partition_seed)
        self._config = (name, revision)
        self._loaded: _Loaded | None = None

    @classmethod
    def from_client_datasets(
        cls,
        datasets: Sequence[Any],
        batch_size: int = 64,
        *,
        val_dataset: Any = None,
        test_dataset: Any = None,
        eval_batch_size: int = 1000,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> FederatedDataModule:
        """A data module of one map-style data set per client, with examples of any kind.

        If all of them are `TensorDataset`s of one shape and type, they form one table, from which
        the batches of many clients are gathered at once.

        Args:
            datasets: One `torch.utils.data.Dataset` (or list) per client.
            batch_size: Examples per local step.
            val_dataset: A map-style data set for validation.
            test_dataset: A map-style data set for `test`.
            eval_batch_size: Examples per step of validation and test.
            collate_fn: A function that makes a batch of a list of examples; None for torch's
                default.

        Raises:
            TypeError: A data set has no length or no items.
            ValueError: There is no client, or a data set is empty.

        Example:
            >>> import torch
            >>> from torch.utils.data import TensorDataset
            >>> clients = [TensorDataset(torch.ones(n, 3), torch.zeros(n)) for n in (2, 5)]
            >>> FederatedDataModule.from_client_datasets(clients, batch_size=2).partition.sizes
            array([2, 5])
        """
        sizes = [_size(f"datasets[{i}] (client {i})", data) for i, data in enumerate(datasets)]
        if not sizes:
            raise ValueError("datasets must hold one data set per client, got none")
        partition = Partition(
            rows=np.arange(sum(sizes), dtype=np.int64),
            offsets=np.cumsum([0, *sizes], dtype=np.int64),
        )
        evaluation = []
        for argument, data in (("val_dataset", val_dataset), ("test_dataset", test_dataset)):
            if data is not None:
                _size(argument, data)
            evaluation.append(None if data is None else examples_of([data], collate_fn))
        module = cls.__new__(cls)
        LightningDataModule.__init__(module)
        module.batch_size = positive_int("batch_size", batch_size)
        module.eval_batch_size = positive_int("eval_batch_size", eval_batch_size)
        module.train_dataset = module.val_dataset = module.test_dataset = None
        module._loaded = _Loaded(partition, examples_of(datasets, collate_fn), *evaluation)
        return module

    def setup(self, stage: str | None = None) -> None:
        """Loads and partitions the data; a second call does nothing.

        Raises:
            ConnectionError: The hub is needed and cannot be reached.
            ValueError: A split or column is missing, or holds values that cannot be read.
        """
        if self._loaded is not None:
            return
        train_split, val_split, test_split = self._split_names
        splits = load_splits(self._source, *self._config, train_split)
        train = _split(splits, "train_split", train_split)
        layout = layout_of(train, self._columns, self._statistics)
        train_data = self._read(layout, train, train_split)
        partition = self.partitioner.partition(train, self._partition_seed)
        _check_partition(partition, len(train), self.partitioner)

        only_train = set(splits) == {train_split}
        evaluation: list[tuple[datasets.Dataset | None, ExampleTable | None]] = []
        read: dict[str, ExampleTable] = {train_split: train_data}
        for argument, split, given in (
            ("val_split", val_split, self.val_dataset),
            ("test_split", test_split, self.test_dataset),
        ):
            if given is not None:
                data = self._read(layout, given, argument.replace("split", "dataset"))
                evaluation.append((given, data))
            elif split is None or (only_train and split == "test"):
                evaluation.append((None, None))
            else:
                chosen = _split(splits, argument, split)
                if split not in read:
                    read[split] = self._read(layout, chosen, split)
                evaluation.append((chosen, read[split]))
        (self.val_dataset, val_data), (self.test_dataset, test_data) = evaluation
        self.train_dataset = train
        self._loaded = _Loaded(partition, train_data, val_data, test_data)

    def repartition(self, partitioner: Partitioner, partition_seed: int = 0) -> FederatedDataModule:
        """A data module of the same loaded data with a different partition.

        Args:
            partitioner: Divides the rows of the training split among the clients.
            partition_seed: Seed that the partitioner gets.

        Raises:
            TypeError: `partitioner` is not a `Partitioner`.
            ValueError: The data were given as one data set per client.
        """
        checked_partitioner(partitioner)
        self.setup()
        if self.train_dataset is None:
            raise ValueError(
                "the data were given as one data set per client (from_client_datasets) and cannot "
                "be partitioned again; make another FederatedDataModule of them"
            )
        other = copy(self)
        other.partitioner = partitioner
        other._partition_seed = integer("partition_seed", partition_seed)
        partition = partitioner.partition(self.train_dataset, other._partition_seed)
        _check_partition(partition, len(self.train_dataset), partitioner)
        other._loaded = replace(self._ready(), partition=partition)
        return other

    @property
    def partition(self) -> Partition:
        """The rows of `train_data` that each client holds."""
        return self._ready().partition

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self._ready().partition)

    @property
    def train_data(self) -> ExampleTable | ExampleList:
        """The examples of all clients; the partition refers to its rows."""
        return self._ready().train

    @property
    def val_data(self) -> ExampleTable | ExampleList | None:
        """The examples for validation, or None."""
        return self._ready().val

    @property
    def test_data(self) -> ExampleTable | ExampleList | None:
        """The examples for `test`, or None."""
        return self._ready().test

    def train_dataloader(self) -> DataLoader[Any]:
        """The pooled examples of all clients, shuffled, for `lightning.Trainer`."""
        rows = self.partition.rows
        pool: Any = self.train_data
        if not np.array_equal(rows, np.arange(len(pool))):
            pool = Subset(pool, np.sort(rows).tolist())
        return _loader(self.train_data, pool, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """The examples for validation in their order; an empty list if there are none."""
        data = self.val_data
        return [] if data is None else _loader(data, data, self.eval_batch_size, shuffle=False)

    def test_dataloader(self) -> DataLoader[Any] | list[Any]:
        """The examples for `test` in their order; an empty list if there are none."""
        data = self.test_data
        return [] if data is None else _loader(data, data, self.eval_batch_size, shuffle=False)

    def _read(self, layout: Layout, dataset: datasets.Dataset, split: str) -> ExampleTable:
        try:
            return layout.read(dataset, split, self._transform)
        except (TypeError, ValueError) as error:
            error.add_note(f"(while reading {split!r})")
            raise

    def _ready(self) -> _Loaded:
        if self._loaded is None:
            raise RuntimeError(
                "the data are not loaded yet; call setup() first, as trainer.fit does"
            )
        return self._loaded


def checked_partitioner(partitioner: object) -> None:
    """Raise a TypeError unless it is a partitioner."""
    if not isinstance(partitioner, Partitioner):
        raise TypeError(
            "partitioner must be a data_partitioners.Partitioner such as "
            f"IidPartitioner(num_partitions=10), got {partitioner!r}"
        )


def _split(splits: datasets.DatasetDict, argument: str, split: str) -> datasets.Dataset:
    if split not in splits:
        none = "" if argument == "train_split" else f" or {argument}=None"
        raise ValueError(
            f"{argument}={split!r} is not a split of the data set, which has {list(splits)}; "
            f"name one of them{none}"
        )
    return splits[split]


def _check_partition(partition: Partition, num_rows: int, partitioner: Partitioner) -> None:
    """Checks the result of the partitioner, so that a faulty one fails here and not in a round."""
    shared = len(partition.rows) + len(partition.unused)
    if shared != num_rows:
        raise ValueError(
            f"{partitioner!r} returned {shared} rows for a data set of {num_rows}; each row must "
            "have a client or be in Partition.unused"
        )
    if (partition.sizes == 0).any():
        client = int((partition.sizes == 0).argmax())
        raise ValueError(
            f"{partitioner!r} left client {client} without an example; each client needs one"
        )


def _size(name: str, data: Any) -> int:
    if isinstance(data, tuple) and any(isinstance(part, Tensor) for part in data):
        raise TypeError(f"{name} is a tuple of tensors; write TensorDataset(x, y)")
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise TypeError(
            f"{name} must be a map-style data set, with a length and items by number, got "
            f"{type(data).__name__}"
        )
    if len(data) == 0:
        raise ValueError(f"{name} is empty; leave it out or give it an example")
    return len(data)


def _loader(
    data: ExampleTable | ExampleList, pool: Any, batch_size: int, *, shuffle: bool
) -> DataLoader[Any]:
    collate_fn = data.collate_fn if isinstance(data, ExampleList) else None
    return DataLoader(pool, batch_size, shuffle=shuffle, collate_fn=collate_fn)
