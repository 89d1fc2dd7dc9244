"""Splits that are read row by row: those with a transform of their own, or for a collate function.

A data set of the `datasets` library may carry a function that is applied whenever rows are read
(`with_transform`, `set_transform`). It may draw random numbers, so its results cannot be stored:
the rows are read at each access, as `torch.utils.data.DataLoader` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import default_collate

from fedlight.data.examples import ExampleList, ExampleTable, Transform
from fedlight.data.layouts import Columns, Layout, default_columns, empty, layout_of

if TYPE_CHECKING:
    import datasets


def has_own_transform(dataset: datasets.Dataset) -> bool:
    """Whether the data set applies a user's function to each row that is read."""
    return bool(dataset.format["type"] == "custom")


@dataclass(frozen=True)
class ChosenColumns:
    """A collate function that makes a tuple, or a dict, of some of the rows' columns.

    Args:
        columns: The columns in their order.
        keys: The batch's key for each; None for a tuple.
    """

    columns: tuple[str, ...]
    keys: tuple[str, ...] | None

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        """Collate rows."""
        parts = [self._part(rows, name) for name in self.columns]
        return tuple(parts) if self.keys is None else dict(zip(self.keys, parts, strict=True))

    def _part(self, rows: list[dict[str, Any]], name: str) -> Any:
        missing = [row for row in rows if name not in row]
        if missing:
            raise ValueError(
                f"the data set's own transform returns the columns {list(missing[0])}, without "
                f"{name!r}; write columns=(INPUT, TARGET) with two of them, or "
                "columns={KEY: COLUMN} for batches that are dicts"
            )
        cells = [row[name] for row in rows]
        try:
            if all(isinstance(cell, list) for cell in cells):
                # torch's collate function would give one tensor for each position in the lists.
                return torch.tensor(cells)
            return default_collate(cells)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"column {name!r} holds {type(cells[0]).__name__} after the data set's own "
                f"transform ({str(error).splitlines()[0]}); let it return tensors, arrays or "
                "numbers of one shape, or give a collate_fn"
            ) from error


@dataclass(frozen=True)
class RowLayout:
    """How splits are read if one has a transform of its own, or if there is a collate function.

    Nothing is normalised: one split would be, and the other not.

    Args:
        collate_fn: Makes a batch of a list of rows.
        table: How splits without a transform of their own are read; None to read them row by row.
    """

    collate_fn: Callable[[list[Any]], Any]
    table: Layout | None

    def read(
        self,
        dataset: datasets.Dataset,
        split: str,
        transform: Transform | None = None,
        cache: bool | Path = False,
    ) -> ExampleTable | ExampleList:
        """Examples of a split; its first row is tried.

        Args:
            dataset: The split.
            split: Its name in errors.
            transform: As for `ExampleTable`.
            cache: As for `Layout.read`; examples that are read row by row are not kept.

        Raises:
            TypeError: A column holds values of which no tensor can be made.
            ValueError: The split is empty, or lacks a column.
        """
        if len(dataset) == 0:
            raise empty(split)
        if self.table is not None and not has_own_transform(dataset):
            return self.table.read(dataset, split, transform, cache)
        examples = ExampleList([dataset], self.collate_fn, transform=transform, names=[repr(split)])
        with isolate_rng(include_cuda=False):  # the transform may draw random numbers
            examples.collate_fn(examples.__getitems__([0]))
        return examples


def row_layout_of(
    dataset: datasets.Dataset, columns: Columns | None, keys: tuple[str, ...] | None
) -> RowLayout:
    """How splits are read of which one has a transform of its own.

    Args:
        dataset: The training split.
        columns: Input columns and target column; None to recognise them by their names.
        keys: The batch's key for each column; None for batches that are tuples.

    Raises:
        ValueError: The columns cannot be recognised by their names.
    """
    if not has_own_transform(dataset):
        table = layout_of(dataset, columns, None, keys, known_statistics=False)
        columns = table.inputs, table.target
    else:
        if columns is None:
            with isolate_rng(include_cuda=False):
                columns = default_columns(dict.fromkeys(dataset[0]))
        table = Layout(*columns, statistics=None, text=False, class_target=False, keys=keys)
    inputs, target = columns
    names = (*inputs, *([] if target is None else [target]))
    return RowLayout(ChosenColumns(names, keys), table)
