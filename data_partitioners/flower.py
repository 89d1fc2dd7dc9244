"""Partitioners from the package flwr-datasets."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from data_partitioners._checks import check_dataset
from data_partitioners._randomness import generator
from data_partitioners.partition import Partition
from data_partitioners.partitioner import Partitioner

if TYPE_CHECKING:
    import datasets

_ROW = "__row_number__"


@dataclass(frozen=True)
class FlowerPartitioner(Partitioner):
    r"""Use a partitioner from the package ``flwr-datasets``.

    $$\text{client } i \text{ holds the rows of the partition } i \text{ that it loads}$$

    The partitioner gets the data set with one more column, which numbers the rows. A copy of the
    partitioner is used, so that one object can serve several splits. It has a seed of its own: the
    one given to ``partition`` is checked but not used. The package itself is not imported.

    Args:
        partitioner: An object with ``dataset``, ``num_partitions`` and ``load_partition``, whose
            ``dataset`` has not been assigned yet. It is called once for each client, which suits
            thousands of clients, not millions.

    Raises:
        TypeError: ``partitioner`` is something else.
        ValueError: It has a data set already; or, from ``partition``, it gives a row to two
            clients, gives no rows to a client, or does not partition by rows.

    Example:
        >>> import datasets
        >>> class Halves:  # stands for flwr_datasets.partitioner.IidPartitioner(2)
        ...     dataset = None
        ...     num_partitions = 2
        ...
        ...     def load_partition(self, partition_id):
        ...         return self.dataset.shard(2, partition_id, contiguous=True)
        >>> six = datasets.Dataset.from_dict({"label": [0, 1, 2, 3, 4, 5]})
        >>> FlowerPartitioner(Halves()).partition(six)[1]
        array([3, 4, 5])
    """

    partitioner: Any

    def __post_init__(self) -> None:
        """Check the arguments."""
        # Not hasattr: without a data set, a property may raise any exception.
        missing = {"dataset", "num_partitions", "load_partition"}.difference(dir(self.partitioner))
        if missing or isinstance(self.partitioner, type):
            raise TypeError(
                f"partitioner={self.partitioner!r} lacks {sorted(missing) or 'an instance'}; "
                "give an object such as flwr_datasets.partitioner.IidPartitioner(num_partitions=10)"
            )
        try:
            assigned = self.partitioner.dataset
        except AttributeError:
            assigned = None
        if assigned is not None:
            raise ValueError(
                f"partitioner={self.partitioner!r} has a data set already; give a fresh one"
            )

    def partition(self, dataset: datasets.Dataset, seed: int = 0) -> Partition:
        """Return who holds which rows of ``dataset``."""
        generator(seed, "rows")
        name = type(self.partitioner).__name__
        flower = copy.deepcopy(self.partitioner)
        flower.dataset = _number_rows(check_dataset(dataset))
        owners = np.full(dataset.num_rows, -1, dtype=np.int64)
        for client_id in range(flower.num_partitions):
            part = flower.load_partition(client_id)
            if _ROW not in part.column_names:
                raise ValueError(
                    f"{name} gave client {client_id} the columns {part.column_names} without the "
                    "rows' numbers; partitioners that share columns cannot be used"
                )
            rows = part.select_columns([_ROW]).with_format("arrow")[:].column(_ROW).to_numpy()
            if not len(rows):
                raise ValueError(
                    f"{name} gave client {client_id} of {flower.num_partitions} no rows; "
                    "raise its least partition size or give fewer partitions"
                )
            taken = rows[owners[rows] >= 0]
            if len(taken) or len(np.unique(rows)) < len(rows):
                raise ValueError(
                    f"{name} gave client {client_id} rows that are held already, {len(taken)} of "
                    "them by other clients; shares must be disjoint"
                )
            owners[rows] = client_id
        return Partition.from_owners(
            owners, flower.num_partitions, unused_reason=f"{name} gave them to nobody"
        )


def _number_rows(dataset: datasets.Dataset) -> datasets.Dataset:
    import datasets

    # Not dataset.add_column: after a select it would write the rows to a cache file.
    table = dataset.with_format("arrow")[:]
    features = {**dataset.features, _ROW: datasets.Value("int64")}
    return datasets.Dataset(
        table.append_column(_ROW, [np.arange(len(dataset))]),
        info=datasets.DatasetInfo(features=datasets.Features(features)),
    )
