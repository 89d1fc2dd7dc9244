"""Who holds which rows: partitions of a data set among the clients of a federation.

Needs numpy and ``datasets`` only. A partitioner is a small frozen value whose one method
``partition(dataset, seed)`` gives a ``Partition``: flat row numbers and offsets.
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
