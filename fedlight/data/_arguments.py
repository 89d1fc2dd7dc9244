"""Checks of the arguments that make a data module, and of what its partitioner returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import Dataset

from data_partitioners import Partition, Partitioner
from fedlight._support.checks import integer, shown
from fedlight.data.sources import is_a, is_data_frame

if TYPE_CHECKING:
    import datasets

_T = TypeVar("_T")


def checked_partitioner(partitioner: object) -> None:
    """Raise a TypeError unless it is a partitioner."""
    if not isinstance(partitioner, Partitioner):
        is_class = isinstance(partitioner, type) and issubclass(partitioner, Partitioner)
        raise TypeError(
            "partitioner must be a data_partitioners.Partitioner such as "
            f"IidPartitioner(num_partitions=10), got {shown(partitioner)}"
            f"{', which is a class; call it' if is_class else ''}"
        )


def checked_seed(partition_seed: object) -> int:
    """Return the seed of a partition: partitioners take any integer from 0 on."""
    seed = integer("partition_seed", partition_seed)
    if seed < 0:
        raise ValueError(f"partition_seed must be 0 or larger, got {shown(seed)}")
    return seed


def checked_partition(partitioner: Partitioner, dataset: datasets.Dataset, seed: int) -> Partition:
    """Partition a data set; a faulty partitioner fails here and not in a round."""
    partition: object = partitioner.partition(dataset, seed)
    if not isinstance(partition, Partition):
        raise TypeError(
            f"{partitioner!r} returned {type(partition).__name__}; its partition(dataset, seed) "
            "must return a data_partitioners.Partition, for example "
            "Partition.from_owners(owners, num_partitions) with the client of each row"
        )
    num_rows = len(dataset)
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
    return partition


def split_of(splits: datasets.DatasetDict, argument: str, split: str) -> datasets.Dataset:
    """Return the split that an argument names, or raise a ValueError with the names there are."""
    if split not in splits:
        none = "" if argument == "train_split" else f" or {argument}=None"
        raise ValueError(
            f"{argument}={split!r} is not a split of the data set, which has {list(splits)}; "
            f"name one of them{none}"
        )
    return splits[split]


def check_belongs_to_torch(**arguments: tuple[object, object]) -> None:
    """Refuse arguments that say how a data set of the hub is read.

    Args:
        **arguments: The value given, and that which means nothing was given.
    """
    wrong = [
        f"{name}={value!r}"
        for name, (value, nothing) in arguments.items()
        if value is not None and value != nothing
    ]
    if wrong:
        raise ValueError(
            f"{', '.join(wrong)}: a torch data set has no columns and splits, and makes its "
            "examples itself; leave this out, and give its validation data as val_dataset="
        )


def check_maker_of_batches(name: str, function: object, given: str) -> None:
    """Raise a TypeError unless it is a function, which is called with `given`, or None."""
    if function is not None and (isinstance(function, type) or not callable(function)):
        raise TypeError(
            f"{name} must be a function of {given} that returns a batch, got {shown(function)}"
        )


def one_or_several(argument: str, given: Any) -> Any:
    """A `datasets.Dataset`, a list of several, or None.

    Raises:
        TypeError: It is something else.
    """
    if given is None or is_a("Dataset", given):
        return given
    several = list(given.values()) if isinstance(given, Mapping) else given
    if (
        not isinstance(several, list | tuple)
        or not several
        or not all(is_a("Dataset", each) for each in several)
    ):
        kind = type(given).__name__
        way_out = "; write datasets.Dataset.from_pandas(frame)" if is_data_frame(given) else ""
        if any(isinstance(each, Dataset) for each in (given, *_listed(several))):
            way_out = (
                "; a torch data set for validation or test needs a torch data set for the clients, "
                "FederatedDataModule(torch_dataset, partitioner, …)"
            )
        raise TypeError(
            f"{argument} must be a datasets.Dataset, or several in a list or a dict, got "
            f"{kind if way_out else repr(given)}{way_out}"
        )
    return sole(list(several))


def sole(parts: list[_T]) -> _T | list[_T] | None:
    """The only part, None if there is none, or the list of several."""
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else parts


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
