"""Checks of the map-style data sets that a user gives, and a remedy for each mistake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fedlight._support.checks import described, shown
from fedlight.data.sources import is_a, is_data_frame

_ARRAYS = (Tensor, np.ndarray)
_REMEDY = (
    ", which can only be iterated over; read it once and keep its examples, for example in a "
    "torch.utils.data.TensorDataset"
)


def client_datasets(given: Any) -> tuple[list[Any], list[str], tuple[str, ...] | None]:
    """The data sets of the clients, their names in errors, and the clients' names, if any.

    Args:
        given: One data set per client: a sequence, a generator, or a mapping with their names.

    Raises:
        TypeError: It is a single data set, or one of them is no map-style data set.
        ValueError: There is no client, a data set is empty, or two clients have one name.
    """
    if is_a("DatasetDict", given):
        raise TypeError(
            f"datasets is a DatasetDict with the splits {list(given)}, which are no clients; write "
            "FederatedDataModule(splits, partitioner), or from_client_datasets(dict(splits)) if "
            "each split is one client's"
        )
    if _is_data_set(given) or isinstance(given, (*_ARRAYS, str, bytes)) or is_data_frame(given):
        raise TypeError(
            f"datasets must hold one data set per client, got a single {type(given).__name__}"
            f"{f' ({shown(given)})' if isinstance(given, str | bytes) else ''}; "
            "write [data] for one client, or divide it, for example with "
            "torch.utils.data.random_split"
        )
    if not isinstance(given, Iterable):
        raise TypeError(
            f"datasets must be a sequence with one data set per client, got {given!r} "
            f"({type(given).__name__})"
        )
    ids = None
    if isinstance(given, Mapping):
        ids = tuple(map(str, given))
        if len(set(ids)) < len(ids):
            raise ValueError(f"two clients have the same name in datasets: {sorted(ids)}")
        found, names = list(given.values()), [f"datasets[{key!r}]" for key in given]
    else:
        found = list(given)
        names = [f"datasets[{i}] (client {i})" for i in range(len(found))]
    if not found:
        raise ValueError("datasets must hold one data set per client, got none")
    for name, data in zip(names, found, strict=True):
        check_map_style(name, data)
    return found, names, ids


def evaluation_datasets(argument: str, given: Any) -> dict[str, Any]:
    """The data sets for validation or test, by their names in errors.

    There is one, or several in a list, a tuple or a mapping.

    A list is several data sets if each of its items is one; else it is a data set itself, a list of
    examples.

    Raises:
        TypeError: One of them is no map-style data set.
        ValueError: One of them is empty, or there is none.
    """
    if given is None:
        return {}
    named = {argument: given}
    if isinstance(given, Mapping):
        several = all(_is_data_set(each) or isinstance(each, list) for each in given.values())
        if several and not _is_numbered(given):
            named = {f"{argument}[{key!r}]": data for key, data in given.items()}
    elif isinstance(given, list | tuple) and given and _is_data_set(given[0]):
        named = {f"{argument}[{i}]": data for i, data in enumerate(given)}
    if not named:
        raise ValueError(f"{argument} holds no data set; leave it out or give it one")
    for name, data in named.items():
        check_map_style(name, data)
    return named


def check_map_style(name: str, data: Any) -> None:
    """Check that data have a length and examples by number.

    Raises:
        TypeError: They have not, or their items are not examples.
        ValueError: They are empty.
    """
    if mistake := _mistaken(data):
        value = f", got {shown(data)}" if isinstance(data, bytes) else ""
        raise TypeError(f"{name} is {mistake}{value}")
    if (
        isinstance(data, IterableDataset | type)
        or not hasattr(data, "__len__")
        or not hasattr(data, "__getitem__")
    ):
        raise TypeError(
            f"{name} must be a map-style data set, with a length and items by number, got "
            f"{described(data)}{_REMEDY if isinstance(data, IterableDataset) else ''}"
        )
    if not getattr(data, "shape", (1,)):
        raise TypeError(f"{name} must be a map-style data set, got {shown(data)}, without an axis")
    if len(data) == 0:
        raise ValueError(f"{name} is empty; leave it out or give it an example")


def _mistaken(data: Any) -> str:
    """Describe data whose items are not examples, with the remedy; "" if there is no mistake."""
    if is_a("DatasetDict", data):
        return f"a DatasetDict; give one of its splits {list(data)}"
    if isinstance(data, Mapping) and not _is_numbered(data):
        return (
            f"a {type(data).__name__} with the keys {list(data)}; for tensors of one length write "
            "torch.utils.data.StackDataset(**tensors), whose batches are dicts"
        )
    if is_data_frame(data):
        return "a DataFrame; write datasets.Dataset.from_pandas(frame)"
    if isinstance(data, str):
        return f"the text {data!r}; give a data set"
    if isinstance(data, bytes | bytearray | memoryview):
        return f"{type(data).__name__}, whose examples would be single bytes; give a data set"
    if is_a("Table", data, "pyarrow") or is_a("RecordBatch", data, "pyarrow"):
        return f"a {type(data).__name__} of pyarrow; write datasets.Dataset(pyarrow.table(…))"
    first = data[0] if type(data) in (list, tuple) and data else None
    if isinstance(first, DataLoader):
        return "a list of DataLoaders; give the data sets in them: loader.dataset"
    if _is_data_set(first):
        return "a list of data sets; write torch.utils.data.ConcatDataset(data_sets) for one client"
    is_tuple = isinstance(data, tuple) and any(isinstance(each, _ARRAYS) for each in data)
    if is_tuple or (isinstance(data, list) and _are_columns(data)):
        kind = type(data).__name__
        if any(isinstance(each, np.ndarray) for each in data):
            return f"a {kind} of arrays; write TensorDataset(*map(torch.as_tensor, (x, y)))"
        return f"a {kind} of tensors; write TensorDataset(x, y)"
    return ""


def _is_data_set(value: object) -> bool:
    """Whether it is a data set of torch or of the `datasets` library."""
    return isinstance(value, Dataset) or is_a("Dataset", value)


def _is_numbered(data: Mapping[Any, Any]) -> bool:
    """Whether a mapping holds examples by number, as a map-style data set does."""
    return bool(data) and set(data) == set(range(len(data)))


def _are_columns(arrays: list[Any]) -> bool:
    """Whether arrays are as long as each other but differ in shape, as inputs and targets do."""
    if not all(isinstance(array, _ARRAYS) for array in arrays):
        return False
    shapes = {tuple(array.shape) for array in arrays}
    return len(shapes) > 1 and len({shape[:1] for shape in shapes}) == 1 and () not in shapes
