"""Clients that hold a few classes each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data_partitioners._checks import check_column_name, check_dataset, check_integer
from data_partitioners._columns import read_codes
from data_partitioners._randomness import generator
from data_partitioners.partition import Partition
from data_partitioners.partitioner import Partitioner

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class PathologicalPartitioner(Partitioner):
    r"""Give each client p distinct classes; the holders of a class share its rows equally.

    $$h_c \in \{\lfloor Mp/C \rfloor, \lceil Mp/C \rceil\} \text{ holders of class } c, \qquad
    n_{i,c} \in \{\lfloor n_c/h_c \rfloor, \lceil n_c/h_c \rceil\}$$

    M is the number of clients, C the number of classes, $n_c$ the rows of class c, and p the degree
    of heterogeneity: 1 is one class per client, C is nearly i.i.d.

    All C classes are used if M·p >= C; otherwise the rows of the classes that no client drew are
    unused. Clients have equal sizes if the classes do and $h_c$ divides $n_c$. Classes of unequal
    size (MNIST's training set has 5421 to 6742 rows per class) give clients of unequal size: no row
    is dropped to make them equal. Who holds which classes depends only on the seed, M, p and C, so
    each client has the same classes in the train and test splits.

    Source: Yang et al., [Anarchic Federated Learning](https://arxiv.org/abs/2108.09875), Appendix
    E.1. It follows the pathological case of McMahan et al., [Communication-Efficient Learning of
    Deep Networks from Decentralized Data](https://arxiv.org/abs/1602.05629), Section 3, where most
    clients hold two classes.

    Args:
        num_partitions: M, the number of clients.
        num_classes_per_partition: p, the number of classes that each client holds.
        partition_by: The column of labels.

    Raises:
        TypeError: An argument is of another type.
        ValueError: A number is below 1; or, from ``partition``, p exceeds the number of classes
            or a class has fewer rows than holders.

    Example:
        >>> import datasets
        >>> digits = datasets.Dataset.from_dict({"label": [0, 1, 2, 3] * 6})
        >>> partitioner = PathologicalPartitioner(num_partitions=4, num_classes_per_partition=2)
        >>> partition = partitioner.partition(digits, seed=0)
        >>> counts = partition.label_counts(digits)
        >>> (counts > 0).sum(axis=1), counts.sum(axis=0), partition.sizes
        (array([2, 2, 2, 2]), array([6, 6, 6, 6]), array([6, 6, 6, 6]))
    """

    num_partitions: int
    num_classes_per_partition: int
    partition_by: str = "label"

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_integer("num_partitions", self.num_partitions, 1)
        check_integer("num_classes_per_partition", self.num_classes_per_partition, 1)
        check_column_name("partition_by", self.partition_by)

    def partition(self, dataset: datasets.Dataset, seed: int = 0) -> Partition:
        """Return who holds which rows of ``dataset``."""
        codes, classes = read_codes(check_dataset(dataset), self.partition_by)
        if self.num_classes_per_partition > len(classes):
            raise ValueError(
                f"num_classes_per_partition={self.num_classes_per_partition} but column "
                f"{self.partition_by!r} has {len(classes)} classes; give at most that many"
            )
        deal = _deal(
            self.num_partitions,
            self.num_classes_per_partition,
            len(classes),
            generator(seed, "classes"),
        )
        # Rows in random order, then by class: the rows of each class are shuffled.
        order = generator(seed, "rows").permutation(len(codes))
        order = order[np.argsort(codes[order], kind="stable")]
        sizes = np.bincount(codes, minlength=len(classes))
        owners = np.full(len(codes), -1, dtype=np.int64)
        for label, rows in enumerate(np.split(order, np.cumsum(sizes)[:-1])):
            holders = deal[label]
            if len(holders) > len(rows):
                raise ValueError(
                    f"class {classes[label]!s} has {len(rows)} rows for {len(holders)} clients "
                    f"(num_partitions={self.num_partitions} times num_classes_per_partition="
                    f"{self.num_classes_per_partition}, over {len(classes)} classes); give fewer"
                )
            if len(holders):
                owners[rows] = np.resize(holders, len(rows))
        undrawn = [str(classes[label]) for label, holders in enumerate(deal) if not len(holders)]
        return Partition.from_owners(
            owners,
            self.num_partitions,
            unused_reason=f"{self.num_partitions * self.num_classes_per_partition} draws leave "
            f"{len(undrawn)} of {len(classes)} classes to nobody: "
            f"{', '.join(undrawn[:5])}{', ...' if len(undrawn) > 5 else ''}",
        )


def _deal(
    num_partitions: int, per_partition: int, num_classes: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return the holders of each class, in random order.

    The classes take turns in random order. At its turn a class draws its holders by weights and
    without replacement: the clients with the smallest exponential times, of rate
    need / (turns left - need). A client that needs every class that is left is certain to be drawn;
    one that needs none cannot be drawn. The numbers of holders differ by at most one, so there are
    never more certain clients than holders, and never fewer possible ones: no draw can fail.
    """
    slots = num_partitions * per_partition
    num_holders = np.full(num_classes, slots // num_classes)
    num_holders[rng.permutation(num_classes)[: slots % num_classes]] += 1
    deal = [np.empty(0, dtype=np.int64)] * num_classes
    needs = np.full(num_partitions, per_partition)
    turns = rng.permutation(np.flatnonzero(num_holders))
    for turn, label in enumerate(turns):
        with np.errstate(divide="ignore"):
            odds_against = (len(turns) - turn) / needs - 1
        times = rng.standard_exponential(num_partitions) * odds_against
        first = np.argpartition(times, num_holders[label] - 1)[: num_holders[label]]
        # Sorted before the shuffle, since numpy does not specify the order within argpartition.
        deal[label] = rng.permutation(np.sort(first))
        needs[first] -= 1
    return deal
