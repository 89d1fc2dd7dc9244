"""Reads a column of a data set as a numpy array, once and without decoding other columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import datasets


class MissingColumnError(ValueError):
    """A partitioner asks for a column that the data set does not have.

    Args:
        column: The column.
        columns: Those that the data set has.
    """

    def __init__(self, column: str, columns: list[str]) -> None:
        super().__init__(column, columns)
        self.column, self.columns = column, columns

    def __str__(self) -> str:
        return (
            f"the data set has no column {self.column!r}; its columns are {self.columns}: give the "
            "partitioner one of them as partition_by="
        )


def encode(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return each value's number among the distinct values in sorted order, and those values."""
    distinct, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64, copy=False), distinct


def read_codes(dataset: datasets.Dataset, column: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return ``encode`` of a column of numbers or strings.

    Raises:
        MissingColumnError: There is no such column.
        ValueError: It holds neither numbers nor strings, or a row of it
            is None, NaN, or -1 in a ClassLabel column, which marks a missing label.
    """
    import datasets

    if column not in dataset.column_names:
        raise MissingColumnError(column, dataset.column_names)
    # Formatting as Arrow bypasses what the user chose by set_format or set_transform.
    arrow = dataset.select_columns([column]).with_format("arrow")[:].column(column)
    if arrow.null_count:
        raise ValueError(
            f"column {column!r} is None in {arrow.null_count} of {len(arrow)} rows; "
            "drop those rows (dataset.filter) or fill them in"
        )
    kind = str(arrow.type)
    if not kind.startswith(("int", "uint", "float", "double", "half", "bool", "string", "large_s")):
        raise ValueError(f"column {column!r} holds {kind}; it must hold numbers or strings")
    # Hashing first leaves only the distinct values to be sorted, not a million strings.
    hashed = arrow.dictionary_encode().combine_chunks()
    ranks, distinct = encode(hashed.dictionary.to_numpy(zero_copy_only=False))
    codes = ranks[hashed.indices.to_numpy(zero_copy_only=False)]
    if distinct.dtype.kind == "f" and np.isnan(distinct).any():
        count = int(np.isnan(distinct)[codes].sum())
        raise ValueError(f"column {column!r} is NaN in {count} of {len(codes)} rows; drop them")
    if isinstance(dataset.features[column], datasets.ClassLabel) and (distinct < 0).any():
        count = int((distinct < 0)[codes].sum())
        raise ValueError(
            f"column {column!r} is unlabelled (-1) in {count} of {len(codes)} rows; drop them"
        )
    return codes, distinct
