"""The examples of all clients in one table or list, from which batches are gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import ConcatDataset, Dataset, default_collate

from fedlight.data._tensors import TensorReader
from fedlight.data.columns import Column
from fedlight.data.sources import is_a

Batch: TypeAlias = tuple[Tensor, ...] | dict[str, Tensor]
Transform: TypeAlias = Callable[[Any], Any]
"""A function that maps a batch to another one."""

_CONVERTED = 2**30
"""Bytes that the converted values of a table may take, in addition to the stored ones."""

_PAYS_AFTER = 16
"""How often each row is gathered before all are converted: new memory costs ten conversions."""


class ExampleTable(Dataset[Any]):
    """Examples as tensors with one row per example; batches are gathered on the device.

    On the CPU, a table from which many rows are gathered keeps its converted values (pixels as
    normalised floats) if they fit in 1 GiB and gathering them is faster on this machine than to
    convert each batch. Both give the same bits.

    Args:
        columns: The columns, of equal length; a batch is a tuple with one tensor per column.
        transform: A function that maps a gathered batch to another one with as many examples, a
            tuple or a dict of tensors. It gets batches of any size, often of several clients at
            once, so it must treat each example separately.
        keys: One name per column to make each batch a dict; None for a tuple.

    Raises:
        ValueError: There is no column or no row, or the columns differ in length.

    Example:
        >>> table = ExampleTable.of_tensors([torch.arange(6).reshape(3, 2), torch.arange(3)])
        >>> x, y = table.gather(torch.tensor([[0, 2], [1, 1]]))
        >>> x.shape, y
        (torch.Size([2, 2, 2]), tensor([[0, 2],
                [1, 1]]))
    """

    stackable = True
    how_read = "batches are gathered from tensors"

    def __init__(
        self,
        columns: Sequence[Column],
        transform: Transform | None = None,
        keys: Sequence[str] | None = None,
    ) -> None:
        """Checks that the columns fit together."""
        lengths = {len(column.values) for column in columns}
        if len(lengths) != 1:
            raise ValueError(
                f"columns must be one or more of equal length, got lengths {sorted(lengths)}"
            )
        if lengths == {0}:
            raise ValueError("columns must have at least one row, got 0")
        self.columns = tuple(columns)
        self.transform = transform
        self.keys = None if keys is None else tuple(keys)
        self._sources = self.columns
        fits = sum(map(_converted_bytes, columns)) <= _CONVERTED
        self._until = _PAYS_AFTER * len(self) if fits else -1

    @classmethod
    def of_tensors(
        cls, tensors: Sequence[Tensor], keys: Sequence[str] | None = None
    ) -> ExampleTable:
        """A table of tensors with one row per example; their types are kept."""
        return cls([Column(tensor, tensor.dtype) for tensor in tensors], keys=keys)

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.columns[0].values)

    def __getitem__(self, row: int) -> Any:
        """One example, without a batch dimension."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self.__getitems__([int(row) % len(self)])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Several examples at once; `torch.utils.data.DataLoader` calls this if it is there."""
        batch = self.gather(torch.as_tensor(rows, dtype=torch.int64))
        parts, tree = pytree.tree_flatten(batch)
        return [pytree.tree_unflatten(list(example), tree) for example in zip(*parts, strict=True)]

    def gather(self, rows: Tensor) -> Any:
        """The examples of the rows given, with the shape of `rows` as leading dimensions.

        Args:
            rows: int64 `[..., b]`, for example `[clients, b]`.
        """
        flat = rows.reshape(-1).to(self._sources[0].values.device)
        if self._until > 0:
            self._until -= len(flat)
            if self._until <= 0:
                self._sources = _faster(self._sources)
        parts = tuple([column.take(flat) for column in self._sources])
        if self.transform is None and self.keys is None:  # by far the most frequent case
            if rows.dim() == 1:
                return parts
            return tuple([part.view(rows.shape + part.shape[1:]) for part in parts])
        batch: Any = parts if self.keys is None else dict(zip(self.keys, parts, strict=True))
        if self.transform is not None:
            batch = self._transformed(batch, len(flat))
        if rows.dim() == 1:
            return batch
        if _is_flat(batch):  # walking a tree costs ten times as much
            return tuple([part.view(rows.shape + part.shape[1:]) for part in batch])
        return pytree.tree_map(lambda part: part.view(rows.shape + part.shape[1:]), batch)

    def batches(self, batch_size: int) -> Iterator[Any]:
        """All examples in the order of the rows; the last batch may be smaller."""
        for start in range(0, len(self), batch_size):
            yield self.gather(torch.arange(start, min(start + batch_size, len(self))))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> ExampleTable:
        """The table on a device, with floating-point batches of `dtype` (None keeps their type)."""
        columns = [column.to(device, dtype) for column in self.columns]
        return ExampleTable(columns, self.transform, self.keys)

    def _transformed(self, batch: Any, size: int) -> Any:
        assert self.transform is not None
        result = self.transform(batch)
        parts = result if _is_flat(result) else pytree.tree_leaves(result)
        if isinstance(result, Tensor) or not all(isinstance(part, Tensor) for part in parts):
            wrong = [type(part).__name__ for part in parts if not isinstance(part, Tensor)]
            raise TypeError(
                "transform must return a tuple or a dict of tensors, returned "
                f"{type(result).__name__}{f' with {wrong[0]}' if wrong else ''}"
            )
        if not parts or any(part.shape[:1] != (size,) for part in parts):
            raise ValueError(
                f"transform must keep the number of examples, {size}, as the first dimension, "
                f"returned shapes {[tuple(part.shape) for part in parts]}"
            )
        return result


class ExampleList(Dataset[Any]):
    """Examples of any kind: concatenated map-style data sets, collated batch by batch.

    Each access reads the examples again, as `torch.utils.data.DataLoader` does, so a data set may
    augment them at random.

    Args:
        datasets: The data sets; row 0 of the second follows the last row of the first.
        collate_fn: A function that makes a batch of a list of examples.
        device: Device to which gathered batches are moved; None leaves them where they are.
        dtype: Type to which their floating-point tensors are converted; None keeps their type.
        transform: A function that maps a batch, on its device, to another one.
        names: The name of each data set in errors; None for `datasets[0]`, `datasets[1]`, ….

    Example:
        >>> examples = ExampleList([["a", "b"], ["c"]])
        >>> examples.gather(torch.tensor([2, 0]))
        ['c', 'a']
    """

    stackable = False

    def __init__(
        self,
        datasets: Sequence[Any],
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        transform: Transform | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        """Concatenates the data sets."""
        self.datasets = tuple(datasets)
        self.collate_fn = collate_fn
        self.device = device
        self.dtype = dtype
        self.transform = transform
        self.names = names
        self._examples: ConcatDataset[Any] = ConcatDataset(self.datasets)
        # An array: searching a list would convert it each time, which takes longer the more clients
        # there are.
        self._ends = np.array(self._examples.cumulative_sizes)

    @property
    def how_read(self) -> str:
        """The reason, in words, why there is no table of these examples."""
        if self.collate_fn is not default_collate:
            name = getattr(self.collate_fn, "__name__", type(self.collate_fn).__name__)
            return f"{name} makes each batch of a list of rows"
        return TensorReader(self.datasets).hindrance() or "they are read one at a time"

    def __len__(self) -> int:
        """Number of examples."""
        return len(self._examples)

    def __getitem__(self, row: int) -> Any:
        """One example, as its data set returns it."""
        return self._examples[row]

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Several examples; a data set that can read several at once does so.

        Raises:
            Exception: An error of a data set, with a note that names it and the row.
        """
        which = np.searchsorted(self._ends, rows, side="right").tolist()
        read: Any = getattr(self.datasets[which[0]], "__getitems__", None)
        if read is None or len(set(which)) > 1:
            return [self._one(row) for row in rows]
        start = 0 if which[0] == 0 else int(self._ends[which[0] - 1])
        try:
            examples: list[Any] = list(read([row - start for row in rows]))
        except Exception:
            for row in rows:  # to find the row that fails
                self._one(row)
            raise
        return examples

    def gather(self, rows: Tensor) -> Any:
        """The collated batch of the rows given.

        Args:
            rows: int64 `[b]`.

        Raises:
            ValueError: `rows` has more than one dimension.
        """
        if rows.dim() != 1:
            raise ValueError(
                f"rows must have one dimension here, got shape {tuple(rows.shape)}: examples of "
                "any kind cannot be stacked over clients"
            )
        return self.collate(self.__getitems__(rows.tolist()))

    def collate(self, examples: list[Any]) -> Any:
        """The batch of a list of examples: collated, moved to the device, and transformed."""
        batch = apply_to_collection(self.collate_fn(examples), Tensor, self._moved)
        return batch if self.transform is None else self.transform(batch)

    def batches(self, batch_size: int) -> Iterator[Any]:
        """All examples in the order of the rows; the last batch may be smaller."""
        for start in range(0, len(self), batch_size):
            yield self.gather(torch.arange(start, min(start + batch_size, len(self))))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> ExampleList:
        """The same examples; their batches are moved to a device when they are gathered."""
        return ExampleList(
            self.datasets,
            self.collate_fn,
            device,
            dtype,
            transform=self.transform,
            names=self.names,
        )

    def _one(self, row: int) -> Any:
        try:
            return self._examples[row]
        except Exception as error:
            which = int(np.searchsorted(self._ends, row, side="right"))
            inner = row - (int(self._ends[which - 1]) if which else 0)
            name = f"datasets[{which}]" if self.names is None else self.names[which]
            column = _broken_column(self.datasets[which], inner)
            error.add_note(f"(while reading {column}row {inner} of {name})")
            raise

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)


def _broken_column(dataset: Any, row: int) -> str:
    """The column of a row that cannot be read by itself, in words; "" if there is no such one."""
    if not is_a("Dataset", dataset):
        return ""
    plain = dataset.with_format(None)
    for name in plain.column_names:
        try:
            plain.select_columns([name])[row]
        except Exception:
            return f"column {name!r} of "
    return ""


def examples_of(
    datasets: Sequence[Any],
    collate_fn: Callable[[list[Any]], Any] | None = None,
    names: Sequence[str] | None = None,
    transform: Transform | None = None,
) -> ExampleTable | ExampleList:
    """The examples of map-style data sets: a table if they are tensors of one shape, else a list.

    Args:
        datasets: Map-style data sets. `TensorDataset`s and `StackDataset`s of tensors, and subsets
            and concatenations of them, form a table if they are of one shape and type.
        collate_fn: A function that makes a batch of a list of examples; with one there is no table.
        names: The name of each data set in errors.
        transform: As for `ExampleTable`.
    """
    if collate_fn is not None:
        return ExampleList(datasets, collate_fn, transform=transform, names=names)
    reader = TensorReader(datasets)
    if reader.hindrance():
        return ExampleList(datasets, transform=transform, names=names)
    table = reader.table()
    keys = [key for key in table if isinstance(key, str)]
    columns = [Column(tensor, tensor.dtype) for tensor in table.values()]
    return ExampleTable(columns, transform, keys or None)


def _converted_bytes(column: Column) -> float:
    """The bytes of a column's converted values; infinite if they are not to be kept."""
    if column.values.device.type != "cpu":  # the memory of other devices is for models
        return inf
    return column.values.numel() * column.dtype.itemsize


def _faster(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """The columns or the converted ones, whichever give batches in less time.

    Converted values need no arithmetic but take up to four times the room, so more of them lie
    outside of the processor's caches. Which of the two costs more differs between machines.
    """
    converted = tuple([column.converted() for column in columns])
    generator = torch.Generator().manual_seed(0)
    times: dict[tuple[Column, ...], float] = {columns: inf, converted: inf}
    for _ in range(5):
        for each in times:  # other rows each time: those of the last time would be in the caches
            rows = torch.randint(len(columns[0].values), (1024,), generator=generator)
            begun = perf_counter()
            for column in each:
                column.take(rows)
            times[each] = min(times[each], perf_counter() - begun)
    return min(times, key=times.__getitem__)


def _is_flat(batch: Any) -> bool:
    """Whether a batch is a tuple of tensors, as most are."""
    return type(batch) is tuple and all(isinstance(part, Tensor) for part in batch)


def same_examples(one: object, other: object) -> bool:
    """Whether two objects hold the same examples, and give the same batches."""
    if isinstance(one, ExampleTable) and isinstance(other, ExampleTable):
        return (
            one.keys == other.keys
            and one.transform is other.transform
            and len(one.columns) == len(other.columns)
            and all(
                a.dtype == b.dtype
                and all(map(_equal, (a.values, a.scale, a.shift), (b.values, b.scale, b.shift)))
                for a, b in zip(one.columns, other.columns, strict=True)
            )
        )
    if isinstance(one, ExampleList) and isinstance(other, ExampleList):
        return (
            len(one.datasets) == len(other.datasets)
            and all(a is b for a, b in zip(one.datasets, other.datasets, strict=True))
            and all(
                getattr(one, name) is getattr(other, name) for name in ("collate_fn", "transform")
            )
            and (one.device, one.dtype, one.names) == (other.device, other.dtype, other.names)
        )
    return one is other


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return one.data_ptr() == other.data_ptr() or torch.equal(one, other)
