"""The examples of all clients in one table or list, from which batches are gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, TensorDataset, default_collate

from fedlight.data.columns import Column

Batch: TypeAlias = tuple[Tensor, ...]
Transform: TypeAlias = Callable[[Batch], Batch]


class ExampleTable(Dataset[Batch]):
    """Examples as tensors with one row per example; batches are gathered on the device.

    Args:
        columns: The columns, of equal length; a batch is a tuple with one tensor per column.
        transform: A function that maps a gathered batch to another one with as many examples. It
            gets batches of any size, often of several clients at once, so it must treat each
            example separately.

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

    def __init__(self, columns: Sequence[Column], transform: Transform | None = None) -> None:
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

    @classmethod
    def of_tensors(cls, tensors: Sequence[Tensor]) -> ExampleTable:
        """A table of tensors with one row per example; their types are kept."""
        return cls([Column(tensor, tensor.dtype) for tensor in tensors])

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.columns[0].values)

    def __getitem__(self, row: int) -> Batch:
        """One example, without a batch dimension."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self.__getitems__([int(row) % len(self)])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Batch]:
        """Several examples at once; `torch.utils.data.DataLoader` calls this if it is there."""
        batch = self.gather(torch.as_tensor(rows, dtype=torch.int64))
        return list(zip(*batch, strict=True))

    def gather(self, rows: Tensor) -> Batch:
        """The examples of the rows given, with the shape of `rows` as leading dimensions.

        Args:
            rows: int64 `[..., b]`, for example `[clients, b]`.
        """
        flat = rows.reshape(-1).to(self.columns[0].values.device)
        batch = tuple([column.take(flat) for column in self.columns])
        if self.transform is not None:
            batch = self._transformed(batch, len(flat))
        if rows.dim() == 1:
            return batch
        return tuple([part.view(rows.shape + part.shape[1:]) for part in batch])

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """All examples in the order of the rows; the last batch may be smaller."""
        for start in range(0, len(self), batch_size):
            yield self.gather(torch.arange(start, min(start + batch_size, len(self))))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> ExampleTable:
        """The table on a device, with floating-point batches of `dtype` (None keeps their type)."""
        return ExampleTable([column.to(device, dtype) for column in self.columns], self.transform)

    def _transformed(self, batch: Batch, size: int) -> Batch:
        assert self.transform is not None
        result = self.transform(batch)
        if not isinstance(result, tuple):
            raise TypeError(
                "transform must return a tuple of tensors, as it gets one, "
                f"returned {type(result).__name__}"
            )
        if any(part.shape[:1] != (size,) for part in result):
            raise ValueError(
                f"transform must keep the number of examples, {size}, as the first dimension, "
                f"returned shapes {[tuple(part.shape) for part in result]}"
            )
        return result


class ExampleList(Dataset[Any]):
    """Examples of any kind: concatenated map-style data sets, collated batch by batch.

    Args:
        datasets: The data sets; row 0 of the second follows the last row of the first.
        collate_fn: A function that makes a batch of a list of examples.
        device: Device to which gathered batches are moved; None leaves them where they are.
        dtype: Type to which their floating-point tensors are converted; None keeps their type.

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
    ) -> None:
        """Concatenates the data sets."""
        self.datasets = tuple(datasets)
        self.collate_fn = collate_fn
        self.device = device
        self.dtype = dtype
        self._examples: ConcatDataset[Any] = ConcatDataset(self.datasets)

    def __len__(self) -> int:
        """Number of examples."""
        return len(self._examples)

    def __getitem__(self, row: int) -> Any:
        """One example, as its data set returns it."""
        return self._examples[row]

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
        batch = self.collate_fn([self._examples[row] for row in rows.tolist()])
        return apply_to_collection(batch, Tensor, self._moved)

    def batches(self, batch_size: int) -> Iterator[Any]:
        """All examples in the order of the rows; the last batch may be smaller."""
        for start in range(0, len(self), batch_size):
            yield self.gather(torch.arange(start, min(start + batch_size, len(self))))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> ExampleList:
        """The same examples; their batches are moved to a device when they are gathered."""
        return ExampleList(self.datasets, self.collate_fn, device, dtype)

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)


def examples_of(
    datasets: Sequence[Any], collate_fn: Callable[[list[Any]], Any] | None = None
) -> ExampleTable | ExampleList:
    """The examples of map-style data sets: a table if they are tensors of one shape, else a list.

    Args:
        datasets: Map-style data sets, for example `torch.utils.data.TensorDataset`s.
        collate_fn: A function that makes a batch of a list of examples; with one there is no table.
    """
    if collate_fn is not None:
        return ExampleList(datasets, collate_fn)
    kinds = {
        tuple((tensor.shape[1:], tensor.dtype) for tensor in dataset.tensors)
        if type(dataset) is TensorDataset  # a subclass may return something else than its tensors
        else None
        for dataset in datasets
    }
    if len(kinds) > 1 or not all(kinds):
        return ExampleList(datasets)
    columns = zip(*(dataset.tensors for dataset in datasets), strict=True)
    return ExampleTable.of_tensors([torch.cat(parts) for parts in columns])
