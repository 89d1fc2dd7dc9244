"""Label skew drawn from a Dirichlet distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data_partitioners._checks import (
    check_column_name,
    check_dataset,
    check_enough_rows,
    check_integer,
    check_real,
)
from data_partitioners._columns import read_codes
from data_partitioners._randomness import generator
from data_partitioners._sizes import donations
from data_partitioners.partition import Partition
from data_partitioners.partitioner import Partitioner

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class DirichletPartitioner(Partitioner):
    r"""Divide the rows of each class among the clients in Dirichlet-distributed proportions.

    $$q_c \sim \mathrm{Dir}_M(\alpha, \ldots, \alpha), \qquad n_{i,c} \approx q_{c,i} \, n_c$$

    Client i holds the share $q_{c,i}$ of the $n_c$ rows of class c.

    There is one draw and no retry. Clients with fewer than ``min_partition_size`` rows are filled
    up with random rows of the client that is largest at that moment, which works for any alpha. The
    proportions depend only on the seed, M, alpha and the number of classes, so the train and test
    splits get the same ones.

    Source: Hsu et al., [Measuring the Effects of Non-Identical Data Distribution for Federated
    Visual Classification](https://arxiv.org/abs/1909.06335), Section 3. The draw over the clients
    for each class, by which all rows are used, is that of Yurochkin et al., [Bayesian Nonparametric
    Federated Learning of Neural Networks](https://arxiv.org/abs/1905.12022).

    Args:
        num_partitions: M, the number of clients.
        alpha: Concentration > 0; small values are skewed, large ones nearly i.i.d.
        partition_by: The column of labels.
        min_partition_size: Smallest number of rows of a client.

    Raises:
        TypeError: An argument is of another type.
        ValueError: A number is out of range; or, from ``partition``, there are fewer rows than
            ``num_partitions * min_partition_size``.

    Example:
        >>> import datasets
        >>> digits = datasets.Dataset.from_dict({"label": list(range(10)) * 100})
        >>> partition = DirichletPartitioner(num_partitions=50, alpha=0.01).partition(digits)
        >>> len(partition), int(partition.sizes.min()), int(partition.sizes.sum())
        (50, 1, 1000)
    """

    num_partitions: int
    alpha: float
    partition_by: str = "label"
    min_partition_size: int = 1

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_integer("num_partitions", self.num_partitions, 1)
        if check_real("alpha", self.alpha) <= 0:
            raise ValueError(f"alpha={self.alpha} is no concentration; give a number > 0")
        check_column_name("partition_by", self.partition_by)
        check_integer("min_partition_size", self.min_partition_size, 1)

    def partition(self, dataset: datasets.Dataset, seed: int = 0) -> Partition:
        """Return who holds which rows of ``dataset``."""
        codes, classes = read_codes(check_dataset(dataset), self.partition_by)
        check_enough_rows(self.num_partitions, len(codes), self.min_partition_size)
        rng, proportions_rng = generator(seed, "rows"), generator(seed, "proportions")
        # Rows in random order, then by class: the rows of each class are shuffled.
        order = rng.permutation(len(codes))
        order = order[np.argsort(codes[order], kind="stable")]
        owners = np.empty(len(codes), dtype=np.int64)
        start = 0
        for size in np.bincount(codes, minlength=len(classes)):
            shares = np.cumsum(_draw_dirichlet(self.alpha, self.num_partitions, proportions_rng))
            # The ends are rounded, not the shares, so that the last end is exactly all rows.
            ends = np.rint(shares / shares[-1] * size).astype(np.int64)
            owners[order[start : start + size]] = np.repeat(
                np.arange(self.num_partitions), np.diff(ends, prepend=0)
            )
            start += size
        self._fill_up(owners, rng)
        return Partition.from_owners(owners, self.num_partitions)

    def _fill_up(self, owners: NDArray[np.int64], rng: np.random.Generator) -> None:
        """Move rows from the largest clients to those that are too small, in place."""
        sizes = np.bincount(owners, minlength=self.num_partitions)
        given = donations(sizes, self.min_partition_size)
        order = rng.permutation(len(owners))
        order = order[np.argsort(owners[order], kind="stable")]
        position = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        moved = order[position < np.repeat(given, sizes)]
        needs = np.maximum(self.min_partition_size - sizes, 0)
        owners[moved] = np.repeat(np.arange(self.num_partitions), needs)


def _draw_dirichlet(alpha: float, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw from a symmetric Dirichlet distribution for any alpha.

    A small alpha would make all Gamma variables 0, and their ratios 0/0. Hence logarithms: a
    Gamma(alpha) variable is a Gamma(alpha + 1) variable times U^(1/alpha), and -log U is
    exponential. Only ratios count, so the largest U is taken as 1.
    """
    exponential = rng.standard_exponential(size)
    with np.errstate(over="ignore"):
        logs = np.log(rng.standard_gamma(alpha + 1, size)) - (
            (exponential - exponential.min()) / alpha
        )
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())
