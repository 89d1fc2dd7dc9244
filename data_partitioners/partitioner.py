"""The base class of all partitioners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from data_partitioners.partition import Partition

if TYPE_CHECKING:
    import datasets


class Partitioner(ABC):
    r"""Decides which client holds which rows of a data set.

    $$(\text{data set}, \text{seed}) \mapsto \text{partition}$$

    A partitioner is a value: its arguments are checked at construction and never change. The same
    data set and seed give the same partition on every machine. The global random state is neither
    read nor changed.

    Example:
        >>> import datasets, numpy as np
        >>> class EvenOdd(Partitioner):
        ...     def partition(self, dataset, seed=0):
        ...         return Partition.from_owners(np.arange(len(dataset)) % 2, 2)
        >>> EvenOdd().partition(datasets.Dataset.from_dict({"x": [1, 2, 3]}))[0]
        array([0, 2])
    """

    @abstractmethod
    def partition(self, dataset: datasets.Dataset, seed: int = 0) -> Partition:
        """Return who holds which rows of ``dataset``.

        Args:
            dataset: One split of a data set. A column that is needed is read once.
            seed: An integer >= 0.

        Returns:
            Disjoint shares, none of them empty. ``unused`` has the rows that no client holds, and
            ``unused_reason`` the reason.

        Raises:
            TypeError: ``dataset`` is not a data set, or ``seed`` not an integer.
            ValueError: The data set cannot be partitioned like this; the message has the numbers.
        """
