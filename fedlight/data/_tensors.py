"""Data sets of torch that hold nothing but tensors, and subsets of them at any depth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

Tensors: TypeAlias = dict[str | int, Tensor]
"""The tensors of a data set by key or position, with one row per example."""

_Signature: TypeAlias = tuple[tuple[str | int, torch.Size, torch.dtype], ...]

_REPEATED = 2**30
"""Bytes that a table may take in addition to the data sets, if subsets overlap."""


class TensorReader:
    """Finds the tensors of data sets; those that several subsets share are looked up once.

    A subclass may return other examples than its tensors hold, so only torch's own classes count:
    `TensorDataset`, `StackDataset` of tensors, and `ConcatDataset` and `Subset` of these.

    Args:
        datasets: The data sets, which must live as long as the reader.
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        self._datasets = datasets
        self._known: dict[int, Tensors | None] = {}
        self._rows: dict[int, NDArray[np.int64]] = {}

    def hindrance(self) -> str:
        """The reason, in words, why the data sets form no table; "" if they do."""
        wholes = [self._whole(base_of(dataset)) for dataset in self._datasets]
        if not all(wholes):
            others = {
                _kind(dataset)
                for dataset, whole in zip(self._datasets, wholes, strict=True)
                if not whole
            }
            return f"they are read one at a time ({', '.join(sorted(others))})"
        kinds = {id(whole): _signature(whole) for whole in wholes if whole}
        different = list(dict.fromkeys(kinds.values()))
        if len(different) > 1:
            return f"their tensors differ: {_in_words(different[0])}, {_in_words(different[1])}"
        held = {id(whole): _bytes(whole) for whole in wholes if whole}
        first = wholes[0]
        assert first
        per_example = _bytes(first) / max(1, len(next(iter(first.values()))))
        needed = per_example * sum(map(len, self._datasets))
        if needed > sum(held.values()) + _REPEATED:
            return f"a table of their overlapping subsets would take {needed / 2**30:.1f} GiB"
        return ""

    def table(self) -> Tensors:
        """The tensors of all data sets, one after the other.

        Raises:
            IndexError: A subset has an index that its data set does not have.
        """
        parts: list[Tensors] = []
        # Many clients are often subsets of one data set, from which all are taken at once.
        for _, group in groupby(self._datasets, key=lambda dataset: id(base_of(dataset))):
            datasets = list(group)
            whole = self._whole(base_of(datasets[0]))
            assert whole is not None
            if len(datasets) > 1 or type(datasets[0]) is Subset:
                rows = torch.from_numpy(np.concatenate([self._rows_of(each) for each in datasets]))
                whole = {key: tensor[rows] for key, tensor in whole.items()}
            parts.append(whole)
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

    def _rows_of(self, dataset: Any) -> NDArray[np.int64]:
        """The numbers of its rows in the data set of which it is a subset at last."""
        if id(dataset) not in self._rows:
            is_subset = type(dataset) is Subset
            self._rows[id(dataset)] = (
                chosen(self._rows_of(dataset.dataset), dataset)
                if is_subset
                else np.arange(len(dataset))
            )
        return self._rows[id(dataset)]

    def _whole(self, dataset: Any) -> Tensors | None:
        """The tensors of a data set that is no subset; None if it holds anything else."""
        if id(dataset) not in self._known:
            self._known[id(dataset)] = self._read(dataset)
        return self._known[id(dataset)]

    def _read(self, dataset: Any) -> Tensors | None:
        if type(dataset) is TensorDataset:
            return dict(enumerate(dataset.tensors))
        if type(dataset) is StackDataset:
            parts: Any = dataset.datasets
            parts = parts if isinstance(parts, dict) else dict(enumerate(parts))
            return parts if all(isinstance(part, Tensor) for part in parts.values()) else None
        if type(dataset) is ConcatDataset:
            reader = TensorReader(dataset.datasets)
            return None if reader.hindrance() else reader.table()
        return None


def base_of(dataset: Any) -> Any:
    """The data set of which another one is a subset, at any depth; else the data set itself."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def chosen(values: NDArray[Any], subset: Subset[Any]) -> NDArray[Any]:
    """The values, one for each example of a data set, of those in a subset of it.

    Raises:
        IndexError: The subset has an index that the data set does not have.
    """
    try:
        return values[np.asarray(subset.indices, dtype=np.int64)]
    except IndexError as error:
        raise IndexError(
            f"a {_kind(subset)} has an index that is not in it ({error}); the data set has "
            f"{len(values)} examples"
        ) from error


def _kind(dataset: Any) -> str:
    inner = f" of {_kind(dataset.dataset)}" if type(dataset) is Subset else ""
    return type(dataset).__name__ + inner


def _signature(tensors: Tensors) -> _Signature:
    return tuple((key, part.shape[1:], part.dtype) for key, part in tensors.items())


def _in_words(signature: _Signature) -> str:
    """The shapes and types of one example, such as "[(28, 28) uint8, () int64]"."""
    parts = [
        f"{f'{key}: ' if isinstance(key, str) else ''}{tuple(shape)} {str(dtype)[len('torch.') :]}"
        for key, shape, dtype in signature
    ]
    return f"[{', '.join(parts)}]"


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
