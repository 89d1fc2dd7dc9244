"""A mixture of i.i.d. and disjoint shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from data_partitioners._checks import (
    check_column_name,
    check_dataset,
    check_enough_rows,
    check_integer,
    check_real,
)
from data_partitioners._columns import read_codes
from data_partitioners._randomness import generator
from data_partitioners.partition import Partition
from data_partitioners.partitioner import Partitioner

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class MixingPartitioner(Partitioner):
    r"""Spread a share of the rows at random; divide the rest, sorted by label, into pieces.

    $$k = \mathrm{round}(\text{ratio} \cdot n) \text{ rows dealt evenly}, \qquad
    n_i \in \{\lfloor n/M \rfloor, \lceil n/M \rceil\}$$

    n is the number of rows and M the number of clients; the first n mod M clients have one row
    more. Ratio 1 is i.i.d. Ratio 0 gives client 0 the lowest labels and the last client the highest
    ones, so two clients share a class only if a piece ends inside it.

    Source: Avdiukhin and Kasiviswanathan, [Federated Learning under Arbitrary Communication
    Patterns](https://proceedings.mlr.press/v139/avdiukhin21a.html), Figure 1, whose experiments use
    the mixing rates 1, 1/2, 1/10 and 0.

    Args:
        num_partitions: M, the number of clients.
        ratio: The share of the rows, from 0 to 1, that is spread at random.
        partition_by: The column of labels.

    Raises:
        TypeError: An argument is of another type.
        ValueError: A number is out of range; or, from ``partition``, more clients than rows.

    Example:
        >>> import datasets
        >>> digits = datasets.Dataset.from_dict({"label": [0, 1] * 6})
        >>> disjoint = MixingPartitioner(num_partitions=2, ratio=0.0)
        >>> disjoint.partition(digits).label_counts(digits)
        array([[6, 0],
               [0, 6]])
    """

    num_partitions: int
    ratio: float
    partition_by: str = "label"

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_integer("num_partitions", self.num_partitions, 1)
        if not 0 <= check_real("ratio", self.ratio) <= 1:
            raise ValueError(f"ratio={self.ratio} is no share; give a number from 0 to 1")
        check_column_name("partition_by", self.partition_by)

    def partition(self, dataset: datasets.Dataset, seed: int = 0) -> Partition:
        """Return who holds which rows of ``dataset``."""
        codes, _ = read_codes(check_dataset(dataset), self.partition_by)
        check_enough_rows(self.num_partitions, len(codes))
        order = generator(seed, "rows").permutation(len(codes))
        deal = np.arange(len(codes), dtype=np.int64) % self.num_partitions
        spread, rest = np.split(order, [round(self.ratio * len(codes))])
        owners = np.empty(len(codes), dtype=np.int64)
        owners[spread] = deal[: len(spread)]
        # Each piece has the rows that its client still lacks, so sizes differ by at most 1.
        owners[rest[np.argsort(codes[rest], kind="stable")]] = np.sort(deal[len(spread) :])
        return Partition.from_owners(owners, self.num_partitions)
