"""Equal shares of random rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from data_partitioners._checks import check_dataset, check_enough_rows, check_integer
from data_partitioners._randomness import generator
from data_partitioners.partition import Partition
from data_partitioners.partitioner import Partitioner

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class IidPartitioner(Partitioner):
    r"""Give each client the same number of random rows.

    $$n_i \in \{\lfloor n/M \rfloor, \lceil n/M \rceil\}$$

    n is the number of rows and M the number of clients; the first n mod M clients have one row
    more.

    Source: McMahan et al., [Communication-Efficient Learning of Deep Networks from Decentralized
    Data](https://arxiv.org/abs/1602.05629), Section 3, the i.i.d. case.

    Args:
        num_partitions: M, the number of clients.

    Raises:
        TypeError: ``num_partitions`` is not an integer.
        ValueError: It is below 1; or, from ``partition``, larger than the number of rows.

    Example:
        >>> import datasets
        >>> ten = datasets.Dataset.from_dict({"label": [0, 1] * 5})
        >>> IidPartitioner(num_partitions=3).partition(ten, seed=1).sizes
        array([4, 3, 3])
    """

    num_partitions: int

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_integer("num_partitions", self.num_partitions, 1)

    def partition(self, dataset: datasets.Dataset, seed: int = 0) -> Partition:
        """Return who holds which rows of ``dataset``; no column is read."""
        num_rows = check_dataset(dataset).num_rows
        check_enough_rows(self.num_partitions, num_rows)
        deal = np.arange(num_rows, dtype=np.int64) % self.num_partitions
        return Partition.from_owners(generator(seed, "rows").permutation(deal), self.num_partitions)
