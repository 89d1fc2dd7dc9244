"""What every partitioner is."""

from abc import ABC, abstractmethod

import datasets

from data_partitioners.partition import Partition


class Partitioner(ABC):
    r"""Decides which client holds which rows of a data set.

    $$(\text{data set}, \text{seed}) \mapsto \text{partition}$$

    A partitioner is a value: its arguments are given at construction, checked there and never
    changed. The same data set and seed give the same partition on every machine; the global
    random state is neither read nor written.

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
            dataset: One split; a column that is needed is read once.
            seed: A whole number >= 0.

        Returns:
            Disjoint shares, none of them empty. Rows that nobody holds are in its ``unused``,
            with the reason.

        Raises:
            TypeError: ``dataset`` is no data set or ``seed`` no whole number.
            ValueError: The data set cannot be shared like this; the message has the numbers.
        """
