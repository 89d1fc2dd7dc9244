"""`FederatedDataModule`: a data set and its partition over clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset, Subset

from data_partitioners import Partition, Partitioner
from data_partitioners._columns import MissingColumnError
from fedlight._support.checks import one_of, optional, positive_int, word
from fedlight.data._arguments import (
    check_belongs_to_torch,
    check_maker_of_batches,
    checked_partition,
    checked_partitioner,
    checked_seed,
    one_or_several,
    sole,
    split_of,
)
from fedlight.data._cache import checked_cache
from fedlight.data._labels import Labels, labels_table
from fedlight.data._lightning import Loaded, read_loaders
from fedlight.data._map_style import check_map_style, client_datasets, evaluation_datasets
from fedlight.data._rows import RowLayout, has_own_transform, row_layout_of
from fedlight.data.examples import ExampleList, ExampleTable, Transform, examples_of
from fedlight.data.layouts import Layout, checked_columns, checked_statistics, layout_of
from fedlight.data.sources import Source, checked_source, is_a, load_splits

if TYPE_CHECKING:
    import datasets

Examples: TypeAlias = ExampleTable | ExampleList
Several: TypeAlias = (
    "datasets.Dataset | Sequence[datasets.Dataset] | Mapping[str, datasets.Dataset]"
)
"""A data set for evaluation, or several in a list or by name."""


@dataclass(frozen=True)
class _Loaded:
    partition: Partition
    train: Examples
    val: list[Examples]
    test: list[Examples]
    rows: datasets.Dataset | None
    """The table that partitioners divide; None if each client's data were given."""


class FederatedDataModule(LightningDataModule):
    """A data set divided among clients, as a `LightningDataModule` that also trains centrally.

    The data are loaded once, in `setup`, as compact tensors: images stay uint8. Batches are
    gathered from them, converted and normalised on the device. The data sets of the papers are
    recognised by their columns; see `fedlight.data.layouts`.

    A batch is a tuple: the input columns, then the target. If `columns` is a dict, a batch is a
    dict with the same keys.

    A data set with a transform of its own (`with_transform`, `set_transform`) is read row by row,
    as `torch.utils.data.DataLoader` would: the transform is applied at each access and may draw
    random numbers. Nothing is normalised then. Such clients run sequentially.

    A torch data set makes its examples itself: a batch is the collated examples, as with
    `torch.utils.data.DataLoader`. If it holds nothing but tensors (`TensorDataset`, `StackDataset`,
    subsets and concatenations of these, at any depth), it is gathered from them as a table; else
    its examples are read one by one, and its clients run sequentially.

    Args:
        dataset: A hub id (`"ylecun/mnist"`), a folder with the same files, `"mnist-mini"` (10,000
            training and 2,000 test images of MNIST that come with the package), a
            `datasets.Dataset`, a `datasets.DatasetDict`, or a map-style `torch.utils.data.Dataset`.
            The last takes none of `columns`, `normalize`, the splits, `name` and `revision`.
        partitioner: Divides the rows of the training split among the clients.
        batch_size: Examples per local step; a client with fewer examples uses all of them.
        columns: Input column(s) and target column, such as `("image", "label")`,
            `(("age", "income"), "y")` or `("x", None)`; None for those known for the data set. A
            dict makes batches dicts: `{"pixel_values": "image", "labels": "label"}` gives the
            column `image` under the key `pixel_values`.
        normalize: `(mean, std)`, two numbers or one number per channel each, of images scaled to
            0 … 1 or of a column of numbers. None for those known for the data set; `(0.0, 1.0)`
            for no normalisation.
        transform: A function that maps a gathered batch to another one, a tuple or a dict of
            tensors. It is applied to every split, on the device, to batches of any size, often of
            several clients at once: it must treat each example separately and draw no random
            numbers.
        collate_fn: A function that makes a batch of a list of rows, each a dict of all columns as
            the data set returns them; for example one that pads texts to the longest of a batch.
            It replaces `columns` and `normalize`. Clients then run sequentially.
        train_split: Split that is divided among the clients.
        val_split: Split for validation, or None. A data set that has only the training split is
            not validated.
        test_split: Split for `test`, or None, likewise.
        val_dataset: A `datasets.Dataset` for validation instead of a split, or several in a list
            or a dict: then `validation_step` gets their number as `dataloader_idx`, and logged
            names end in `/dataloader_idx_N`, as in Lightning. If `dataset` is a torch data set,
            map-style data sets of any kind; examples of another module, such as `other.val_data`,
            are taken as they are.
        test_dataset: A `datasets.Dataset` for `test` instead of a split, or several, likewise.
        labels: The labels by which a partitioner divides the examples of a torch data set: an array
            with one for each example; the name of an attribute of the data set or of a key of its
            examples; or a function of an example. The partitioner reads them from the column
            "label", and a name's also from the column of that name; a dict gives several columns
            (`{"user": users}`). None for the attribute `targets` or `labels` of the data set, or of
            those that it is made of, and for the last tensor of a `TensorDataset`, if it holds
            integers. The batches do not change.
        partition_seed: Seed that the partitioner gets.
        eval_batch_size: Examples per step of validation and test.
        name: Configuration of the hub data set.
        revision: Revision of the hub data set.
        cache: Where decoded images and text are kept for the next run, which then maps the file
            instead of decoding them: True for `fedlight` in the cache of the `datasets` library
            (`HF_DATASETS_CACHE`, by default `~/.cache/huggingface/datasets`), a folder, or False.
            A file has one byte per channel of a pixel or per character: MNIST takes 55 MB. Data
            made in memory are never kept. The folder may be deleted at any time; files that no run
            has used for 30 days are removed when another one is written.

    Attributes:
        batch_size: As given.
        eval_batch_size: As given.
        train_dataset: The training split as it was loaded, a `datasets.Dataset` with all its
            columns, or the torch data set; None before `setup` and after `from_client_datasets`.
        val_dataset: The validation split, likewise; a list if there are several. In a natural
            partition, each client's rows of it are
            `partitioner.partition(val_dataset, client_ids=partition.client_ids)`.
        test_dataset: The test split, likewise.
        tokens_per_example: Tokens that a model is trained to predict with one example, of which
            ``fed/tokens`` is counted; `text_data` sets it, and None means that there are none.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A number is out of range.
        FileNotFoundError: `dataset` looks like a folder that does not exist.
        NotADirectoryError: `cache` is a file.

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

        The same from a torch data set, divided by its classes:

        >>> from data_partitioners import PathologicalPartitioner
        >>> from torch.utils.data import TensorDataset
        >>> pairs = TensorDataset(torch.tensor(table["x"][:]), torch.tensor(table["y"][:]))
        >>> data = FederatedDataModule(pairs, PathologicalPartitioner(2, 1), val_dataset=pairs)
        >>> data.setup()
        >>> data.partition.sizes
        array([2, 2])
    """

    tokens_per_example: int | None = None

    _source: Source | Dataset[Any] | None = None  # None after `from_client_datasets`

    def __init__(
        self,
        dataset: str | Path | datasets.Dataset | datasets.DatasetDict | Dataset[Any],
        partitioner: Partitioner,
        batch_size: int = 64,
        *,
        columns: tuple[str | Sequence[str], str | None] | Mapping[str, str] | None = None,
        normalize: tuple[float | Sequence[float], float | Sequence[float]] | None = None,
        transform: Transform | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        train_split: str = "train",
        val_split: str | None = "test",
        test_split: str | None = "test",
        val_dataset: Several | Any = None,
        test_dataset: Several | Any = None,
        labels: Labels | None = None,
        partition_seed: int = 0,
        eval_batch_size: int = 1000,
        name: str | None = None,
        revision: str | None = None,
        cache: bool | str | Path = True,
    ) -> None:
        """Checks the arguments; nothing is loaded before `setup`."""
        super().__init__()
        checked_partitioner(partitioner)
        check_maker_of_batches("transform", transform, "a batch")
        check_maker_of_batches("collate_fn", collate_fn, "a list of examples")
        if collate_fn is not None and (columns is not None or normalize is not None):
            raise ValueError(
                "collate_fn gets whole rows and makes the batch, so it excludes columns= and "
                "normalize=; leave those out, and choose columns with "
                "dataset.select_columns([...])"
            )
        self.partitioner = partitioner
        self.batch_size = positive_int("batch_size", batch_size)
        self.eval_batch_size = positive_int("eval_batch_size", eval_batch_size)
        self.train_dataset: Any = None
        evaluation = {"val_dataset": val_dataset, "test_dataset": test_dataset}
        # A stream of the hub is also one of torch's, but has a remedy of its own.
        if isinstance(dataset, Dataset) and not is_a("IterableDataset", dataset):
            check_map_style("dataset", dataset)
            check_belongs_to_torch(
                columns=(columns, None),
                normalize=(normalize, None),
                train_split=(train_split, "train"),
                val_split=(val_split, "test"),
                test_split=(test_split, "test"),
                name=(name, None),
                revision=(revision, None),
            )
            self._source = dataset
            given = [sole([*evaluation_datasets(*item).values()]) for item in evaluation.items()]
        else:
            self._source = checked_source(dataset)
            given = [one_or_several(*item) for item in evaluation.items()]
            if labels is not None:
                raise ValueError(
                    f"labels={labels!r} are for a torch data set; a datasets.Dataset has its "
                    "labels in a column, which the partitioner names: partition_by=COLUMN"
                )
        self.val_dataset, self.test_dataset = given
        self._labels = labels
        self._columns, self._keys = checked_columns(columns)
        self._statistics = checked_statistics(normalize)
        self._transform = transform
        self._collate_fn = collate_fn
        word("train_split", train_split)
        optional(word, "val_split", val_split)
        optional(word, "test_split", test_split)
        optional(word, "name", name)
        optional(word, "revision", revision)
        self._split_names = (train_split, val_split, test_split)
        self._partition_seed = checked_seed(partition_seed)
        self._config = (name, revision)
        self._cache = checked_cache(cache)
        self._loaded: _Loaded | None = None

    @classmethod
    def from_client_datasets(
        cls,
        datasets: Iterable[Any] | Mapping[Any, Any],
        batch_size: int = 64,
        *,
        val_dataset: Any = None,
        test_dataset: Any = None,
        eval_batch_size: int = 1000,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> FederatedDataModule:
        """A data module of one map-style data set per client, with examples of any kind.

        If all of them are `TensorDataset`s, `StackDataset`s of tensors, or subsets and
        concatenations of these, of one shape and type, they form one table, from which the batches
        of many clients are gathered at once.

        Args:
            datasets: One `torch.utils.data.Dataset` (or list of examples) per client. In a mapping,
                the keys are the clients' names, `partition.client_ids`.
            batch_size: Examples per local step.
            val_dataset: A map-style data set for validation, or several in a list or a dict: then
                `validation_step` gets their number as `dataloader_idx`, and logged names end in
                `/dataloader_idx_N`, as in Lightning.
            test_dataset: A map-style data set for `test`, or several.
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
        found, names, ids = client_datasets(datasets)
        check_maker_of_batches("collate_fn", collate_fn, "a list of examples")
        sizes = [len(data) for data in found]
        partition = Partition(
            rows=np.arange(sum(sizes), dtype=np.int64),
            offsets=np.cumsum([0, *sizes], dtype=np.int64),
            client_ids=ids,
        )
        val = _evaluated("val_dataset", val_dataset, collate_fn)
        test = _evaluated("test_dataset", test_dataset, collate_fn)
        train = examples_of(found, collate_fn, names)
        return cls.of_examples(partition, train, val, test, None, batch_size, eval_batch_size)

    @classmethod
    def of_examples(
        cls,
        partition: Partition,
        train: Examples,
        val: list[Examples],
        test: list[Examples],
        rows: datasets.Dataset | None,
        batch_size: int,
        eval_batch_size: int,
    ) -> FederatedDataModule:
        """A data module of examples that have been read already.

        Args:
            partition: The rows of `train` that each client holds.
            train: The examples of all clients.
            val: The examples of each data set for validation.
            test: The examples of each data set for `test`.
            rows: A table with a row for each example, which `repartition` divides; None if the
                examples cannot be divided in another way.
            batch_size: Examples per local step.
            eval_batch_size: Examples per step of validation and test.

        Raises:
            ValueError: A number is out of range.
        """
        module = cls.__new__(cls)
        LightningDataModule.__init__(module)
        module.batch_size = positive_int("batch_size", batch_size)
        module.eval_batch_size = positive_int("eval_batch_size", eval_batch_size)
        module.train_dataset = module.val_dataset = module.test_dataset = None
        module._loaded = _Loaded(partition, train, val, test, rows)
        return module

    @classmethod
    def from_lightning(
        cls,
        datamodule: LightningDataModule,
        partitioner: Partitioner,
        labels: Labels | None = None,
        *,
        batch_size: int | None = None,
        eval_batch_size: int | None = None,
        partition_seed: int = 0,
    ) -> FederatedDataModule:
        """A data module of the data sets in the loaders of a `LightningDataModule`.

        Its `prepare_data`, `setup("fit")` and, if it has test data, `setup("test")` are called at
        once. The clients share the data set of its `train_dataloader`; those of `val_dataloader`
        and `test_dataloader`, one or several each, are the server's. Each loader's `collate_fn` is
        used. Settings that say how a loader reads (`shuffle`, `drop_last`, `num_workers`,
        `pin_memory`) are not: clients draw their own batches, evaluation takes all examples in
        their order. Of a `SubsetRandomSampler`, the subset is taken.

        Args:
            datamodule: The data module.
            partitioner: Divides the training examples among the clients.
            labels: The labels by which the partitioner divides them, as for `FederatedDataModule`.
            batch_size: Examples per local step; None for that of the training loader.
            eval_batch_size: Examples per step of validation and test; None for the largest of the
                loaders.
            partition_seed: Seed that the partitioner gets.

        Raises:
            TypeError: It is no LightningDataModule, or a loader's data set is iterable only.
            ValueError: There are no training data or several training loaders, or a loader has a
                sampler or a batch sampler that chooses examples in a way of its own.

        Example:
            >>> import torch
            >>> from data_partitioners import IidPartitioner
            >>> from torch.utils.data import TensorDataset
            >>> tensors = TensorDataset(torch.ones(8, 3), torch.zeros(8))
            >>> own = LightningDataModule.from_datasets(tensors, val_dataset=tensors, batch_size=2)
            >>> data = FederatedDataModule.from_lightning(own, IidPartitioner(4))
            >>> data.batch_size, data.eval_batch_size
            (2, 2)
        """
        checked_partitioner(partitioner)
        if isinstance(datamodule, FederatedDataModule):
            raise TypeError(
                "datamodule is a FederatedDataModule already; write "
                "datamodule.repartition(partitioner) to divide its examples in another way"
            )
        loaders = read_loaders(datamodule)
        sizes = [each.batch_size for each in (*loaders.val, *loaders.test)]
        return cls(
            loaders.train.dataset,
            partitioner,
            loaders.train.batch_size if batch_size is None else batch_size,
            collate_fn=loaders.train.collate_fn,
            val_dataset=_read("val_dataloader()", loaders.val),
            test_dataset=_read("test_dataloader()", loaders.test),
            labels=labels,
            partition_seed=partition_seed,
            eval_batch_size=max(sizes, default=1000)
            if eval_batch_size is None
            else eval_batch_size,
        )

    def setup(self, stage: str | None = None) -> None:
        """Loads and partitions the data; a second call does nothing.

        Raises:
            ConnectionError: The hub is needed and cannot be reached.
            ValueError: A split or column is missing, or holds values that cannot be read.
        """
        if self._loaded is not None:
            return
        if isinstance(self._source, Dataset):
            self._loaded = self._read_torch(self._source)
            self.train_dataset = self._source
            return
        train_split, val_split, test_split = self._split_names
        splits = load_splits(self._source, *self._config, train_split)
        train = split_of(splits, "train_split", train_split)
        only_train = set(splits) == {train_split}
        evaluation: list[dict[str, datasets.Dataset]] = []
        for argument, split, given in (
            ("val_split", val_split, self.val_dataset),
            ("test_split", test_split, self.test_dataset),
        ):
            name = argument.replace("split", "dataset")
            if isinstance(given, list):
                evaluation.append({f"{name}[{i}]": each for i, each in enumerate(given)})
            elif given is not None:
                evaluation.append({name: given})
            elif split is None or (only_train and split == "test"):
                evaluation.append({})
            else:
                evaluation.append({split: split_of(splits, argument, split)})
        chosen = [each for named in evaluation for each in named.items()]
        with self._reading(train_split):
            layout = self._layout(train, [dataset for _, dataset in chosen])
            read = {id(train): layout.read(train, train_split, self._transform, self._cache)}
        partition = checked_partition(self.partitioner, train, self._partition_seed)
        for name, dataset in chosen:
            if id(dataset) not in read:
                with self._reading(name):
                    examples = layout.read(dataset, name, self._transform, self._cache)
                    read[id(dataset)] = examples
        self.val_dataset, self.test_dataset = (sole(list(named.values())) for named in evaluation)
        self.train_dataset = train
        val, test = ([read[id(each)] for each in named.values()] for named in evaluation)
        self._loaded = _Loaded(partition, read[id(train)], val, test, rows=train)

    def repartition(self, partitioner: Partitioner, partition_seed: int = 0) -> FederatedDataModule:
        """A data module of the same loaded data with a different partition.

        Args:
            partitioner: Divides the rows of the training split among the clients.
            partition_seed: Seed that the partitioner gets.

        Raises:
            TypeError: `partitioner` is not a `Partitioner`, or `partition_seed` not an integer.
            ValueError: The data were given as one data set per client, or `partition_seed` is
                negative.
        """
        checked_partitioner(partitioner)
        partition_seed = checked_seed(partition_seed)
        self.setup()
        loaded = self._ready()
        if loaded.rows is None:
            raise ValueError(
                "the data were given as one data set per client (from_client_datasets) and cannot "
                "be partitioned again; make another FederatedDataModule of them"
            )
        other = copy(self)
        other.partitioner = partitioner
        other._partition_seed = partition_seed
        partition = checked_partition(partitioner, loaded.rows, partition_seed)
        other._loaded = replace(loaded, partition=partition)
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
    def val_data(self) -> Examples | list[Examples] | None:
        """The examples for validation; None if there are none, a list for several data sets."""
        return sole(self._ready().val)

    @property
    def lacks_validation(self) -> bool:
        """Whether it is known, before any data are read, that there are none for validation."""
        if self._loaded is not None:
            return not self._loaded.val
        return isinstance(self._source, Dataset) and self.val_dataset is None

    @property
    def test_data(self) -> Examples | list[Examples] | None:
        """The examples for `test`, likewise."""
        return sole(self._ready().test)

    def evaluation_data(self, stage: str) -> list[Examples]:
        """The examples of each data set for a stage, "validation" or "test".

        Raises:
            ValueError: It is another word.
        """
        one_of("stage", stage, ("validation", "test"))
        loaded = self._ready()
        return list(loaded.val if stage == "validation" else loaded.test)

    def train_dataloader(self) -> DataLoader[Any]:
        """The pooled examples of all clients, shuffled, for `lightning.Trainer`."""
        rows = self.partition.rows
        pool: Any = self.train_data
        if not np.array_equal(rows, np.arange(len(pool))):
            pool = Subset(pool, np.sort(rows).tolist())
        return _loader(self.train_data, pool, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
        """The examples for validation in their order; an empty list if there are none."""
        return self._loaders("validation")

    def test_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
        """The examples for `test` in their order; an empty list if there are none."""
        return self._loaders("test")

    def _loaders(self, stage: str) -> DataLoader[Any] | list[DataLoader[Any]]:
        loaders = [
            _loader(data, data, self.eval_batch_size, shuffle=False)
            for data in self.evaluation_data(stage)
        ]
        return loaders[0] if len(loaders) == 1 else loaders

    def __repr__(self) -> str:
        """The class, the data, the clients and the sizes, in one line."""
        words = []
        if self._source is not None:
            source = self._source
            is_name = isinstance(source, str | Path)
            words += [repr(str(source)) if is_name else _described(source), repr(self.partitioner)]
        words.append(f"batch_size={self.batch_size}")
        if self._loaded is None:
            return f"{type(self).__name__}({', '.join(words)}, not loaded yet)"
        sizes = self.partition.sizes
        least, most = sizes.min(), sizes.max()
        each = f"{least} examples" if least == most else f"{least} to {most} examples"
        words.append(f"{len(sizes)} client{'s' if len(sizes) > 1 else ''} with {each}")
        for part, parts in (("validation", self._loaded.val), ("test", self._loaded.test)):
            if parts:
                words.append(f"{' + '.join(str(len(each)) for each in parts)} for {part}")
        return f"{type(self).__name__}({', '.join(words)})"

    def __str__(self) -> str:
        """As `repr`; Lightning's own would load the data loaders."""
        return repr(self)

    def _read_torch(self, source: Dataset[Any]) -> _Loaded:
        """Partition a torch data set by its labels, and read it."""
        rows = labels_table(source, self._labels)
        try:
            partition = checked_partition(self.partitioner, rows, self._partition_seed)
        except MissingColumnError as error:
            labels = "labels=…" if error.column == "label" else f"labels={{{error.column!r}: …}}"
            why = f"labels that {type(source).__name__} is not known to have; write {labels}"
            if self._labels is not None or error.columns != ["row"]:  # of a table without labels
                why = (
                    f"the column {error.column!r}, and the labels are in {error.columns}; write "
                    f"partition_by={error.columns[0]!r} in the partitioner, or "
                    f"labels={{{error.column!r}: …}}"
                )
            raise ValueError(
                f"{self.partitioner!r} needs {why} with one for each example, the name of an "
                "attribute or key, or a function such as lambda example: example[1]"
            ) from None
        how = self._collate_fn, self._transform
        train = examples_of([source], self._collate_fn, ["dataset"], self._transform)
        val = _evaluated("val_dataset", self.val_dataset, *how)
        test = _evaluated("test_dataset", self.test_dataset, *how)
        return _Loaded(partition, train, val, test, rows)

    def _layout(
        self, train: datasets.Dataset, others: Sequence[datasets.Dataset]
    ) -> Layout | RowLayout:
        """How the splits are read."""
        if self._collate_fn is not None:
            return RowLayout(self._collate_fn, table=None)
        if not any(map(has_own_transform, [train, *others])):
            return layout_of(train, self._columns, self._statistics, self._keys)
        if self._statistics is not None:
            raise ValueError(
                "normalize= is not applied to a data set with a transform of its own "
                "(with_transform or set_transform); normalise in that transform and leave "
                "normalize out"
            )
        return row_layout_of(train, self._columns, self._keys)

    @contextmanager
    def _reading(self, split: str) -> Iterator[None]:
        """Add a note that names the split to errors about its content."""
        try:
            yield
        except (TypeError, ValueError) as error:
            source = f" of {str(self._source)!r}" if isinstance(self._source, str | Path) else ""
            error.add_note(f"(while reading {split!r}{source})")
            raise

    def _ready(self) -> _Loaded:
        if self._loaded is None:
            raise RuntimeError(
                "the data are not loaded yet; call setup() first, as trainer.fit does"
            )
        return self._loaded


def _evaluated(
    argument: str,
    given: Any,
    collate_fn: Callable[[list[Any]], Any] | None,
    transform: Transform | None = None,
) -> list[Examples]:
    """The examples of map-style data sets for evaluation."""
    return [
        data
        if isinstance(data, ExampleTable | ExampleList)  # read already, perhaps in another way
        else examples_of([data], collate_fn, [name], transform)
        for name, data in evaluation_datasets(argument, given).items()
    ]


def _read(where: str, loaders: list[Loaded]) -> list[Examples] | None:
    """The examples of the loaders of a LightningDataModule; None if there are none."""
    read = [examples_of([each.dataset], each.collate_fn, [where]) for each in loaders]
    return read or None


def _described(source: datasets.Dataset | datasets.DatasetDict | Dataset[Any]) -> str:
    if isinstance(source, Dataset):
        return f"{type(source).__name__} of {len(source)} examples"  # type: ignore[arg-type]
    if not isinstance(source, Mapping):
        return f"Dataset of {len(source)} rows"
    return f"DatasetDict of {', '.join(f'{name}: {len(part)}' for name, part in source.items())}"


def _loader(
    data: ExampleTable | ExampleList, pool: Any, batch_size: int, *, shuffle: bool
) -> DataLoader[Any]:
    collate_fn = data.collate if isinstance(data, ExampleList) else None
    return DataLoader(pool, batch_size, shuffle=shuffle, collate_fn=collate_fn)
