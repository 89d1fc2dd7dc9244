"""Partitions of a data set among the clients of a federation: who holds which rows.

The package needs numpy and ``datasets`` only. A partitioner is a small frozen dataclass. Its method
``partition(dataset, seed)`` returns a ``Partition``: flat row numbers and offsets.
"""

from data_partitioners.dirichlet import DirichletPartitioner
from data_partitioners.flower import FlowerPartitioner
from data_partitioners.iid import IidPartitioner
from data_partitioners.mixing import MixingPartitioner
from data_partitioners.natural_id import NaturalIdPartitioner
from data_partitioners.partition import Partition
from data_partitioners.partitioner import Partitioner
from data_partitioners.pathological import PathologicalPartitioner
from data_partitioners.quantity import QuantityPartitioner

__all__ = [
    "DirichletPartitioner",
    "FlowerPartitioner",
    "IidPartitioner",
    "MixingPartitioner",
    "NaturalIdPartitioner",
    "Partition",
    "Partitioner",
    "PathologicalPartitioner",
    "QuantityPartitioner",
]
