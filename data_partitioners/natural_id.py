"""One client per writer, speaker or hospital."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from data_partitioners._checks import brief, check_column_name, check_dataset
from data_partitioners._columns import read_codes
from data_partitioners._randomness import generator
from data_partitioners.partition import Partition
from data_partitioners.partitioner import Partitioner

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class NaturalIdPartitioner(Partitioner):
    r"""Make each distinct value of a column one client, in sorted order.

    $$\text{client of row } r = \mathrm{rank}(\mathrm{id}_r)$$

    Integers are sorted as numbers, strings by code point; the order of the rows has no influence.
    The ids, as strings, are the partition's ``client_ids``. To divide a second split among the same
    clients, pass them on: ``partition(test, client_ids=train_partition.client_ids)``. Nothing is
    random: the seed is checked but not used.

    Source: Caldas et al., [LEAF: A Benchmark for Federated
    Settings](https://arxiv.org/abs/1812.01097), for Shakespeare; Yang et al., [Anarchic Federated
    Learning](https://arxiv.org/abs/2108.09875), Appendix E.1.

    Args:
        partition_by: The column of ids, integers or strings.

    Raises:
        TypeError: ``partition_by`` is not a string.
        ValueError: From ``partition``: no such column, no rows, or ids of another type or missing.

    Example:
        >>> import datasets
        >>> train = datasets.Dataset.from_dict({"writer": ["cy", "ann", "cy", "bob"]})
        >>> test = datasets.Dataset.from_dict({"writer": ["dan", "cy", "ann"]})
        >>> by_writer = NaturalIdPartitioner(partition_by="writer")
        >>> partition = by_writer.partition(train)
        >>> partition.client_ids, partition.sizes
        (('ann', 'bob', 'cy'), array([1, 1, 2]))
        >>> by_writer.partition(test, client_ids=partition.client_ids)
        Partition(3 clients with 0 to 1 of 3 rows, 1 unused: 1 id not among client_ids: dan)
    """

    partition_by: str

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_column_name("partition_by", self.partition_by)

    def partition(
        self,
        dataset: datasets.Dataset,
        seed: int = 0,
        client_ids: Sequence[str] | None = None,
    ) -> Partition:
        """Return who holds which rows of ``dataset``.

        Args:
            dataset: One split.
            seed: Not used.
            client_ids: The clients in their order, taken from the partition of another split. A
                client without rows in this split gets an empty share; rows of other ids are
                unused.

        Returns:
            One client per id. Without ``client_ids`` all rows are used and no client is empty.

        Raises:
            TypeError: ``client_ids`` is not a list of strings.
            ValueError: ``client_ids`` are empty or not distinct, or no row belongs to them.
        """
        generator(seed, "rows")
        codes, ids = read_codes(check_dataset(dataset), self.partition_by)
        if not len(codes):
            raise ValueError("the data set has no rows, hence no ids")
        if ids.dtype.kind not in "iuOTU":
            raise ValueError(
                f"column {self.partition_by!r} holds {ids.dtype}; ids are integers or strings"
            )
        names = tuple(map(str, ids))
        if client_ids is None:
            return Partition.from_owners(codes, len(names), client_ids=names)
        numbers = _number(client_ids)
        owners = np.array([numbers.get(name, -1) for name in names], dtype=np.int64)
        strangers = [name for name, owner in zip(names, owners, strict=True) if owner < 0]
        if len(strangers) == len(names):
            raise ValueError(
                f"none of the {len(names)} ids in column {self.partition_by!r} (as {names[0]!r}) "
                f"is among the {len(numbers)} client_ids (as {next(iter(numbers))!r})"
            )
        return Partition.from_owners(
            owners[codes],
            len(numbers),
            unused_reason=f"{len(strangers)} id{'s' * (len(strangers) > 1)} not among client_ids: "
            f"{', '.join(strangers[:5])}{', ...' if len(strangers) > 5 else ''}",
            client_ids=tuple(numbers),
        )


def _number(client_ids: Sequence[str]) -> dict[str, int]:
    # A set of strings has another order in every Python process.
    if isinstance(client_ids, str | Set) or not isinstance(client_ids, Iterable):
        raise TypeError(
            "client_ids must be a sequence of strings, as a partition's client_ids are, "
            f"got {client_ids!r}"
        )
    names: list[Any] = (
        [client_ids] if getattr(client_ids, "shape", None) == () else list(client_ids)
    )
    if not all(isinstance(name, str) for name in names):
        raise TypeError(
            "client_ids must be a sequence of strings, as a partition's client_ids are, got "
            f"{brief(client_ids if isinstance(client_ids, bytes) else names)}; write integer ids "
            "as str(id)"
        )
    numbers = {name: number for number, name in enumerate(names)}
    if not numbers or len(numbers) < len(names):
        raise ValueError(
            f"client_ids={brief(client_ids if len(names) else [])} has {len(names)} ids, "
            f"{len(numbers)} of them distinct; give each once, and one or more"
        )
    return numbers
