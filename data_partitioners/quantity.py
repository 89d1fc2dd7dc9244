"""Clients of unequal size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data_partitioners._checks import check_dataset, check_enough_rows, check_integer, check_real
from data_partitioners._randomness import generator
from data_partitioners._sizes import donations
from data_partitioners.partition import Partition
from data_partitioners.partitioner import Partitioner

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class QuantityPartitioner(Partitioner):
    r"""Give the clients random rows in sizes that follow a power law or are given.

    $$n_i \propto (i + 1)^{-\text{exponent}} \qquad \text{or} \qquad n_i = \text{sizes}_i$$

    With the power law all rows are used: sizes are rounded down, the first clients take the
    remaining rows, and clients without a row get one from the largest client. With given sizes,
    rows beyond their sum are unused. The sizes do not depend on the seed.

    Source: Li et al., [Federated Optimization in Heterogeneous
    Networks](https://arxiv.org/abs/1812.06127), Section 5.1, where sizes follow a power law.

    Args:
        num_partitions: M, the number of clients.
        exponent: A number >= 0; 0 gives equal sizes. Give either this or ``sizes``.
        sizes: The number of rows of each of the M clients, >= 1.

    Raises:
        TypeError: An argument is of another type.
        ValueError: Both or neither of ``exponent`` and ``sizes`` are given, a number is out of
            range, or there are not M sizes; or, from ``partition``, there are too few rows.

    Example:
        >>> import datasets
        >>> rows = datasets.Dataset.from_dict({"label": [0] * 110})
        >>> QuantityPartitioner(num_partitions=3, exponent=1.0).partition(rows).sizes
        array([60, 30, 20])
        >>> QuantityPartitioner(num_partitions=2, sizes=[100, 7]).partition(rows)
        Partition(2 clients with 7 to 100 of 110 rows, 3 unused: sizes add up to 107 of 110 rows)
    """

    num_partitions: int
    exponent: float | None = None
    sizes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        """Check the arguments and store the sizes as a tuple."""
        check_integer("num_partitions", self.num_partitions, 1)
        if (self.exponent is None) == (self.sizes is None):
            raise ValueError(
                f"exponent={self.exponent!r} and sizes={self.sizes!r}; give exactly one of them"
            )
        if self.exponent is not None and check_real("exponent", self.exponent) < 0:
            raise ValueError(f"exponent={self.exponent} is negative; give a number >= 0")
        if self.sizes is not None:
            # The keys of a mapping would be taken for sizes, and a set has no order.
            if isinstance(self.sizes, Mapping | Set) or not isinstance(self.sizes, Iterable):
                raise TypeError(
                    f"sizes={self.sizes!r} must be a sequence with one size per client, in the "
                    "order of the clients"
                )
            sizes = tuple(check_integer("each of sizes", size, 1) for size in self.sizes)
            if len(sizes) != self.num_partitions:
                raise ValueError(
                    f"{len(sizes)} sizes for num_partitions={self.num_partitions}; "
                    "give one size per client"
                )
            object.__setattr__(self, "sizes", sizes)

    def partition(self, dataset: datasets.Dataset, seed: int = 0) -> Partition:
        """Return who holds which rows of ``dataset``; no column is read."""
        num_rows = check_dataset(dataset).num_rows
        sizes = self._sizes(num_rows)
        owners = np.full(num_rows, -1, dtype=np.int64)
        owners[: sizes.sum()] = np.repeat(np.arange(self.num_partitions), sizes)
        return Partition.from_owners(
            generator(seed, "rows").permutation(owners),
            self.num_partitions,
            unused_reason=f"sizes add up to {sizes.sum()} of {num_rows} rows",
        )

    def _sizes(self, num_rows: int) -> NDArray[np.int64]:
        if self.sizes is not None:
            wanted = sum(self.sizes)
            if wanted > num_rows:
                raise ValueError(
                    f"sizes add up to {wanted} rows, the data set has {num_rows}; give less"
                )
            return np.array(self.sizes, dtype=np.int64)
        assert self.exponent is not None
        check_enough_rows(self.num_partitions, num_rows)
        weights = np.arange(1, self.num_partitions + 1, dtype=np.float64) ** -self.exponent
        # A share that is an integer on paper may come out just below it: the addend corrects that.
        shares = weights / weights.sum() * num_rows
        sizes: NDArray[np.int64] = np.floor(shares + 1e-9).astype(np.int64)
        sizes[: num_rows - sizes.sum()] += 1
        return sizes.clip(min=1) - donations(sizes, 1)
